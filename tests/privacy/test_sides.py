"""Losses and sides: the figures of papers/06, both directions, composition, and files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from sordino import SordinoError
from sordino.privacy import (
    Guarantee,
    SampledRelease,
    Side,
    compose,
    crossings,
    delta_from_mu,
    epsilon_from_mu,
    lost_together,
    mu_of_budget_beside,
    side_by_side,
)
from sordino.privacy._sides import MOST_SIDES, worst_of

POISSON = SampledRelease(2.0, 1.0, 0.1, 50, "poisson", "zero-out")


def gaussian(mu: float, lost: float = 0.0, **about: object) -> Guarantee:
    fields = {"adjacency": "zero-out", "unit": "person", "participation": "once", **about}
    return Guarantee.gaussian(mu, lost=lost, **fields)  # type: ignore[arg-type]


def quadrature(sigma: float, tau: float, epsilon: float) -> tuple[float, float]:
    """delta in both orders of one person's weight and text: noise on both, the text shown from tau on."""
    lost = float(ndtr(-(tau - 1) / sigma))
    x = np.linspace(-12 * sigma, 12 * sigma + 1, 400_001)

    def density(mean: float) -> np.ndarray:
        return np.exp(-(((x - mean) / sigma) ** 2) / 2) / sigma / math.sqrt(2 * math.pi)

    there, gone = (1 - lost) * density(1.0), density(0.0)
    e = math.exp(epsilon)
    forth = lost + np.trapezoid(np.maximum(there - e * gone, 0), x)
    back = np.trapezoid(np.maximum(gone - e * there, 0), x)
    return float(forth), float(back)


@pytest.mark.parametrize(
    ("sigma", "tau", "epsilon", "forth", "back", "replaced"),
    [
        (2.0, 4.0, 1.0, 0.071324187, 0.0094867432, 0.07318),
        (5.0, 9.0, 0.3, 0.058162272, 0.012166717, 0.06121),
    ],
)
def test_a_value_that_only_one_unit_has(
    sigma: float, tau: float, epsilon: float, forth: float, back: float, replaced: float
) -> None:
    """Page 06, 3.4 and 14.11, and an integral of our own."""
    assert quadrature(sigma, tau, epsilon) == pytest.approx((forth, back), abs=2e-9)
    lost = float(ndtr(-(tau - 1) / sigma))
    one = gaussian(1 / sigma, lost)
    assert one.delta(epsilon) == pytest.approx(forth, abs=2e-9)
    shift = math.log1p(-lost)
    assert delta_from_mu(epsilon + shift, 1 / sigma) == pytest.approx(back, abs=2e-9)
    other = replace(one, adjacency="replace-one")
    assert other.delta(epsilon) == pytest.approx(replaced, abs=6e-6)
    for guarantee in (one, other):
        found = guarantee.epsilon(guarantee.delta(epsilon) * (1 + 1e-9))
        assert found == pytest.approx(epsilon, rel=1e-7)


def test_what_a_budget_leaves() -> None:
    """Page 06, 3.4: mu .2680511 becomes .2663649 at delta_0 = delta/10, and gives (1, 1e-5) again."""
    assert mu_of_budget_beside(1.0, 1e-5, 0.0, "zero-out") == pytest.approx(0.2680511, abs=5e-8)
    left = mu_of_budget_beside(1.0, 1e-5, 1e-6, "zero-out")
    assert left == pytest.approx(0.2663649, abs=5e-8)
    assert gaussian(left, 1e-6).delta(1.0) == pytest.approx(1e-5, rel=1e-6)
    assert gaussian(0.2663649, 1e-6).delta(1.0) == pytest.approx(1.0000e-5, abs=5e-10)
    assert mu_of_budget_beside(1.0, 1e-5, 1e-6, "replace-one") < left
    with pytest.raises(SordinoError, match="which is all of delta"):
        mu_of_budget_beside(1.0, 1e-6, 1e-6, "zero-out")


@given(
    st.floats(0.05, 8),
    st.floats(1e-9, 1e-3),
    st.floats(0.001, 0.9),
    st.sampled_from(["zero-out", "add-remove", "replace-one"]),
)
@settings(max_examples=150, deadline=None)
def test_a_budget_beside_a_loss_is_kept(
    epsilon: float, delta: float, share: float, adjacency: str
) -> None:
    mu = mu_of_budget_beside(epsilon, delta, share * delta, adjacency)
    kept = gaussian(mu, share * delta, adjacency=adjacency)
    assert kept.delta(epsilon) <= delta * (1 + 1e-9)
    assert kept.epsilon(delta) <= epsilon * (1 + 1e-9)
    more = gaussian(mu * (1 + 1e-6), share * delta, adjacency=adjacency)
    assert more.delta(epsilon) > delta or more.epsilon(delta) > epsilon * (1 - 1e-6)


