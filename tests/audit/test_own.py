"""The white-box audit of losses and streams of one's own, on data of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sordino
from sordino import Plan, SordinoError, audit
from sordino.audit import _own as own
from sordino.audit._own import OwnNeighbours
from sordino.engine import _many as many
from sordino.engine import _run as drivers
from sordino.parts._losses import Logistic
from sordino.parts.contributions._base import Batch, Evaluator
from sordino.parts.sampling._kinds import public_order
from sordino.privacy._values import ClippedSum

from ..contract.cases import logistic_data

EXAMPLES, FEATURES, CLIP = 12, 3, 0.2
DATA = logistic_data(EXAMPLES, FEATURES)
START = np.zeros(FEATURES, np.float32)
# mu of about 2.4: 2,000 runs measure the curve at epsilon 1 to about 8 %.
BUDGET = {"epsilon": 8.0, "delta": 1e-2}


def make(name: str = "dp-memf", **options: Any) -> Plan:
    settings = {"examples": EXAMPLES, "batch_size": 4, "steps": 6, "clip": CLIP, **BUDGET}
    return sordino.plan(name, **(settings | options))


@dataclass(frozen=True)
class Rows(Evaluator):
    """``sum_i factor x_i y_i`` with rows clipped to `limit`; the declared clip is CLIP."""

    limit: float = CLIP
    clip: float = CLIP

    def total(self, params: Any, memory: Any, batch: Batch, terms: Any, step: Any) -> ClippedSum:
        X, y = batch.data
        rows = X * (2 * y - 1)[:, None]
        norms = jnp.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows * jnp.minimum(1.0, self.limit * (1 - 1e-6) / jnp.maximum(norms, 1e-12))
        return ClippedSum(batch.present @ rows)


@dataclass(frozen=True)
class Centred(Rows):
    """The batch's mean is taken off each row before it is clipped: rows depend on each other."""

    def total(self, params: Any, memory: Any, batch: Batch, terms: Any, step: Any) -> ClippedSum:
        X, y = batch.data
        mean = batch.present @ X / jnp.maximum(batch.present.sum(), 1.0)
        centred = Batch((X - mean, y), batch.present)
        return super().total(params, memory, centred, terms, step)


@pytest.mark.parametrize("name", ["dp-memf", "dp-sgd"])
def test_an_honest_stream_keeps_its_word(name: str) -> None:
    """Its worst row is longer than the clip in every step, so the bound is tight.

    99.9 % confidence; secret batches have the smaller mu and the wider interval.
    """
    result = audit.white_box(make(name), Rows(), START, DATA, runs=2000)
    assert not result.violates, result.verdict()
    assert result.mu_high >= result.mu_claimed, result.verdict()
    assert result.mu_estimate >= 0.85 * result.mu_claimed, result.verdict()
    assert result.attack == "likelihood"
    assert 0 < result.epsilon_low < result.epsilon_claimed


@pytest.mark.parametrize("name", ["dp-memf", "dp-sgd"])
def test_a_stream_that_exceeds_its_clip_is_found(name: str) -> None:
    result = audit.white_box(make(name), Rows(limit=2 * CLIP), START, DATA, runs=2000)
    assert result.violates, result.verdict()


def test_rows_that_depend_on_each_other_are_found() -> None:
    """Every row is clipped, yet leaving one out moves all the others of its batch."""
    data = (np.array(DATA[0]), DATA[1])
    data[0][0] = 50.0
    result = audit.white_box(make(), Centred(), START, data, example=0, runs=2000)
    assert result.violates, result.verdict()
    # Beside it, the same rows without the coupling.
    honest = audit.white_box(make(), Rows(), START, data, example=0, runs=2000)
    assert not honest.violates, honest.verdict()


@pytest.fixture
def fresh_programs() -> Iterator[None]:
    """Compiled code of the unchanged loop must not be used here, nor that of a changed one later."""
    programs = (own._means, many.map_chunk, drivers.scan_chunk)
    for program in programs:
        program.clear_cache()
    yield
    for program in programs:
        program.clear_cache()


