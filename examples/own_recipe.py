"""A new part: a clip that shrinks over time, and the noise with it; see docs/own-recipe.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import sordino
from sordino import Logistic, Recipe, audit, register
from sordino.parts.contributions import Contribution, GradientRule, Rule


@dataclass(frozen=True)
class ShrinkingClip(Contribution):
    """``clip(g, c_t)`` with ``c_t = clip max(shrink^t, 0.1)``."""

    shrink: float
    kind: ClassVar[str] = "shrinking-clip"

    def rule(self) -> Rule:
        return GradientRule()  # clip(g, terms["clip"]), in closed form for linear models

    def bounds(self, steps: int) -> np.ndarray:
        return self.clip * self.signal(steps)[None]

    def terms(self, steps: int) -> Mapping[str, np.ndarray]:
        return {"clip": self.bounds(steps)[0]}

    def signal(self, steps: int) -> np.ndarray:
        return np.maximum(self.shrink ** np.arange(steps), 0.1)

    def describe(self) -> str:
        return f"each example adds its gradient, of norm at most {self.clip:g} x {self.shrink:g}^t"


RECIPE = Recipe(
    name="dp-shrink",
    title="momentum with a clip that shrinks over time",
    contribution=ShrinkingClip,
    mechanisms=("auto", "blt", "dense", "tree", "independent"),
    samplings=("fixed", "reshuffled"),
    options={"momentum": 0.9, "shrink": 0.98},
)


def reference(gradients: Sequence[np.ndarray], numbers: Mapping[str, Any], t: int) -> np.ndarray:
    return audit.clipped(gradients[t], numbers["clip"] * max(numbers["shrink"] ** t, 0.1))


def main() -> float:
    register(RECIPE)
    X = np.random.default_rng(0).normal(size=(2000, 6)).astype(np.float32)
    data = X, np.float32(X[:, 0] > X[:, 1])
    plan = sordino.plan("dp-shrink", examples=2000, batch_size=200, epochs=4, epsilon=1, delta=1e-6)
    w = sordino.train(plan, Logistic(), np.zeros(6, np.float32), data).params
    return float(np.mean((X @ np.asarray(w) > 0) == data[1]))
