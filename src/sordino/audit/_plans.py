"""Plans that an audit can afford: small ones of every recipe, and small copies of large ones."""

from __future__ import annotations

import math
from typing import Any

from sordino._base.types import Json
from sordino.parts import Population
from sordino.parts.sampling import SAMPLINGS
from sordino.planning import Plan, counting_on_slots, plan
from sordino.planning.recipes import recipe_named
from sordino.privacy import Adjacency, epsilon_from_mu

# Two epochs of four batches, the last one short: the smallest run with everything in it.
EXAMPLES, BATCH, STEPS = 7, 2, 8
# Secret batches take part in all steps; more of them make more of the amplification.
SECRET_STEPS = 16
# mu and delta of reference plans: so large a mu is estimated to about 1 % by 10,000 runs.
MU, DELTA = 3.0, 1e-3
# Secret batches: noise such that the equivalent mu at epsilon 1 is about 1.9. (An epsilon would have to
# be searched for.)
SECRET_NOISE = 0.7
# Options without a default that fits all: such that every clip binds now and then.
SPECIAL = {
    "difference_clip": 0.1,
    "residual_clip": 0.05,
    "gamma": 0.3,
    "decay": 0.4,
    "step_length": 0.2,
}
# Examples times steps above which a plan is audited as a small copy.
LARGE = 100_000


def small_plan(recipe: str, **changes: Any) -> Plan:
    """A plan of a recipe for 7 examples in batches of 2; `changes` are arguments of `sordino.plan`."""
    spec = recipe_named(recipe)
    known = spec.defaults()
    settings: Json = {"examples": EXAMPLES, "batch_size": BATCH, "steps": STEPS}
    chosen = {**known, **changes}
    settings |= {
        option: value
        for option, value in SPECIAL.items()
        if option in known and spec.option(option).is_used(chosen)
    }
    settings |= changes
    if spec.full_batch:
        settings.pop("batch_size")
    return plan(recipe, **settings)


def is_secret(sampling: object) -> bool:
    """Whether batches of this kind are random and stay unseen."""
    return isinstance(sampling, str) and sampling in SAMPLINGS and SAMPLINGS[sampling].secret


def reference_plan(recipe: str, **changes: Any) -> Plan:
    """A small plan of a recipe, for audits: 7 examples, batches of 2, mu of 3 (or little noise).

    `changes` are arguments of `sordino.plan`.
    """
    spec = recipe_named(recipe)
    settings: Json = {}
    secret = is_secret(changes.get("sampling", spec.defaults()["sampling"]))
    if secret:
        settings["steps"] = SECRET_STEPS
    if spec.private and not {"epsilon", "noise_multiplier"} & set(changes):
        settings["delta"] = DELTA
        if secret:
            kappa = Adjacency(changes.get("adjacency") or Adjacency.ZERO_OUT).factor
            settings["noise_multiplier"] = kappa * SECRET_NOISE
        else:
            settings["epsilon"] = epsilon_from_mu(MU, DELTA)
    return small_plan(recipe, **{**settings, **changes})


def miniature(plan: Plan) -> Plan:
    """The same plan with as few bystanders as its participation allows.

    Steps, noise, clips, mechanism, schedule, batches per epoch (or the rate of secret batches) and
    guarantee are those of `plan`; a batch has one or two examples instead of many. An attacker
    who knows everything but one example subtracts the others anyway. A guarantee that counts on the
    order of reshuffled batches is restated for the order that the fewer examples have.
    """
    population = plan.population
    if population.first_batch is not None:
        return plan
    if population.is_secret:
        shared = math.gcd(population.examples, population.batch_size)
        # One batch of one example would be a full batch.
        small = population.examples // shared, population.batch_size // shared
    elif population.is_full_batch:
        small = 2, 2
    else:
        # A full and a short batch, if the last one is short.
        short = 1 if population.examples % population.batch_size else 0
        small = 2 * population.steps_per_epoch - short, 2
    if small[0] >= population.examples:
        return plan
    fewer = Population(
        examples=small[0],
        batch_size=small[1],
        steps=population.steps,
        sampling=population.sampling,
        order_seed=population.order_seed,
        cycle=population.cycle,
    )
    if population.slots is not None:
        fewer = counting_on_slots(fewer, plan.mechanism, plan.schedule)
    return plan.with_training(population=fewer).restated()


def affordable(plan: Plan) -> Plan:
    """`plan`, or its miniature if it is large."""
    if plan.population.examples * plan.population.steps <= LARGE:
        return plan
    return miniature(plan)
