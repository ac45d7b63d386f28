"""``sordino predict``: use a trained model on a new table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sordino import models
from sordino._base.errors import SordinoError
from sordino._base.files import write_atomically
from sordino.app.cli._console import say
from sordino.app.cli._output import MODEL


def predict(
    model: Annotated[
        Path, typer.Argument(metavar="model", help="A folder of `sordino train`, or its model.npz.")
    ],
    file: Annotated[
        Path, typer.Argument(metavar="file", help="The table to predict for: .csv or .parquet.")
    ],
    out_file: Annotated[
        Path | None, typer.Option("--out", help="Default: <file>-predictions.csv, beside the file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier file.")] = False,
) -> None:
    """Predict the target for the rows of a table.

    A prediction tells about the row it is made for; the model's guarantee is about its training data.
    """
    where = out_file or file.with_name(f"{file.stem.removesuffix('.csv')}-predictions.csv")
    if where.exists() and not force:
        raise SordinoError(f"{str(where)!r} exists already; choose another --out or add --force")

    fitted, target = models.load_model(model / MODEL if model.is_dir() else model)
    frame = models.read_table(file)
    table = predictions(fitted, target, frame)
    write_atomically(where, table.to_csv(index=False))
    say(f"wrote {where}: {len(table):,} predictions")


def predictions(model: Any, target: str, frame: Any) -> Any:
    """One row per row of `frame`: the prediction and, for classes, their probabilities."""
    import pandas as pd

    model.schema_.check_columns(frame)
    features = frame[list(model.schema_.names)]
    columns: dict[str, Any] = {target: model.predict(features)}
    if hasattr(model, "classes_"):
        shares = model.predict_proba(features)
        for i, label in enumerate(model.classes_):
            columns[f"probability of {label}"] = shares[:, i].round(6)
    return pd.DataFrame(columns)
