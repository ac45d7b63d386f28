"""A party's certificate and key in files, for tests and benchmarks without a site's folder."""

from __future__ import annotations

from pathlib import Path

from sordino._base.errors import SordinoError
from sordino._base.files import write_atomically
from sordino.together._certificates import new_certificate


def create_certificate(folder: Path, name: str, *, days: int = 825) -> tuple[Path, Path]:
    """Make a party's certificate and private key (0600); the paths of both.

    Raises:
      SordinoError: if the folder has one of that name already: the others know the party by it.
    """
    folder = Path(folder)
    certificate, key = new_certificate(name, days=days)
    paths = folder / f"{name}.crt", folder / f"{name}.key"
    for path in paths:
        if path.exists():
            raise SordinoError(f"{str(path)!r} exists already and is not replaced")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(paths[1], key, mode=0o600)
    write_atomically(paths[0], certificate)
    return paths
