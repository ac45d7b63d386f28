"""The named algorithms: each a line in a table that names its four parts.

A recipe is a stream, a mechanism, a schedule and an update, with the defaults that make it useful
and an honest word on when to use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sordino.errors import SordinoError, nearest
from sordino.population import FIXED, POISSON, RESHUFFLED, WITHOUT_REPLACEMENT

# Every option of every recipe, with the default it has unless the recipe says otherwise.
COMMON_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {
        "clip": 1.0,
        "sampling": FIXED,
        "order_seed": 0,
        "mechanism": "independent",
        "bands": None,
        "workload": "auto",
        "optimizer": "sgd",
        "learning_rate": 0.5,
        "momentum": 0.0,
        "lr_schedule": "constant",
        "average": 0.0,
        "radius": None,
    }
)


@dataclass(frozen=True)
class Recipe:
    """One algorithm: its four parts, its defaults, and advice."""

    name: str
    title: str
    stream: str
    mechanisms: tuple[str, ...]
    schedule: str
    update: str
    samplings: tuple[str, ...]
    full_batch: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    reference: str = ""
    use_when: str = ""
    avoid_when: str = ""

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options: what was given, else the recipe's default, else the common one."""
        for name in given:
            if name not in COMMON_OPTIONS:
                raise SordinoError(
                    f"{self.name} has no option {name!r}{nearest(name, COMMON_OPTIONS)}"
                )
        return {**COMMON_OPTIONS, **self.defaults, **given}


CORRELATED = ("auto", "blt", "dense", "toeplitz", "banded", "tree", "independent")

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe(
                name="dp-gd",
                title="private gradient descent on all examples",
                stream="gradient",
                mechanisms=("independent",),
                schedule="uniform",
                update="gradient descent, or any optax optimizer",
                samplings=(FIXED,),
                full_batch=True,
                defaults={"learning_rate": 1.0, "momentum": 0.0},
                reference="Song, Chaudhuri & Sarwate 2013; Wang, Ye & Xu 2017",
                use_when="the data fits a step and few, clean steps are enough",
                avoid_when="many steps are needed: each one reads all the data",
            ),
            Recipe(
                name="dp-sgd",
                title="private stochastic gradient descent with independent noise",
                stream="gradient",
                mechanisms=("independent",),
                schedule="uniform",
                update="SGD with momentum, or any optax optimizer",
                samplings=(POISSON, WITHOUT_REPLACEMENT, FIXED, RESHUFFLED),
                defaults={"sampling": POISSON, "momentum": 0.9},
                reference="Abadi et al. 2016",
                use_when="batches can be drawn at random and kept secret, at small epsilon or for "
                "many epochs",
                avoid_when="batches are shuffled files or streams: then nothing is amplified and "
                "dp-memf adds several times less noise",
            ),
            Recipe(
                name="dp-memf",
                title="multi-epoch matrix factorization: noise that later noise partly cancels",
                stream="gradient",
                mechanisms=CORRELATED,
                schedule="uniform",
                update="SGD with momentum, or any optax optimizer",
                samplings=(FIXED, RESHUFFLED),
                defaults={"mechanism": "auto", "momentum": 0.9},
                reference="Denisov et al. 2022; Choquette-Choo et al. 2023, 2024",
                use_when="batches come in a fixed order, in one or a few epochs, and nothing about "
                "their randomness can be trusted",
                avoid_when="very many epochs at small epsilon with true random batches: amplified "
                "dp-sgd can win",
            ),
            Recipe(
                name="dp-nsgd",
                title="normalized momentum: steps of one length along a noisy moving average",
                stream="gradient",
                mechanisms=CORRELATED,
                schedule="uniform",
                update="normalized momentum",
                samplings=(FIXED, RESHUFFLED),
                defaults={
                    "mechanism": "auto",
                    "optimizer": "normalized",
                    "momentum": 0.9,
                    "learning_rate": 0.05,
                },
                reference="Tran & Cutkosky 2022, Algorithm 1",
                use_when="gradient norms vary widely and a step length is easier to choose than a "
                "learning rate; mechanism 'tree' is the paper's own",
                avoid_when="the estimate is mostly noise: then so is every step, at full length",
            ),
            Recipe(
                name="dp-ftrl",
                title="tree-aggregated gradients (a baseline: dp-memf adds half the noise)",
                stream="gradient",
                mechanisms=("tree",),
                schedule="uniform",
                update="SGD, or any optax optimizer",
                samplings=(FIXED, RESHUFFLED),
                defaults={"mechanism": "tree", "momentum": 0.0},
                reference="Kairouz et al. 2021",
                use_when="a published DP-FTRL result is to be compared with, at its exact cost",
                avoid_when="always otherwise: every factorization of dp-memf but short bands is "
                "better",
            ),
        )
    }
)


def recipe_named(name: str) -> Recipe:
    """The recipe called `name`, or an error with the nearest name."""
    if name not in RECIPES:
        raise SordinoError(f"there is no recipe {name!r}{nearest(str(name), RECIPES)}")
    return RECIPES[name]
