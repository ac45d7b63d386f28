"""Contributions: what a plan says about its stream, in numbers that are fixed before the run.

Each states the norm bound of one example's vector in every step, so that the sensitivity travels
with the stream; the per-step numbers its rule needs; what becomes of a constant gradient (the
signal, against which noise is judged); and how the noisy sums are turned back into a gradient
estimate: `keep` of the last estimate is carried over, ``G_t = keep_t G_{t-1} + (noisy sum)_t``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import (
    SordinoError,
    require_count,
    require_fraction,
    require_positive,
    shown,
)
from sordino._base.types import Json

if TYPE_CHECKING:
    from sordino.parts.contributions._rules import Rule

Array = NDArray[np.float64]
# "No clip" for the algorithms without privacy: nothing in float32 is longer.
NO_CLIP = 1e30
# Squares of numbers below 1e-19 vanish in float32; together, 10^12 of them are far below this clip.
LEAST_CLIP = 1e-9


@dataclass(frozen=True)
class Contribution(ABC):
    """What one example adds to the sum of one step; `clip` bounds a plain gradient of it."""

    clip: float
    kind: ClassVar[str]
    # Gradients of one example that a step evaluates.
    gradients: ClassVar[int] = 1
    # Vectors of the model's size that a step releases.
    channels: ClassVar[int] = 1
    # Whether some data set attains the bounds in all steps at once.
    bound_is_tight: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_clip("clip", self.clip)

    @abstractmethod
    def rule(self) -> Rule:
        """The rule that the engine evaluates; equal for equal structure, whatever the numbers."""

    def bounds(self, steps: int) -> Array:
        """Norm bound of one example's vector in each channel and step (channels, steps)."""
        return np.full((self.channels, steps), self.clip)

    def terms(self, steps: int) -> Mapping[str, Array]:
        """The rule's numbers for each step, each (steps,)."""
        return {"clip": np.full(steps, self.clip)}

    def carry_over(self, steps: int) -> Array:
        """Share of the last estimate that the next one keeps (steps,)."""
        return np.zeros(steps)

    @property
    def decay(self) -> float:
        """`keep` where it is constant after the first step."""
        return 0.0

    def signal(self, steps: int) -> Array:
        """What a constant gradient of norm `clip` contributes to channel 0, over `clip` (steps,)."""
        return np.ones(steps)

    def low_frequency_gain(self) -> float:
        """How much of slow noise reaches the iterates, against a plain gradient's (1).

        Noise in proportion to the bound is carried along by the recursion like the signal, but the
        signal of a constant gradient is smaller than the bound: S / (gamma C1) for two clips
        (papers/01, section 4).
        """
        late = self.stationary_from + 1
        return float(self.bounds(late)[0, -1] / (self.clip * self.signal(late)[-1]))

    @property
    def stationary_from(self) -> int:
        """First step from which the numbers no longer change."""
        return 1

    @abstractmethod
    def describe(self) -> str:
        """A short phrase for a plan's page."""

    def to_json(self) -> Json:
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class Gradient(Contribution):
    """The gradient, clipped."""

    kind: ClassVar[str] = "gradient"

    def rule(self) -> Rule:
        return rules().GradientRule()

    def describe(self) -> str:
        return f"each example adds its gradient, of norm at most {self.clip:g}"


@dataclass(frozen=True)
class Recursive(Contribution):
    """``clip(g(x_t) - decay g(x_{t-1}), C)``, estimate ``G_t = decay G_{t-1} + ...`` (papers/03 1.4)."""

    recursion: float
    kind: ClassVar[str] = "recursive"
    gradients: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if require_fraction("decay", self.recursion, closed=True) == 1:
            raise SordinoError("decay must be less than 1")

    def rule(self) -> Rule:
        return rules().RecursiveRule()

    def terms(self, steps: int) -> Mapping[str, Array]:
        return {**super().terms(steps), "now": np.ones(steps), "before": self.carry_over(steps)}

    def carry_over(self, steps: int) -> Array:
        return after_first(steps, self.recursion)

    @property
    def decay(self) -> float:
        return self.recursion

    def signal(self, steps: int) -> Array:
        return 1 - self.carry_over(steps)

    def describe(self) -> str:
        return (
            f"each example adds g(x_t) - {self.recursion:g} g(x_t-1), clipped together to norm "
            f"{self.clip:g}"
        )


