"""Momentum estimates under privacy, at one budget and equal gradient evaluations (papers/00, section 7).

A population's options:

    model     "logistic", or "network" (one hidden layer of 8 tanh units)
    batch     examples per step
    epochs    passes over the data, counted in gradients: a recipe that takes two gradients of every
              example has half of the steps
    tuned     epochs of the runs by which the way is chosen, if others

A contender's settings are options of its recipe and ``ways``: its learning rate is a way over the number of
steps (for steps of one length, about the length of the path). Rates fall linearly to 0, momentum is 0.9.
With ``printed = true`` the noise is that of Theorem 4 of Tran & Cutkosky instead of the exact one. With
``curvature = L``, differences over the B steps of an epoch are clipped to ``C2 = min(C1, L eta B)``, eta
being the first step's length, and ``gamma = C2 / C1`` (papers/00, sections 1.3 and 5).

The way is chosen on a tenth of the training rows that is declared public: the very plan is run on two
thirds of it, repeated to as many rows as the data has, and scored by the log-loss on the rest.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.lab.cells import Cell
from benchmarks.lab.data import PreparedData, public_folds
from benchmarks.lab.experiment import PopulationSpec, TargetBudget, Tuning
from benchmarks.lab.running import prepared_rows
from benchmarks.lab.tasks.momentum_models import BenchModel, LogisticModel, NetworkModel
from benchmarks.lab.tasks.watching import Seen, watch
from benchmarks.papers.tran_cutkosky import algorithm_1
from sordino import Plan, PrivacyWarning, SordinoError, plan
from sordino._base.errors import known_fields, require_choice
from sordino.parts.contributions import Lagged
from sordino.parts.updates import AVERAGING
from sordino.planning.recipes import recipe_named

Array = NDArray[np.float64]
MODELS: Mapping[str, BenchModel] = {"logistic": LogisticModel(), "network": NetworkModel()}
MOMENTUM = 0.9
CLIP = 1.0
# Iterates that are looked at, evenly spaced; the expectation over them is a random iterate's.
POINTS = 8
_TUNING = Tuning(share=0.1, folds=3)
# Seeds of the runs on public rows, far from those of the figures.
_OTHER_SEEDS = 1_000_000


@dataclass(frozen=True)
class MomentumSetting:
    """A population's options; see the module."""

    model: str
    batch: int
    epochs: float
    tuned: float | None = None

    def __post_init__(self) -> None:
        require_choice("model", self.model, MODELS)

    @property
    def tuning(self) -> MomentumSetting:
        """The setting in which the way is chosen."""
        return self if self.tuned is None else MomentumSetting(self.model, self.batch, self.tuned)


@dataclass(frozen=True)
class RunRow:
    """A contender on one data set and budget: all that its plans and its choice of a way follow from."""

    recipe: str
    options: tuple[tuple[str, Any], ...]
    ways: tuple[float, ...]
    printed: bool
    curvature: float | None
    budget: TargetBudget
    seeds: tuple[int, int]
    data: str
    folder: str | None

    @classmethod
    def of(cls, cell: Cell, folder: str | None) -> RunRow:
        if cell.budget is None:
            raise SordinoError(f"{cell.name}: momentum estimates are compared at a budget")
        options = dict(cell.settings)
        return cls(
            recipe=cell.recipe,
            ways=tuple(options.pop("ways")),
            printed=bool(options.pop("printed", False)),
            curvature=options.pop("curvature", None),
            options=tuple(sorted(options.items())),
            budget=cell.budget,
            seeds=cell.seeds,
            data=cell.population.data,
            folder=folder,
        )


