"""The audit can fail: every way of breaking the loop that the papers warn of is found by it.

Each test changes one thing in the real code and audits the unchanged plan. The second half are the
papers' privacy traps as attack scripts, which must not recover clean sums from what a run shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sordino._base.keys import RunKey
from sordino.audit._whitebox import AuditResult, Neighbours
from sordino.engine import _many as many
from sordino.engine import _noise as noise
from sordino.engine import _run as drivers
from sordino.engine._run import TrainingRun
from sordino.parts._losses import Logistic
from sordino.parts.contributions import _gradient as gradient
from sordino.parts.contributions import _rules as rules
from sordino.parts.mechanisms import _combined as combined
from sordino.parts.mechanisms._gaussian import standard_normal_rows
from sordino.parts.mechanisms._tree import Tree
from sordino.parts.sampling import _kinds as batches
from sordino.planning._plans import Plan

from .cases import EXAMPLES, audited, logistic_data, make

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _fresh_programs() -> Iterator[None]:
    """Compiled code of the unchanged loop must not be used here, nor that of a changed one later."""
    for function in (many.map_chunk, drivers.scan_chunk):
        function.clear_cache()
    yield
    for function in (many.map_chunk, drivers.scan_chunk):
        function.clear_cache()


def audit_of(plan: Plan) -> AuditResult:
    return Neighbours.of(plan).audit(runs=4000)


def halved_noise(patch: pytest.MonkeyPatch) -> None:
    planned = Plan.noise_stds
    patch.setattr(Plan, "noise_stds", lambda self: planned(self) / 2)


def a_tenth_less_noise(patch: pytest.MonkeyPatch) -> None:
    planned = Plan.noise_stds
    patch.setattr(Plan, "noise_stds", lambda self: planned(self) * np.float32(0.9))


def no_clip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gradient, "clip_pytree", lambda vector, clip, room: vector)


def clip_of_each_leaf(patch: pytest.MonkeyPatch) -> None:
    """Layer by layer with the whole bound each: sqrt(2) too long over two layers."""
    honest = gradient.clip_pytree

    def clipped(vector: Any, clip: Any, room: float) -> Any:
        return jax.tree.map(lambda leaf: honest(leaf, clip, room), vector)

    patch.setattr(gradient, "clip_pytree", clipped)


def twice_the_clip(patch: pytest.MonkeyPatch) -> None:
    honest = gradient.clip_pytree
    patch.setattr(
        gradient, "clip_pytree", lambda vector, clip, room: honest(vector, 2 * clip, room)
    )


def no_difference_clip(patch: pytest.MonkeyPatch) -> None:
    def lagged(now: Any, before: Any, clip: Any, terms: Any) -> Any:
        change = rules._add(1.0, now, -1.0, before)
        return rules._add(terms["keep"], change, 1 - terms["keep"], now)

    patch.setattr(rules, "_lagged", lagged)


def skipped_root(patch: pytest.MonkeyPatch) -> None:
    """Levels 0 .. R-1 only: the node over all steps has no noise (papers/00 erratum 5)."""
    honest = Tree.rows

    def rows(self: Tree, state: Any, draw: Any, first: Any, count: int) -> Any:
        root = 1 << (self.steps.bit_length() - 1)

        def without_root(begin: Any, length: int) -> jax.Array:
            step = begin + jnp.arange(length) + 1
            return jnp.where((step == root)[:, None], 0.0, draw(begin, length))

        return honest(self, state, without_root, first, count)

    patch.setattr(Tree, "rows", rows)


def clips_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Both gradients clipped, then subtracted: (a + b) C instead of C (papers/02 E1, papers/03 E15)."""

    def combine(self: Any, gradients: tuple[Any, ...], clip: Any, terms: Any) -> tuple[Any, ...]:
        now, before = (clip(gradient, terms["clip"]) for gradient in gradients)
        return (rules._add(terms["now"], now, -terms["before"], before),)

    patch.setattr(rules.RecursiveRule, "combine", combine)


def two_clips_of_gradients(patch: pytest.MonkeyPatch) -> None:
    """papers/01 2.1: clipped gradients subtracted, (2 - gamma) C1 instead of S."""

    def combine(self: Any, gradients: tuple[Any, ...], clip: Any, terms: Any) -> tuple[Any, ...]:
        now, before = (clip(gradient, terms["clip"]) for gradient in gradients)
        return (rules._add(1.0, now, -terms["keep"], before),)

    patch.setattr(rules.TwoClipRule, "combine", combine)


def one_row_for_all_steps(patch: pytest.MonkeyPatch) -> None:
    def draw(key: jax.Array, size: int, first: Any, count: int) -> jax.Array:
        return jnp.broadcast_to(standard_normal_rows(key, 0, 1, size), (count, size))

    patch.setattr(noise, "_draw", draw)


