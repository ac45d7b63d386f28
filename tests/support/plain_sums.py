"""The engine `plain`: sums in one process, with noise from one place. For tests: it protects nobody.

ends = plain_sums(3, key)                                   # one for each thread
total = noised_total(vectors, variance, generator)          # or all at once, without threads
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from sordino._base.errors import SordinoError, require_count, require_positive
from sordino.parts.mechanisms import ChaCha20Generator, discrete_gaussian
from sordino.together.secure._base import Integers, TrustAssumption


def noised_total(
    vectors: Sequence[Integers], variance: int, generator: ChaCha20Generator
) -> Integers:
    """The sum of whole-number vectors plus discrete Gaussian noise of exactly `variance`, int64 (d,)."""
    total: Integers = np.stack(vectors).sum(axis=0, dtype=np.int64)
    return total + discrete_gaussian(variance, len(total), generator)


class _Table:
    """Where the parties' threads meet."""

    def __init__(self, parties: int, key: bytes, timeout: float) -> None:
        self.parties, self.timeout = parties, timeout
        self._generator = ChaCha20Generator(key)
        self._changed = threading.Condition()
        self._calls: dict[int, tuple[Integers, int, int]] = {}
        self._total: Integers | None = None
        self._left = 0
        self._last = -1
        self._broken = ""

    def sum(self, place: int, values: Integers, variance: int, turn: int) -> Integers:
        with self._changed:
            # The last one of the round before may not have taken its sum yet.
            self._wait(lambda: self._total is None)
            self._calls[place] = (values, variance, turn)
            if len(self._calls) == self.parties:
                self._finish()
            self._wait(lambda: self._total is not None)
            assert self._total is not None
            total = self._total.copy()
            self._left -= 1
            if not self._left:
                self._total = None
                self._changed.notify_all()
            return total

    def _finish(self) -> None:
        calls = [self._calls[place] for place in sorted(self._calls)]
        self._calls = {}
        terms = {(len(values), variance, turn) for values, variance, turn in calls}
        if len(terms) > 1:
            self.stop("the parties want sums of different length, variance or turn")
            return
        ((_, variance, turn),) = terms
        if turn <= self._last:
            self.stop(f"turn {turn} is over: turn {self._last} has been released")
            return
        self._last = turn
        self._total = noised_total([values for values, _, _ in calls], variance, self._generator)
        self._left = self.parties
        self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: ready() or bool(self._broken), self.timeout)
        if ready():
            return
        self.stop(f"a party did not answer within {self.timeout:g} s")
        raise SordinoError(self._broken)

    def stop(self, reason: str) -> None:
        with self._changed:
            self._broken = self._broken or reason
            self._changed.notify_all()


class PlainSum:
    """One party's end; made by `plain_sums`, and used by one thread."""

    def __init__(self, table: _Table, place: int) -> None:
        self._table, self._place = table, place
        self._assumption = TrustAssumption("plain", table.parties, 0, 1, 0, False, "inside")

    @property
    def assumption(self) -> TrustAssumption:
        return self._assumption

    @property
    def bytes_sent(self) -> int:
        return 0

    def noised_sum(self, values: Integers, variance: int, turn: int) -> Integers:
        """See `SecureSum.noised_sum`."""
        return self._table.sum(self._place, np.asarray(values, np.int64), variance, turn)

    def close(self) -> None:
        self._table.stop("a party has closed its end")


def plain_sums(parties: int, key: bytes, *, timeout: float = 60.0) -> list[PlainSum]:
    """Ends for `parties` threads, with noise from one key."""
    require_count("parties", parties)
    require_positive("timeout", timeout)
    table = _Table(parties, key, timeout)
    return [PlainSum(table, place) for place in range(parties)]
