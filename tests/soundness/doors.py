"""Every door and every kind of number: the axes of the matrix in `test_matrix.py`."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import sordino
from sordino._base.keys import RunKey
from sordino.engine import _checkpoint as recovery
from sordino.parts._losses import LeastSquares, Logistic, NonconvexLogistic, Softmax
from sordino.planning._plans import Plan

# Two blocks to a batch, the last batch short; three features.
N, BATCH, D, STEPS = 150, 80, 3, 4
SEED = 7

_WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_REAL = ("float16", "float32", "float64", "longdouble")


def _numpy(name: str) -> Callable[[np.ndarray], Any]:
    return lambda values: _fitted(values, np.dtype(name))


def _fitted(values: np.ndarray, dtype: Any) -> np.ndarray:
    """`values` in a type of less room, the largest that there is where they do not fit."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        scale = min(1.0, limits.max / np.abs(values).max())
        lowest = 0 if dtype.kind == "u" else -limits.max
        return np.clip(np.floor(values * scale), lowest, limits.max).astype(dtype)
    with np.errstate(all="ignore"):
        return values.astype(dtype)


CONTAINERS: dict[str, Callable[[np.ndarray], Any]] = {
    **{f"numpy {name}": _numpy(name) for name in (*_WHOLE, *_REAL, "bool", ">f4", ">f8", ">i4")},
    "numpy bfloat16": lambda v: v.astype(ml_dtypes.bfloat16),
    "numpy float64, columns first": lambda v: np.asfortranarray(v),
    "numpy float64, every other row": lambda v: np.repeat(v, 2, axis=0)[::2],
    **{
        f"jax {name}": lambda v, n=name: jnp.asarray(_fitted(v, np.dtype(n)))
        for name in ("float32", "float16", "int32", "uint8", "bool")
    },
    "jax bfloat16": lambda v: jnp.asarray(v, jnp.bfloat16),
    "pandas float64": lambda v: pd.DataFrame(v),
    "pandas int64": lambda v: pd.DataFrame(_fitted(v, np.dtype("int64"))),
    "pandas uint8": lambda v: pd.DataFrame(_fitted(v, np.dtype("uint8"))),
    "pandas float32 and int16": lambda v: pd.DataFrame(
        {"a": v[:, 0].astype("f4"), "b": _fitted(v[:, 1], np.dtype("i2")), "c": v[:, 2]}
    ),
    "arrow int64": lambda v: pa.table(
        {str(i): _fitted(v[:, i], np.dtype("int64")) for i in range(v.shape[1])}
    ).to_pandas(),
    "arrow float32": lambda v: pa.table(
        {str(i): v[:, i].astype("f4") for i in range(v.shape[1])}
    ).to_pandas(types_mapper=None),
}

# What is planned: every rule, every kind of correlated noise, every sampling, both kinds of noise.
PLANS: dict[str, dict[str, Any]] = {
    "dp-gd": {"recipe": "dp-gd"},
    "dp-sgd, poisson": {"recipe": "dp-sgd", "sampling": "poisson"},
    "dp-sgd, without replacement": {
        "recipe": "dp-sgd", "sampling": "without-replacement", "adjacency": "replace-one",
    },
    "dp-sgd, reshuffled": {"recipe": "dp-sgd", "sampling": "reshuffled"},
    "dp-srm, first batch": {
        "recipe": "dp-srm", "difference_clip": 0.3, "gamma": 0.01, "first_batch": 120,
    },
    "dp-memf, blt": {"recipe": "dp-memf", "mechanism": "blt"},
    "dp-memf, banded": {"recipe": "dp-memf", "mechanism": "banded"},
    "dp-memf, dense": {"recipe": "dp-memf", "mechanism": "dense"},
    "dp-srg-memf, tree": {"recipe": "dp-srg-memf", "mechanism": "tree"},
    "dp-srgd": {"recipe": "dp-srgd", "mechanism": "toeplitz"},
    "dp-mu2": {"recipe": "dp-mu2"},
    "dp-nsgd-sr": {"recipe": "dp-nsgd-sr", "difference_clip": 0.3},
    "dp-nsgd-sr, anchored": {"recipe": "dp-nsgd-sr", "form": "anchored"},
    "discrete dp-gd": {"recipe": "dp-gd", "noise": "discrete"},
    "discrete dp-srm": {"recipe": "dp-srm", "noise": "discrete", "sampling": "fixed"},
    "discrete dp-mu2": {"recipe": "dp-mu2", "noise": "discrete"},
}  # fmt: skip