@pytest.mark.usefixtures("fresh_programs")
def test_a_row_that_takes_part_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last batch is short, it is filled up with rows of the one before."""
    rows = logistic_data(EXAMPLES - 1, FEATURES)
    plan = make(examples=EXAMPLES - 1, steps=3)

    def batch(slices: Any, records: Any, t: Any, picked: Any) -> Any:
        wanted = (t % slices.per_epoch) * slices.batch_size
        begin = jnp.minimum(wanted, plan.population.examples - slices.batch_size)
        return Batch(
            *jax.tree.map(
                lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, begin, slices.batch_size),
                (records.data, records.valid),
            )
        )

    for module in (drivers, own):
        monkeypatch.setattr(module, "batch_at", batch)
    pair = OwnNeighbours.of(plan, Rows(), START, rows)
    # It is in the batch before the last, and in the last one too.
    assert pair.example == public_order(plan.population)[-4]
    result = pair.audit(runs=2000)
    assert result.violates, result.verdict()


def test_a_loss_of_any_kind() -> None:
    """Closed form and per-example gradients of one loss: the same example is the worst of both."""
    plan = make("dp-srm", sampling="fixed", difference_clip=0.1)
    rows = [OwnNeighbours.of(plan, loss, START, DATA).example for loss in (Logistic(), plain)]
    assert rows[0] == rows[1]
    result = audit.white_box(plan, plain, START, DATA, example=rows[0], runs=1000)
    assert not result.violates, result.verdict()


def plain(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.logaddexp(0.0, x @ params) - y * (x @ params)


def test_shifts_are_the_example_s_own_contributions() -> None:
    """Without noise, the difference of the two worlds' sums is what the attacker computes."""
    plan = make()
    pair = OwnNeighbours.of(plan, Rows(), START, DATA, example=3)
    sums = [next(world.silenced().releases(0, 1)).sums for world in pair.worlds]
    points = next(pair.worlds[1].silenced().releases(0, 1)).points
    base, shift = pair.means(points)
    np.testing.assert_allclose(sums[1] - sums[0], shift, atol=1e-6)
    np.testing.assert_allclose(sums[0], base, atol=1e-6)
    X, y = DATA
    row = X[3] * (2 * y[3] - 1)
    row = row * min(1.0, CLIP / np.linalg.norm(row))
    present = np.abs(shift[0, :, 0]).sum(axis=1) > 0
    assert present.sum() == 2  # once in each of two epochs
    np.testing.assert_allclose(shift[0, present, 0], [row, row], atol=1e-6)


def test_discrete_noise() -> None:
    """On a lattice a loss's sums are whole numbers; the attacker reads them in its steps."""
    plan = make("dp-gd", batch_size=None, steps=2, noise="discrete")
    pair = OwnNeighbours.of(plan, Logistic(), START, DATA, example=3)
    silent = [next(world.silenced().releases(0, 1)) for world in pair.worlds]
    base, shift = pair.means(silent[1].points)
    np.testing.assert_allclose(silent[1].sums[0, 0] - silent[0].sums[0, 0], shift[0, 0], atol=1e-6)
    assert 0.01 < np.linalg.norm(shift[0, 0]) <= CLIP
    np.testing.assert_allclose(silent[0].sums[0, 0], base[0, 0], atol=1e-6)


def test_replacing_an_example() -> None:
    plan = make(adjacency="replace-one")
    x = DATA[0][1]
    other = (-x, DATA[1][1])
    result = audit.white_box(plan, Rows(), START, DATA, example=1, instead=other, runs=2000)
    assert not result.violates, result.verdict()
    # Opposite rows are as far apart as any two: the bound is tight.
    assert result.mu_high >= result.mu_claimed
    with pytest.raises(SordinoError, match="give `instead`"):
        audit.white_box(plan, Rows(), START, DATA)
    with pytest.raises(SordinoError, match="one example like those of data"):
        audit.white_box(plan, Rows(), START, DATA, instead=(np.zeros(5), 1.0))
    with pytest.raises(SordinoError, match="left out, not replaced"):
        audit.white_box(make(), Rows(), START, DATA, instead=other)


def test_what_is_refused() -> None:
    with pytest.raises(SordinoError, match="there is no row 12"):
        audit.white_box(make(), Rows(), START, DATA, example=12)
    with pytest.raises(SordinoError, match="promises no privacy"):
        audit.white_box(
            sordino.plan("sgd", examples=12, batch_size=4, steps=2), Rows(), START, DATA
        )
    with pytest.raises(SordinoError, match="decides during the run"):
        audit.white_box(
            sordino.plan("dp-agd", examples=12, steps=3, **BUDGET), Logistic(), START, DATA
        )
    secret = make("dp-sgd", adjacency="replace-one")
    with pytest.raises(SordinoError, match="sampling='fixed'"):
        audit.white_box(secret, Rows(), START, DATA)