def run_cell(cell: Cell, folder: str | None) -> dict[str, Any]:
    """Choose the learning rate on public rows, train on all, and measure models and estimates."""
    setting = MomentumSetting(**known_fields("options", cell.population.options, MomentumSetting))
    entry = RunRow.of(cell, folder)
    way = chosen_way(entry, setting.tuning)
    rows, _ = _rows(entry.data, folder)
    model, examples = MODELS[setting.model], len(rows.train[1])
    built = make_plan(entry, setting, examples, way)
    seen = _watched(built, model, rows, cell.seeds[0], cell.seeds[1])
    noise = noise_in_estimate(built)
    passes = built.gradient_evaluations / examples
    return {
        "plan_hash": built.hash,
        "guarantee": built.guarantee.sentence(),
        "steps": built.population.steps,
        "runs": [
            {
                "seed": cell.seeds[0] + i,
                **measures(seen, i, model, rows, built),
                "estimate_noise": noise,
                "passes": passes,
            }
            for i in range(cell.seeds[1])
        ],
        "as_published": rows.as_published,
        "cpu_seconds_per_run": seen.cpu_seconds / cell.seeds[1],
        "facts": {
            "way": way,
            "steps": built.population.steps,
            "noise": round(built.noise_multiplier, 4),
        },
    }


@lru_cache(maxsize=256)
def chosen_way(entry: RunRow, setting: MomentumSetting) -> float:
    """The way with the least log-loss on public rows."""
    rows, public = _rows(entry.data, entry.folder)
    examples = len(rows.train[1])
    stand_in = public.with_rows(examples)
    plans = _plans(entry, setting, examples)
    scores = [_public_score(built, MODELS[setting.model], stand_in, entry.seeds) for built in plans]
    return entry.ways[int(np.nanargmin(scores))]


def _plans(entry: RunRow, setting: MomentumSetting, examples: int) -> list[Plan]:
    """The plans of all ways; what privacy costs is the same for all where no clip follows the way."""
    if entry.curvature is not None:
        return [make_plan(entry, setting, examples, way) for way in entry.ways]
    base = make_plan(entry, setting, examples, entry.ways[0])
    return [_at(base, way) for way in entry.ways]


