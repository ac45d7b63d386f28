"""Turns of the engine `mask` on disk, for runs without a journal."""

from __future__ import annotations

import hmac
import json
from pathlib import Path

from sordino._base.errors import DAMAGE, SordinoError, one_line
from sordino._base.files import write_atomically

_FORMAT = 1


class TurnFile:
    """The last turn that a party may have sent anything for, in a small file of its own.

    Calling it with a turn and a digest returns when they are on disk, or raises if the turn is an earlier
    one, or the same one with another digest. One process at a time may use it.
    """

    def __init__(self, path: Path | str, session: str) -> None:
        self.path, self._session = Path(path), session
        self._last: tuple[int, str] | None = self._read()

    def _read(self) -> tuple[int, str] | None:
        try:
            body = json.loads(self.path.read_bytes())
            if body["version"] != _FORMAT or body["session"] != self._session:
                raise SordinoError(f"{str(self.path)!r} is of another session or version")
            return int(body["turn"]), str(body["digest"])
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SordinoError(
                f"cannot read {str(self.path)!r}: {one_line(error.strerror or error)}"
            ) from None
        except SordinoError:
            raise
        except DAMAGE:
            raise SordinoError(
                f"{str(self.path)!r} is damaged; without it no turn is known to be new"
            ) from None

    @property
    def last(self) -> int | None:
        """The last turn that was claimed."""
        return None if self._last is None else self._last[0]

    def __call__(self, turn: int, digest: bytes) -> None:
        if self._last is not None:
            last, known = self._last
            if turn < last:
                raise SordinoError(f"turn {turn} is over: turn {last} has been released")
            if turn == last:
                if not hmac.compare_digest(known, digest.hex()):
                    raise SordinoError(
                        f"turn {turn} has been released with another vector; a turn is never used twice"
                    )
                return
        body = {"version": _FORMAT, "session": self._session}
        text = json.dumps({**body, "turn": turn, "digest": digest.hex()})
        try:
            write_atomically(self.path, text, mode=0o600)
        except OSError as error:
            raise SordinoError(
                f"turn {turn} cannot be recorded, so nothing is sent: {one_line(error)}"
            ) from None
        self._last = turn, digest.hex()
