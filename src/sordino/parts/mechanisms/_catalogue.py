"""Mechanisms by name, fitted to a workload and a participation rule."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from inspect import Parameter, signature
from typing import Any, get_type_hints

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
from sordino.parts.mechanisms._toeplitz import BLT, Banded, Independent, ToeplitzMechanism
from sordino.parts.mechanisms._tree import Tree, full_tree
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.parts.mechanisms.factorize._error import rmse
from sordino.parts.mechanisms.factorize._scaled import sampled_rmse, sampled_rows
from sordino.parts.mechanisms.factorize._toeplitz import inverse_coefficients
from sordino.privacy import FixedBatches, Participation, SinglePass, sensitivity

# Up to here the dense optimum for several epochs is found in seconds; beyond, BLT is close to it.
_AUTO_DENSE_STEPS = 256
# It takes longer for a map that is not Toeplitz.
_AUTO_DENSE_STEPS_OF_MAPS = 64
# Up to here the square root fits in memory; it is the best for one epoch's last iterates.
_AUTO_ROOT_STEPS = 1024
# Up to here sizes for each step are found in seconds; the second bounds steps x participations.
_AUTO_SCALED_STEPS = 8192
_AUTO_SCALED_USES = 1_000_000


def fit_mechanism(
    name: str,
    workload: LinearMap,
    participation: Participation,
    bands: int | None = None,
    **own: object,
) -> Mechanism:
    """The named mechanism with the least error of `workload` under `participation`.

    A pure function, so the last few results are kept: comparing learning rates or cross-validating
    plans a run once. Mechanisms that exist for Toeplitz workloads only ('blt', 'toeplitz') are
    fitted to the nearest one of another map. `own` are other arguments that this
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


# Beyond it, float32 rounds what earlier draws add up to by more than a thousandth of the fresh draw.
MOST_NOISE = 1e4


def check_noise_stays(mechanism: Mechanism) -> None:
    """Refuse a strategy whose inverse grows: fresh draws then drown in the rounding of earlier ones."""
    if not noise_per_draw(mechanism) <= MOST_NOISE:
        raise SordinoError(
            f"the noise of this {mechanism.kind} mechanism grows to more than {MOST_NOISE:g} times its "
            "fresh draws, which float32 then rounds away; use a strategy with a stable inverse"
        )


def noise_per_draw(mechanism: Mechanism) -> float:
    """The largest standard deviation of a step's noise over that of the fresh draw in it; at least 1."""
    if isinstance(mechanism, Phases | Parallel):
        return max(map(noise_per_draw, mechanism.parts))
    if isinstance(mechanism, ScaledDraws):
        return noise_per_draw(mechanism.inner) * float(
            mechanism.scales.max() / mechanism.scales.min()
        )
    if isinstance(mechanism, Dense):
        N = mechanism.noising.astype(np.float64)
        return float((np.linalg.norm(N, axis=1) / np.abs(np.diag(N))).max())
    if isinstance(mechanism, ToeplitzMechanism):
        c = mechanism.strategy_coefficients()
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.linalg.norm(inverse_coefficients(c, mechanism.steps)) * abs(c[0]))
    return 1.0


def automatic_names(workload: LinearMap, participation: Participation) -> tuple[str, ...]:
    """The mechanisms of which 'auto' takes the one with the least error.

    Beyond the short runs whose optimum is dense, only such as keep a handful of vectors.
    """
    steps, uses = participation.steps, participation.max_participations
    if uses == steps:
        return ("independent",)  # present in every step: nothing for correlation to gain
    fixed = isinstance(participation, FixedBatches | SinglePass)
    toeplitz = isinstance(workload, Workload)
    if toeplitz and fixed and uses == 1 and steps <= _AUTO_ROOT_STEPS:
        return ("toeplitz",)
    if fixed and steps <= (_AUTO_DENSE_STEPS if toeplitz else _AUTO_DENSE_STEPS_OF_MAPS):
        return ("dense",)
    stands_alone = not hasattr(workload, "nearest_toeplitz")
    plain = "leaky" if getattr(workload, "prefers_leaky", False) or stands_alone else "blt"
    quick = steps <= _AUTO_SCALED_STEPS and steps * uses <= _AUTO_SCALED_USES
    return (plain, "scaled-blt") if fixed and quick else (plain,)


def _automatic(workload: LinearMap, participation: Participation, **options: Any) -> Mechanism:
    names = automatic_names(workload, participation)
    fitted = [MECHANISMS[name](workload, participation, **options) for name in names]
    if len(fitted) == 1:
        return fitted[0]
    # Beyond the lengths at which errors are exact, all are judged by the same rows of the map.
    rows = (
        sampled_rows(workload, participation.steps)
        if participation.steps > LONGEST_MATRIX
        else None
    )

    def cost(mechanism: Mechanism) -> float:
        shift = sensitivity(mechanism.strategy(), participation).value
        if rows is not None and isinstance(mechanism, ToeplitzMechanism):
            c, norms = mechanism.strategy_coefficients(), mechanism.column_norms
            return shift * sampled_rmse(rows, c, norms)
        return shift * rmse(mechanism.workload_error(workload))

    return min(fitted, key=cost)


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


def _banded(workload: LinearMap, participation: Participation, bands: int | None) -> Banded:
    """Fitted to the map itself; plans with Toeplitz workloads stay as they were."""
    if not isinstance(workload, Workload) and isinstance(participation, FixedBatches | SinglePass):
        return Banded.scaled(workload, participation, bands)
    return Banded.optimized(_nearest_toeplitz("banded", workload), participation, bands)


# What each name is fitted by.
_OURS: dict[str, Callable[..., Mechanism]] = {
    "auto": _automatic,
    "independent": lambda w, p, **_: Independent(p.steps),
    "blt": lambda w, p, **_: BLT.optimized(_nearest_toeplitz("blt", w), p),
    "scaled-blt": lambda w, p, **_: BLT.scaled(w, p),
    "banded": lambda w, p, bands: _banded(w, p, bands),
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
