"""The schedules of papers/04, as plans hold them: each a few public numbers and a phrase.

    Exponential(1.5)                                  safe without knowing anything
    Optimal(1.5)                                      the same belief, fitted to what a step costs
    Quadratic(eigenvalues=(0.1, 1.0), eta=1.0)        Hessian eigenvalues from public data
    Influence(log_q=estimate)                         an influence estimated on public data

Those that follow from an influence spend the budget as `allocate` does; on secret batches, whose steps
cost less, plans fit them to that cost instead (`subsampled_schedule`). Noise that is given as such
(`Exponential`, `FixedSchedule`, `ByParticipation`) is kept as it is, whatever the batches.

`ratio_cap` bounds the ratio between the largest and the least noise (2 unless set: clipped steps cannot
undo huge early noise); `separation` is the number of steps between two uses of one record where batches
come back in a fixed order, 1 where every record takes part in every step.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino._base.codec import load_json, save_json
from sordino._base.errors import SordinoError, require_count, require_positive
from sordino._base.types import Json
from sordino.parts.schedules import _influence as sequences
from sordino.parts.schedules._allocate import SAFE_RATIO, allocate
from sordino.parts.schedules._base import SCHEDULES as SCHEDULES
from sordino.parts.schedules._base import NoiseSchedule, make, normalized, numbers, plain, register
from sordino.parts.schedules._base import schedule_fields as schedule_fields
from sordino.parts.schedules._base import schedule_from_json as schedule_from_json

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class FromInfluence(NoiseSchedule):
    """Noise ``~ q_t^(-1/4)`` for an influence ``q_t`` (papers/04, Lemma 4.1)."""

    ratio_cap: float | None = SAFE_RATIO
    separation: int = 1

    def __post_init__(self) -> None:
        plain(self)
        if self.ratio_cap is not None and not 1 <= self.ratio_cap < math.inf:
            raise SordinoError(f"ratio_cap must be at least 1, got {self.ratio_cap!r}")
        require_count("separation", self.separation)
        self.log_influence(2)

    @abstractmethod
    def log_influence(self, steps: int) -> Array:
        """``log q_t``, t = 1..steps."""

    @abstractmethod
    def origin(self) -> str:
        """Where the influence comes from, as the end of a phrase."""

    def relative_noise(self, steps: int) -> Array:
        return _allocated(self, require_count("steps", steps))

    def describe(self) -> str:
        limit = "" if self.ratio_cap is None else f", levels at most {self.ratio_cap:g} times apart"
        return f"less noise where it hurts the result more, by {self.origin()}{limit}"


@lru_cache(maxsize=16)
def _allocated(schedule: FromInfluence, steps: int) -> Array:
    log_q = schedule.log_influence(steps)
    return normalized(
        allocate(log_q, 1.0, ratio_cap=schedule.ratio_cap, separation=schedule.separation)
    )


@register
@dataclass(frozen=True)
class Influence(FromInfluence):
    """An influence given as ``log q_t``, one per step: computed, or estimated on public data."""

    log_q: tuple[float, ...]
    kind: ClassVar[str] = "influence"

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_q", numbers("log_q", self.log_q))
        FromInfluence.__post_init__(self)

    def relative_noise(self, steps: int) -> Array:
        _require_length(len(self.log_q), steps)
        return super().relative_noise(steps)

    def log_influence(self, steps: int) -> Array:
        return np.asarray(self.log_q)

    def origin(self) -> str:
        return f"an influence given for each of {len(self.log_q):,} steps"


@register
@dataclass(frozen=True)
class GradientDescentPL(FromInfluence):
    """Influence ``gamma^(T-t)`` of gradient descent on a PL loss (papers/04 Eq. 7).

    gamma must belong to the learning rate in use: ``GradientDescentPL.at(mu=, M=, eta=)``.
    """

    gamma: float
    kind: ClassVar[str] = "gd-pl"

    @classmethod
    def at(cls, *, mu: float, M: float, eta: float) -> GradientDescentPL:
        """``gamma = 1 - 2 mu eta (1 - M eta / 2)``, with the default ratio cap."""
        first, last = sequences.gd_pl(mu, M, eta, 2)
        return cls(gamma=math.exp(first - last))

    def log_influence(self, steps: int) -> Array:
        return sequences.geometric(self.gamma, steps)

    def origin(self) -> str:
        return f"the convergence bound of gradient descent (gamma = {self.gamma:.6g})"


@register
@dataclass(frozen=True)
class Quadratic(FromInfluence):
    """Exact influence of gradient descent on a quadratic with these Hessian eigenvalues."""

    eigenvalues: tuple[float, ...]
    eta: float
    kind: ClassVar[str] = "quadratic"

    def __post_init__(self) -> None:
        object.__setattr__(self, "eigenvalues", numbers("eigenvalues", self.eigenvalues))
        FromInfluence.__post_init__(self)

    def log_influence(self, steps: int) -> Array:
        return sequences.quadratic(self.eigenvalues, self.eta, steps)

    def origin(self) -> str:
        return f"{len(self.eigenvalues):,} Hessian eigenvalues at learning rate {self.eta:g}"


@register
@dataclass(frozen=True)
class MomentumBound(FromInfluence):
    """Influence by the corrected convergence bound of bias-corrected momentum."""

    beta: float
    gamma: float
    kind: ClassVar[str] = "momentum-bound"

    def log_influence(self, steps: int) -> Array:
        return sequences.momentum_bound(self.beta, self.gamma, steps)

    def origin(self) -> str:
        return f"the convergence bound of momentum {self.beta:g} (gamma = {self.gamma:.6g})"


@register
@dataclass(frozen=True)
class MomentumQuadratic(FromInfluence):
    """Exact influence of bias-corrected momentum on a quadratic."""

    eigenvalues: tuple[float, ...]
    eta: float
    beta: float
    kind: ClassVar[str] = "momentum-quadratic"

    def __post_init__(self) -> None:
        object.__setattr__(self, "eigenvalues", numbers("eigenvalues", self.eigenvalues))
        FromInfluence.__post_init__(self)

    def log_influence(self, steps: int) -> Array:
        result = sequences.momentum_quadratic(self.eigenvalues, self.eta, self.beta, steps)
        return result.log_q

    def origin(self) -> str:
        return (
            f"{len(self.eigenvalues):,} Hessian eigenvalues at learning rate {self.eta:g} and "
            f"momentum {self.beta:g}"
        )


@register
@dataclass(frozen=True)
class ExpInfluence(FromInfluence):
    """Influence ``e^(kt)``."""

    k: float
    kind: ClassVar[str] = "exp-influence"

    def log_influence(self, steps: int) -> Array:
        return sequences.expinfl(self.k, steps)

    def origin(self) -> str:
        return f"an influence that grows by a factor e^{self.k:.4g} per step"


@register
@dataclass(frozen=True)
class MomExpInfluence(FromInfluence):
    """Influence ``c1 e^(-kt) + c2 e^(kt)``."""

    c1: float
    c2: float
    k: float
    kind: ClassVar[str] = "mom-exp-influence"

    def log_influence(self, steps: int) -> Array:
        return sequences.momexpinfl(self.c1, self.c2, self.k, steps)

    def origin(self) -> str:
        return (
            f"an influence that falls and rises by factors e^{self.k:.4g} per step (weights "
            f"{self.c1:.4g} and {self.c2:.4g})"
        )


@register
@dataclass(frozen=True)
class Exponential(NoiseSchedule):
    """Noise that falls exponentially, ``sigma_1 / sigma_T = ratio``: the safe default.

    If influence is flat after all, ratio 1.5 costs 5.6 % in the noise term (2: 17 %, 3: 47 %), and
    gains as much where it is right. More than 2 only with `allow_steep`.
    """

    ratio: float = 1.5
    allow_steep: bool = False
    separation: int = 1
    kind: ClassVar[str] = "exponential"

    def __post_init__(self) -> None:
        plain(self)
        if not 1 <= self.ratio < math.inf:
            raise SordinoError(
                f"the ratio of an exponential schedule is at least 1: {self.ratio!r}"
            )
        if self.ratio > SAFE_RATIO and not self.allow_steep:
            raise SordinoError(
                f"an exponential schedule with ratio {self.ratio:g} can be much worse than uniform "
                "noise; use at most 2, or set allow_steep=True"
            )
        require_count("separation", self.separation)

    def relative_noise(self, steps: int) -> Array:
        rise = np.linspace(0.0, 4 * math.log(self.ratio), require_count("steps", steps))
        return normalized(allocate(rise, 1.0, separation=self.separation))

    def describe(self) -> str:
        return f"exponentially falling noise, the first step's {self.ratio:g} times the last's"


@register
@dataclass(frozen=True)
class Optimal(FromInfluence):
    """The best noise if late steps matter more: by the influence for which full batches have `Exponential`.

    Under secret batches it is flatter than ``Exponential(ratio)``, or uniform where nothing is to be won:
    ratio 1.5 may well become 1.25. `Exponential` keeps its ratio, whatever it costs.
    """

    ratio: float = 1.5
    kind: ClassVar[str] = "optimal"

    def log_influence(self, steps: int) -> Array:
        return -4 * np.log(Exponential(self.ratio, allow_steep=True).relative_noise(steps))

    def origin(self) -> str:
        return (
            f"an influence whose best noise on full batches falls {self.ratio:g} times over the run"
        )


@register
@dataclass(frozen=True)
class FixedSchedule(NoiseSchedule):
    """Noise levels given one by one (only their ratios matter); `label` says where they come from."""

    sigmas: tuple[float, ...]
    label: str = "given noise levels"
    kind: ClassVar[str] = "given"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigmas", numbers("sigmas", self.sigmas))
        for sigma in self.sigmas:
            require_positive("a noise level", sigma, maximum=1e150)

    def relative_noise(self, steps: int) -> Array:
        _require_length(len(self.sigmas), steps)
        return normalized(self.sigmas)

    def describe(self) -> str:
        return f"{self.label}, {max(self.sigmas) / min(self.sigmas):.3g} times apart"


@register
@dataclass(frozen=True)
class ByParticipation(NoiseSchedule):
    """Noise ``~ sqrt(N)``, N the participations of a record so far (papers/02, algorithm 1).

    Valid for any number of participations with only a logarithm lost; where that number is known
    uniform noise is better.
    """

    steps_per_epoch: int
    kind: ClassVar[str] = "participation"

    def __post_init__(self) -> None:
        plain(self)
        require_count("steps_per_epoch", self.steps_per_epoch)

    def relative_noise(self, steps: int) -> Array:
        uses = 1 + np.arange(require_count("steps", steps)) // self.steps_per_epoch
        return normalized(np.sqrt(uses))

    def describe(self) -> str:
        return "noise that grows as the square root of how often a record has taken part"


def schedule_named(schedule: str | NoiseSchedule, steps: int, **parameters: Any) -> NoiseSchedule:
    """The schedule of this name with these parameters, checked to suit a run of `steps` steps.

    A ready `NoiseSchedule` is checked and returned. An influence may also be named by the `file` that
    ``sordino influence`` wrote; other parameters come before what is in it.

    >>> schedule_named("exponential", 100, ratio=1.8).describe()
    "exponentially falling noise, the first step's 1.8 times the last's"
    """
    if isinstance(schedule, NoiseSchedule):
        if parameters:
            raise SordinoError("parameters go with a schedule's name, not with a ready schedule")
        built = schedule
    else:
        if schedule == Influence.kind and "file" in parameters:
            parameters = read_influence(parameters.pop("file")) | parameters
        built = make(schedule, parameters)
    built.relative_noise(steps)
    return built


# A file with an influence: parameters of `Influence`, and how they were measured.
INFLUENCE_FORMAT, INFLUENCE_VERSION = "sordino-influence", 1


def write_influence(path: Path | str, schedule: Influence, about: Mapping[str, object]) -> None:
    """Write the influence behind a schedule, for plans like the one that it was measured with.

    Args:
      about: what else is worth knowing: how it was measured, and how certain it is.
    """
    own = {name: getattr(schedule, name) for name in _IN_FILE}
    save_json(path, {"format": INFLUENCE_FORMAT, "version": INFLUENCE_VERSION, **own, **about})


def read_influence(path: Path | str) -> Json:
    """The parameters of `Influence` in a file of `write_influence`."""
    return load_json(path, "an influence file", _parameters)


_IN_FILE = ("ratio_cap", "separation", "log_q")


def _parameters(data: object) -> Json:
    found = data if isinstance(data, dict) else {}
    if (found.get("format"), found.get("version")) != (INFLUENCE_FORMAT, INFLUENCE_VERSION):
        raise SordinoError("this is not an influence file as `sordino influence` writes it")
    missing = [name for name in _IN_FILE if name not in found]
    if missing:
        raise SordinoError(f"this influence file has no {missing[0]}")
    return {name: found[name] for name in _IN_FILE}


def _require_length(known: int, steps: int) -> None:
    if known != steps:
        raise SordinoError(f"this schedule is for {known:,} steps, not {steps:,}")
