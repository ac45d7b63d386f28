"""What the key folder knows of a ledger: how far it had got, and where it was kept."""

from __future__ import annotations

from pathlib import Path

from sordino._base.errors import SordinoError
from sordino._base.files import write_atomically
from sordino._base.keystore import KeyStore
from sordino.engine.ledger._chain import Witness

KIND = "ledgers"


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
