"""``sordino predict`` and ``sordino verify``: use a run's folder, and check that it belongs together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino import models
from sordino._base.errors import SordinoError
from sordino._base.files import write_atomically
from sordino.app.cli._console import err, out, say, say_error
from sordino.app.cli._output import GUARANTEE, PLAN

if TYPE_CHECKING:
    import pandas as pd

    from sordino.models import PrivateClassifier, PrivateRegressor

_UNSIGNED = (
    "This shows accidents and careless edits. Whoever can change these files can change the recorded "
    "hashes too, unless guarantee.json is signed or its hash published elsewhere."
)


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
    separator: Annotated[
        str | None, typer.Option(help="Of a CSV file. Default: as the header shows.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier file.")] = False,
) -> None:
    """Predict the target for the rows of a table.

    A prediction tells about the row it is made for; the model's guarantee is about its training data.
    """
    where = out_file or file.with_name(f"{file.stem.removesuffix('.csv')}-predictions.csv")
    if where.exists() and not force:
        raise SordinoError(f"{str(where)!r} exists already; choose another --out or add --force")

    fitted, target = models.load_model(model)
    schema = fitted.schema_
    if schema is not None and (schema.reads_cells or separator is not None):
        # As `sordino train` read its table: a row for each line, whatever is in it.
        frame = models.read_raw(file, separator)
    else:
        frame = models.read_table(file)
    table = predictions(fitted, target, frame)
    write_atomically(where, table.to_csv(index=False))
    say(f"wrote {where}: {len(table):,} predictions")


def predictions(
    model: PrivateClassifier | PrivateRegressor, target: str, frame: pd.DataFrame
) -> pd.DataFrame:
    """One row per row of `frame`: the prediction and, for classes, their probabilities."""
    import pandas as pd

    schema = model.schema_
    assert schema is not None
    schema.check_columns(frame)
    features = frame[list(schema.names)]
    columns: dict[str, object] = {target: model.predict(features)}
    if hasattr(model, "classes_"):
        shares = model.predict_proba(features)
        for i, label in enumerate(model.classes_):
            columns[f"probability of {label}"] = shares[:, i].round(6)
    return pd.DataFrame(columns)


# The exit code where a folder is not what its guarantee.json is about.
DIFFERS = 1


def verify(
    folder: Annotated[Path, typer.Argument(metavar="folder", help="A folder of `sordino train`.")],
) -> None:
    """Check that all files of a folder belong together and the plan gives the stated guarantee.

    Exits with code 1 and names the first difference, if there is one.
    """
    if not folder.is_dir():
        raise SordinoError(f"there is no folder {str(folder)!r}")
    try:
        files = models.verify_pack(folder)
    except SordinoError as difference:
        say_error(difference)
        raise typer.Exit(DIFFERS) from None
    if files is None:
        err().print(
            f"{GUARANTEE} records no hashes, as before version 0.5.1: whether model and report are "
            "the ones it is about cannot be told",
            soft_wrap=True,
        )
        out().print(f"{PLAN} gives the guarantee that {GUARANTEE} states", soft_wrap=True)
        return
    say(
        f"{', '.join(files[:-1])} and {files[-1]} are the files that {GUARANTEE} is about, and the plan "
        f"gives the guarantee that it states.\n{_UNSIGNED}"
    )
