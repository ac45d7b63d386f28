"""A search without its training: what can be refused is refused, and all is said, before it is paid for.

What is said beforehand follows from the whole space of candidates. What trials say is not passed on: of a
secret number of trials only the best may be seen, and a warning of another one would show that there was
another.
"""

from __future__ import annotations

import itertools
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone, is_classifier
from sklearn.utils.validation import _num_samples

from sordino._base.errors import PrivacyWarning, SordinoError
from sordino.engine import compilation_cache
from sordino.models._checks import Features, Labels, Rows
from sordino.models._linear import Inspected, PrivateLinear, Public, checked_labels, checked_targets
from sordino.privacy import Guarantee

# What is declared about the data: it decides what of the data is refused, and what is warned about.
DECLARATIONS = ("classes", "feature_bounds", "categories", "target_bounds")

Params: TypeAlias = Mapping[str, Any]


@runtime_checkable
class Distribution(Protocol):
    """A distribution of values, as scipy's."""

    def rvs(self, *, random_state: np.random.RandomState) -> object: ...


Candidates: TypeAlias = Sequence[object] | Distribution


@dataclass(frozen=True)
class Said:
    """What a search has to say before it starts.

    Attributes:
      undeclared: what any of its candidates takes from the data.
      others: other warnings, each once, with their categories.
    """

    undeclared: list[str]
    others: list[tuple[str, type[Warning]]]


def members(space: Params) -> list[Params]:
    """Candidates that stand for a space: all declarations with each other, other values one by one.

    They are the same for every search of the space, and do not depend on what it draws.
    """
    lists = {name: _listed(name, values) for name, values in sorted(space.items())}
    first = {name: values[0] for name, values in lists.items()}
    declared = [name for name in lists if name in DECLARATIONS]
    result: list[Params] = [
        {**first, **dict(zip(declared, chosen, strict=True))}
        for chosen in itertools.product(*(lists[name] for name in declared))
    ]
    for name in lists.keys() - set(declared):
        result += [{**first, name: value} for value in lists[name][1:]]
    return result


def _listed(name: str, values: Candidates) -> list[object]:
    if not isinstance(values, Distribution):
        return list(values)
    if name in DECLARATIONS:
        raise SordinoError(
            f"the candidates for {name} must be a list: what a search declares about the data is known "
            "before it starts"
        )
    return [values.rvs(random_state=np.random.RandomState(0))]


@dataclass(frozen=True)
class Rehearsal:
    """A search of this estimator on this data.

    Attributes:
      trial: the estimator of a trial with these parameters on so many rows.
      check_price: refuses the guarantee of a trial that costs more than its share.
      public: the public data (X, y) that trials are scored on, if any.
    """

    estimator: PrivateLinear
    trial: Callable[[Params, int], PrivateLinear]
    check_price: Callable[[Guarantee], None]
    public: Public | None

    def whole(self, X: Features, y: ArrayLike, space: Iterable[Params]) -> tuple[Labels, Said]:
        """All rows are refused or not, whether they will be trained or scored on; y as (rows,)."""
        undeclared: dict[str, None] = {}
        data: Inspected | None = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for declared in _distinct(map(_declarations, space)):
                own = clone(self.estimator).set_params(**declared)
                data = own._inspect(X, y)
                data.prepare(data.X)
                undeclared |= dict.fromkeys(data.undeclared)
        assert data is not None
        others = dict.fromkeys((str(w.message), w.category) for w in caught)
        return data.targets, Said(list(undeclared), list(others))

    def trials(self, X: Rows, y: Labels, candidates: Sequence[Params]) -> NDArray[np.float32]:
        """What the trials are trained on, their plans and prices; the first candidate's rows."""
        known: dict[bytes, Inspected] = {}
        rows: NDArray[np.float32] | None = None
        with unsaid(), compilation_cache():
            for params in _distinct(candidates):
                model = self.trial(params, _num_samples(X))
                declared = _key(_declarations(params))
                if declared not in known:
                    known[declared] = data = model._inspect(X, y)
                    prepared = data.prepare(data.X)
                    rows = prepared if rows is None else rows
                    self._check_public(model, data)
                self.check_price(model._plan(_num_samples(X), known[declared].loss).guarantee)
        assert rows is not None
        return rows

    def _check_public(self, model: PrivateLinear, data: Inspected) -> None:
        if self.public is None:
            return
        _, y = model._public_rows(self.public, data.prepare)
        if is_classifier(model):
            checked_labels(y)
        else:
            checked_targets(y)


@contextmanager
def unsaid() -> Iterator[None]:
    """Nothing that is said inside is passed on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def said_once(*, privacy: bool) -> Iterator[None]:
    """Every trial has the same warnings; each is passed on once, those of privacy where asked for."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for text, category in dict.fromkeys((str(w.message), w.category) for w in caught):
        if privacy or not issubclass(category, PrivacyWarning):
            warnings.warn(text, category, stacklevel=4)


def _declarations(params: Params) -> Params:
    return {name: params[name] for name in DECLARATIONS if name in params}


def _distinct(candidates: Iterable[Params]) -> Iterator[Params]:
    return iter({_key(params): params for params in candidates}.values())


def _key(params: Params) -> bytes:
    return pickle.dumps(sorted(params.items(), key=lambda item: item[0]))