@lru_cache(maxsize=64)
def planned(name: str) -> Plan:
    options = {"examples": N, "batch_size": BATCH, "steps": STEPS, "noise_multiplier": 0.01}
    options |= PLANS[name]
    if options["recipe"] == "dp-gd":
        del options["batch_size"]
    return sordino.plan(options.pop("recipe"), learning_rate=0.3, **options)


def _of_one(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """A network without constants: a row of zeros has no gradient."""
    kind = params["head"].dtype
    hidden = jnp.tanh(params["first"] @ x.astype(kind))
    return (params["head"] @ hidden - y.astype(kind)).astype(jnp.float32) ** 2


def network(kind: str) -> Any:
    rng = np.random.default_rng(1)
    return {
        "first": jnp.asarray(rng.normal(size=(4, D)), kind),
        "head": jnp.asarray(rng.normal(size=4), kind),
    }


@dataclass(frozen=True)
class Evaluated:
    """A loss, its start and how it is evaluated."""

    loss: Any
    start: Any
    options: tuple[tuple[str, Any], ...] = ()


EVALUATORS: dict[str, Evaluated] = {
    "logistic": Evaluated(Logistic(), np.full(D, 0.5, np.float32)),
    "nonconvex": Evaluated(NonconvexLogistic(), np.full(D, 0.5)),
    "softmax": Evaluated(Softmax(3), np.full((3, D), 0.1, np.float32)),
    "least squares, float16": Evaluated(LeastSquares(), np.full(D, 0.5, np.float16)),
    "vmap": Evaluated(_of_one, network("float32")),
    "vmap, microbatches of 7": Evaluated(_of_one, network("float32"), (("microbatch_size", 7),)),
    "vmap, bfloat16": Evaluated(_of_one, network("bfloat16")),
    "vmap, float16, microbatches of 64": Evaluated(
        _of_one, network("float16"), (("microbatch_size", 64),)
    ),
}

Data = tuple[Any, Any]


def by_scan(plan: Plan, how: Evaluated, data: Data) -> Any:
    return sordino.train(
        plan, how.loss, how.start, data, insecure_seed=SEED, driver="scan", **dict(how.options)
    ).params


def by_steps(plan: Plan, how: Evaluated, data: Data) -> Any:
    return sordino.train(
        plan, how.loss, how.start, data, insecure_seed=SEED, driver="steps", **dict(how.options)
    ).params


class StopHereError(Exception):
    pass


def with_checkpoint(plan: Plan, how: Evaluated, data: Data) -> Any:
    """Stopped by an exception after each step in turn, and gone on from the file."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "SHARE", math.inf)  # a checkpoint after every step
        options: dict[str, Any] = {
            "insecure_seed": SEED,
            "checkpoint": Path(folder) / "run",
            "checkpoint_seconds": 0.0,
            **dict(how.options),
        }
        seen = 0

        def stop(snapshot: Any) -> None:
            nonlocal seen
            seen += 1
            if seen > 1:
                raise StopHereError

        for _ in range(4 * STEPS):
            seen = 0
            try:
                return sordino.train(
                    plan, how.loss, how.start, data, callbacks=[stop], **options
                ).params
            except StopHereError:
                continue
    raise AssertionError("the run came to no end")


def _rows(data: Data, rows: Any) -> Data:
    return tuple(part.iloc[rows] if hasattr(part, "iloc") else part[rows] for part in data)  # type: ignore[return-value]


def by_session(plan: Plan, how: Evaluated, data: Data) -> Any:
    session = sordino.Session(plan, how.loss, how.start, insecure_seed=SEED, **dict(how.options))
    for rows in session:
        session.step(_rows(data, rows))
    return session.result().params


def with_retries(plan: Plan, how: Evaluated, data: Data) -> Any:
    """Every step fails first: a batch of another shape."""
    session = sordino.Session(plan, how.loss, how.start, insecure_seed=SEED, **dict(how.options))
    for rows in session:
        X, y = _rows(data, rows)
        for wrong in ((np.asarray(X)[:, :2], y), (X, np.array(["text"] * len(rows)))):
            try:
                session.step(wrong)
            except Exception:
                continue
            raise AssertionError("a wrong batch was taken")
        session.step((X, y))
    return session.result().params


DOORS: dict[str, Callable[[Plan, Evaluated, Data], Any]] = {
    "train, scan": by_scan,
    "train, steps": by_steps,
    "train, interrupted at every checkpoint": with_checkpoint,
    "session": by_session,
    "session, every step retried": with_retries,
}


@dataclass(frozen=True)
class Case:
    door: str
    container: str
    plan: str
    evaluator: str

    def __str__(self) -> str:
        return " | ".join((self.door, self.container, self.plan, self.evaluator))


AXES = (tuple(DOORS), tuple(CONTAINERS), tuple(PLANS), tuple(EVALUATORS))


def every_case() -> Iterator[Case]:
    """The whole matrix."""
    return itertools.starmap(Case, itertools.product(*AXES))


def few_cases(seed: int = 0) -> list[Case]:
    """Every door with every evaluator, and every container and plan a time or two on the way."""
    rng = np.random.default_rng(seed)

    def spread(axis: tuple[str, ...], count: int) -> list[str]:
        rounds = [rng.permutation(axis) for _ in range(-(-count // len(axis)))]
        return [str(value) for value in np.concatenate(rounds)[:count]]

    pairs = list(itertools.product(AXES[0], AXES[3]))
    containers, plans = spread(AXES[1], len(pairs)), spread(AXES[2], len(pairs))
    return [
        Case(door, container, plan, evaluator)
        for (door, evaluator), container, plan in zip(pairs, containers, plans, strict=True)
    ]


def paired_cases() -> Iterator[Case]:
    """Every container with every plan, and the doors and evaluators in turn."""
    for i, (container, plan) in enumerate(itertools.product(AXES[1], AXES[2])):
        yield Case(AXES[0][i % len(AXES[0])], container, plan, AXES[3][i % len(AXES[3])])


def records(case: Case, seed: int) -> tuple[Data, Data]:
    """A table and the same with one record's row set to zero, which adds nothing to any sum."""
    rng = np.random.default_rng(seed)
    # Of all lengths, many of them alike, so that sums are long and what is left out of them is too.
    X = np.ones((N, D)) + rng.normal(size=(N, D)) * rng.choice([0.0, 1e-3, 1.0], (N, 1))
    X *= rng.choice([1.0, 50.0, 1e5, 1e-6], (N, 1), p=[0.4, 0.3, 0.2, 0.1])
    y = rng.integers(0, 3 if case.evaluator == "softmax" else 2, N)
    row = int(rng.integers(N))
    X[row] = rng.choice([1.0, 300.0, 46_341.0, 3e9, 1e30], D)
    other = X.copy()
    other[row] = 0
    made = CONTAINERS[case.container](X)
    if hasattr(made, "iloc"):
        without = made.copy()
        without.iloc[row] = 0
    else:
        without = (
            made.at[row].set(jnp.zeros((), made.dtype))
            if isinstance(made, jax.Array)
            else np.array(made)
        )
        if isinstance(without, np.ndarray):
            without[row] = 0
    return (made, y), (without, y)


def key() -> RunKey:
    return RunKey.from_insecure_seed(SEED)
