"""A run's folder: all of it appears at once, or none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sordino import models
from sordino._base.errors import SordinoError
from sordino._base.files import write_atomically
from sordino.models import GUARANTEE as GUARANTEE
from sordino.models import MODEL as MODEL
from sordino.models import PLAN as PLAN
from sordino.models import REPORT as REPORT
from sordino.models import check_free as check_free
from sordino.models import staged_folder as staged_folder

if TYPE_CHECKING:
    import pandas as pd

    from sordino.models import PrivateClassifier, PrivateRegressor, Schema
    from sordino.report import ScoreTable


def write_tables(
    folder: Path, train: pd.DataFrame, test: pd.DataFrame, schema: Schema
) -> list[Path]:
    """Rows to train on, rows that are public, and what is public of both; a folder of its own."""
    contents = {
        folder / "people.csv": train.to_csv(index=False),
        folder / "public.csv": test.to_csv(index=False),
        folder / "schema.json": json.dumps(schema.to_json(), indent=1) + "\n",
    }
    others = sorted({*folder.iterdir()} - {*contents}) if folder.is_dir() else []
    if others:
        raise SordinoError(
            f"{str(folder)!r} holds other files, such as {others[0].name!r}; choose another --tables"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        write_atomically(path, content)
    return list(contents)


def write_run(
    folder: Path,
    model: PrivateClassifier | PrivateRegressor,
    *,
    title: str,
    target: str,
    notes: Sequence[str],
    results: ScoreTable | None,
    date: str,
    declared: bool = True,
) -> None:
    """Write the released model, its plan, its guarantee and the report into `folder`.

    `declared`: whether somebody said what is public of the table; if not, it was taken from the data.
    """
    facts = models.pack_facts(
        model,
        title=title,
        target=target,
        notes=notes,
        results=results,
        date=date,
        source=None if declared else models.TAKEN,
    )
    models.write_pack(folder, facts)
