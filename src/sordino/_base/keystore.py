"""Where secrets are kept: run keys and ledger keys, in the user's own data folder, never beside results.

    store = KeyStore()                          # $SORDINO_KEYS, or the platform's user data folder
    store.save("runs", identity, secret)        # 0600, in folders of 0700; never overwritten
    store.load("runs", identity)                # None if there is none

A secret is one file named for what it opens. Whoever has a run's key and its releases can subtract
the noise, so a file or a folder that others can open is refused, what a killed process left half
written is removed, and none is ever written twice. A lost key
makes a run unresumable, never leaky.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from dataclasses import dataclass, field
from pathlib import Path

from sordino._base.errors import SordinoError
from sordino._base.files import remove_leftovers, require_private, write_atomically, write_beside

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def user_data_folder() -> Path:
    """``$SORDINO_KEYS``, or ``sordino`` in the folder where the platform keeps a user's data."""
    if chosen := os.environ.get("SORDINO_KEYS"):
        return Path(chosen)
    if base := os.environ.get("XDG_DATA_HOME"):
        return Path(base) / "sordino"
    try:
        home = Path.home()
    except RuntimeError:
        raise SordinoError(
            "there is no home folder to keep keys in; name one with the variable SORDINO_KEYS"
        ) from None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home) / "sordino"
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "sordino"
    return home / ".local" / "share" / "sordino"


@dataclass(frozen=True)
class KeyStore:
    """Secrets in files of their own, by kind and name."""

    folder: Path = field(default_factory=user_data_folder)

    def path(self, kind: str, name: str) -> Path:
        """Where that secret is, or would be."""
        for part in (kind, name):
            if not _NAME.fullmatch(part):
                raise SordinoError(f"a key's name has letters, digits, '.', '_' and '-': {part!r}")
        return Path(self.folder) / kind / name

    def load(self, kind: str, name: str) -> bytes | None:
        """The secret, or None where there is none; an error if others could have read it."""
        path = self.path(kind, name)
        self._require_private(path)
        remove_leftovers(path.parent)
        try:
            secret = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SordinoError(
                f"the key {str(path)!r} cannot be read: {error.strerror or error}"
            ) from None
        return secret

    def _require_private(self, path: Path) -> None:
        """Refuse to read or write a secret that others could get at."""
        for folder in (Path(self.folder), path.parent):
            require_private(folder, "the key folder")
        require_private(path)

    def save(self, kind: str, name: str, secret: bytes) -> None:
        """Keep a new secret; the same one again is no change, another one under its name an error."""
        if not self._create(kind, name, secret) and self.load(kind, name) != secret:
            raise SordinoError(
                f"there is another key at {str(self.path(kind, name))!r}; keys are never overwritten"
            )

    def load_or_create(self, kind: str, name: str, size: int = 32) -> bytes:
        """The secret of that name, made from the system's entropy if there is none yet.

        Several processes that ask at once get the same one.
        """
        result = self.load(kind, name)
        if result is None:
            self._create(kind, name, secrets.token_bytes(size))
            result = self.load(kind, name)
        assert result is not None
        return result

    def first(self, kind: str, name: str, content: bytes) -> bytes:
        """What is kept under that name: `content`, or what another process has put there before."""
        if self._create(kind, name, content):
            return content
        result = self.load(kind, name)
        return b"" if result is None else result  # removed meanwhile: nobody's

    def replace(self, kind: str, name: str, secret: bytes) -> None:
        """Keep a secret in the place of an older one, for secrets that move on; all of it or nothing."""
        path = self.path(kind, name)
        try:
            self._make_folders(path)
            write_atomically(path, secret, mode=0o600)
        except OSError as error:
            raise SordinoError(
                f"the key {str(path)!r} cannot be kept: {error.strerror or error}; choose another "
                "folder with the variable SORDINO_KEYS"
            ) from None

    def _make_folders(self, path: Path) -> None:
        for folder in (Path(self.folder), path.parent):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._require_private(path)

    def remove(self, kind: str, name: str) -> None:
        """Forget a secret that is no longer needed; nothing happens where there is none."""
        self.path(kind, name).unlink(missing_ok=True)

    def _create(self, kind: str, name: str, secret: bytes) -> bool:
        """Write the file unless it exists; whole and synced before it has its name."""
        path = self.path(kind, name)
        try:
            self._make_folders(path)
            # Unlike a rename, a link fails where the name is taken.
            write_beside(path, secret, lambda temporary: os.link(temporary, path), mode=0o600)
        except FileExistsError:
            return False
        except OSError as error:
            raise SordinoError(
                f"the key {str(path)!r} cannot be kept: {error.strerror or error}; choose another "
                "folder with the variable SORDINO_KEYS"
            ) from None
        return True
