"""``sordino verify``: whether the files of a trained model belong together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino import models, planning, privacy
from sordino._base.errors import SordinoError
from sordino.app.cli._console import err, out, say
from sordino.app.cli._output import GUARANTEE, MODEL, PLAN, REPORT

if TYPE_CHECKING:
    from sordino.planning import Plan

_UNSIGNED = (
    "This shows accidents and careless edits. Whoever can change these files can change the recorded "
    "hashes too, unless guarantee.json is signed or its hash published elsewhere."
)


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
