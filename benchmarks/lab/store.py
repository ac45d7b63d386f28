"""Finished cells on disk: one JSON file each, there in full or not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sordino._base.files import write_atomically


class Keyed(Protocol):
    """What is stored by its key."""

    @property
    def key(self) -> str: ...

    @property
    def experiment(self) -> str: ...


@dataclass(frozen=True)
class Store:
    """The folder of finished cells."""

    folder: Path

    def path(self, experiment: str, key: str) -> Path:
        return self.folder / "cells" / experiment / f"{key}.json"

    def read(self, cell: Keyed) -> dict[str, Any] | None:
        """What is stored of a cell; None if it is not finished, or not whole."""
        try:
            result = json.loads(self.path(cell.experiment, cell.key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return result if isinstance(result, dict) and result.get("key") == cell.key else None

    def write(self, experiment: str, key: str, found: dict[str, Any]) -> None:
        """Store what was found; `key` is the one that it was asked for with."""
        path = self.path(experiment, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"key": key, **found}, indent=1) + "\n")
