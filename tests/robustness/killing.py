"""Processes that die at a chosen point: at the k-th thing they do to the disk, at once, no clean-up.

`points(work)` is how many such points there are; `die_at(k, work)` runs `work` in a child process that
ends with `os._exit` at point k. Points are every audit event of the file system (open, rename, mkdir,
remove, ...), and before, in the middle of and after each write and each sync.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any

DIED = 77
_EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "shutil.rmtree"}


class _Countdown:
    def __init__(self, left: int | None) -> None:
        self.left, self.passed = left, 0

    def __call__(self) -> None:
        self.passed += 1
        if self.left is not None and self.passed > self.left:
            os._exit(DIED)


class _DyingFile(io.FileIO):
    """Writes half, may die, writes the rest."""

    countdown: _Countdown

    def write(self, data: Any, /) -> int:
        half = len(data) // 2
        self.countdown()
        super().write(data[:half])
        self.countdown()
        super().write(data[half:])
        self.countdown()
        return len(data)


def _instrument(countdown: _Countdown) -> None:
    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS:
            countdown()

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            countdown()
            result = function(*arguments, **named)
            countdown()
            return result

        return call

    def fdopen(handle: int, mode: str = "r", *rest: Any, **named: Any) -> Any:
        file = _DyingFile(handle, mode)
        file.countdown = countdown
        return file

    os.fdopen = fdopen  # type: ignore[assignment]
    for name in ("fsync", "replace", "rename"):
        setattr(os, name, around(getattr(os, name)))
    sys.addaudithook(watch)


def _in_child(work: Callable[[], None], left: int | None, report: Callable[[int], None]) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        countdown = _Countdown(left)
        _instrument(countdown)
        work()
        report(countdown.passed)
        os._exit(0)
    finally:
        os._exit(1)  # never back into the test runner


def die_at(point: int, work: Callable[[], None]) -> int:
    """Exit code of a child that runs `work` and dies at `point`: DIED, or 0 if it came through."""
    return _in_child(work, point, lambda passed: None)


def points(work: Callable[[], None]) -> int:
    """How many points `work` passes when nothing happens to it."""
    reading, writing = os.pipe()
    code = _in_child(
        work, None, lambda passed: os.write(writing, passed.to_bytes(4, "big")) and None
    )
    os.close(writing)
    with open(reading, "rb") as pipe:
        passed = int.from_bytes(pipe.read(), "big")
    assert code == 0
    assert passed > 0
    return passed
