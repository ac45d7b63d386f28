"""The numbers behind the report: comparisons, and noise measured on the real mechanism code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import require_choice
from sordino._base.keys import RunKey
from sordino.parts.mechanisms import Independent, Mechanism, gaussian_key, standard_normal_rows
from sordino.planning import Plan, float32_up, run_sensitivity

# Long runs are checked on this many first steps: enough to see any mistake in the recursion.
MEASURED_STEPS = 2048


# Whether the run's guarantee holds for a model that is shown beside it.
COVERED = "covered"
NOT_COVERED = "not covered"
NO_PRIVATE_DATA = "uses no private data"


@dataclass(frozen=True)
class Measured:
    """One model's score on public test data, and what the guarantee says about that model."""

    name: str
    value: float
    coverage: str
    note: str = ""

    def __post_init__(self) -> None:
        require_choice("coverage", self.coverage, (COVERED, NOT_COVERED, NO_PRIVATE_DATA))


@dataclass(frozen=True)
class ScoreTable:
    """Scores of several models on the same public test data, by one metric."""

    metric: str
    rows: tuple[Measured, ...]
    test_rows: int

    @property
    def is_rate(self) -> bool:
        """Whether the metric is a share of right answers."""
        return "accuracy" in self.metric

    def whisker(self, value: float) -> float:
        """Half of the 95 % interval of a rate measured on `test_rows` rows; 0 for other metrics."""
        if not self.is_rate or not 0 <= value <= 1:
            return 0.0
        return 1.96 * math.sqrt(value * (1 - value) / self.test_rows)

    def text(self, value: float) -> str:
        """A score as it is shown, with its interval if it is a rate."""
        half = self.whisker(value)
        spread = f" ± {half:.3f}" if half else ""
        return (f"{value:.3f}" if self.is_rate else f"{value:.4g}") + spread

    def to_json(self) -> Mapping[str, Any]:
        """Plain data."""
        return {
            "metric": self.metric,
            "test_rows": self.test_rows,
            "scores": {row.name: row.value for row in self.rows},
        }


@dataclass(frozen=True)
class MeasuredNoise:
    """Standard deviations over coordinates: of each step's noise, and of the accumulated noise."""

    per_step: NDArray[np.float64]
    accumulated: NDArray[np.float64]


def independent_counterpart(plan: Plan) -> Plan | None:
    """The same run with independent noise and the same guarantee; None if the plan is that already.

    For pictures only: its guarantee field is the plan's own, which is what it was scaled to.
    """
    if isinstance(plan.mechanism, Independent) or plan.population.is_secret:
        return None
    if plan.contribution.channels > 1 or not plan.guarantee.is_private:
        return None
    independent = Independent(plan.population.steps)
    own = run_sensitivity(plan.population, plan.mechanism, plan.schedule).value
    other = run_sensitivity(plan.population, independent, plan.schedule).value
    amount = float32_up(plan.noise_multiplier * other / own)
    return plan.with_training(mechanism=independent, noise_multiplier=amount)


def measured_noise(plan: Plan, coordinates: int) -> MeasuredNoise:
    """Draw the noise of `plan` for a model of `coordinates` parameters from a throwaway public key.

    The code is the one that runs add their noise with; the key is public, fixed, and never a run's.
    """
    steps = plan.population.steps
    count = min(steps, MEASURED_STEPS)
    key = gaussian_key(RunKey.from_insecure_seed(0), "calibration")
    channels = plan.contribution.channels
    rows = np.asarray(_rows(plan.mechanism, key, count, coordinates * channels), np.float64)
    rows *= np.repeat(plan.noise_stds()[:count], coordinates, axis=1) / plan.divisor
    return MeasuredNoise(_std(rows[:, :coordinates]), _std(plan.iterate_map.apply(rows)))


# One compiled program: dispatched one by one, the small operations would each be compiled.
@partial(jax.jit, static_argnums=(2, 3))
def _rows(mechanism: Mechanism, key: jax.Array, count: int, coordinates: int) -> jax.Array:
    def draw(first: Any, number: int) -> jax.Array:
        return standard_normal_rows(key, first, number, coordinates)

    return mechanism.rows(mechanism.init(coordinates), draw, 0, count)[0]


def _std(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    # The mean is known to be zero.
    return np.asarray(np.sqrt(np.mean(rows**2, axis=1)))
