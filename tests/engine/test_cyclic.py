"""Cyclic Poisson batches: groups, coin flips inside them, and sizes that stay inside the run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import sordino
from sordino import Logistic, SordinoError
from sordino._base.keys import RunKey
from sordino.engine._checkpoint import MAGIC, TAG_BYTES
from sordino.parts.sampling import _kinds as batches
from sordino.parts.sampling._kinds import BLOCK, group_rate, groups_of
from sordino.parts.sampling._population import Population

KEY = RunKey.from_insecure_seed(0)
CYCLE = 4


def cyclic(n: int = 60, b: int = 6, steps: int = 3200, **changes: object) -> Population:
    return Population(n, b, steps, "cyclic-poisson", cycle=CYCLE, **changes)  # type: ignore[arg-type]


def taken(population: Population, key: RunKey = KEY) -> np.ndarray:
    """Who is in which step (steps, examples)."""
    indices, mask = population.batches(key, 0, population.steps)
    there = np.zeros((population.steps, population.examples))
    for t, (rows, present) in enumerate(zip(indices, mask, strict=True)):
        chosen = rows[present > 0]
        assert len(np.unique(chosen)) == len(chosen)
        there[t, chosen] = 1
    return there


@pytest.mark.parametrize("order_seed", [0, None])
def test_members_of_one_group_flip_independent_coins(order_seed: int | None) -> None:
    """Everybody's steps are congruent; marginals, pairs and steps within 5 standard errors (seed fixed)."""
    population = cyclic(order_seed=order_seed)
    there, p = taken(population), group_rate(population)
    assert p == CYCLE * 6 / 60
    steps = np.arange(population.steps) % CYCLE
    group = np.array([steps[np.argmax(there[:, i])] for i in range(60)])
    for i in range(60):
        assert (steps[there[:, i] > 0] == group[i]).all()
    own = [there[steps == group[i], i] for i in range(60)]
    count = len(own[0])
    shares = np.array([flips.mean() for flips in own])
    assert np.abs(shares - p).max() < 5 * np.sqrt(p * (1 - p) / count)
    again = np.array([(flips[1:] * flips[:-1]).mean() for flips in own])
    assert np.abs(again - p * p).max() < 5 * np.sqrt(p * p / count)
    for j in range(CYCLE):
        members = np.flatnonzero(group == j)
        pairs = there[steps == j][:, members].T @ there[steps == j][:, members] / count
        off = pairs[~np.eye(len(members), dtype=bool)]
        assert np.abs(off - p * p).max() < 5 * np.sqrt(p * p * (1 - p * p) / count)
    rows, starts = groups_of(population, None if order_seed is not None else KEY)
    assert [set(rows[starts[j] : starts[j + 1]]) for j in range(CYCLE)] == [
        set(np.flatnonzero(group == j)) for j in range(CYCLE)
    ]


def test_public_groups_are_even_and_the_same_for_every_key() -> None:
    population = cyclic(n=62)
    rows, starts = groups_of(population, None)
    assert sorted(rows) == list(range(62))
    assert set(np.diff(starts)) == {15, 16}
    other = taken(population, RunKey.from_insecure_seed(1))
    mine = taken(population)
    assert not np.array_equal(mine, other)
    first = np.argmax(mine, axis=0) % CYCLE
    assert np.array_equal(first, np.argmax(other, axis=0) % CYCLE)


def test_secret_groups_are_drawn_for_each_example_on_its_own() -> None:
    """Shares of the groups, and of pairs in one group, over 400 keys: within 5 standard errors."""
    population = cyclic(n=12, b=3, steps=8, order_seed=None)
    found = []
    for seed in range(400):
        rows, starts = groups_of(population, RunKey.from_insecure_seed(seed))
        group = np.empty(12, int)
        group[rows] = np.repeat(np.arange(CYCLE), np.diff(starts))
        found.append(group)
    group = np.array(found)
    for j in range(CYCLE):
        assert np.abs((group == j).mean(0) - 1 / 4).max() < 5 * np.sqrt(3 / 16 / 400)
    together = (group[:, :, None] == group[:, None, :]).mean(0)
    assert np.abs(together[~np.eye(12, dtype=bool)] - 1 / 4).max() < 5 * np.sqrt(3 / 16 / 400)


@pytest.mark.parametrize("order_seed", [0, None])
def test_chunks_do_not_matter(order_seed: int | None) -> None:
    population = cyclic(steps=300, order_seed=order_seed)
    whole = taken(population)
    for first, count in [(0, 7), (60, 10), (BLOCK - 1, 2), (299, 1)]:
        indices, mask = population.batches(KEY, first, count)
        for i in range(count):
            rows = indices[i][mask[i] > 0]
            assert set(rows) == set(np.flatnonzero(whole[first + i]))


def test_a_cycle_of_one_draws_as_poisson_does() -> None:
    """Every example is in the one group; the law is that of Poisson batches."""
    population = Population(60, 6, 3200, "cyclic-poisson", cycle=1)
    there, q = taken(population), population.rate
    assert group_rate(population) == q
    assert np.abs(there.mean(0) - q).max() < 5 * np.sqrt(q * (1 - q) / 3200)


