"""How do people at a terminal meet it? The command ``sordino``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = ["main"]

if TYPE_CHECKING:
    from sordino.app.cli._console import err as err
    from sordino.app.cli._console import out as out
    from sordino.app.cli._main import CommandGroup as CommandGroup
    from sordino.app.cli._main import main as main
    from sordino.app.cli._main import run_app as run_app
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
