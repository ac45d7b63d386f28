"""Which data sets are there: found out before anything runs, so that an hour is not lost for a file."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.lab.data import DATA
from sordino import SordinoError
from sordino._base.errors import require_choice


def absent(names: Iterable[str], folder: str | None) -> dict[str, str]:
    """The data sets that cannot be read, each with the sentence that says why."""
    result = {}
    for name in sorted({name for name in names if name}):
        load = DATA[require_choice("data", name, DATA)]
        try:
            load(folder, verify=False)
        except SordinoError as error:
            result[name] = str(error)
    return result