@given(st.floats(0.01, 3), st.floats(0, 0.5), st.floats(0, 4))
@settings(max_examples=100, deadline=None)
def test_more_is_never_less(mu: float, lost: float, epsilon: float) -> None:
    for adjacency in ("zero-out", "replace-one"):
        at = gaussian(mu, lost, adjacency=adjacency).delta(epsilon)
        assert at >= delta_from_mu(epsilon, mu) * (1 - 1e-12)
        assert at >= lost * (1 - 1e-12)
        for dearer in (gaussian(mu * 1.1, lost), gaussian(mu, lost + 0.1)):
            assert replace(dearer, adjacency=adjacency).delta(epsilon) >= at * (1 - 1e-9)
    # Whoever is replaced may be replaced by nobody.
    assert gaussian(mu, lost).delta(epsilon) <= gaussian(mu, lost, adjacency="replace-one").delta(
        epsilon
    ) * (1 + 1e-9)


def test_epsilon_is_infinite_where_the_loss_is_all_of_delta() -> None:
    lossy = gaussian(0.1, 1e-5)
    assert lossy.epsilon(1e-5) == lossy.epsilon(1e-6) == math.inf
    assert math.isfinite(lossy.epsilon(1.01e-5))
    # No shortcut by zCDP, which knows nothing of it.
    near = replace(lossy, distance=1e-12, is_zcdp=True)
    assert near.epsilon(1e-5) == math.inf
    assert near.delta(50.0) >= 1e-5


def test_a_loss_beside_secret_batches() -> None:
    """D is the amplified one, at negative epsilon too: at rate 1 it is the Gaussian's."""
    sampled = Side(0.1, (POISSON,), 1e-6)
    alone = Side(0.1, (POISSON,))
    for epsilon in (0.0, 0.5, 2.0):
        assert sampled.delta(epsilon, "zero-out") > alone.delta(epsilon, "zero-out")
        at = sampled.delta(epsilon, "zero-out")
        assert sampled.epsilon(at * (1 + 1e-6), "zero-out") <= epsilon * (1 + 1e-4) + 1e-4
    everybody = Side(0.0, (replace(POISSON, rate=1.0),), 0.3)
    plain = Side(everybody.mu, (), 0.3)
    for epsilon in (0.0, 0.1, 0.3, 1.0):
        for adjacency in ("zero-out", "replace-one"):
            assert everybody.delta(epsilon, adjacency) == pytest.approx(
                plain.delta(epsilon, adjacency), rel=1e-6
            )


def test_losses_compose() -> None:
    assert lost_together([0.1, 0.2]) == pytest.approx(1 - 0.9 * 0.8, rel=1e-14)
    assert lost_together([]) == lost_together([0.0]) == 0
    assert lost_together([1e-9] * 3) == pytest.approx(3e-9 - 3e-18, rel=1e-14)
    both = compose([gaussian(0.3, 1e-6), gaussian(0.4, 2e-6)])
    assert both.lost == pytest.approx(3e-6, rel=1e-6)
    assert both.mu == pytest.approx(0.5)


def test_the_worse_side_counts() -> None:
    two = replace(gaussian(0.2, 1e-6), sides=(Side(0.25),))
    assert two.mu == 0.25
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        assert two.delta(epsilon) == max(
            gaussian(0.2, 1e-6).delta(epsilon), delta_from_mu(epsilon, 0.25)
        )
    for delta in (1.1e-6, 1e-5, 1e-3):
        assert two.epsilon(delta) == max(
            gaussian(0.2, 1e-6).epsilon(delta), epsilon_from_mu(0.25, delta)
        )


def test_splits_compose_side_by_side() -> None:
    """Who was held out from one run may have trained in another."""
    one = replace(gaussian(0.3), sides=(Side(0.4),))
    other = replace(gaussian(0.1, 1e-6), sides=(Side(0.5),))
    both = compose([one, other])
    for delta in (1e-5, 1e-3):
        wanted = max(
            compose([replace(gaussian(a.gaussian_mu), lost=a.lost), gaussian(b.gaussian_mu, b.lost)])
            .epsilon(delta)
            for a, b in product((one.own, *one.sides), (other.own, *other.sides))
        )  # fmt: skip
        assert both.epsilon(delta) == pytest.approx(wanted, rel=1e-9)
    assert both.own == Side(math.hypot(0.3, 0.1) * (1 + 1e-15), (), 1e-6)


def test_sides_that_are_covered_are_left_out() -> None:
    one = replace(gaussian(0.3, 1e-6), sides=(Side(0.2), Side(0.4), Side(0.35)))
    assert compose([one]).sides == (Side(0.4 * (1 + 1e-15)),)


