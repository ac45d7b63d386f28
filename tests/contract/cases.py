"""The tiny plans and problems that every recipe is held to, made from the table of recipes alone."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

import sordino
from sordino._base.keys import RunKey
from sordino.audit._whitebox import Neighbours
from sordino.engine._adaptive import AdaptiveRun
from sordino.engine._run import TrainingRun
from sordino.parts._population import FIXED, POISSON, WITHOUT_REPLACEMENT
from sordino.planning._plans import Plan
from sordino.planning.recipes import RECIPES
from sordino.privacy._gdp import epsilon_from_mu

# Two epochs of four batches, the last one short: the smallest run with everything in it.
EXAMPLES, BATCH, STEPS = 7, 2, 8
# mu of an audited plan: large enough that 10,000 runs estimate it to about 1 %.
MU = 3.0
# Secret batches: more steps, and noise such that the equivalent mu at epsilon 1 is about 1.9.
SECRET_STEPS, SECRET_NOISE = 16, 0.7
DELTA = 1e-3
# A draw of this size is lost in float32: "no noise" for a plan, which insists on some.
NO_NOISE = 1e-20

# Numbers for the options that only some recipes have, such that every clip binds now and then.
SPECIAL = {
    "difference_clip": 0.1,
    "residual_clip": 0.05,
    "gamma": 0.3,
    "decay": 0.4,
    "step_length": 0.2,
}

NAMES = list(RECIPES)
PRIVATE = [name for name, recipe in RECIPES.items() if recipe.private]
ADAPTIVE = "its budget is spent as the run goes, query by query: see test_adaptive.py"


def is_adaptive(name: str) -> bool:
    """Whether a recipe decides during the run what to pay for (a property of its schedule)."""
    return RECIPES[name].adaptive


# Recipes whose releases are planned in full: linear in the noise, with one Gram matrix.
PLANNED = [name for name in PRIVATE if not is_adaptive(name)]
# Those with an update rule that a plain loop can follow.
LOOPS = [name for name in NAMES if not is_adaptive(name)]


@lru_cache(maxsize=256)
def make(name: str, **changes: Any) -> Plan:
    """A plan of one recipe; sizes, budget and special options where they apply."""
    spec = RECIPES[name]
    known = spec.defaults()
    settings: dict[str, Any] = {"examples": EXAMPLES, "batch_size": BATCH, "steps": STEPS}
    chosen = {**known, **changes}
    settings |= {
        option: value
        for option, value in SPECIAL.items()
        if option in known and spec.option(option).is_used(chosen)
    }
    if is_adaptive(name):
        settings |= {"epsilon": epsilon_from_mu(MU, DELTA), "delta": DELTA}
    settings |= changes
    if spec.full_batch:
        settings.pop("batch_size")
    if not spec.private or is_adaptive(name):
        settings.pop("noise_multiplier", None)
    if not spec.private:
        for budget in ("epsilon", "delta"):
            settings.pop(budget, None)
    return sordino.plan(name, **settings)


def audited(name: str, **changes: Any) -> Plan:
    """A plan of mu `MU` (about that for secret batches)."""
    if is_adaptive(name):
        return make(name, **changes)
    sampling = changes.get("sampling", RECIPES[name].defaults()["sampling"])
    if sampling in (POISSON, WITHOUT_REPLACEMENT):
        noise = SECRET_NOISE * (2 if changes.get("adjacency") == "replace-one" else 1)
        return make(name, **{"noise_multiplier": noise, "steps": SECRET_STEPS, **changes})
    unit = make(name, noise_multiplier=1.0, **changes)
    return make(name, noise_multiplier=unit.guarantee.mu / MU, **changes)


@lru_cache(maxsize=4)
def neighbours(name: str) -> Neighbours:
    """The audited plan's two data sets; one compiled program for all that is measured on them."""
    return Neighbours.of(audited(name))


def logistic_data(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of very different length, so that clips bind for some and not for others."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * rng.lognormal(0.0, 0.7, size=(n, 1)) / np.sqrt(d)
    y = (X @ rng.normal(size=d) + 0.3 * rng.normal(size=n) > 0).astype(np.float32)
    return X.astype(np.float32), y


def start_run(
    plan: Plan, *arguments: Any, key: RunKey, **options: Any
) -> TrainingRun | AdaptiveRun:
    """A run as `train` starts it."""
    kind = AdaptiveRun if is_adaptive(plan.recipe) else TrainingRun
    return kind(plan, *arguments, key=key, **options)


def has_fixed_batches(name: str) -> bool:
    """Whether a recipe can run on fixed public batches."""
    return FIXED in RECIPES[name].samplings
