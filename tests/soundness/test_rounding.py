"""Sums and norms in float32: within the margins that clips leave room for."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

from sordino.parts._rounding import block_product, norm_margin, squared_norm, sum_margin
from sordino.parts.contributions._gradient import clip_pytree


@pytest.mark.parametrize("rows", [65, 250, 1009, 5000])
@pytest.mark.parametrize("at_hand", [False, True])
def test_block_products_are_exact(rows: int, at_hand: bool) -> None:
    """k: the sum and what its rounding left out, together, against float64: 64 rows' error at most."""
    rng = np.random.default_rng(rows)
    left = rng.uniform(0.5, 1, rows).astype(np.float32)
    right = rng.uniform(0.5, 1, (rows, 3)).astype(np.float32)
    value, rest = jax.jit(partial(block_product, at_hand=at_hand))(left, right)
    exact = left.astype(np.float64) @ right.astype(np.float64)
    found = np.asarray(value, np.float64) + np.asarray(rest, np.float64)
    assert np.abs(found - exact).max() < rows / 64 * sum_margin(64)
    assert np.all(np.abs(np.asarray(rest)) <= np.spacing(np.abs(np.asarray(value))))


@pytest.mark.parametrize("at_hand", [False, True])
def test_one_record_changes_one_block_only(at_hand: bool) -> None:
    """k: the proof of `sum_margin` counts on it."""
    rng = np.random.default_rng(0)
    rows = 640
    left = rng.uniform(0.5, 1, rows).astype(np.float32)
    right = rng.uniform(0.5, 1, (rows, 3)).astype(np.float32)
    product = jax.jit(partial(block_product, at_hand=at_hand))
    worst = 0.0
    for i in range(0, rows, 37):
        without = left.copy()
        without[i] = 0
        a, b = (
            sum(np.asarray(part, np.float64) for part in product(v, right)) for v in (left, without)
        )
        own = left[i].astype(np.float64) * right[i].astype(np.float64)
        worst = max(worst, float(np.linalg.norm(a - b - own)))
    longest = float(np.linalg.norm(left[:, None] * right, axis=1).max())
    assert worst <= sum_margin(64) * longest


@pytest.mark.parametrize(
    "shapes", [[(7,)], [(4096,)], [(100_000,)], [(300, 200), (300,)], [(5, 70, 90), (3,), ()]]
)
def test_norms_are_within_their_margin(shapes: list[tuple[int, ...]]) -> None:
    """k: norms too, whatever the shapes are; constant entries make errors add up."""
    for value in (1.0, 1.1, 1.7):
        leaves = [np.full(shape, value, np.float32) for shape in shapes]
        exact = sum(float(np.sum(leaf.astype(np.float64) ** 2)) for leaf in leaves)
        found = float(jax.jit(squared_norm)(leaves))
        assert abs(np.sqrt(found / exact) - 1) <= norm_margin(shapes)
        clipped = clip_pytree(leaves, 1.0, 1 - norm_margin(shapes))
        length = sum(float(np.sum(np.asarray(leaf, np.float64) ** 2)) for leaf in clipped)
        assert np.sqrt(length) <= 1


def test_the_least_clip_is_kept_in_a_million_dimensions() -> None:
    """j: at the least clip that there is, squares that vanish do not matter."""
    vector = np.full(1_000_000, 1e-10, np.float32)
    clipped = np.asarray(clip_pytree(vector, 1e-9, 1 - norm_margin([vector.shape])), np.float64)
    assert np.linalg.norm(clipped) <= 1e-9


def test_an_absent_record_leaves_the_others_where_they_are() -> None:
    """Secret batches: each row's place is uniform and independent of who else is there.

    Chi-square of the places of one row over 6,000 batches of 16 places, with and without another row;
    at an error rate of 1e-6 each.
    """
    from scipy.stats import chi2

    from sordino._base.keys import RunKey
    from sordino.parts.sampling._population import Population

    people = Population(6, 3, 6000, sampling="poisson")
    indices, mask = people.batches(RunKey.from_insecure_seed(1), 0, 6000)
    width = indices.shape[1]
    there = (indices == 2) & (mask > 0)
    other = ((indices == 4) & (mask > 0)).any(axis=1)
    for group in (other, ~other):
        counts = there[group].sum(axis=0)
        expected = counts.sum() / width
        assert counts.sum() > 1000
        assert ((counts - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-6, width - 1)


@pytest.mark.parametrize("d", [1, 16])
def test_secret_batches_keep_the_bound_with_a_record_absent(d: int) -> None:
    """The other rows stay at their places, so that one block is another, at any size of the batch."""
    rng = np.random.default_rng(0)
    rows = 64_000
    left = np.ones(rows, np.float32)
    right = rng.uniform(0.5, 1, (rows, d)).astype(np.float32)
    right /= np.linalg.norm(right, axis=1, keepdims=True) * (1 + sum_margin(64))
    product = jax.jit(block_product)
    absent = left.copy()
    absent[777] = 0
    a, b = (sum(np.asarray(x, np.float64) for x in product(v, right)) for v in (left, absent))
    assert np.linalg.norm(a - b) <= 1
