"""Mechanisms by name, fitted to a workload and a participation rule."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from inspect import Parameter, signature
from typing import get_type_hints

import numpy as np

from sordino._base.errors import SordinoError, nearest
from sordino._base.types import Json
from sordino.parts.mechanisms._base import LONGEST_MATRIX, Mechanism
from sordino.parts.mechanisms._base import MECHANISMS as MECHANISMS
from sordino.parts.mechanisms._base import mechanism_from_json as mechanism_from_json
from sordino.parts.mechanisms._cancelling import Cancelling

# Not fitted by name, but known here, so that plans with them are read.
from sordino.parts.mechanisms._combined import Parallel as Parallel
from sordino.parts.mechanisms._combined import Phases as Phases
from sordino.parts.mechanisms._combined import ScaledDraws as ScaledDraws
from sordino.parts.mechanisms._dense import Dense
from sordino.parts.mechanisms._independent import Independent
from sordino.parts.mechanisms._toeplitz import BLT, Banded
from sordino.parts.mechanisms._tree import Tree, full_tree
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.privacy import FixedBatches, Participation, SinglePass

# Up to here the dense optimum for several epochs is found in seconds; beyond, BLT is close to it.
_AUTO_DENSE_STEPS = 256
# A map that is not Toeplitz has only stand-ins beyond the dense optimum, which may take longer.
_AUTO_DENSE_STEPS_OF_MAPS = 512
# Up to here the square root fits in memory; it is the best for one epoch's last iterates.
_AUTO_ROOT_STEPS = 1024


def fit_mechanism(
    name: str,
    workload: LinearMap,
    participation: Participation,
    bands: int | None = None,
    **own: object,
) -> Mechanism:
    """The named mechanism with the least error of `workload` under `participation`.

    A pure function, so the last few results are kept: comparing learning rates or cross-validating
    plans a run once. Mechanisms that exist for Toeplitz workloads only ('blt', 'banded',
    'toeplitz') are fitted to the nearest one of another map. `own` are other arguments that this
    mechanism's `fit` has.
    """
    known = mechanism_fields(name)  # an unknown name is refused before anything is fitted
    for field in own:
        if field not in known:
            hint = nearest(field, known) if known else ""
            raise SordinoError(f"mechanism {name!r} has no field {field!r}{hint}")
    settings = tuple(sorted({"bands": bands, **own}.items()))
    try:
        hash((workload, settings))
    except TypeError:
        return _fitted(name, workload, participation, settings)
    return _remembered(name, workload, participation, settings)


def mechanism_fields(name: str) -> Json:
    """What can be set of a mechanism beside its name, with types where they are known."""
    fit = MECHANISMS[name]
    named = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    try:
        hints = get_type_hints(fit)
    except (NameError, TypeError):  # of another package, not importable from here
        hints = {}
    # The first two are the workload and the participation.
    given = list(signature(fit).parameters.values())[2:]
    return {one.name: hints.get(one.name) for one in given if one.kind in named}


def _fitted(
    name: str,
    workload: LinearMap,
    participation: Participation,
    settings: tuple[tuple[str, object], ...],
) -> Mechanism:
    return MECHANISMS[name](workload, participation, **dict(settings))


_remembered = lru_cache(maxsize=32)(_fitted)


def automatic_name(workload: LinearMap, participation: Participation) -> str:
    """The mechanism that 'auto' stands for."""
    steps, uses = participation.steps, participation.max_participations
    if uses == steps:
        return "independent"  # a unit present in every step leaves nothing for correlation to gain
    fixed = isinstance(participation, FixedBatches | SinglePass)
    if isinstance(workload, Workload):
        if not fixed:
            return "blt"
        if uses == 1 and steps <= _AUTO_ROOT_STEPS:
            return "toeplitz"
        return "dense" if steps <= _AUTO_DENSE_STEPS else "blt"
    if fixed and steps <= _AUTO_DENSE_STEPS_OF_MAPS:
        return "dense"
    stands_alone = not hasattr(workload, "nearest_toeplitz")
    return "leaky" if getattr(workload, "prefers_leaky", False) or stands_alone else "blt"


def _decay(workload: LinearMap) -> float:
    """By how much the slowest accumulator of the workload decays in a step, where it says so."""
    if isinstance(workload, Workload):
        return Tree.matched(workload, 1).beta
    return float(np.float32(getattr(workload, "decay", 1.0)))


def _nearest_toeplitz(name: str, workload: LinearMap) -> Workload:
    if isinstance(workload, Workload):
        return workload
    nearest = getattr(workload, "nearest_toeplitz", None)
    if nearest is None:
        raise SordinoError(
            f"mechanism {name!r} is fitted to Toeplitz workloads, and this one is none; use "
            f"'dense' or 'leaky' (for up to {LONGEST_MATRIX:,} steps)"
        )
    return nearest()


# What each name is fitted by.
_OURS: dict[str, Callable[..., Mechanism]] = {
    "auto": lambda w, p, **options: MECHANISMS[automatic_name(w, p)](w, p, **options),
    "independent": lambda w, p, **_: Independent(p.steps),
    "blt": lambda w, p, **_: BLT.optimized(_nearest_toeplitz("blt", w), p),
    "banded": lambda w, p, bands: Banded.optimized(_nearest_toeplitz("banded", w), p, bands),
    "toeplitz": lambda w, p, **_: Dense.square_root(_nearest_toeplitz("toeplitz", w), p),
    "dense": lambda w, p, **_: Dense.optimized(w, p),
    "tree": lambda w, p, **_: Tree(p.steps, _decay(w)),
    "tree-full": lambda w, p, **_: full_tree(p.steps, _decay(w)),
    "cancelling": lambda _, p, **__: Cancelling(p.steps, 1.0),
    "leaky": lambda w, p, **_: Cancelling.leaky(w, p),
}
for _name, _fit in _OURS.items():
    MECHANISMS.add(_name, _fit)
NAMES = tuple(_OURS)
