"""Types, sizes and precision: whatever numbers come in, one record moves a sum by its bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sordino
from sordino._base.errors import SordinoError
from sordino._base.keys import RunKey
from sordino.engine._noise import noise_rows
from sordino.engine._run import TrainingRun
from sordino.engine._stepper import StepTable
from sordino.parts._losses import LeastSquares, LinearLoss, Logistic, Softmax
from sordino.parts.contributions._base import Batch
from sordino.parts.contributions._gradient import VmapEvaluator
from sordino.parts.contributions._linear import LinearEvaluator
from sordino.parts.mechanisms._catalogue import fit_mechanism
from tests.soundness.meeting import Witness, moved, watched


@pytest.fixture(scope="module")
def witness() -> Iterator[Witness]:
    with watched() as witness:
        yield witness


def ratio(
    witness: Witness, plan: Any, loss: Any, start: Any, data: Any, other: Any, **o: Any
) -> float:
    run = lambda rows: lambda: sordino.train(plan, loss, start, rows, insecure_seed=1, **o)  # noqa: E731
    first = witness.recorded(run(data))
    return moved(first, witness.repeated(first, run(other)), plan)


def one_step(examples: int, **options: Any) -> Any:
    return sordino.plan("dp-gd", examples=examples, steps=1, noise_multiplier=1.0, **options)


def test_an_integer_income_is_clipped(witness: Witness) -> None:
    """S1: setting one income to 0 moved the sum by 25,000 clips: squares wrapped around."""
    table = np.array([[30, 50_000], [40, 20_000], [50, 30_000], [60, 40_000]], np.int64)
    other = table.copy()
    other[0] = 0
    y = np.array([1, 0, 1, 0])
    start = np.zeros(2, np.float32)
    assert ratio(witness, one_step(4), Logistic(), start, (table, y), (other, y)) <= 1 + 1e-6


@pytest.mark.parametrize(
    "loss", [Logistic(), Softmax(10), LeastSquares()], ids=lambda x: type(x).__name__
)
@pytest.mark.parametrize("kind", ["uint8", "int8", "int32", "float16", "bool"])
def test_images_and_small_types_are_clipped(witness: Witness, loss: LinearLoss, kind: str) -> None:
    """S1: a constant grey image moved the sum by 896 clips, float16 rows by 252."""
    pixels = np.full((4, 784), 1 if kind == "bool" else 127).astype(kind)
    other = pixels.copy()
    other[1] = 0
    y = np.array([0, 1, 0, 1], np.float32 if isinstance(loss, LeastSquares) else np.int32)
    start = np.full(loss.parameter_shape(784), 0.01, np.float32)
    found = ratio(witness, one_step(4), loss, start, (pixels, y * 100), (other, y * 100))
    assert found <= 1 + 1e-6


def test_adaptive_runs_clip_integers(witness: Witness) -> None:
    """S1: dp-agd takes the same door."""
    plan = sordino.plan("dp-agd", examples=8, steps=3, epsilon=50.0, delta=1e-3)
    X = np.full((8, 3), 100_000, np.int64)
    other = X.copy()
    other[3] = 0
    y = np.arange(8) % 2
    start = np.full(3, 1e-3, np.float32)
    assert ratio(witness, plan, Logistic(), start, (X, y), (other, y)) <= 1 + 1e-6


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("microbatch", [None, 64])
def test_half_precision_models_are_summed_in_float32(
    witness: Witness, kind: str, microbatch: int | None
) -> None:
    """S2: 1,000 rows of bfloat16 were summed in bfloat16, which has 8 bits: mu 1.70 for 0.237."""
    n = 1000
    dtype = jnp.dtype(kind)
    X = np.full((n, 4), 0.5, np.float32)
    other = X.copy()
    other[17] = 0

    def loss(params: Any, x: Any) -> Any:
        return jnp.sum(params * x.astype(dtype))

    start = jnp.zeros(4, dtype)
    found = ratio(witness, one_step(n), loss, start, (X,), (other,), microbatch_size=microbatch)
    assert 0.99 < found <= 1 + 1e-6
    assert witness.met.types == {"float32"}


@pytest.mark.parametrize(("n", "tries"), [(1_000, 25), (100_003, 3)])
def test_sums_of_many_rows_keep_the_bound(witness: Witness, n: int, tries: int) -> None:
    """k: float32 sums were off by 6e-5 of a clip at 1,000 rows, and by 2 clips at 16 million."""
    plan, start = one_step(n), np.full(2, 9, np.float32)
    rng, found = np.random.default_rng(0), []
    for _ in range(tries):
        X = np.ones((n, 2), np.float32) * rng.uniform(1, 2, (1, 2)).astype(np.float32)
        X += rng.uniform(0, 1e-3, (n, 2)).astype(np.float32)
        other = X.copy()
        other[rng.integers(n)] = 0
        y = np.zeros(n)
        found.append(ratio(witness, plan, Logistic(), start, (X, y), (other, y)))
    assert min(found) > 0.99
    assert max(found) <= 1


@dataclass(frozen=True)
class _Crowd(Logistic):
    """Residuals that depend on the whole batch."""

    def residual(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        return super().residual(logits, y) * 1e-3 * jnp.max(jnp.abs(logits))


def test_a_residual_sees_one_example_only(witness: Witness) -> None:
    """h: residuals scaled by the batch's maximum moved the sum by 99 clips."""
    n = 100
    X = np.ones((n, 2), np.float32)
    X[0] = 1e4
    other = X.copy()
    other[0] = 0
    y = np.zeros(n)
    found = ratio(witness, one_step(n), _Crowd(), np.ones(2, np.float32), (X, y), (other, y))
    assert found <= 1 + 1e-6


