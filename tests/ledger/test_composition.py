"""What runs cost together: exact where a closed form exists, never too little anywhere."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino._base.errors import SordinoError
from sordino.engine.ledger._composition import (
    UNIT_BITS,
    Allowance,
    ComposedCost,
    charge_from_json,
    noise_factor,
    restated,
    what_fits,
)
from sordino.privacy._amplification import SampledRelease
from sordino.privacy._gdp import epsilon_from_mu, mu_from_epsilon_delta
from sordino.privacy._guarantee import Guarantee, compose
from sordino.privacy._selection import SelectionGuarantee, StoppingLaw
from sordino.privacy._sides import Side

from .helpers import gaussian, poisson

BUDGET = Allowance(1.0, 1e-5)


def search(mu: float = 0.1, mean: float = 10.0) -> SelectionGuarantee:
    return SelectionGuarantee(mu, StoppingLaw.with_mean(mean), "zero-out", "example")


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40))
def test_gaussian_totals_are_exact_and_their_mu_rounded_up(mus: list[float]) -> None:
    total = ComposedCost.of(gaussian(mu).guarantee for mu in mus)
    exact = sum(Fraction(mu) ** 2 for mu in mus)
    assert Fraction(total.gaussian_units, 2**UNIT_BITS) == exact
    assert Fraction(total.mu) ** 2 >= exact
    assert Fraction(total.mu) ** 2 <= exact * (1 + Fraction(1, 10**15))


@given(st.floats(0.01, 5), st.integers(1, 2000))
@settings(max_examples=50)
def test_equal_parts_of_a_budget_all_fit_and_not_one_more(mu: float, runs: int) -> None:
    part = mu / math.sqrt(runs) * (1 - 1e-15)
    allowance = Allowance(mu=mu)
    assert ComposedCost.of([gaussian(part).guarantee] * runs).within(allowance)
    assert not ComposedCost.of([gaussian(part).guarantee] * (runs + 1)).within(allowance)


def test_a_gaussian_budget_can_be_spent_to_its_end() -> None:
    whole = mu_from_epsilon_delta(1.0, 1e-5)
    assert ComposedCost.of([gaussian(whole).guarantee]).within(BUDGET)
    assert not ComposedCost.of([gaussian(math.nextafter(whole, 1)).guarantee]).within(BUDGET)
    half = gaussian(whole / 2).guarantee
    assert ComposedCost.of([half] * 4).within(BUDGET)
    assert not ComposedCost.of([*[half] * 4, gaussian(1e-9).guarantee]).within(BUDGET)


def test_totals_do_not_depend_on_order_and_equal_runs_merge() -> None:
    charges = [poisson(noise).guarantee for noise in (1.0, 1.5, 1.0)] + [gaussian(0.1).guarantee]
    assert ComposedCost.of(charges) == ComposedCost.of(reversed(charges))
    steps = sorted(part.steps for part in ComposedCost.of(charges).sampled)
    assert steps == [100, 200]


def test_amplified_runs_cost_what_their_composition_costs() -> None:
    run = poisson().guarantee
    assert isinstance(run, Guarantee)
    three = ComposedCost.of([run] * 3)
    direct = compose([run] * 3).epsilon(1e-5)
    assert three.epsilon(1e-5) == pytest.approx(direct, rel=1e-3)
    assert three.epsilon(1e-5) < 3 * run.epsilon(1e-5)
    assert three.epsilon(1e-5) < epsilon_from_mu(three.mu, 1e-5)
    longer = replace(run, sampled=(replace(run.sampled[0], steps=300),))
    assert three.epsilon(1e-5) == longer.epsilon(1e-5)


def test_searches_compose_with_everything_and_cost_more_than_alone() -> None:
    alone = search().epsilon(1e-5)
    with_run = ComposedCost.of([search(), gaussian(0.1).guarantee]).epsilon(1e-5)
    assert alone < with_run < alone + epsilon_from_mu(0.1, 1e-5) + 0.5
    sampled = restated(poisson(5.0).guarantee, "zero-out", "example")
    mixed = ComposedCost.of([search(), sampled])
    assert alone < mixed.epsilon(1e-5) <= alone * 1.2 + sampled.epsilon(0.5e-5) + 0.5


def test_a_budget_in_mu_takes_no_searches() -> None:
    with pytest.raises(SordinoError, match="budget of epsilon and delta"):
        ComposedCost.of([search()]).within(Allowance(mu=1.0))
    assert ComposedCost.of([poisson(50.0).guarantee]).within(Allowance(mu=1.0))  # unamplified: 0.2


@given(st.lists(st.floats(1e-3, 0.3), max_size=10))
def test_what_fits_fits_and_little_more_does_not(mus: list[float]) -> None:
    charges = [gaussian(mu).guarantee for mu in mus]
    fits = what_fits(charges, BUDGET)
    if fits.mu == 0:
        assert not ComposedCost.of([*charges, gaussian(1e-9).guarantee]).within(BUDGET)
        return
    assert ComposedCost.of([*charges, gaussian(fits.mu).guarantee]).within(BUDGET)
    assert not ComposedCost.of([*charges, gaussian(fits.mu * (1 + 1e-9) + 1e-13).guarantee]).within(
        BUDGET
    )
    assert fits.epsilon is not None
    planned = mu_from_epsilon_delta(fits.epsilon, 1e-5)
    assert planned <= fits.mu
    assert planned == pytest.approx(fits.mu, rel=1e-6)


def test_what_fits_beside_an_amplified_run() -> None:
    charges = [poisson().guarantee]
    budget = Allowance(3.0, 1e-5)
    fits = what_fits(charges, budget)
    assert ComposedCost.of([*charges, gaussian(fits.mu, "add-remove").guarantee]).within(budget)
    assert not ComposedCost.of([*charges, gaussian(fits.mu * 1.01, "add-remove").guarantee]).within(
        budget
    )


def test_the_noise_factor_is_enough() -> None:
    charges = [gaussian(0.2).guarantee]
    wanted = gaussian(0.5).guarantee
    factor = noise_factor(charges, wanted, BUDGET)
    assert factor is not None
    assert ComposedCost.of([*charges, gaussian(0.5 / factor).guarantee]).within(BUDGET)
    assert not ComposedCost.of([*charges, gaussian(0.5 / factor * 1.001).guarantee]).within(BUDGET)
    sampled = poisson().guarantee
    assert isinstance(sampled, Guarantee)
    factor = noise_factor([sampled], sampled, Allowance(1.0, 1e-5))
    assert factor is not None
    louder = replace(sampled.sampled[0], noise_std=factor)
    assert ComposedCost.of([sampled, replace(sampled, sampled=(louder,))]).within(
        Allowance(1.0, 1e-5)
    )
    everything = gaussian(mu_from_epsilon_delta(1.0, 1e-5)).guarantee
    assert noise_factor([everything], wanted, BUDGET) is None


@pytest.mark.parametrize(
    ("start", "goal", "factor"),
    [
        ("zero-out", "replace-one", 2),
        ("add-remove", "replace-one", 2),
        ("add-remove", "zero-out", 1),
    ],
)
def test_gaussian_guarantees_are_restated_soundly(start: str, goal: str, factor: int) -> None:
    found = restated(gaussian(0.3, start).guarantee, goal, "example")
    assert isinstance(found, Guarantee)
    assert (found.mu, found.adjacency) == (factor * 0.3, goal)


def test_poisson_guarantees_are_restated_exactly() -> None:
    run = poisson().guarantee
    assert restated(run, "zero-out", "example").epsilon(1e-5) == run.epsilon(1e-5)
    replaced = restated(run, "replace-one", "example")
    assert replaced == replace(
        poisson(adjacency="replace-one").guarantee, participation="at random"
    )
    assert run.epsilon(1e-5) < replaced.epsilon(1e-5)
    mixed = restated(replace(run, gaussian_mu=0.3), "replace-one", "example")
    assert isinstance(mixed, Guarantee)
    assert mixed.gaussian_mu == 0.6


def test_what_does_not_carry_over_is_refused() -> None:
    with pytest.raises(SordinoError, match="adjacency='add-remove'"):
        restated(gaussian(0.3).guarantee, "add-remove", "example")
    with pytest.raises(SordinoError, match="unit='user'"):
        restated(gaussian(0.3).guarantee, "zero-out", "user")
    part = SampledRelease(1.0, 1.0, 0.1, 3, "without-replacement", "replace-one")
    fixed = Guarantee(0.0, "replace-one", "example", "at random", "amplified", (part,))
    with pytest.raises(SordinoError, match="adjacency='zero-out'"):
        restated(fixed, "zero-out", "example")
    nothing = Guarantee.nothing(adjacency="zero-out", unit="example", participation="once")
    with pytest.raises(SordinoError, match="without privacy"):
        ComposedCost.of([nothing])


@pytest.mark.parametrize(
    "arguments",
    [(), (1.0,), (None, 1e-5), (1.0, 1e-5, 1.0), (-1.0, 1e-5), (1.0, 2.0), (None, None, 0.0)],
)
def test_half_a_budget_is_none(arguments: tuple[float | None, ...]) -> None:
    with pytest.raises(SordinoError):
        Allowance(*arguments)


def test_charges_read_back_as_they_were() -> None:
    for charge in (gaussian(0.1).guarantee, poisson().guarantee, search()):
        assert charge_from_json(charge.to_json()) == charge
    with pytest.raises(SordinoError, match="not a guarantee"):
        charge_from_json([1])


# ---- losses and sides ------------------------------------------------------------------------------


def split(mu: float, held_out: float, lost: float = 0.0) -> Guarantee:
    return replace(gaussian(mu).guarantee, lost=lost, sides=(Side(held_out),))


def test_every_combination_of_sides_is_kept() -> None:
    charges = [split(0.1, 0.3), split(0.2, 0.15, 1e-6), gaussian(0.05).guarantee]
    total = ComposedCost.of(charges)
    assert total == ComposedCost.of(reversed(charges))
    assert total.mu == pytest.approx(math.hypot(0.3, 0.2, 0.05))
    for delta in (1e-5, 1e-4):
        assert total.epsilon(delta) == pytest.approx(compose(charges).epsilon(delta), rel=1e-9)
    # Whoever was held out from the second run lost nothing there.
    assert {one.lost for one in total.each} == {0.0, 1e-6}
    assert not total.is_gaussian
    assert ComposedCost.of([split(0.1, 0.3)]).is_gaussian


def test_many_splits_are_still_bounded() -> None:
    charges = [split(0.1 + i / 1000, 0.11 + i / 900, 1e-7) for i in range(30)]
    total = ComposedCost.of(charges)
    assert len(total.each) <= 64
    assert total == ComposedCost.of(reversed(charges))
    held_out = math.hypot(*(charge.sides[0].gaussian_mu for charge in charges))
    assert total.mu == pytest.approx(held_out)
    worst = compose(gaussian(max(g.own.mu, g.sides[0].mu)).guarantee for g in charges)
    assert total.epsilon(1e-5) <= replace(worst, lost=30 * 1e-7).epsilon(1e-5)


def test_a_loss_takes_of_delta() -> None:
    lossy = replace(gaussian(0.2).guarantee, lost=1e-6)
    total = ComposedCost.of([lossy, lossy])
    assert total.lost == pytest.approx(2e-6, rel=1e-5)
    assert total.epsilon(1e-5) == pytest.approx(compose([lossy, lossy]).epsilon(1e-5), rel=1e-9)
    assert total.epsilon(1e-6) == math.inf
    assert not total.within(Allowance(100.0, 1e-6))
    with pytest.raises(SordinoError, match="a budget in mu is for runs with Gaussian guarantees"):
        total.within(Allowance(mu=5.0))
    assert noise_factor([lossy], lossy, Allowance(0.5, 1e-5)) is None
    # Beside a search and beside secret batches, by the same formula.
    for other in (search(0.05), replace(poisson().guarantee, adjacency="add-remove")):
        kept = ComposedCost.of([replace(gaussian(0.2).guarantee), other])
        beside = ComposedCost.of([lossy, other])
        assert beside.epsilon(1e-5) == pytest.approx(
            max(kept.epsilon(1e-5) + 1e-6, kept.epsilon(9e-6 / (1 - 1e-6)) - 1e-6), rel=1e-6
        )


def test_headroom_is_that_of_the_worst_side() -> None:
    for charge in (split(0.1, 0.2), split(0.1, 0.2, 1e-7)):
        fits = what_fits([charge], BUDGET)
        assert ComposedCost.of([charge, gaussian(fits.mu).guarantee]).within(BUDGET)
        assert not ComposedCost.of([charge, gaussian(fits.mu * 1.001).guarantee]).within(BUDGET)
    assert fits.mu == pytest.approx(
        math.sqrt(mu_from_epsilon_delta(1.0, 1e-5) ** 2 - 0.04), rel=1e-4
    )


def test_sides_and_losses_are_restated() -> None:
    charge = split(0.1, 0.3, 1e-6)
    other = restated(charge, "replace-one", "example")
    assert isinstance(other, Guarantee)
    assert (other.own.gaussian_mu, other.lost) == (0.2, 1e-6)
    assert [side.gaussian_mu for side in other.sides] == pytest.approx([0.6, math.hypot(0.1, 0.3)])
    with pytest.raises(SordinoError, match="does not carry over"):
        restated(charge, "add-remove", "example")
    sampled = replace(poisson().guarantee, lost=1e-6, sides=(Side(0.3),))
    moved = restated(sampled, "replace-one", "example")
    assert isinstance(moved, Guarantee)
    assert moved.sides[0] == Side(0.6)
    # Who changes sides comes or goes on each of them.
    assert moved.sides[1].gaussian_mu == pytest.approx(0.3)
    assert [part.adjacency for part in moved.sides[1].sampled] == ["add-remove"]
    assert moved.sampled[0].adjacency == "replace-one"
    assert charge_from_json(moved.to_json()) == moved
