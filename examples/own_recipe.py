"""A recipe of one's own: automatic clipping (Bu, Wang, Zha & Karypis 2023); see docs/own-recipe.md.

Gradients are not cut to a length but brought to it: every example counts the same."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import sordino
from sordino import Logistic, register
from sordino.parts.contributions import Contribution, Rule, WeightedRule
from sordino.planning.recipes import CORRELATED, PUBLIC, Recipe


@dataclass(frozen=True)
class Normalized(Contribution):
    """``clip(g / short, clip)``: of norm `clip` if g is longer than ``short clip``; never longer."""

    short: float
    kind: ClassVar[str] = "normalized"

    def rule(self) -> Rule:
        return WeightedRule()  # clip(now * g, clip), in closed form for linear models

    def terms(self, steps: int) -> Mapping[str, np.ndarray]:
        return {**super().terms(steps), "now": np.full(steps, 1 / self.short)}

    def describe(self) -> str:
        return f"each example adds its gradient at norm {self.clip:g}, unless it is very short"


RECIPE = Recipe(
    name="dp-auto",
    title="automatic clipping: every example counts the same",
    contribution=Normalized,
    mechanisms=CORRELATED,
    samplings=PUBLIC,
    options={"momentum": 0.9, "learning_rate": 0.05, "short": 0.1},
)


def main() -> float:
    register(RECIPE)
    X = np.random.default_rng(0).normal(size=(2000, 6)).astype(np.float32)
    data = X, np.float32(X[:, 0] > X[:, 1])
    plan = sordino.plan("dp-auto", examples=2000, batch_size=200, epochs=4, epsilon=1, delta=1e-6)
    print(plan)
    w = sordino.train(plan, Logistic(), np.zeros(6, np.float32), data).params
    return float(np.mean((X @ np.asarray(w) > 0) == data[1]))


if __name__ == "__main__":
    print(main())
