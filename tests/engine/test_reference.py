"""With no noise every recipe is the plain algorithm it is named after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sordino
from sordino.engine.batches import public_order
from sordino.losses import LeastSquares, LinearLoss, Logistic, NonconvexLogistic, Softmax
from sordino.planning import Plan

from .helpers import MECHANISMS, binary, multiclass, quiet_plan, regression


def reference(
    plan: Plan, loss: LinearLoss, params: np.ndarray, X: np.ndarray, y: np.ndarray
) -> Any:
    """A plain loop: per-example gradients, clipped one by one, averaged, heavy-ball SGD."""
    n, b = plan.population.examples, plan.population.batch_size
    order = public_order(plan.population)
    if plan.population.is_full_batch or order is None:
        order = np.arange(n)
    w, velocity = jnp.asarray(params), jnp.zeros_like(params)
    gradient = jax.jit(jax.grad(loss))
    iterates = []
    for t in range(plan.population.steps):
        slot = t % plan.population.steps_per_epoch
        total = jnp.zeros_like(w)
        for i in order[slot * b : (slot + 1) * b]:
            g = gradient(w, X[i], y[i])
            total += g * min(1.0, plan.clip / max(float(jnp.linalg.norm(g)), 1e-30))
        estimate = total / plan.divisor
        extra = loss.regularizer_gradient(w)
        estimate = estimate if extra is None else estimate + extra
        if plan.update.optimizer == "normalized":
            beta = plan.update.momentum
            velocity = beta * velocity + (1 - beta) * estimate
            direction = velocity / jnp.linalg.norm(velocity)
        else:
            velocity = direction = plan.update.momentum * velocity + estimate
        w = w - plan.update.learning_rates(plan.population.steps)[t] * direction
        if plan.update.radius is not None:
            w = w * min(1.0, plan.update.radius / float(jnp.linalg.norm(w)))
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
    ("dp-sgd", {"sampling": "fixed", "order_seed": None, "radius": 0.3}),
    ("dp-memf", {"average": 0.5}),
    ("dp-ftrl", {}),
    ("dp-nsgd", {"mechanism": "tree"}),
    ("dp-nsgd", {"mechanism": "blt"}),
    *[("dp-memf", {"mechanism": name}) for name in MECHANISMS],
]


def cases() -> Iterator[Any]:
    """Everything with one problem, and all problems with some; the rest takes long."""
    for i, (recipe, options) in enumerate(RUNS):
        for problem in PROBLEMS:
            short = problem == "softmax" or i in (1, 6)
            marks = () if short else (pytest.mark.slow,)
            name = f"{recipe}-{i}-{problem}"
            yield pytest.param(problem, recipe, options, id=name, marks=marks)


@pytest.mark.parametrize(("problem", "recipe", "options"), list(cases()))
def test_without_noise_it_is_the_plain_loop(
    problem: str, recipe: str, options: dict[str, Any]
) -> None:
    loss, (X, y), shape = PROBLEMS[problem]
    plan = quiet_plan(recipe, clip=0.4, learning_rate=0.3, **options)
    start = 0.1 * np.ones(shape, np.float32)
    expected = reference(plan, loss, start, X, y)
    closed = sordino.train(plan, loss, start, (X, y)).params
    np.testing.assert_allclose(closed, expected, rtol=2e-4, atol=2e-6)

    def generic(params: Any, x: Any, label: Any) -> Any:
        return loss(params["weights"], x, label)

    regularizer = None
    if isinstance(loss, NonconvexLogistic):
        regularizer = lambda params: loss.penalty(params["weights"])  # noqa: E731
    by_vmap = sordino.train(
        plan, generic, {"weights": start}, (X, y), microbatch_size=7, regularizer=regularizer
    ).params
    np.testing.assert_allclose(by_vmap["weights"], expected, rtol=2e-4, atol=2e-6)


def test_optax_optimizers_are_used_as_they_are() -> None:
    X, y = binary()
    plan = quiet_plan("dp-gd", steps=8)
    optimizer = optax.adamw(0.05)
    found = sordino.train(plan, Logistic(), np.zeros(5, np.float32), (X, y), optimizer=optimizer)
    w = jnp.zeros(5)
    state = optimizer.init(w)
    for _ in range(8):
        g = jax.vmap(jax.grad(Logistic()), (None, 0, 0))(w, X, y)
        g = g * jnp.minimum(1, plan.clip / jnp.linalg.norm(g, axis=1, keepdims=True))
        updates, state = optimizer.update(g.mean(0), state, w)
        w = optax.apply_updates(w, updates)
    np.testing.assert_allclose(found.params, w, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "sampling",
    [
        "poisson",
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("without-replacement", "reshuffled")),
    ],
)
def test_random_batches_train_the_same_model_as_a_loop_over_them(sampling: str) -> None:
    from sordino.engine.batches import batch_indices
    from sordino.engine.keys import RunKey

    X, y = binary()
    plan = quiet_plan("dp-sgd", sampling=sampling, momentum=0.0, learning_rate=0.3)
    key = RunKey.from_insecure_seed(3)
    found = sordino.train(plan, Logistic(), np.zeros(5, np.float32), (X, y), run_key=key).params
    w = jnp.zeros(5)
    indices, mask = batch_indices(plan.population, key, 0, plan.population.steps)
    for rows, present in zip(indices, mask, strict=True):
        picked = rows[present > 0]
        g = jax.vmap(jax.grad(Logistic()), (None, 0, 0))(w, X[picked], y[picked])
        g = g * jnp.minimum(1, 1 / jnp.linalg.norm(g, axis=1, keepdims=True))
        w = w - 0.3 * g.sum(0) / plan.divisor
    np.testing.assert_allclose(found, w, rtol=1e-4, atol=1e-6)
