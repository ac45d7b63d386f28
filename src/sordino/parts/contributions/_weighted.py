"""Contributions whose numbers change from step to step: weights ``eta_t = (t+1)^k``, decays, clips.

Noise is in proportion to the bound of its step, so none of these sequences touches the guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from sordino._base.errors import (
    SordinoError,
    known_fields,
    require_fraction,
    require_positive,
    shown,
)
from sordino._base.registry import Registry
from sordino._base.types import Json
from sordino.parts.contributions._contributions import (
    Anchored,
    Array,
    Contribution,
    Gradient,
    GradientPair,
    Lagged,
    Recursive,
    TwoClip,
    require_clip,
    rules,
)

if TYPE_CHECKING:
    from sordino.parts.contributions._rules import Rule


# Weights (t+1)^k with a larger k leave float32 within a few thousand steps.
LARGEST_POWER = 4.0


def step_weights(power: float, steps: int) -> Array:
    """``eta_t = (t+1)^power`` (steps,)."""
    return np.arange(1.0, steps + 1) ** power


@dataclass(frozen=True)
class Weighted(Contribution):
    """A contribution of gradients with the weights ``eta_t = (t+1)^power`` of their steps."""

    power: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("power", self.power, maximum=LARGEST_POWER)

    def weights(self, steps: int) -> Array:
        """``eta_t`` (steps,)."""
        return step_weights(self.power, steps)

    def to_json(self) -> Json:
        """Without the power where it is 1: plans keep the identity that they had before there was one."""
        data = super().to_json()
        return {k: v for k, v in data.items() if k != "power" or v != 1}

    def _weight(self, t: str) -> str:
        return t if self.power == 1 else f"({t})^{self.power:g}"


@dataclass(frozen=True)
class WeightedGradient(Weighted):
    """``eta_t clip(g, C)``, bound ``eta_t C``: independent gradients for acceleration (papers/03 1.5).

    The noise of step t is in proportion to ``eta_t C``, so ``eta_t`` cancels in the guarantee.
    """

    kind: ClassVar[str] = "weighted-gradient"

    def rule(self) -> Rule:
        return rules().WeightedRule()

    def bounds(self, steps: int) -> Array:
        return (self.clip * self.weights(steps))[None]

    def terms(self, steps: int) -> Mapping[str, Array]:
        # clip(eta g, eta C) = eta clip(g, C): one clip, of what is added up.
        return {"clip": self.bounds(steps)[0], "now": self.weights(steps)}

    def signal(self, steps: int) -> Array:
        return self.weights(steps)

    def describe(self) -> str:
        eta = self._weight("t")
        return f"each example adds {eta} times its gradient, which has norm at most {self.clip:g}"


@dataclass(frozen=True)
class WeightedRecursive(Weighted):
    """``clip(eta_t g(x_t) - eta_{t-1} g(x_{t-1}), C)``, summed up (papers/02 1.1, papers/03 1.5)."""

    kind: ClassVar[str] = "weighted-recursive"
    gradients: ClassVar[int] = 2

    def rule(self) -> Rule:
        return rules().RecursiveRule()

    def terms(self, steps: int) -> Mapping[str, Array]:
        eta = self.weights(steps)
        before = np.concatenate([[0.0], eta[:-1]])
        return {**super().terms(steps), "now": eta, "before": before}

    def carry_over(self, steps: int) -> Array:
        return np.where(np.arange(steps) == 0, 0.0, 1.0)

    @property
    def decay(self) -> float:
        return 1.0

    def signal(self, steps: int) -> Array:
        # A constant gradient adds eta_t - eta_{t-1} times itself, as far as the clip lets it.
        return np.minimum(1.0, np.diff(self.weights(steps), prepend=0.0))

    def describe(self) -> str:
        now, before = self._weight("t"), self._weight("t-1" if self.power != 1 else "(t-1)")
        return (
            f"each example adds {now} g(x_t) - {before} g(x_t-1), clipped together to norm "
            f"{self.clip:g}"
        )


@dataclass(frozen=True)
class VaryingRecursive(Contribution):
    """``clip(g(x_t) - c_t g(x_{t-1}), C)``, estimate ``G_t = c_t G_{t-1} + ...`` (papers/03 1.4).

    `decays` has ``c_t`` for every step; the first is 0, as there is no gradient before it.
    """

    decays: tuple[float, ...]
    kind: ClassVar[str] = "varying-recursive"
    gradients: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        checked = tuple(require_fraction("every decay", c, closed=True) for c in self.decays)
        object.__setattr__(self, "decays", checked)
        if not checked or checked[0] != 0 or max(checked) >= 1:
            raise SordinoError(
                "decay takes a number for each step: 0 for the first, then less than 1"
            )

    def rule(self) -> Rule:
        return rules().RecursiveRule()

    def terms(self, steps: int) -> Mapping[str, Array]:
        return {**super().terms(steps), "now": np.ones(steps), "before": self.carry_over(steps)}

    def carry_over(self, steps: int) -> Array:
        return np.asarray(_first("decays", self.decays, steps))

    @property
    def decay(self) -> float:
        return max(self.decays)

    def signal(self, steps: int) -> Array:
        return 1 - self.carry_over(steps)

    @property
    def stationary_from(self) -> int:
        return max(0, len(self.decays) - 1)

    def low_frequency_gain(self) -> float:
        return float(1 / self.signal(len(self.decays))[-1])

    def describe(self) -> str:
        return (
            f"each example adds g(x_t) - c_t g(x_t-1), clipped together to norm {self.clip:g}; c_t from "
            f"{min(self.decays):g} to {self.decay:g}, given for each step"
        )


@dataclass(frozen=True)
class ClipSequence(Contribution):
    """``clip(g, C_t)`` with a clip for each step; `clip` is the largest of `clips`."""

    clips: tuple[float, ...]
    kind: ClassVar[str] = "clip-sequence"

    def __post_init__(self) -> None:
        super().__post_init__()
        clips = tuple(require_clip("every clip", clip) for clip in self.clips)
        object.__setattr__(self, "clips", clips)
        if not clips or max(clips) != self.clip:
            raise SordinoError("the clip of a sequence is the largest of its clips")

    def rule(self) -> Rule:
        return rules().GradientRule()

    def bounds(self, steps: int) -> Array:
        return np.asarray(_first("clips", self.clips, steps))[None]

    def terms(self, steps: int) -> Mapping[str, Array]:
        return {"clip": self.bounds(steps)[0]}

    def signal(self, steps: int) -> Array:
        return self.bounds(steps)[0] / self.clip

    @property
    def stationary_from(self) -> int:
        return max(0, len(self.clips) - 1)

    def low_frequency_gain(self) -> float:
        return 1.0

    def describe(self) -> str:
        return (
            f"each example adds its gradient, of norm at most {min(self.clips):g} to {self.clip:g}, "
            "given for each step"
        )


def _first(what: str, values: tuple[float, ...], steps: int) -> tuple[float, ...]:
    if len(values) < steps:
        raise SordinoError(f"{steps} steps need as many {what}, got {len(values)}")
    return values[:steps]


def given_steps(contribution: Contribution) -> int | None:
    """For how many steps a sequence was given; None where there is none."""
    if isinstance(contribution, VaryingRecursive):
        return len(contribution.decays)
    return len(contribution.clips) if isinstance(contribution, ClipSequence) else None


def _admit(kind: str, cls: object) -> type[Contribution]:
    if not (isinstance(cls, type) and issubclass(cls, Contribution) and is_dataclass(cls)):
        raise SordinoError(f"a contribution is a dataclass of Contribution, got {shown(cls)}")
    if cls.kind != kind:
        raise SordinoError(f"a contribution goes by its kind, {cls.kind!r}")
    return cls


CONTRIBUTIONS: Registry[type[Contribution]] = Registry("contribution", admit=_admit)
for _cls in (
    Gradient,
    ClipSequence,
    WeightedGradient,
    Recursive,
    VaryingRecursive,
    WeightedRecursive,
    TwoClip,
    GradientPair,
    Lagged,
    Anchored,
):
    CONTRIBUTIONS.add(_cls.kind, _cls)


def contribution_from_json(data: Json) -> Contribution:
    """The contribution that `to_json` described."""
    if not isinstance(data, dict):
        raise SordinoError(f"a contribution must be a table of fields, got {shown(data)}")
    given = dict(data)
    kind = given.pop("kind", "")
    cls = CONTRIBUTIONS[kind]
    return cls(**known_fields(f"a {kind} contribution", given, cls))