def test_many_splits_are_bounded_by_their_worst_sides() -> None:
    runs = [(Side(0.1 + i / 100, (), 1e-6), Side(0.2 + i / 90)) for i in range(12)]
    found = side_by_side(runs)
    assert len(found) <= MOST_SIDES
    assert found[0][0] == runs[0][0]
    worst = math.hypot(*(max(side.gaussian_mu for side in sides) for sides in runs))
    assert max(math.hypot(*(s.gaussian_mu for s in one)) for one in found) == pytest.approx(worst)
    # Equal runs have few distinct combinations, and none of them is left out.
    equal = side_by_side([(Side(0.1), Side(0.2))] * 40)
    assert len(equal) == 41
    assert equal[0] == (Side(0.1),) * 40


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 0.1), st.integers(0, 2)), min_size=1))
def test_the_worst_of_sides_covers_them(parts: list[tuple[float, float, int]]) -> None:
    sides = [Side(mu, (POISSON,) * count, lost) for mu, lost, count in parts]
    assert all(worst_of(sides).covers(side) for side in sides)


def test_under_replace_one_a_unit_may_change_sides() -> None:
    one = replace(gaussian(0.3, 1e-6), sides=(Side(0.4),))
    other = one.under_replace_one()
    assert (other.own.gaussian_mu, other.lost) == (0.6, 1e-6)
    assert other.sides == (Side(0.8), *crossings([one.own, *one.sides]))
    assert other.sides[1].gaussian_mu == pytest.approx(0.5)
    assert other.sides[1].lost == 1e-6
    amplified = replace(one, sides=(Side(0.0, (POISSON,)),))
    with pytest.raises(SordinoError, match="amplified guarantee cannot be carried over"):
        amplified.under_replace_one()


def test_files_and_sentences() -> None:
    plain = gaussian(0.3)
    assert not {"lost", "sides"} & set(plain.to_json())
    full = replace(
        gaussian(0.3, 1e-6, delta_hint=1e-5), sides=(Side(0.4, (POISSON,), 2e-7), Side(0.1))
    )
    again = Guarantee.from_json(json.loads(json.dumps(full.to_json())))
    assert again == full
    assert again.sides[0].sampled == (POISSON,)
    assert "with one chance in 1,000,000 that a value shows which only one person has" in str(full)
    assert "one chance in 333,300" in str(gaussian(0.3, 3e-6))
    assert "adding or removing one person with all of their rows" in str(
        gaussian(0.3, adjacency="add-remove")
    )


@pytest.mark.parametrize("bad", [-1e-9, 1.0, math.nan, True, "a"])
def test_chances_that_are_none(bad: float) -> None:
    with pytest.raises((SordinoError, TypeError)):
        gaussian(0.3, bad)
    with pytest.raises((SordinoError, TypeError)):
        Side(0.3, (), bad)


def test_sides_of_damaged_files() -> None:
    data = replace(gaussian(0.3), sides=(Side(0.4),)).to_json()
    for change in ({"gaussian_mu": -1.0}, {"gaussian_mu": math.nan}, {"lost": 2.0}, {"more": 1}):
        with pytest.raises(SordinoError):
            Guarantee.from_json({**data, "sides": [{**data["sides"][0], **change}]})
    for sides in ("x", [1], {"gaussian_mu": 1.0}, 7):
        with pytest.raises(SordinoError):
            Guarantee.from_json({**data, "sides": sides})
    with pytest.raises(SordinoError, match="without privacy there is nothing to say"):
        replace(
            Guarantee.nothing(adjacency="zero-out", unit="person", participation="once"), lost=0.1
        )


def test_attacks_may_see_what_is_lost() -> None:
    """The best tests between dL + (1-d) N(mu, 1) and N(0, 1), both ways, and between two such mixtures."""
    from sordino.audit import largest_power

    rates = np.linspace(0.001, 0.999, 97)
    d, mu = 0.05, 0.4
    forth = d + (1 - d) * ndtr(ndtri(rates) + mu)
    left = np.minimum(rates / (1 - d), 1)
    back, replaced = ndtr(ndtri(left) + mu), d + (1 - d) * ndtr(ndtri(left) + mu)
    elsewhere = ndtr(ndtri(rates) + 0.6)
    worst = np.max([forth, back, elsewhere], axis=0)
    assert (largest_power(gaussian(mu, d), rates) >= np.maximum(forth, back)).all()
    assert (largest_power(replace(gaussian(mu, d), sides=(Side(0.6),)), rates) >= worst).all()
    one = gaussian(mu, d, adjacency="replace-one")
    assert largest_power(one, rates) == pytest.approx(replaced)
    assert largest_power(gaussian(mu), rates) == pytest.approx(ndtr(ndtri(rates) + mu))