def make_plan(entry: RunRow, setting: MomentumSetting, examples: int, way: float) -> Plan:
    """The plan of a contender, with as many gradients as the population's epochs have."""
    per_epoch = -(-examples // setting.batch)
    steps = max(1, round(setting.epochs * per_epoch / _gradients(entry, per_epoch)))
    budget = entry.budget
    spent: dict[str, Any] = budget.spent
    if entry.printed:
        noise = algorithm_1(
            epsilon=budget.epsilon,
            delta=budget.delta,
            epoch_steps=per_epoch,
            steps=steps,
            alpha=1 - MOMENTUM,
            batch_size=setting.batch,
            whole_epochs=True,
        ).noise
        spent = {"noise_multiplier": noise, "adjacency": budget.adjacency}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        built = plan(
            entry.recipe,
            examples=examples,
            batch_size=setting.batch,
            steps=steps,
            momentum=MOMENTUM,
            clip=CLIP,
            lr_schedule="linear",
            **spent,
            **dict(entry.options),
            **_differences(entry, way * per_epoch / steps),
        )
    return _at(built, way)


def _differences(entry: RunRow, epoch_way: float) -> dict[str, Any]:
    """Clip and weight of differences between points that are at most `epoch_way` apart."""
    if entry.curvature is None:
        return {}
    C2 = min(CLIP, entry.curvature * epoch_way)
    return {"difference_clip": C2, "gamma": C2 / CLIP}


def noise_in_estimate(made: Plan) -> float:
    """Root mean square, over steps, of the noise in a coordinate of the momentum estimate: exact.

    For plain gradients that is all by which the estimate differs from the average of the clipped
    batch gradients; where differences are clipped, what C2 cuts off comes on top.
    """
    steps = made.population.steps
    update = made.update
    if update.optimizer not in AVERAGING:
        # The same average as the estimate of normalized steps, which is a multiple of the sum in use.
        update = type(update)("normalized", update.learning_rate, update.momentum)
    average = update.workload(made.contribution)
    weights = made.contribution.bounds(steps).T / made.clip
    if np.all(weights == weights.flat[0]):
        error = made.mechanism.workload_error(average) * weights.flat[0]
    else:
        error = made.mechanism.workload_error(
            average, weights if weights.shape[1] > 1 else weights[:, 0]
        )
    return float(np.sqrt(np.mean(error**2))) * made.noise_multiplier * made.clip / made.divisor


def measures(
    seen: Seen, i: int, model: BenchModel, rows: PreparedData, made: Plan
) -> dict[str, float]:
    """What is measured of run `i`."""
    X, y = _floats(rows.train)
    norms, errors = [], []
    per_row = np.zeros(1)
    for iterate, estimate in zip(seen.iterates[:, i], seen.estimates[:, i], strict=True):
        gradient, per_row = model.gradient(iterate.astype(np.float64), X, y)
        norms.append(float(np.linalg.norm(gradient)))
        errors.append(float(np.mean((estimate - gradient) ** 2)))
    last = seen.iterates[-1, i].astype(np.float64)
    X_test, y_test = _floats(rows.test)
    right = (model.logits(last, X_test) > 0) == (y_test > 0.5)
    return {
        "accuracy": 100 * float(np.mean(right)),
        "gradient_norm": norms[-1],
        "gradient_random": float(np.mean(norms)),
        "estimate_error": math.sqrt(float(np.mean(errors))),
        "clipped": 100 * float(np.mean(per_row > made.clip)),
        **_clipped_differences(seen, i, model, (X, y), made),
    }


def _clipped_differences(
    seen: Seen, i: int, model: BenchModel, rows: tuple[Array, Array], made: Plan
) -> dict[str, float]:
    """Per cent of rows whose difference C2 clips in the steps that follow the points, if there are any.

    The first epoch takes no differences, and no step follows the last point.
    """
    if not isinstance(made.contribution, Lagged) or seen.lagged is None:
        return {}
    steps, lag = made.population.steps, made.contribution.lag
    shares = [
        np.mean(model.moved(now, before, *rows, made.clip) > made.contribution.difference_clip)
        for now, before, done in zip(
            seen.iterates[:, i].astype(np.float64),
            seen.lagged[:, i].astype(np.float64),
            seen.steps,
            strict=True,
        )
        if lag <= done < steps
    ]
    return {"clipped_differences": 100 * float(np.mean(shares))} if shares else {}


def _gradients(entry: RunRow, per_epoch: int) -> int:
    """Gradients of every example in a step."""
    spec = recipe_named(entry.recipe)
    return spec.contribution_for(spec.resolve(dict(entry.options)), per_epoch).gradients


def _at(base: Plan, way: float) -> Plan:
    return base.with_update(learning_rate=way / base.population.steps)


def _watched(made: Plan, model: BenchModel, rows: PreparedData, first: int, count: int) -> Seen:
    X, y = rows.train
    return watch(
        made, model.loss, model.start(X.shape[1]), (X, y), first=first, count=count, points=POINTS
    )


def _public_score(
    made: Plan, model: BenchModel, public: PreparedData, seeds: tuple[int, int]
) -> float:
    """Mean log-loss on the public rows that were not trained on."""
    seen = _watched(made, model, public, seeds[0] + _OTHER_SEEDS, seeds[1])
    X, y = _floats(public.test)
    scores = [model.mean_loss(last.astype(np.float64), X, y) for last in seen.iterates[-1]]
    return float(np.mean(scores))


def _floats(rows: tuple[Any, Any]) -> tuple[Array, Array]:
    X, y = rows
    return X.astype(np.float64), y.astype(np.float64)


@lru_cache(maxsize=1)
def _rows(data: str, folder: str | None) -> tuple[PreparedData, PreparedData]:
    """The rows, and the public ones: one fold to score on, the others to train on."""
    whole = prepared_rows(PopulationSpec(data, data=data, loss={"kind": "logistic"}), folder)
    return whole, public_folds(whole, _TUNING)[0]
