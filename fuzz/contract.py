"""What a reader of foreign bytes must keep to, whatever the bytes are.

It returns something usable, or it raises a `SordinoError` whose message is one clear sentence: one line
of printable characters, not too long, that names the file, shows no internals of the program, and quotes
nothing of a private table but the names of its columns. It writes nothing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sordino._base.errors import SordinoError

if TYPE_CHECKING:
    from fuzz.readers import Reader

LONGEST_MESSAGE = 400
# A shared run of this many characters is a quotation, a shorter one an accident.
QUOTATION = 8
# What a message looks like that was made for a programmer: a repr of an exception or of an object.
INTERNALS = re.compile(
    r"Traceback|\w+(Error|Exception|Exit)\(|<class |<function|object at 0x|0x[0-9a-f]{8}|site-packages|"
    r"__\w+__|\bdtype\(|sys\.set_int|line \d+, in "
)
# What stands in quotes is the file's, not the program's.
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


class BrokenContractError(AssertionError):
    """A reader did something else than to read or to refuse in one sentence."""


def attempt(reader: Reader, path: Path, content: bytes) -> str | None:
    """Read `path`, which holds `content`: None if it was read, else the sentence it was refused with."""
    try:
        found = reader.read(path)
    except SordinoError as error:
        message = str(error)
        check_sentence(message, path)
        if reader.private:
            check_discreet(message, path, content)
        return message
    reader.check(found)
    return None


def check_sentence(message: str, path: Path) -> None:
    """Raise unless the message is one clear sentence about the file."""
    wrong = (
        "is empty"
        if not message.strip()
        else "has more than one line"
        if len(message.splitlines()) != 1
        else "holds characters that cannot be printed"
        if not message.isprintable()
        else "is too long"
        if len(message) - len(str(path)) > LONGEST_MESSAGE
        else "does not name the file"
        if path.name not in message
        else "shows internals"
        if INTERNALS.search(QUOTED.sub("''", message))
        else None
    )
    if wrong:
        raise BrokenContractError(f"a message {wrong}: {message[:600]!r}")


def check_discreet(message: str, path: Path, content: bytes) -> None:
    """Raise if the message quotes the rows of a table (its first line, the header, is public)."""
    _, _, rows = content.partition(b"\n")
    said = message.replace(str(path), "\0")
    for at in range(len(said) - QUOTATION + 1):
        piece = said[at : at + QUOTATION]
        if "\0" not in piece and piece.isalnum() and piece.encode() in rows:
            raise BrokenContractError(
                f"a message quotes {piece!r} from the table: {message[:600]!r}"
            )