def noise_of_the_last_epoch(patch: pytest.MonkeyPatch) -> None:
    """A key that starts anew in each epoch: the difference of two epochs is free of noise."""

    def draw(key: jax.Array, size: int, first: Any, count: int) -> jax.Array:
        rows = standard_normal_rows(key, 0, 4, size)
        return rows[(first + jnp.arange(count)) % 4]

    patch.setattr(noise, "_draw", draw)


def one_key_for_both_channels(patch: pytest.MonkeyPatch) -> None:
    """Two streams that share their draws: the difference of two releases is free of noise."""
    honest = combined._columns
    patch.setattr(combined, "_columns", lambda draw, p, channels: honest(draw, 0, channels))


def rows_by_the_wrong_index(patch: pytest.MonkeyPatch) -> None:
    """papers/03 E1: row ``i k + j`` instead of ``i b + j``, here with k = 2 epochs of b = 4 steps."""

    def draw(key: jax.Array, size: int, first: Any, count: int) -> jax.Array:
        rows = standard_normal_rows(key, 0, 8, size)
        step = first + jnp.arange(count)
        return rows[step // 4 * 2 + step % 4]

    patch.setattr(noise, "_draw", draw)


def every_other_batch_twice(patch: pytest.MonkeyPatch) -> None:
    """Slots 0, 0, 2, 2: the examples of the first take part in the second step as well."""
    honest = drivers.batch_at

    def batch(slices: Any, records: Any, t: Any, picked: Any) -> Any:
        return honest(slices, records, t - t % 2, picked)

    patch.setattr(drivers, "batch_at", batch)


def batches_twice_as_likely(patch: pytest.MonkeyPatch) -> None:
    """The accountant is told one rate, the sampler uses another."""
    honest = batches.poisson_block

    def block(examples: int, rate: float, rng: Any) -> Any:
        return honest(examples, 2 * rate, rng)

    patch.setattr(batches, "poisson_block", block)
    # Draws that are kept are those of the honest sampler.
    patch.setattr(many, "secret_batches", many.secret_batches.__wrapped__)


MUTATIONS: list[tuple[Patch, str, dict[str, Any]]] = [
    (halved_noise, "dp-gd", {}),
    (halved_noise, "dp-sgd", {}),
    (halved_noise, "dp-nsgd-sr", {}),
    (a_tenth_less_noise, "dp-memf", {}),
    (no_clip, "dp-memf", {}),
    (no_clip, "dp-srm", {}),
    (twice_the_clip, "dp-memf", {}),
    (twice_the_clip, "dp-sgd", {}),
    (clip_of_each_leaf, "dp-nsgd", {}),
    (no_difference_clip, "dp-nsgd-sr", {}),
    (skipped_root, "dp-ftrl", {}),
    (clips_one_by_one, "dp-srg-memf", {}),
    (clips_one_by_one, "dp-mu2", {}),
    (two_clips_of_gradients, "dp-srm", {"sampling": "fixed"}),
    (one_row_for_all_steps, "dp-sgd", {"sampling": "fixed"}),
    (noise_of_the_last_epoch, "dp-sgd", {"sampling": "fixed"}),
    (one_key_for_both_channels, "dp-nsgd-sr", {"form": "anchored"}),
    (rows_by_the_wrong_index, "dp-memf", {}),
    (every_other_batch_twice, "dp-ftrl", {}),
    (batches_twice_as_likely, "dp-sgd", {}),
]


@pytest.mark.parametrize(
    ("mutation", "name", "options"),
    [pytest.param(*case, id=f"{case[0].__name__}-{case[1]}") for case in MUTATIONS],
)
def test_the_audit_finds(
    mutation: Patch, name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = audited(name, **options)
    mutation(monkeypatch)
    result = audit_of(plan)
    assert result.violates, result.verdict()
    assert "leaks more than its plan states" in result.verdict()


def test_the_audit_finds_every_missing_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node of the tree that covers the example, one at a time without its draw.

    Node t ends at step t (from 1) and covers as many steps as the largest power of 2 in t.
    """
    plan = audited("dp-ftrl", mechanism="tree")
    used = [t + 1 for t in Neighbours.of(plan).canary.pattern]
    nodes = [
        t for t in range(1, plan.population.steps + 1) if any(t - (t & -t) < u <= t for u in used)
    ]
    assert len(nodes) > 4
    honest = Tree.rows
    for missing in nodes:

        def rows(
            self: Tree, state: Any, draw: Any, first: Any, count: int, missing: int = missing
        ) -> Any:
            def thinned(begin: Any, length: int) -> jax.Array:
                step = begin + jnp.arange(length) + 1
                return jnp.where((step == missing)[:, None], 0.0, draw(begin, length))

            return honest(self, state, thinned, first, count)

        many.map_chunk.clear_cache()
        drivers.scan_chunk.clear_cache()
        with monkeypatch.context() as patch:
            patch.setattr(Tree, "rows", rows)
            result = audit_of(plan)
        assert result.violates, f"node {missing}: {result.verdict()}"


# ---- attacks on what a run shows -----------------------------------------------------------------------


class Watcher:
    """Everything a run releases, step by step, and the clean sums that it must not show."""

    def __init__(self, name: str, **options: Any) -> None:
        self.plan = make(name, noise_multiplier=1.0, **options)
        X, y = logistic_data(EXAMPLES, 4)
        self.start = np.zeros(4, np.float32)
        self.run = TrainingRun(
            self.plan,
            Logistic(),
            self.start,
            (X, y),
            key=RunKey.from_insecure_seed(1),
            watched=True,
        )
        self.states = [self.run.released()]
        while not self.run.finished:
            self.run.advance()
            self.states.append(self.run.released())

    def increments(self) -> np.ndarray:
        return np.diff([np.asarray(s.params, np.float64) for s in self.states], axis=0)


def test_the_state_of_a_recursion_is_what_its_output_used() -> None:
    """papers/03 E3: if the output had noise of its own, G minus the output would show the sums."""
    shown = Watcher("dp-srg-memf", momentum=0.0)
    rate = shown.plan.update.learning_rate
    G = np.array([np.asarray(s.update_state[1]) for s in shown.states[1:]], np.float64)
    used = -shown.increments() / rate
    np.testing.assert_allclose(used, G, rtol=1e-3, atol=1e-4)
    # So the two together say no more than one of them, and that one is noisy.
    noise = shown.plan.noise_per_step()
    assert np.std(G) > 0.3 * noise.min()


def test_two_sequences_use_one_noisy_sum() -> None:
    """papers/03 E4: ``S = 2 beta (z_inc - eta y_inc)`` is exact where z and y got different noise."""
    shown = Watcher("dp-srgd")
    settings = shown.plan.update
    rate, kappa = settings.learning_rate, settings.kappa
    from_z, from_y = [], []
    for t, (before, after) in enumerate(pairwise(shown.states)):
        # The accumulated sum is kept beside the coupling's (z, y).
        (z_before, _), _ = before.update_state
        (z_after, y_after), _ = after.update_state
        x = np.asarray(before.params, np.float64)
        from_z.append((np.asarray(z_before, np.float64) - z_after) / (kappa * rate))
        from_y.append((x - y_after) * (t + 1) / rate)
    np.testing.assert_allclose(from_z, from_y, rtol=1e-3, atol=2e-3 * np.abs(from_z).max())
    released = np.array([np.asarray(s.update_state[1]) for s in shown.states[1:]])
    np.testing.assert_allclose(from_z, released, rtol=1e-3, atol=2e-3 * np.abs(from_z).max())


def test_an_example_shows_in_its_own_steps_only() -> None:
    """papers/03 E15: with the last batch's gradients cached it would also show one step later."""
    plan = audited("dp-srg-memf")
    pair = Neighbours.of(plan)
    quiet = [next(world.silenced().releases(0, 1)).sums[0, :, 0] for world in pair.worlds]
    differs = np.abs(quiet[1] - quiet[0]).max(axis=1) > 1e-6
    assert tuple(np.flatnonzero(differs)) == pair.canary.pattern


def test_no_combination_of_tree_nodes_is_free_of_noise() -> None:
    """papers/00 erratum 6: nodes that share a draw, ``F[3,4] - F[4,4] = beta g_3``.

    The nodes that a run shows are combinations of its releases. All of them, for 8 steps of momentum
    0.9: the combination with the least noise still has that of a whole draw, spread over its weights.
    """
    plan = audited("dp-nsgd", mechanism="tree")
    pair = Neighbours.of(plan)
    sums = np.concatenate([r.sums for r in pair.worlds[0].releases(7, 5000)])[:, :, 0, 1:3]
    noise = sums.astype(np.float64).swapaxes(1, 2).reshape(-1, plan.population.steps)
    std = plan.noise_std
    least = np.sqrt(np.linalg.eigvalsh(np.cov(noise.T))[0])
    assert least > 0.3 * std
    beta = plan.update.momentum
    reads = noise.copy()
    for t in range(1, reads.shape[1]):
        reads[:, t] += beta * reads[:, t - 1]
    # F[3,4] and F[4,4], read off the prefixes M_2, M_3 and M_4.
    pair_node = reads[:, 3] - beta**2 * reads[:, 1]
    leaf = reads[:, 3] - beta * reads[:, 2]
    assert np.std(pair_node - leaf) > 0.5 * std
