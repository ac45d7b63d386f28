"""Python processes that this one starts find the same installed code, and nothing that merely lies around.

    subprocess.Popen(python_module("sordino.together.secure._mpyc"), env=clean_environment())

Python puts the working folder first on the path of ``python -m``: a file of a library's name that lies
there (in a downloads folder, say) would be run. ``-P`` leaves it out; so does `clean_environment` where
PYTHONPATH has an empty part, which also means the working folder. `stopping` is how a process that runs for
long ends: when it is asked to, and in good order.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import sordino

_VARIABLE = "PYTHONPATH"


def python_module(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this installation."""
    return [sys.executable, "-P", "-m", module, *arguments]


def clean_environment(*folders: Path) -> dict[str, str]:
    """This process's variables, with a PYTHONPATH that does not lead to the working folder.

    The folder that Sordino itself was imported from stays, whichever it is.

    Args:
      folders: more of them, for what the user has named.
    """
    here, own = Path.cwd(), Path(sordino.__file__).resolve().parents[1]
    given = [Path(part) for part in os.environ.get(_VARIABLE, "").split(os.pathsep) if part]
    kept = [path.resolve() for path in given]
    kept = [path for path in kept if path == own or path != here]
    kept += [Path(folder).resolve() for folder in folders]
    built = {name: value for name, value in os.environ.items() if name != _VARIABLE}
    if kept:
        built[_VARIABLE] = os.pathsep.join(str(path) for path in dict.fromkeys(kept))
    return built


@contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGINT and SIGTERM; a second signal interrupts whatever is going on.

    Only a process's main thread can listen to signals; in any other one this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
