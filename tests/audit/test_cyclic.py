"""Audits of cyclic Poisson plans: the claim is nearly attained, never exceeded; planted bugs are found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import sordino
from sordino import audit
from sordino._base.keys import RunKey
from sordino.parts.mechanisms import fit_mechanism
from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.sampling import _kinds
from sordino.parts.sampling._population import Population
from sordino.privacy import FixedBatches
from sordino.privacy._strategy import ToeplitzStrategy


def small(adjacency: str = "zero-out", recipe: str = "dp-memf", **changes: object) -> sordino.Plan:
    noise = 1.8 if adjacency == "replace-one" else 0.9
    settings: dict[str, object] = {
        "examples": 24,
        "batch_size": 2,
        "steps": 16,
        "sampling": "cyclic-poisson",
        "bands": 4,
        "noise_multiplier": noise,
        "delta": 1e-3,
        "adjacency": adjacency,
    }
    return sordino.plan(recipe, **{**settings, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "adjacency", ["zero-out", pytest.param("add-remove", marks=pytest.mark.slow), "replace-one"]
)
def test_the_claim_is_nearly_attained(adjacency: str) -> None:
    """4,000 runs of each world; 0.1 % false alarms. Groups that nobody knows cost the attacker little."""
    result = audit.white_box(small(adjacency), runs=4000)
    assert not result.violates
    assert result.ratio > 0.85
    assert result.moved is not None
    assert 0.999 < result.moved.ratio <= 1 + result.moved.rounding


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove", "replace-one"])
def test_the_claim_is_attained_by_many_runs(adjacency: str) -> None:
    result = audit.white_box(small(adjacency), runs=100_000)
    assert not result.violates
    assert result.ratio > 0.9


@pytest.mark.parametrize("recipe", ["dp-srm", "dp-srg-memf"])
def test_recursions_too(recipe: str) -> None:
    result = audit.white_box(small(recipe=recipe, steps=8, noise_multiplier=0.5), runs=2000)
    assert not result.violates
    assert result.ratio > 0.5


def test_bands_that_overlap_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of twelve bands, credited as if it had the two of the cycle."""
    made = small(bands=2, batch_size=6, noise_multiplier=2.0)
    wide = fit_mechanism("banded", Workload.prefix(), FixedBatches(16, 16), 12)
    wide = replace(wide, column_norms=None)
    monkeypatch.setattr(ToeplitzStrategy, "bands", lambda self: 2)
    wrong = made.with_training(mechanism=wide).restated()
    assert audit.white_box(wrong, runs=4000).violates


def law_of_others(population: Population, keys: int = 500) -> np.ndarray:
    """How often each of the first rows is in each step (rows, steps), over many keys."""
    there = np.zeros((20, population.steps))
    for seed in range(keys):
        indices, mask = population.batches(RunKey.from_insecure_seed(seed), 0, population.steps)
        for t in range(population.steps):
            rows = indices[t][mask[t] > 0]
            np.add.at(there[:, t], rows[rows < 20], 1)
    return there / keys


def removal_moves_others(order_seed: int | None, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether who else is in a step depends on whether some rows are there (5 standard errors, 500 keys).

    The probability is that of the plan: the number of examples that it was made for is public.
    """
    rate = 0.5
    monkeypatch.setattr(_kinds, "group_rate", lambda _: rate)
    laws = [
        law_of_others(Population(n, 4, 8, "cyclic-poisson", order_seed=order_seed, cycle=4))
        for n in (32, 20)
    ]
    error = np.sqrt(2 * np.maximum(laws[0] * (1 - laws[0]), 0.02) / 500)
    pooled = 2 * np.sqrt(2 * 0.125 * 0.875 / (500 * 20 * 8))  # of rows and steps, hardly correlated
    apart = abs(laws[0].mean() - laws[1].mean())
    return bool((np.abs(laws[0] - laws[1]) > 5 * error).any() or apart > 5 * pooled)


def test_rows_that_are_removed_move_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not removal_moves_others(None, monkeypatch)


def test_groups_by_position_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What add-remove would be with a public split: other rows change their group."""
    assert removal_moves_others(0, monkeypatch)


def test_batches_that_are_cut_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is cut to its planned size drops somebody because somebody else is there."""
    whole = _kinds.cut_to_steps
    monkeypatch.setattr(
        _kinds,
        "cut_to_steps",
        lambda blocks, first, count: whole(
            [-np.sort(-block)[:, :4] for block in blocks], first, count
        ),
    )
    assert removal_moves_others(None, monkeypatch)
