"""Hyper-parameters of the papers' theorems, by recipe."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
from benchmarks.papers import REFERENCES

from sordino._base.errors import SordinoError
from sordino.planning._theory import needed_facts, theory_defaults
from sordino.privacy._gdp import mu_from_epsilon_delta

A9A: dict[str, Any] = {
    "examples": 32561,
    "dimension": 123,
    "epsilon": 0.2,
    "delta": 1e-5,
    "lipschitz": 1.0,
    "smoothness": 3.502,
    "diameter": 2.0,
    "gap": math.log(2) - 0.3343,
    "batch_size": 64,
}
NAMES = ("dp-nsgd", "dp-nsgd-sr", "dp-srm", "dp-gd", "dp-mu2", "dp-srgd")


def of(name: str, **change: float) -> dict[str, float]:
    facts = {**A9A, **change}
    return dict(theory_defaults(name, **{fact: facts[fact] for fact in needed_facts(name)}))


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_has_finite_positive_defaults(name: str) -> None:
    result = of(name)
    assert result["steps"] == int(result["steps"]) >= 1
    assert all(math.isfinite(value) and value > 0 for value in result.values())


@pytest.mark.parametrize("name", NAMES)
def test_missing_and_unknown_facts_are_named(name: str) -> None:
    needed = needed_facts(name)
    facts = {fact: A9A[fact] for fact in needed}
    for fact in needed:
        rest = {key: value for key, value in facts.items() if key != fact}
        with pytest.raises(SordinoError, match=f"lack '{fact}'; they need {', '.join(needed)}"):
            theory_defaults(name, **rest)
    with pytest.raises(SordinoError, match="no place for 'colour'; they need"):
        theory_defaults(name, **facts, colour=3.0)
    for fact in needed:
        with pytest.raises(SordinoError):
            theory_defaults(name, **{**facts, fact: -1})


def test_unknown_recipes_are_refused() -> None:
    with pytest.raises(SordinoError, match="did you mean 'dp-srm'"):
        theory_defaults("dp-srn")


def test_dp_srm_on_a9a() -> None:
    """papers/01 1.1: T = 776, zeta = .0805, b = 12.4, b0 = 123, gamma = .114."""
    result = of("dp-srm")
    assert result["steps"] == 776
    assert result["difference_clip"] == pytest.approx(0.0805, abs=5e-5)
    assert result["batch_size"] == pytest.approx(12.4, abs=0.05)
    assert result["first_batch_size"] == pytest.approx(123, abs=0.5)
    assert result["gamma"] == pytest.approx(0.114, abs=5e-4)
    G, L, gap = A9A["lipschitz"], A9A["smoothness"], A9A["gap"]
    closed = 4 * 32561 * 0.2 * math.sqrt(L * gap) / (G * math.sqrt(123 * math.log(1e5)))
    assert result["steps"] == math.floor(closed) + 1
    assert result["step_length"] == pytest.approx(result["difference_clip"] / L)
    with pytest.raises(SordinoError, match="above 1"):
        of("dp-srm", examples=50)


def test_dp_nsgd() -> None:
    result = of("dp-nsgd")
    T = result["steps"]
    scale = 0.2 * 32561**2 / math.sqrt(123 * math.log(1e5))
    assert T * math.log2(T) == pytest.approx(scale, rel=1e-4)
    assert result["alpha"] == pytest.approx(1 / 32561, rel=1e-4)
    assert result["learning_rate"] == pytest.approx(1 / math.sqrt(32561 * T), rel=1e-4)
    with pytest.raises(SordinoError, match="no steps"):
        of("dp-nsgd", examples=3)


def test_dp_nsgd_sr_is_not_practical() -> None:
    """papers/00 1.2: Adult, d = 100, epsilon = 1: 1.6e9 steps, 48,000 epochs."""
    result = of("dp-nsgd-sr", dimension=100, epsilon=1.0)
    assert result["steps"] == pytest.approx(1.6e9, rel=0.02)
    assert result["steps"] / 32561 == pytest.approx(48_000, rel=0.01)
    assert result["alpha"] == pytest.approx(1 / 32561)
    assert result["gamma"] == pytest.approx(result["learning_rate"] * 32561)
    assert result["difference_clip"] == pytest.approx(3.502 * result["gamma"])
    with pytest.raises(SordinoError, match="above 1/2"):
        of("dp-nsgd-sr", examples=100, dimension=10**6)


def test_dp_mu2() -> None:
    result = of("dp-mu2")
    assert result["steps"] == 32561 // 64
    S = 1 + 2 * 3.502 * 2
    assert result["clip"] == pytest.approx(S)
    rho, T = mu_from_epsilon_delta(0.2, 1e-5), result["steps"]
    private = rho * 2.0 * 64 / (2 * S * T * math.sqrt(123))
    assert result["learning_rate"] == pytest.approx(min(private, 1 / (4 * 3.502 * T)))
    assert result["radius"] == 1.0


def test_dp_srgd() -> None:
    """papers/03 1.5: beta about 16 sqrt(n) M = 3.9e3 M for n = 6e4 (small L), and at least 2 M T."""
    facts = {"examples": 60_000, "dimension": 10, "epsilon": 1.0, "delta": 1e-6, "diameter": 1.0}
    result = of("dp-srgd", **facts, lipschitz=1e-6, smoothness=1.0)
    assert result["batch_size"] == 244
    assert result["steps"] == 60_000 // 244
    assert result["beta"] == pytest.approx(3.9e3, rel=0.02)
    assert result["clip"] == pytest.approx(8.0, rel=1e-5)
    assert result["beta"] >= 2 * result["steps"]
    # E9: many dimensions at a small epsilon ask for smaller batches; rescaling the loss does not
    small = of("dp-srgd", **{**facts, "dimension": 7850, "epsilon": 0.1}, lipschitz=1, smoothness=1)
    again = of("dp-srgd", **{**facts, "dimension": 7850, "epsilon": 0.1}, lipschitz=7, smoothness=7)
    assert small["batch_size"] == again["batch_size"] < 244
    with pytest.raises(SordinoError, match="too many dimensions"):
        of("dp-srgd", **{**facts, "dimension": 10**9, "epsilon": 0.001})


def test_dp_gd() -> None:
    result = of("dp-gd")
    assert result["learning_rate"] == pytest.approx(1 / 3.502)
    # a quarter of DP-SRM's number of steps, up to rounding
    assert result["steps"] == pytest.approx(776 / 4, abs=1)


def test_the_table_of_references() -> None:
    for name, reference in REFERENCES.items():
        assert reference.name == name
        assert reference.recipes
        assert reference.conditions
        assert inspect.getdoc(reference.calibrate)