class _Mixed:
    def residuals(self, logits: Any, y: Any) -> Any:
        return (jax.nn.sigmoid(logits) - y) * jnp.max(jnp.abs(logits))


class _Inherited(_Mixed, Logistic):
    pass


class _Shifted(Logistic):
    def logits(self, params: Any, X: Any) -> Any:
        return X @ params.T - jnp.mean(X @ params.T)


class _Hidden(Logistic):
    def __init__(self, scale: float) -> None:
        object.__setattr__(self, "scale", scale)

    def residual(self, logits: Any, y: Any) -> Any:
        return self.scale * super().residual(logits, y)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("loss", "said"),
    [(_Inherited(), "residuals"), (_Shifted(), "logits"), (_Hidden(2.0), "keeps scale outside")],
)
def test_a_loss_cannot_replace_what_the_clip_counts_on(loss: Any, said: str) -> None:
    """h: sums over a batch that are a loss's own, inherited ones too; and state that nobody sees."""
    data = (np.ones((4, 2)), np.ones(4))
    with pytest.raises(SordinoError, match=said):
        sordino.train(one_step(4), loss, np.zeros(2, np.float32), data)
    with pytest.raises(SordinoError, match=said):
        LinearEvaluator(loss)


def test_a_stream_takes_linear_losses_only() -> None:
    """h: what only looks like one may mix examples."""
    with pytest.raises(SordinoError, match="is a LinearLoss"):
        LinearEvaluator(_Mixed())  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("classes", [10, 1000])
def test_residuals_whose_squares_vanish_are_clipped(
    witness: Witness, noise: str, classes: int
) -> None:
    """Squares of 1e-19 are 0 in float32; times rows of 1e18 they were ten clips long."""
    for size in (1e16, 1e18, 1.7e19):
        X = np.zeros((3, 2), np.float32)
        X[0] = 1, size
        start = np.zeros((classes, 2), np.float32)
        start[0, 0] = 43.75
        plan, y = one_step(3, noise=noise), np.zeros(3, np.int32)
        data, other = (X, y), (np.zeros_like(X), y)
        assert ratio(witness, plan, Softmax(classes), start, data, other) <= 1


