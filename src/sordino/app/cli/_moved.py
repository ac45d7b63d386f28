"""Commands of 0.5 that are elsewhere now: each says where, for one release."""

from __future__ import annotations

from typing import Annotated

import typer

from sordino._base.errors import SordinoError

_Rest = Annotated[list[str] | None, typer.Argument(hidden=True)]


def bench(rest: _Rest = None) -> None:
    """Moved to the repository: python -m benchmarks run."""
    raise SordinoError(
        "the experiments are part of the repository, not of the package; in a checkout of it, run "
        "`python -m benchmarks run`"
    )


def calibration(rest: _Rest = None) -> None:
    """Moved to the repository: python -m benchmarks calibration."""
    raise SordinoError(
        "the papers' printed calibrations are part of the repository, not of the package; in a checkout "
        "of it, run `python -m benchmarks calibration`"
    )
