"""What tasks use outside the package: programs of a checkout, and environments of other libraries."""

from __future__ import annotations

import os
from pathlib import Path

from sordino import SordinoError

# Where the environments of other libraries are (benchmarks/peers/README.md), unless in `.bench`.
PEERS_VARIABLE, PEERS_FOLDER = "SORDINO_PEERS", ".bench"


def checkout(*program: str) -> Path:
    """The checkout that has ``benchmarks/PROGRAM``: here, or where this package was installed from."""
    for root in (Path.cwd(), Path(__file__).parents[3]):
        if root.joinpath("benchmarks", *program).is_file():
            return root
    wanted = "/".join(("benchmarks", *program))
    raise SordinoError(f"this experiment needs {wanted}: run it in a checkout of Sordino")


def environments(root: Path) -> Path:
    """The folder of the other libraries' environments."""
    return Path(os.environ.get(PEERS_VARIABLE) or root / PEERS_FOLDER)
