"""``sordino predict`` and ``sordino verify``: use a run's folder, and check that it belongs together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino import models, planning, privacy
from sordino._base.errors import SordinoError
from sordino._base.files import write_atomically
from sordino.app.cli._console import err, out, say
from sordino.app.cli._output import GUARANTEE, MODEL, PLAN, REPORT

if TYPE_CHECKING:
    from sordino.planning import Plan

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


def verify(
    folder: Annotated[Path, typer.Argument(metavar="folder", help="A folder of `sordino train`.")],
) -> None:
    """Check that model, plan, report and guarantee of a folder belong together."""
    if not folder.is_dir():
        raise SordinoError(f"there is no folder {str(folder)!r}")
    hashes, stated = models.recorded(folder), models.read_record(folder)
    if hashes is not None:
        for name in (MODEL, PLAN, REPORT):
            if name not in hashes:
                raise SordinoError(f"{GUARANTEE} records no hash for {name}; it was changed")
            if not (folder / name).is_file():
                raise SordinoError(f"there is no {name} in {str(folder)!r}")
            if models.digest((folder / name).read_bytes()) != hashes[name]:
                raise SordinoError(
                    f"{name} is not the file that {GUARANTEE} is about: it was exchanged or changed"
                )
    plan = planning.Plan.load(folder / PLAN)  # computes its guarantee anew
    if stated.get("plan") != plan.hash:
        raise SordinoError(f"{GUARANTEE} is about another plan than {PLAN}")
    _check_statement(stated, plan)
    if hashes is None:
        err().print(
            f"{GUARANTEE} records no hashes, as before version 0.5.1: whether model and report are "
            "the ones it is about cannot be told",
            soft_wrap=True,
        )
        out().print(f"{PLAN} gives the guarantee that {GUARANTEE} states", soft_wrap=True)
        return
    say(
        f"{MODEL}, {PLAN} and {REPORT} are the files that {GUARANTEE} is about, and the plan gives "
        f"the guarantee that it states.\n{_UNSIGNED}"
    )


def _check_statement(stated: Mapping[str, Any], plan: Plan) -> None:
    """Raise unless numbers and sentence are those of the plan's guarantee."""
    result = privacy.Guarantee.from_json(stated.get("guarantee", {}))
    delta = result.delta_hint
    reported = (stated.get("sentence"), stated.get("epsilon"), stated.get("delta"))
    right = (result.sentence(), None if delta is None else result.epsilon(delta), delta)
    # That the noise came from a seed is the run's own; all the rest is the plan's.
    if replace(result, insecure=False) != plan.guarantee or reported != right:
        raise SordinoError("guarantee.json states another guarantee than plan.json gives")