@dataclass(frozen=True)
class TwoClip(Contribution):
    """``(1-gamma) clip(g - g_prev, C2) + gamma clip(g, C1)`` (papers/01 1.1).

    The bound is ``S = (1-gamma) C2 + gamma C1``, and C1 in the first step.
    """

    difference_clip: float
    gamma: float
    kind: ClassVar[str] = "two-clip"
    gradients: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_clip("difference_clip", self.difference_clip)
        require_positive("gamma", self.gamma, maximum=1.0)

    def rule(self) -> Rule:
        return rules().TwoClipRule()

    def bounds(self, steps: int) -> Array:
        keep = self.carry_over(steps)
        return (keep * self.difference_clip + (1 - keep) * self.clip)[None]

    def terms(self, steps: int) -> Mapping[str, Array]:
        return {
            **super().terms(steps),
            "difference_clip": np.full(steps, self.difference_clip),
            "keep": self.carry_over(steps),
            "fresh": 1 - self.carry_over(steps),
        }

    def carry_over(self, steps: int) -> Array:
        return after_first(steps, 1 - self.gamma)

    @property
    def decay(self) -> float:
        return 1 - self.gamma

    def signal(self, steps: int) -> Array:
        return 1 - self.carry_over(steps)

    def describe(self) -> str:
        return (
            f"each example adds {1 - self.gamma:g} of its gradient's change (norm at most "
            f"{self.difference_clip:g}) and {self.gamma:g} of its gradient (norm at most "
            f"{self.clip:g}): {self.bounds(2)[0, -1]:.4g} in all"
        )


@dataclass(frozen=True)
class GradientPair(Contribution):
    """The gradients at this point and at the last one, side by side. Not private: only STORM uses it."""

    kind: ClassVar[str] = "pair"
    gradients: ClassVar[int] = 2
    channels: ClassVar[int] = 2

    def rule(self) -> Rule:
        return rules().PairRule()

    def describe(self) -> str:
        return "each example adds its gradients at this point and at the last one"


@dataclass(frozen=True)
class Lagged(Contribution):
    """``(1-gamma) clip(g(x_t) - g(x_{t-B}), C2) + gamma g(x_t)``, the same batch an epoch ago.

    papers/00 1.3 and 5: g clipped to C1, plain in the first epoch. The bound ``C1`` (first epoch)
    then ``Cy = (1-gamma) C2 + gamma C1`` is valid for every loss but not attained in general: what
    C2 lets through has to come from gradients of norm C1.
    """

    difference_clip: float
    gamma: float
    lag: int
    kind: ClassVar[str] = "lagged"
    gradients: ClassVar[int] = 2
    bound_is_tight: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_clip("difference_clip", self.difference_clip)
        require_positive("gamma", self.gamma, maximum=1.0)
        require_count("lag", self.lag)

    def rule(self) -> Rule:
        return rules().LaggedRule(self.lag)

    @property
    def stationary_from(self) -> int:
        return self.lag

    def bounds(self, steps: int) -> Array:
        share = self._share(steps)
        return (share * self.difference_clip + (1 - share) * self.clip)[None]

    def terms(self, steps: int) -> Mapping[str, Array]:
        return {
            **super().terms(steps),
            "difference_clip": np.full(steps, self.difference_clip),
            "keep": self._share(steps),
            "fresh": 1 - self._share(steps),
        }

    def _share(self, steps: int) -> Array:
        """Weight of the difference: 0 in the first epoch."""
        return np.where(np.arange(steps) < self.lag, 0.0, 1 - self.gamma)

    def signal(self, steps: int) -> Array:
        return 1 - self._share(steps)

    def describe(self) -> str:
        return (
            f"each example adds its gradient (norm at most {self.clip:g}) in the first epoch, then "
            f"{1 - self.gamma:g} of its change since the last epoch (norm at most "
            f"{self.difference_clip:g}) and {self.gamma:g} of itself"
        )


@dataclass(frozen=True)
class Anchored(Lagged):
    """The lagged difference between the epochs' first points, and the rest in a second channel."""

    residual_clip: float
    kind: ClassVar[str] = "anchored"
    gradients: ClassVar[int] = 3
    channels: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_clip("residual_clip", self.residual_clip)

    def rule(self) -> Rule:
        return rules().AnchoredRule(self.lag)

    def bounds(self, steps: int) -> Array:
        return np.concatenate([super().bounds(steps), np.full((1, steps), self.residual_clip)])

    def terms(self, steps: int) -> Mapping[str, Array]:
        return {**super().terms(steps), "residual_clip": np.full(steps, self.residual_clip)}

    def describe(self) -> str:
        return (
            f"{super().describe()}, both taken at the first point of the epoch; and what its "
            f"gradient changed since then (norm at most {self.residual_clip:g})"
        )


def require_clip(name: str, value: float) -> float:
    """`value` as a float if float32 vectors can be held to it."""
    clip = require_positive(name, value)
    if clip < LEAST_CLIP:
        raise SordinoError(
            f"{name} must be at least {LEAST_CLIP:g}, got {shown(value)}: shorter vectors have no norm "
            "in float32; multiply the loss and the clip by the same number"
        )
    return clip


def rules() -> ModuleType:
    """The rules' module: it needs jax, which tables of recipes and cached comparisons do not."""
    from sordino.parts.contributions import _rules as rules

    return rules


def after_first(steps: int, value: float) -> Array:
    """0 in the first step, then `value`."""
    return np.where(np.arange(steps) == 0, 0.0, value)
