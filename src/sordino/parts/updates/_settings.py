"""The public settings of a plan's update, the update they describe, and the map noise takes in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import optax
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, require_choice, require_fraction, require_positive
from sordino._base.types import PyTree
from sordino.parts.contributions._contributions import Contribution, GradientPair, Lagged
from sordino.parts.contributions._weighted import VaryingRecursive, Weighted
from sordino.parts.mechanisms import _maps as maps
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.parts.updates._base import Projected, Update
from sordino.parts.updates._descent import (
    TRANSFORMS,
    AdaptiveStep,
    AnytimeAverage,
    Descent,
    NesterovCoupling,
    Optax,
    RunningMeanDescent,
    Storm,
    named_transform,
)
from sordino.parts.updates._wrappers import (
    LaggedMomentumEstimate,
    RandomIterate,
    RecursiveEstimate,
    Regularized,
    TailAveraged,
)

# Optimizers that say themselves where gradients are evaluated, and need a weighted estimate.
COUPLED = ("nesterov", "anytime")
# Those whose estimate is of a gradient times the weight of its step.
WEIGHTED = (*COUPLED, "srg")
OPTIMIZERS = (*TRANSFORMS, "adaptive", *WEIGHTED, "storm")
# Those that average gradients before they step along them.
AVERAGING = ("normalized", "bias-corrected")
LR_SCHEDULES = ("constant", "linear", "cosine")
WORKLOADS = ("auto", "prefix", "momentum", "ones")
OUTPUTS = ("last", "random")


@dataclass(frozen=True)
class UpdateSettings:
    """How the model moves: none of it touches privacy, all of it touches accuracy."""

    optimizer: str = "sgd"
    learning_rate: float = 0.5
    momentum: float = 0.0
    lr_schedule: str = "constant"
    average: float = 0.0
    radius: float | None = None
    output: str = "last"
    step_length: float | None = None
    kappa: float = 0.5

    def __post_init__(self) -> None:
        require_choice("optimizer", self.optimizer, OPTIMIZERS)
        require_positive("learning_rate", self.learning_rate)
        require_choice("lr_schedule", self.lr_schedule, LR_SCHEDULES)
        require_fraction("average", self.average, closed=True)
        require_choice("output", self.output, OUTPUTS)
        require_positive("kappa", self.kappa, maximum=1.0)
        if self.average and self.output != "last":
            raise SordinoError("a run returns an average or a random iterate, not both")
        if self.radius is not None:
            require_positive("radius", self.radius)
        if require_fraction("momentum", self.momentum, closed=True) == 1:
            raise SordinoError("momentum must be less than 1")
        if self.optimizer == "adaptive" and self.step_length is None:
            raise SordinoError("the adaptive step needs a step_length: how far one step may go")
        if self.step_length is not None:
            require_positive("step_length", self.step_length)

    def learning_rates(self, steps: int) -> NDArray[np.float32]:
        """The learning rate of each step (steps,)."""
        left = 1.0 - np.arange(steps) / steps
        shape = {
            "constant": np.ones(steps),
            "linear": left,
            "cosine": 0.5 * (1 - np.cos(np.pi * left)),
        }[self.lr_schedule]
        return np.asarray(self.learning_rate * shape, np.float32)

    def build(
        self,
        contribution: Contribution,
        *,
        optimizer: optax.GradientTransformation | None = None,
        penalty: Callable[[PyTree], PyTree] | None = None,
    ) -> Update:
        """The update for this kind of contribution.

        Args:
          contribution: decides how noisy sums become a gradient estimate.
          optimizer: an optax optimizer that replaces the named one.
          penalty: gradient of a data-free regulariser, added to the estimate.
        """
        self.check_fits(contribution)
        update = self._mover(contribution, optimizer, penalty)
        if penalty is not None and not isinstance(update, Storm):
            weighted = self.optimizer in WEIGHTED
            update = Regularized(update, penalty, weighted, _power(contribution))
        if self.radius is not None and self.optimizer not in COUPLED:
            update = Projected(update, self.radius)
        if isinstance(contribution, Lagged):
            update = LaggedMomentumEstimate(
                update, contribution.lag, self.momentum, contribution.gamma, contribution.channels
            )
        elif contribution.decay > 0:
            update = RecursiveEstimate(update)
        if self.output == "random":
            return RandomIterate(update)
        return TailAveraged(update, self.average) if self.average else update

    def _mover(
        self,
        contribution: Contribution,
        optimizer: optax.GradientTransformation | None,
        penalty: Callable[[PyTree], PyTree] | None,
    ) -> Update:
        """What moves along a gradient estimate."""
        if optimizer is not None:
            if self.optimizer in (*WEIGHTED, "storm"):
                raise SordinoError(
                    f"this recipe moves by its own rule ({self.optimizer}); an optax optimizer "
                    "cannot take its place"
                )
            return Optax(optimizer)
        if self.optimizer == "nesterov":
            return NesterovCoupling(self.kappa, self.radius, _power(contribution))
        if self.optimizer == "srg":
            return RunningMeanDescent(_power(contribution))
        if self.optimizer == "anytime":
            return AnytimeAverage(self.radius)
        if self.optimizer == "storm":
            return Storm(penalty=penalty)
        if self.optimizer == "adaptive":
            assert self.step_length is not None
            return AdaptiveStep(self.step_length)
        # A lagged estimate is an average already.
        momentum = 0.0 if isinstance(contribution, Lagged) else self.momentum
        return Descent(named_transform(self.optimizer, momentum))

    def workload(self, contribution: Contribution, name: str = "auto") -> LinearMap:
        """The map from released sums to what the noise is shaped for.

        "prefix" are the sums of the gradient estimates, "ones" those of the released sums themselves
        (the paper's A, where "prefix" is its A L).
        """
        require_choice("workload", name, WORKLOADS)
        self.check_fits(contribution)
        if name == "ones":
            return Workload.prefix()
        recursion = _recursion(contribution)
        if name == "momentum":
            if self.optimizer in WEIGHTED:
                raise SordinoError(
                    f"workload 'momentum' is for steps with momentum, and optimizer {self.optimizer!r} "
                    "has none; leave it at 'auto'"
                )
            return _then(recursion, Workload.heavy_ball(self.momentum))
        if name == "auto" and isinstance(contribution, Lagged):
            estimates = self._estimates(contribution)
            return estimates[0] if len(estimates) == 1 else maps.Channels(estimates)
        if name == "auto" and self.optimizer in WEIGHTED:
            return self._weighted(contribution)
        if name == "auto" and self.optimizer in AVERAGING:
            return _then(recursion, Workload.ema(1 - self.momentum))
        if name == "auto" and self.optimizer == "sgd" and self.momentum > 0:
            return _then(recursion, Workload.heavy_ball(self.momentum))
        return _then(recursion, Workload.prefix())

    def iterate_map(self, contribution: Contribution) -> LinearMap:
        """The map from released sums to the iterates, at learning rate 1: where noise ends up.

        Steps of fixed length are taken for their direction's accumulation, an adaptive step for its
        upper limit; an average over the last iterates is not counted.
        """
        prefix = Workload.prefix()
        if isinstance(contribution, Lagged):
            estimates = self._estimates(contribution)
            iterate_map = tuple(maps.Composed((estimate, prefix)) for estimate in estimates)
            return iterate_map[0] if len(iterate_map) == 1 else maps.Channels(iterate_map)
        if self.optimizer in WEIGHTED:
            return self._weighted(contribution)
        recursion = _recursion(contribution)
        if self.optimizer in AVERAGING:
            return _then(recursion, Workload.ema(1 - self.momentum), prefix)
        if self.optimizer == "sgd" and self.momentum > 0:
            return _then(recursion, Workload.heavy_ball(self.momentum))
        return _then(recursion, prefix)

    def _estimates(self, contribution: Lagged) -> tuple[LinearMap, ...]:
        """What each channel of a lagged stream adds to the momentum estimate."""
        beta = self.momentum
        lagged = maps.LaggedMomentumMap(contribution.lag, beta, contribution.gamma, 1 - beta)
        return (lagged, Workload.ema(1 - beta))[: contribution.channels]

    def _weighted(self, contribution: Contribution) -> LinearMap:
        """The map of a method that takes a weighted estimate."""
        self.check_fits(contribution)
        power = _power(contribution)
        if self.optimizer == "anytime":
            return maps.AnytimeMap()
        if self.optimizer == "srg":
            return maps.RunningMeanMap(power)
        return maps.NesterovMap(kappa=self.kappa, power=power, summed=contribution.decay == 1)

    def check_fits(self, contribution: Contribution) -> None:
        """Refuse a stream that this optimizer makes another algorithm of than the noise is shaped for."""
        weighted = self.optimizer in WEIGHTED
        fits = isinstance(contribution, Weighted) == weighted
        fits &= isinstance(contribution, GradientPair) == (self.optimizer == "storm")
        if weighted and self.optimizer != "nesterov":
            fits &= contribution.decay == 1
        if self.optimizer == "anytime":
            fits &= _power(contribution) == 1
        if not fits:
            raise SordinoError(
                f"optimizer {self.optimizer!r} does not fit a stream where {contribution.describe()}"
            )

    def describe(self) -> str:
        parts = [f"{self.optimizer}, learning rate {self.learning_rate:g} ({self.lr_schedule})"]
        if self.optimizer in ("sgd", *AVERAGING) and self.momentum:
            parts.append(f"momentum {self.momentum:g}")
        if self.optimizer == "adaptive":
            parts.append(f"steps of length at most {self.step_length:g}")
        if self.radius is not None:
            parts.append(f"projected onto the ball of radius {self.radius:g}")
        if self.average:
            parts.append(f"average of the last {self.average:.0%} of the iterates")
        if self.output == "random":
            parts.append("returning a random iterate")
        return ", ".join(parts)


def _recursion(contribution: Contribution) -> LinearMap:
    """``G_t = decay G_{t-1} + ...`` as a map."""
    if isinstance(contribution, VaryingRecursive):
        return maps.VaryingDecay(contribution.decays)
    decay = contribution.decay
    return Workload("recursion", ratios=(decay,)) if decay else Workload.identity()


def _then(first: LinearMap, *others: Workload) -> LinearMap:
    """`first`, and then the others."""
    for other in others:
        if isinstance(first, Workload):
            first = first.then(other)
        else:
            inner = first.maps if isinstance(first, maps.Composed) else (first,)
            first = maps.Composed((*inner, other))
    return first


def _power(contribution: Contribution) -> float:
    """k of the weights ``(t+1)^k``; 1 where there are none."""
    return contribution.power if isinstance(contribution, Weighted) else 1.0
