"""Good settings without tuning: functions of public quantities only.

Tuning on private data spends budget that is rarely accounted for. These rules were measured on a9a,
ijcnn1, MNIST, GSS wages and diamond prices, for 1,000 to 60,000 rows and epsilon 0.1 to 8. They use
the number of rows, the kind of loss and the planned noise, never the data, and are within about a
point of the best settings for each of those. The passes of classifiers and their
`LossDefaults.noise` were chosen later, on held-out training rows of a9a, ijcnn1, MNIST and
scikit-learn's digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino.parts import LeastSquares, LinearLoss, Logistic, Softmax
from sordino.planning import Plan
from sordino.planning.recipes import recipe_named

AUTO = "auto"
# Ten passes over twenty batches: close to the noise of descent on all examples, and enough steps for
# momentum. Fewer passes cost one to three points where noise is large.
EPOCHS = 10
# Correlated noise makes more passes cheap: 40 are better than 10 by 0.1 to 1.4 points of accuracy, and
# where noise is so small that steps cannot grow any more, twice as many by another half point.
MULTI_EPOCH_RECIPE_EPOCHS = 40
MULTI_EPOCH_RECIPE = "dp-memf"
STEPS_PER_EPOCH = 20
MOMENTUM = 0.95
# On all examples a pass is a single step.
FULL_BATCH_STEPS = 50
FULL_BATCH_MOMENTUM = 0.9
# Steps of one length: how far the weights may go in a whole run (10 to 100 hardly differ).
PATH_LENGTH = 30.0
# Beyond so many columns a logistic model aims at less noise in a prediction (chosen on held-out training
# rows of a9a and made-up tables of 30 to 200 columns: 0.1 to 1.4 points at epsilon 0.1, nothing at 1).
MANY_COLUMNS = 50
# Averaging the last quarter removes noise that differs from step to step.
AVERAGE = 0.25


@dataclass(frozen=True)
class LossDefaults:
    """What depends on the loss, for rows of norm at most 1.

    Attributes:
      clip: residuals beyond this are clipped: smaller is less noise, larger is better calibrated.
      noise: the noise in a prediction that the learning rate aims at, in logits or in units of the
        scaled target: more means that noise rules, less that the model hardly moved.
      fastest: the largest learning rate at which descent is still steady (by measurement; with
        clipped residuals that is several times 1/smoothness).
    """

    clip: float
    noise: float
    fastest: float


def rule_for(loss: LinearLoss) -> LossDefaults:
    """The measured rule for this kind of loss."""
    if isinstance(loss, LeastSquares):
        return LossDefaults(clip=0.3, noise=0.25, fastest=1.0)
    if isinstance(loss, Softmax):
        return LossDefaults(clip=0.5, noise=1.0, fastest=8.0)
    return LossDefaults(clip=0.5, noise=2.0, fastest=16.0)


@dataclass(frozen=True)
class Settings:
    """What a fit does beyond its budget; the learning rate follows from the plan."""

    recipe: str
    epochs: float
    batch_size: int | None
    clip: float
    momentum: float


def automatic_recipe(recipe: str) -> str:
    """The recipe that "auto" stands for; any other as it is."""
    return MULTI_EPOCH_RECIPE if recipe == AUTO else recipe


def choose_settings(
    loss: LinearLoss,
    *,
    examples: int,
    recipe: str = AUTO,
    epochs: float | None = None,
    batch_size: int | None = None,
    clip: float | None = None,
    momentum: float | None = None,
) -> Settings:
    """What was given, and defaults for the rest."""
    recipe = automatic_recipe(recipe)
    whole = recipe_named(recipe).full_batch
    if batch_size is None and not whole:
        batch_size = -(-examples // STEPS_PER_EPOCH)
    if epochs is None:
        epochs = FULL_BATCH_STEPS if whole else _epochs(recipe, loss)
    if momentum is None:
        momentum = FULL_BATCH_MOMENTUM if whole else MOMENTUM
    return Settings(
        recipe=recipe,
        epochs=epochs,
        batch_size=batch_size,
        clip=rule_for(loss).clip if clip is None else clip,
        momentum=momentum,
    )


def _epochs(recipe: str, loss: LinearLoss) -> int:
    multi_epoch = recipe == MULTI_EPOCH_RECIPE and not isinstance(loss, LeastSquares)
    return MULTI_EPOCH_RECIPE_EPOCHS if multi_epoch else EPOCHS


def wants_more_epochs(plan: Plan, settings: Settings, loss: LinearLoss) -> bool:
    """Whether a run with the default number of passes should have twice as many: noise is so small that
    the learning rate is the fastest steady one."""
    rule = rule_for(loss)
    multi_epoch = settings.epochs == MULTI_EPOCH_RECIPE_EPOCHS == _epochs(settings.recipe, loss)
    return multi_epoch and rule.noise / plan.predicted_error > rule.fastest


def choose_learning_rate(plan: Plan, loss: LinearLoss, columns: int | None = None) -> float:
    """The rate at which the planned noise moves a prediction by the rule's `noise`, if steady.

    The plan knows the noise in the accumulated updates at rate 1; rows have norm at most 1, so the
    noise in a prediction is at most the rate times that. Of many `columns` all weights are noisy, and a
    logistic model aims at less.
    """
    if plan.update.optimizer == "normalized":
        return PATH_LENGTH / plan.population.steps
    rule = rule_for(loss)
    # Weights t make an anytime average's steps grow with the run.
    fastest = (
        rule.fastest / plan.population.steps if plan.update.optimizer == "anytime" else rule.fastest
    )
    aim = rule.noise
    if isinstance(loss, Logistic) and columns is not None:
        aim *= min(1.0, math.sqrt(MANY_COLUMNS / columns))
    return min(aim / plan.predicted_error, fastest)