@pytest.mark.parametrize("order_seed", [0, None])
def test_no_example_is_ever_dropped(
    order_seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw that is wider than the static width widens it; a rate of 1 takes the whole group."""
    monkeypatch.setattr(batches, "poisson_width", lambda n, q: 2)
    there = taken(cyclic(order_seed=order_seed))
    sizes = there.sum(1)
    assert abs(sizes.mean() - 6) < 5 * np.sqrt(6 / 3200) + 0.3  # secret groups are not even
    assert sizes.max() > 10
    everyone = Population(60, 15, 8, "cyclic-poisson", cycle=4, order_seed=order_seed)
    assert taken(everyone).sum(0).tolist() == [2.0] * 60


def test_the_width_does_not_tell_a_group_s_size() -> None:
    """The static width is a function of public numbers, whatever the groups are."""
    population = cyclic(n=2000, b=50, steps=64, order_seed=None)
    widths = {
        population.batches(RunKey.from_insecure_seed(seed), 0, 64)[0].shape[1] for seed in range(20)
    }
    assert len(widths) == 1


def test_populations_that_do_not_fit_are_refused() -> None:
    for changes, message in (
        ({"sampling": "poisson", "cycle": 4}, "belongs to cyclic-poisson"),
        ({"sampling": "cyclic-poisson"}, "they need one"),
        ({"sampling": "cyclic-poisson", "cycle": 11}, "use at most 10 bands"),
        ({"sampling": "cyclic-poisson", "cycle": 4, "first_batch": 8}, "one size"),
    ):
        with pytest.raises(SordinoError, match=message):
            Population(60, 6, 8, **changes)  # type: ignore[arg-type]


def data(n: int = 240) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    return X, np.float32(X[:, 0] > 0)


def plan(recipe: str = "dp-memf", **options: object) -> sordino.Plan:
    settings = {"examples": 240, "batch_size": 12, "epochs": 4, "epsilon": 3.0, "delta": 1e-4}
    return sordino.plan(recipe, **{**settings, "sampling": "cyclic-poisson", **options})  # type: ignore[arg-type]


class StoppedError(Exception):
    pass


def test_a_run_that_is_taken_up_again_is_the_same_run(tmp_path: Path) -> None:
    """Stopped after some steps and resumed, or step by step: the same batches, noise and model."""
    made, start, key = plan(bands=4), np.zeros(3, np.float32), RunKey.from_insecure_seed(3)
    arguments = (made, Logistic(), start, data())
    whole = sordino.train(*arguments, run_key=key)

    def stop(snapshot: sordino.Snapshot) -> None:
        if snapshot.step >= 20:
            raise StoppedError

    file = tmp_path / "run"
    kept = {"checkpoint": file, "checkpoint_seconds": 0.0, "run_key": key}
    with pytest.raises(StoppedError):
        sordino.train(*arguments, callbacks=[stop], **kept)  # type: ignore[arg-type]
    resumed = sordino.train(*arguments, **kept)  # type: ignore[arg-type]
    assert resumed.resumed_at
    assert np.array_equal(resumed.params, whole.params)
    session = sordino.Session(made, Logistic(), start, run_key=key)
    X, y = data()
    while session.done < session.steps:
        rows = session.next_rows()
        session.step((X[rows], y[rows]))
    assert np.allclose(session.params, whole.params, rtol=1e-5, atol=1e-6)


def test_no_realised_size_is_in_a_checkpoint(tmp_path: Path) -> None:
    """Neither as a number of its header, nor as a shape: both are those of the plan and the model alone."""
    made, start = plan(bands=4, adjacency="add-remove"), np.zeros(3, np.float32)
    headers, sizes = [], []
    for seed in (0, 1):
        key, file = RunKey.from_insecure_seed(seed), tmp_path / f"run{seed}"

        def stop(snapshot: sordino.Snapshot) -> None:
            if snapshot.step >= 20:
                raise StoppedError

        with pytest.raises(StoppedError):
            sordino.train(
                made, Logistic(), start, data(), callbacks=[stop], run_key=key,
                checkpoint=file, checkpoint_seconds=0.0,
            )  # fmt: skip
        raw = file.read_bytes()
        begin = len(MAGIC) + 8
        length = int.from_bytes(raw[len(MAGIC) : begin], "little")
        headers.append(json.loads(raw[begin : begin + length]))
        _, mask = made.population.batches(key, 0, made.population.steps)
        sizes.append([int(row.sum()) for row in mask])
        assert len(raw) == begin + length + sum(
            np.dtype(kind).itemsize * int(np.prod(shape)) for kind, shape in headers[-1]["arrays"]
        ) + TAG_BYTES  # fmt: skip
    assert sizes[0] != sizes[1]
    secret = {"run", "description"}  # an identity, and keyed digests
    known = [{k: v for k, v in header.items() if k not in secret} for header in headers]
    assert known[0] == known[1]
    assert set(known[0]) == {"sordino", "step", "steps", "arrays", "history"}
    assert all(len(value) == 32 for header in headers for value in header["description"].values())


@pytest.mark.parametrize("form", ["anchor-free", "anchored"])
def test_lags_are_cut_into_whole_cycles(form: str) -> None:
    made = plan("dp-nsgd-sr", form=form)
    assert made.contribution.lag % made.population.cycle == 0  # type: ignore[attr-defined]
    result = sordino.train(made, Logistic(), np.zeros(3, np.float32), data(), insecure_seed=0)
    assert np.isfinite(np.asarray(result.params)).all()


@pytest.mark.parametrize("recipe", ["dp-memf", "dp-srg-memf", "dp-nsgd", "dp-srm"])
@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove", "replace-one"])
def test_every_recipe_that_it_is_proved_for(recipe: str, adjacency: str) -> None:
    made = plan(recipe, adjacency=adjacency, bands=4)
    assert made.guarantee.epsilon(1e-4) <= 3.0
    assert made.population.cycle == 4
    # Groups by position only where neighbours have as many rows.
    assert (made.population.order_seed is None) == (adjacency == "add-remove")
    back = sordino.Plan.from_json(made.to_json())
    assert back.hash == made.hash
    result = sordino.train(made, Logistic(), np.zeros(3, np.float32), data(), insecure_seed=0)
    assert np.isfinite(np.asarray(result.params)).all()