@dataclass(frozen=True)
class _Half(Softmax):
    """Residuals in half precision: small ones, many of them."""

    def residual(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.full(logits.shape, 1.5e-4, jnp.float16)


def test_residuals_in_half_precision_have_float32_norms(witness: Witness) -> None:
    """Their squares vanish in float16: one row of 1e6 moved a sum by 8,000 clips."""
    X = np.zeros((3, 1), np.float32)
    X[0] = 1e6
    start, y = np.zeros((1000, 1), np.float32), np.zeros(3, np.int32)
    found = ratio(witness, one_step(3), _Half(1000), start, (X, y), (np.zeros_like(X), y))
    assert 0.9 < found <= 1


@pytest.mark.parametrize("gamma", [1e-4, 1e-6, 4e-8, 1e-12])
@pytest.mark.parametrize("evaluator", ["linear", "vmap"])
def test_small_gammas_keep_the_bound(gamma: float, evaluator: str) -> None:
    """i: ``1 - float32(1 - gamma)`` is 1.48 gamma at 4e-8."""
    plan = sordino.plan(
        "dp-srm", examples=4, batch_size=4, steps=2, noise_multiplier=1.0, gamma=gamma,
        difference_clip=1e-9, sampling="fixed",
    )  # fmt: skip
    loss = LeastSquares()
    stream = LinearEvaluator(loss) if evaluator == "linear" else VmapEvaluator(loss)
    stream = replace(stream, rule=plan.contribution.rule())
    X = jnp.zeros((4, 2)).at[0].set(1000.0)
    data, valid = stream.prepare((X, jnp.ones(4)), jnp.ones(4))
    terms = {name: values[1] for name, values in StepTable.of(plan).terms.items()}
    batch = Batch(data, valid)
    total = stream.total(jnp.ones(2), jnp.ones(2), batch, terms, jnp.int32(1))
    length = np.linalg.norm(np.asarray(total.clipped, np.float64))
    assert length <= float(plan.contribution.bounds(2)[0, 1])


@pytest.mark.parametrize("name", ["clip", "difference_clip"])
def test_clips_that_float32_cannot_keep_are_refused(name: str) -> None:
    """j: a clip of 1e-18 was kept to 100 times itself in a million dimensions."""
    with pytest.raises(SordinoError, match=f"{name} must be at least 1e-09"):
        sordino.plan(
            "dp-srm", examples=4, batch_size=2, steps=2, noise_multiplier=1.0, **{name: 1e-18}
        )


def _products(jaxpr: Any) -> list[Any]:
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found.append(equation.params["precision"])
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += _products(inner)
    return found


HIGHEST = (jax.lax.Precision.HIGHEST,) * 2


@pytest.mark.parametrize("name", ["blt", "banded", "toeplitz", "dense", "tree"])
def test_noise_is_correlated_in_full_precision(name: str) -> None:
    """p: some processors keep 10 bits of a product unless they are told otherwise."""
    plan = sordino.plan(
        "dp-memf", examples=40, batch_size=10, epochs=2, noise_multiplier=1.0, mechanism=name
    )
    mechanism = fit_mechanism(name, plan.workload, plan.population.participation())
    run = TrainingRun(plan, Logistic(), np.zeros(3, np.float32), (np.ones((40, 3)), np.ones(40)),
              key=RunKey.from_insecure_seed(0))  # fmt: skip
    source = replace(run.driver.noise.source, mechanism=mechanism)
    jaxpr = jax.make_jaxpr(noise_rows, static_argnums=3)(
        source, run.driver.noise.init(), np.int32(0), 4
    )
    found = _products(jaxpr.jaxpr)
    assert found
    assert all(precision == HIGHEST for precision in found)


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)])
@pytest.mark.parametrize("rows", [5, 200])
def test_sums_are_products_in_full_precision(loss: LinearLoss, rows: int) -> None:
    """p: the product that adds up a batch, of both evaluators."""
    X, y = jnp.ones((rows, 4)), jnp.ones(rows, jnp.int32)
    params = jnp.zeros(loss.parameter_shape(4))
    terms = {"clip": jnp.float32(1)}
    linear = LinearEvaluator(loss)
    data, valid = linear.prepare((X, y), jnp.ones(rows))

    def products(stream: Any, batch: Any) -> list[Any]:
        step = lambda p: stream.total(p, (), Batch(batch, valid), terms, 0)  # noqa: E731
        return _products(jax.make_jaxpr(step)(params).jaxpr)

    # The first one makes logits, each row its own; what follows adds up rows.
    assert all(precision == HIGHEST for precision in products(linear, data)[1:])
    assert products(VmapEvaluator(loss), (X, y))[-1] == HIGHEST


def test_no_warning_depends_on_a_record() -> None:
    """One number beyond float32 became an overflow warning, which only that record's owner causes."""
    X = np.ones((4, 2))
    X[0, 0] = 1e300
    plan = one_step(4)
    result = sordino.train(
        plan, Logistic(), np.zeros(2, np.float32), (X, np.ones(4)), insecure_seed=0
    )
    assert np.isfinite(result.params).all()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (np.array(["a", "b"]), "got an array of str"),
        (np.array([1 + 1j, 2]), "got an array of complex128"),
        (np.array([1, None]), "got an array of object"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), "got a masked one"),
        (np.array(["2020", "2021"], "datetime64[D]"), "got an array of datetime64"),
        (jnp.ones(2, jnp.float8_e4m3fn), "got an array of float8"),
    ],
)
def test_what_are_no_numbers_is_refused_by_its_type(rows: Any, said: str) -> None:
    plan = one_step(2)
    loss = lambda params, x: jnp.sum(params)  # noqa: E731
    with pytest.raises(SordinoError, match=said):
        sordino.train(plan, loss, np.zeros(2, np.float32), (rows,))
    with pytest.raises(SordinoError, match=said):
        sordino.Session(plan, loss, np.zeros(2, np.float32)).step((rows,))


def test_sparse_matrices_are_refused_in_one_sentence() -> None:
    from scipy import sparse

    plan = one_step(2)
    with pytest.raises(SordinoError, match="toarray"):
        sordino.train(
            plan, Logistic(), np.zeros(2, np.float32), (sparse.eye(2).tocsr(), np.ones(2))
        )


def test_parameters_are_finite_floats() -> None:
    plan = one_step(2)
    data = (np.ones((2, 2)), np.ones(2))
    for start, said in (([np.nan, 0], "finite"), ([1, 2], "float arrays"), ([1e300, 0], "finite")):
        with pytest.raises(SordinoError, match=said):
            sordino.train(plan, Logistic(), np.array(start), data)
