"""Entries that cannot be changed unnoticed: each is sealed over the one before it.

The seal of an entry is a keyed hash of the previous seal, its number and its text. The key lies in the
user's key folder, so whoever can write the file alone cannot make seals. How far the chain had got is
noted in the key folder after every write (`Witness`): a chain that ends earlier, or that took another
turn, is an older copy or was continued elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass
from pathlib import Path

from sordino._base.errors import SordinoError
from sordino._base.files import sync_folder

SEAL_BYTES = 32
START = bytes(SEAL_BYTES)
_HEAD = re.compile(r"([0-9]{12})-([0-9a-f]{64})")


def seal(key: bytes, before: bytes, number: int, text: str) -> bytes:
    """The keyed hash of entry `number`, over the one before it."""
    message = before + number.to_bytes(8, "big") + text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(
        message, key=key, digest_size=SEAL_BYTES, person=b"sordino-ledger"
    ).digest()


def same(one: bytes, other: bytes) -> bool:
    return hmac.compare_digest(one, other)


@dataclass(frozen=True)
class Witness:
    """How far a ledger's chain has got, kept apart from it.

    Each head is the *name* of an empty file, ``number-seal``. A writer adds its head, and then removes
    all but the two highest: the highest always stays, whatever order several writers come in, and no
    lock is needed. A head that a crash kept from being added, or from reaching the disk, only makes
    the witness lag behind; so it is not waited for.
    """

    folder: Path

    def heads(self) -> list[tuple[int, bytes]]:
        """All heads noted, in order; normally one."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SordinoError(
                f"the ledger's heads in {str(self.folder)!r} cannot be read: {error.strerror}"
            ) from None
        matches = (_HEAD.fullmatch(name) for name in names)
        return sorted((int(m[1]), bytes.fromhex(m[2])) for m in matches if m)

    def advance(self, number: int, head: bytes) -> None:
        """Note that the chain has got to entry `number`."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self._path(number, head), os.O_CREAT | os.O_WRONLY, 0o600))
            if number == 1:
                sync_folder(self.folder)
            for older in self.heads()[:-2]:
                self._path(*older).unlink(missing_ok=True)
        except OSError as error:
            raise SordinoError(
                f"the ledger's head cannot be noted in {str(self.folder)!r}: "
                f"{error.strerror or error}; what was reserved stays charged"
            ) from None

    def _path(self, number: int, head: bytes) -> Path:
        return self.folder / f"{number:012d}-{head.hex()}"
