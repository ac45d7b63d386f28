"""Entries that cannot be changed unnoticed: each is sealed over the one before it.

The seal of an entry is a keyed hash of the previous seal, its number and its text. The key lies in the
user's key folder, so whoever can write the file alone cannot make seals. How far the chain had got is
noted in the key folder after every write (`Witness`): a chain that ends earlier, or that took another
turn, is an older copy or was continued elsewhere. Where the ledger was kept is noted there too, so that a
file that is gone is missed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass
from pathlib import Path

from sordino._base.errors import SordinoError
from sordino._base.files import sync_folder, write_atomically
from sordino._base.keystore import KeyStore

KIND = "ledgers"
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


def witness_of(store: KeyStore, identity: str) -> Witness:
    return Witness(store.path(KIND, f"{identity}.heads"))


def _place(store: KeyStore, identity: str) -> Path:
    return store.path(KIND, f"{identity}.place")


def note_place(store: KeyStore, identity: str, where: Path) -> None:
    """Remember where the ledger is; of a copy, where the first one still is."""
    note = _place(store, identity)
    try:
        known = note.read_text(encoding="utf-8") if note.exists() else None
        if known == str(where) or (known is not None and Path(known).exists()):
            return
        write_atomically(note, str(where))
    except (OSError, UnicodeError) as error:
        raise SordinoError(
            f"the key folder {str(store.folder)!r} cannot be used: {error}"
        ) from None


def refuse_where_one_is_missing(where: Path, store: KeyStore) -> None:
    """An error if a ledger with entries was kept at this place and no file is there now."""
    if where.exists():
        return
    try:
        for note in Path(store.folder, KIND).glob("*.place"):
            if note.read_text(encoding="utf-8") != str(where):
                continue
            heads = witness_of(store, note.stem).heads()
            if heads and heads[-1][0] > 1:
                raise SordinoError(
                    f"a ledger with {heads[-1][0]} entries was kept at {str(where)!r} and is gone; put "
                    "it back: a new one there would forget what was spent"
                )
    except (OSError, UnicodeError) as error:
        raise SordinoError(
            f"the key folder {str(store.folder)!r} cannot be used: {error}"
        ) from None
