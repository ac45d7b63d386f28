"""The tiny plans and problems that every recipe is held to, made from the table of recipes alone."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sordino._base.keys import RunKey
from sordino.audit._contract import logistic_data as logistic_data
from sordino.audit._plans import BATCH as BATCH
from sordino.audit._plans import DELTA, MU, SECRET_NOISE, SECRET_STEPS, small_plan
from sordino.audit._plans import EXAMPLES as EXAMPLES
from sordino.audit._plans import STEPS as STEPS
from sordino.audit._whitebox import Neighbours
from sordino.engine._adaptive import AdaptiveRun
from sordino.engine._run import TrainingRun
from sordino.parts.sampling import FIXED
from sordino.planning._plans import Plan
from sordino.planning.recipes import RECIPES
from sordino.privacy import POISSON, WITHOUT_REPLACEMENT
from sordino.privacy._gdp import epsilon_from_mu

# A draw of this size is lost in float32: "no noise" for a plan, which insists on some.
NO_NOISE = 1e-20

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
    if is_adaptive(name):
        changes = {"epsilon": epsilon_from_mu(MU, DELTA), "delta": DELTA, **changes}
    if not spec.private or is_adaptive(name):
        changes.pop("noise_multiplier", None)
    if not spec.private:
        for budget in ("epsilon", "delta"):
            changes.pop(budget, None)
    return small_plan(name, **changes)


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


def start_run(
    plan: Plan, *arguments: Any, key: RunKey, **options: Any
) -> TrainingRun | AdaptiveRun:
    """A run as `train` starts it."""
    kind = AdaptiveRun if is_adaptive(plan.recipe) else TrainingRun
    return kind(plan, *arguments, key=key, **options)


def has_fixed_batches(name: str) -> bool:
    """Whether a recipe can run on fixed public batches."""
    return FIXED in RECIPES[name].samplings
