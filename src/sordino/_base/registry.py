"""Things that are known by name, the library's and those that other packages bring.

    RECIPES: Registry[Recipe] = Registry("recipe", group="sordino.recipes")
    RECIPES.add("dp-mine", recipe)
    RECIPES["dp-mine"]

A package adds one without being imported first, by an entry point in its ``pyproject.toml``::

    [project.entry-points."sordino.recipes"]
    dp-theirs = "theirs:RECIPE"
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from sordino._base.errors import SordinoError, nearest, one_line, shown

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A table from names to things of one sort; a name that is taken stays taken.

    Entry points are loaded at the first name that is not known, or when all names are asked for. One
    that fails costs a warning, and an error where its name is asked for; the others are not affected.
    """

    def __init__(
        self,
        what: str,
        *,
        group: str | None = None,
        admit: Callable[[str, Any], T] | None = None,
    ) -> None:
        """A table without entries.

        Args:
          what: what an entry is, for messages: "recipe".
          group: the entry points that belong here.
          admit: makes an entry of what is added, or refuses it with a `SordinoError`.
        """
        self._what, self._group, self._admit = what, group, admit
        self._items: dict[str, T] = {}
        self._failed: dict[str, str] = {}
        self._loaded = False

    def add(self, name: str, item: Any) -> T:
        """Enter `item`; the entry that it became."""
        if name in self._items:
            raise SordinoError(f"there is another {self._what} called {name!r} already")
        entry: T = item if self._admit is None else self._admit(name, item)
        self._items[name] = entry
        return entry

    def __getitem__(self, name: str) -> T:
        if isinstance(name, str):
            if name not in self._items:
                self._load()
            if name in self._items:
                return self._items[name]
            if name in self._failed:
                raise UnknownNameError(self._failed[name])
        hint = nearest(name if isinstance(name, str) else "", self._items)
        raise UnknownNameError(f"there is no {self._what} {shown(name)}{hint}")

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if name not in self._items:
            self._load()
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def names(self) -> tuple[str, ...]:
        """All names, the library's first."""
        self._load()
        return tuple(self._items)

    @contextmanager
    def temporary(self) -> Iterator[None]:
        """What is added inside is gone afterwards."""
        items, failed, loaded = dict(self._items), dict(self._failed), self._loaded
        try:
            yield
        finally:
            self._items, self._failed, self._loaded = items, failed, loaded

    def _load(self) -> None:
        if self._loaded or self._group is None:
            return
        self._loaded = True
        from importlib.metadata import entry_points

        for point in entry_points(group=self._group):
            try:
                self.add(point.name, point.load())
            except Exception as error:
                owner = f" of the package {point.dist.name}" if point.dist is not None else ""
                reason = one_line(error) or type(error).__name__
                who = f"the {self._what} {point.name!r}{owner}"
                sentence = f"{who} cannot be used ({point.value}): {reason}"
                self._failed[point.name] = sentence
                warnings.warn(sentence, UserWarning, stacklevel=2)


class UnknownNameError(SordinoError, KeyError):
    """No entry of this name; a `KeyError` too, so that `Mapping.get` answers with its default."""

    def __str__(self) -> str:
        return str(self.args[0])
