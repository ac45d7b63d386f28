"""What every recipe promises, with discrete noise: audited, resumable, and refused where it is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from sordino import Plan, SordinoError
from sordino._base.keys import RunKey
from sordino.audit._whitebox import Neighbours
from sordino.engine import _many as many
from sordino.engine import _run as drivers
from sordino.engine._run import TrainingRun
from sordino.parts._losses import Logistic
from sordino.parts.contributions import _gradient as gradient
from sordino.parts.mechanisms._lattice import LatticeNoise
from sordino.planning.recipes import RECIPES

from .cases import EXAMPLES, PRIVATE, audited, logistic_data, make

# Why a private recipe may do without; every other one has to work.
REFUSED = {
    "dp-nsgd-sr": "splits its noise between streams",
    "dp-agd": "decides during the run",
}
NAMES = [name for name in PRIVATE if name not in REFUSED]
# One for each kind of noise and batches is audited every time.
QUICK = {"dp-gd": {}, "dp-sgd": {}, "dp-memf": {}, "dp-mu2": {"mechanism": "cancelling"}}


def discrete(name: str, **changes: Any) -> Plan:
    return audited(name, noise="discrete", **changes)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(name: str) -> None:
    with pytest.raises(SordinoError, match=REFUSED[name]):
        make(name, noise="discrete", **({} if name == "dp-agd" else {"noise_multiplier": 1.0}))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES],
)
def test_the_white_box_audit_finds_what_is_claimed_and_no_more(name: str) -> None:
    plan = discrete(name, **QUICK.get(name, {}))
    assert plan.noise_kind == "discrete"
    result = Neighbours.of(plan).audit(runs=4000)
    assert not result.violates, result.verdict()
    # Four standard errors of 4,000 runs are 5 % of mu.
    assert result.ratio > 0.9, result.verdict()
    assert result.mu_low <= result.mu_claimed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("quick_compilation")
def test_every_recipe_resumes_and_survives_as_json(name: str) -> None:
    plan = discrete(name)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    X, y = logistic_data(EXAMPLES, 4)
    options: dict[str, Any] = {"key": RunKey.from_insecure_seed(1), "watched": True}
    whole = TrainingRun(plan, Logistic(), np.zeros(4, np.float32), (X, y), **options)
    stops = []
    while not whole.finished:
        whole.advance()
        stops.append(whole.released())
    stop = jax.tree.map(np.asarray, stops[len(stops) // 2])
    again = TrainingRun(plan, Logistic(), np.zeros(4, np.float32), (X, y), **options)
    again.restore(stop)
    while not again.finished:
        again.advance()
    np.testing.assert_array_equal(np.asarray(again.output()), np.asarray(whole.output()))


def test_a_recipe_that_enters_the_table_is_covered_here() -> None:
    assert {*NAMES, *REFUSED} == {name for name, recipe in RECIPES.items() if recipe.private}


# ---- planted bugs ------------------------------------------------------------------------------------


def halved_noise(patch: pytest.MonkeyPatch) -> None:
    planned = Plan.noise_variances
    patch.setattr(
        Plan,
        "noise_variances",
        lambda self: tuple(tuple(S // 4 for S in row) for row in planned(self)),
    )


def noise_used_twice(patch: pytest.MonkeyPatch) -> None:
    honest = LatticeNoise.rows
    patch.setattr(
        LatticeNoise,
        "rows",
        lambda self, first, count: np.repeat(honest(self, first, count)[::2], 2, axis=0)[:count],
    )


def no_bound(patch: pytest.MonkeyPatch) -> None:
    """Neither the clip nor the rounding's own bound."""
    honest = gradient.to_lattice
    patch.setattr(gradient, "clip_pytree", lambda vector, clip, room: vector)
    patch.setattr(
        gradient, "to_lattice", lambda vector, bound, step: honest(vector, 1e3 * bound, step)
    )


def a_node_without_noise(patch: pytest.MonkeyPatch) -> None:
    honest = LatticeNoise._draw
    patch.setattr(
        LatticeNoise, "_draw", lambda self, step: honest(self, step) * (0 if step == 3 else 1)
    )


@pytest.fixture
def _fresh_programs() -> Iterator[None]:
    for function in (many.map_chunk, drivers.scan_chunk):
        function.clear_cache()
    yield
    for function in (many.map_chunk, drivers.scan_chunk):
        function.clear_cache()


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("dp-gd", halved_noise),
        ("dp-gd", noise_used_twice),
        ("dp-gd", no_bound),
        ("dp-memf", a_node_without_noise),
    ],
)
@pytest.mark.usefixtures("_fresh_programs")
def test_planted_bugs_are_found(
    name: str, bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = discrete(name)
    bug(monkeypatch)
    result = Neighbours.of(plan).audit(runs=1500)
    assert result.violates, result.verdict()


def test_the_rounding_alone_keeps_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a rule forgets to clip, discrete noise still has the sensitivity it was planned for."""
    monkeypatch.setattr(gradient, "clip_pytree", lambda vector, clip, room: vector)
    jax.clear_caches()
    result = Neighbours.of(discrete("dp-gd")).audit(runs=1500)
    jax.clear_caches()
    assert not result.violates, result.verdict()
    assert result.ratio > 0.9
