"""With no noise every recipe is the plain algorithm it is named after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sordino
from sordino.parts._losses import LeastSquares, LinearLoss, Logistic, NonconvexLogistic, Softmax
from sordino.parts._rounding import sum_margin
from sordino.parts.sampling._kinds import public_order
from sordino.planning._plans import Plan

from .helpers import MECHANISMS, binary, multiclass, quiet_plan, regression


def reference(
    plan: Plan, loss: LinearLoss, params: np.ndarray, X: np.ndarray, y: np.ndarray
) -> Any:
    """A plain loop: per-example gradients, clipped one by one, averaged, heavy-ball SGD."""
    n, b = plan.population.examples, plan.population.batch_size
    clip = plan.clip * (1 - sum_margin(b))
    order = public_order(plan.population)
    if plan.population.is_full_batch or order is None:
        order = np.arange(n)
    w, velocity = np.asarray(params, np.float64), np.zeros(np.shape(params))
    gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))
    iterates = []
    for t in range(plan.population.steps):
        slot = t % plan.population.steps_per_epoch
        total = np.zeros_like(w)
        rows = order[slot * b : (slot + 1) * b]
        for g in np.asarray(gradients(w.astype(np.float32), X[rows], y[rows]), np.float64):
            total += g * min(1.0, clip / max(float(np.linalg.norm(g)), 1e-30))
        estimate = total / plan.divisor
        extra = loss.regularizer_gradient(w.astype(np.float32))
        estimate = estimate if extra is None else estimate + np.asarray(extra)
        if plan.update.optimizer == "normalized":
            beta = plan.update.momentum
            velocity = beta * velocity + (1 - beta) * estimate
            direction = velocity / np.linalg.norm(velocity)
        else:
            velocity = direction = plan.update.momentum * velocity + estimate
        w = w - plan.update.learning_rates(plan.population.steps)[t] * direction
        if plan.update.radius is not None:
            w = w * min(1.0, plan.update.radius / float(np.linalg.norm(w)))
        iterates.append(w)
    if plan.update.average:
        start = int((1 - plan.update.average) * plan.population.steps)
        return np.mean(iterates[start:], axis=0)
    return w


PROBLEMS = {
    "logistic": (Logistic(), binary(), (5,)),
    "nonconvex": (NonconvexLogistic(lam=0.05), binary(), (5,)),
    "softmax": (Softmax(3), multiclass(), (3, 5)),
    "least squares": (LeastSquares(), regression(), (5,)),
}


RUNS: list[tuple[str, dict[str, Any]]] = [
    ("dp-gd", {}),
    ("dp-sgd", {"sampling": "fixed"}),
    ("dp-sgd", {"sampling": "fixed", "momentum": 0.5, "lr_schedule": "linear"}),
    ("dp-sgd", {"sampling": "fixed", "order_seed": None, "radius": 0.4}),
    ("dp-memf", {"average": 0.5}),
    ("dp-ftrl", {}),
    ("dp-nsgd", {"mechanism": "tree"}),
    ("dp-nsgd", {"mechanism": "blt"}),
    *[("dp-memf", {"mechanism": name}) for name in MECHANISMS],
]


def cases(short: Callable[[int, str], bool]) -> list[Any]:
    """All runs with all problems; but for the `short` ones that takes long."""
    return [
        pytest.param(
            problem,
            recipe,
            options,
            id=f"{recipe}-{i}-{problem}",
            marks=() if short(i, problem) else (pytest.mark.slow,),
        )
        for i, (recipe, options) in enumerate(RUNS)
        for problem in PROBLEMS
    ]


def planned(problem: str, recipe: str, options: dict[str, Any]) -> tuple[Plan, Any, Any]:
    """The plan, where it starts, and where a plain loop ends."""
    loss, (X, y), shape = PROBLEMS[problem]
    plan = quiet_plan(recipe, clip=0.4, learning_rate=0.3, **options)
    start = 0.1 * np.ones(shape, np.float32)
    return plan, start, reference(plan, loss, start, X, y)


@pytest.mark.parametrize(
    ("problem", "recipe", "options"), cases(lambda i, problem: problem == "softmax" or i in (1, 6))
)
def test_without_noise_it_is_the_plain_loop(
    problem: str, recipe: str, options: dict[str, Any]
) -> None:
    loss, data, _ = PROBLEMS[problem]
    plan, start, expected = planned(problem, recipe, options)
    found = sordino.train(plan, loss, start, data).params
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("problem", "recipe", "options"),
    cases(lambda i, problem: (i, problem) in {(0, "softmax"), (1, "nonconvex"), (6, "softmax")}),
)
def test_so_it_is_for_a_function_of_ones_own(
    problem: str, recipe: str, options: dict[str, Any]
) -> None:
    """The same losses as functions that nothing is known about."""
    loss, data, _ = PROBLEMS[problem]
    plan, start, expected = planned(problem, recipe, options)

    def generic(params: Any, x: Any, label: Any) -> Any:
        return loss(params["weights"], x, label)

    regularizer = None
    if isinstance(loss, NonconvexLogistic):
        regularizer = lambda params: loss.penalty(params["weights"])  # noqa: E731
    found = sordino.train(
        plan, generic, {"weights": start}, data, microbatch_size=7, regularizer=regularizer
    ).params
    np.testing.assert_allclose(found["weights"], expected, rtol=2e-4, atol=2e-6)


def test_optax_optimizers_are_used_as_they_are() -> None:
    X, y = binary()
    plan = quiet_plan("dp-gd", steps=8)
    optimizer = optax.adamw(0.05)
    found = sordino.train(plan, Logistic(), np.zeros(5, np.float32), (X, y), optimizer=optimizer)
    w = jnp.zeros(5)
    state = optimizer.init(w)
    for _ in range(8):
        g = jax.vmap(jax.grad(Logistic()), (None, 0, 0))(w, X, y)
        clip = plan.clip * (1 - sum_margin(len(X)))
        g = g * jnp.minimum(1, clip / jnp.linalg.norm(g, axis=1, keepdims=True))
        updates, state = optimizer.update(g.mean(0), state, w)
        w = optax.apply_updates(w, updates)
    np.testing.assert_allclose(found.params, w, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sampling", ["poisson", "without-replacement", "reshuffled"])
def test_random_batches_train_the_same_model_as_a_loop_over_them(sampling: str) -> None:
    from sordino._base.keys import RunKey

    X, y = binary()
    plan = quiet_plan("dp-sgd", sampling=sampling, momentum=0.0, learning_rate=0.3)
    key = RunKey.from_insecure_seed(3)
    found = sordino.train(plan, Logistic(), np.zeros(5, np.float32), (X, y), run_key=key).params
    w = np.zeros(5)
    indices, mask = plan.population.batches(key, 0, plan.population.steps)
    for rows, present in zip(indices, mask, strict=True):
        picked = np.asarray(rows)[np.asarray(present) > 0]
        # By hand: batches differ in size, and jax would compile a program for each.
        g = (1 / (1 + np.exp(-X[picked] @ w)) - y[picked])[:, None] * X[picked]
        clip = 1 - sum_margin(len(rows))
        g = g * np.minimum(1, clip / np.linalg.norm(g, axis=1, keepdims=True))
        w = w - 0.3 * g.sum(0) / plan.divisor
    np.testing.assert_allclose(found, w, rtol=1e-4, atol=1e-6)
