"""A run's folder: all of it appears at once, or none."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino._files import write_atomically
from sordino._version import __version__
from sordino.errors import SordinoError

if TYPE_CHECKING:
    from sordino.report.measure import Comparison

MODEL, PLAN, REPORT, GUARANTEE = "model.npz", "plan.json", "report.html", "guarantee.json"
_FILES = {MODEL, PLAN, REPORT, GUARANTEE}


@contextmanager
def staged_folder(path: Path, *, force: bool) -> Iterator[Path]:
    """A folder to write into that takes the place of `path` when all went well.

    Made before the run, so that a place that cannot be written to is found out at no cost. An
    existing `path` is replaced only with `force`, and only if it holds nothing but a run's files.
    """
    check_free(path, force=force)
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield staging
        staging.chmod(0o755)
        if path.exists():
            retired = staging.with_name(staging.name + ".old")
            os.rename(path, retired)
            os.rename(staging, path)
            shutil.rmtree(retired)
        else:
            os.rename(staging, path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_free(path: Path, *, force: bool) -> None:
    """Refuse an output folder that exists already, or that holds other things than a run."""
    if not path.exists() and not path.is_symlink():
        return
    if not force:
        raise SordinoError(f"{str(path)!r} exists already; choose another --out or add --force")
    if not path.is_dir() or path.is_symlink():
        raise SordinoError(f"{str(path)!r} is not a folder; choose another --out")
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in _FILES)
    if others:
        raise SordinoError(
            f"{str(path)!r} holds other files, such as {others[0]!r}, and is not replaced; choose "
            "another --out"
        )


def write_run(
    folder: Path,
    model: Any,
    *,
    title: str,
    target: str,
    notes: Sequence[str],
    results: Comparison | None,
    date: str,
) -> None:
    """Write the released model, its plan, its guarantee and the report into `folder`."""
    from sordino.models.saved import model_bytes
    from sordino.report.html import write_report

    plan, guarantee = model.plan_, model.guarantee_
    write_atomically(folder / MODEL, model_bytes(model, target))
    plan.save(folder / PLAN)
    delta = guarantee.delta_hint
    stated: Mapping[str, Any] = {
        "sentence": guarantee.sentence(),
        "epsilon": None if delta is None else guarantee.epsilon(delta),
        "delta": delta,
        "guarantee": guarantee.to_json(),
        "notes": list(notes),
        "plan": plan.hash,
        "sordino": __version__,
        "date": date,
    }
    write_atomically(folder / GUARANTEE, json.dumps(stated, indent=1) + "\n")
    write_report(
        folder / REPORT,
        plan,
        guarantee=guarantee,
        title=title,
        history=model.history_,
        results=results,
        notes=notes,
        date=date,
    )
