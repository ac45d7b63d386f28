"""Printed against exact noise: every factor that the pages quote."""

from __future__ import annotations

import pytest
from benchmarks.papers import table


def factors(found: list[table.CalibrationRow]) -> list[float]:
    return [row.factor for row in found]


def test_momentum_aggregation() -> None:
    """papers/00 section 2, replace-one and doubled under zero-out."""
    result = list(table.momentum_aggregation())
    replace = [row.factor for row in result if row.adjacency == "replace-one"]
    zero = [row.factor for row in result if row.adjacency == "zero-out"]
    assert replace == pytest.approx([5.55, 5.07, 8.41, 6.41, 6.08, 4.70], abs=6e-3)
    assert zero == pytest.approx([2 * factor for factor in replace])
    assert zero[::2] == pytest.approx([11.1, 16.8, 12.2], abs=0.06)
    *_, first, second, third = table.momentum_aggregation(slow=True)
    assert factors([first, second, third]) == pytest.approx([5.8, 6.7, 5.3], abs=0.06)


def test_recursive_momentum() -> None:
    """papers/01 table 2.3: Lemma 3.7 / RDP / PLD for batch 200."""
    for row, (lemma, rdp, pld) in zip(
        table.recursive_momentum(),
        [(19.98, 11.546, 5.923), (9.00, 5.680, 3.287)],
        strict=True,
    ):
        assert row.printed == pytest.approx(lemma, abs=6e-3)
        assert row.others["RDP"] == pytest.approx(rdp, rel=2e-3)
        assert row.ours == pytest.approx(pld, rel=2e-3)
        assert "conditions fail" in row.note
        assert "unchecked" in row.note


def test_noise_cancellation() -> None:
    """papers/02 2.5: 4.05 times the variance of constant noise, leaky .74 of it in w."""
    message, iterate = table.noise_cancellation()
    assert message.factor**2 == pytest.approx(4.05, abs=6e-3)
    assert message.epsilon == pytest.approx(65.3, abs=0.05)
    assert (iterate.ours / iterate.others["constant"]) ** 2 == pytest.approx(0.74, abs=6e-3)
    assert iterate.printed > iterate.others["constant"] > iterate.ours


def test_accelerated() -> None:
    """papers/03 2.2: 45 % and 22 % too much noise."""
    mnist, cifar, tree = table.accelerated()
    assert factors([mnist, cifar]) == pytest.approx([1.45, 1.22], abs=5e-3)
    assert (mnist.note, cifar.note) == ("45 % more noise", "22 % more noise")
    assert tree.factor > 2


def test_schedules() -> None:
    """papers/04 erratum b: R = .3927 / .4652 / .5134."""
    (row,) = table.schedules()
    assert 1 / row.printed**2 == pytest.approx(0.3927, abs=5e-5)
    assert 1 / row.others["CKS"] ** 2 == pytest.approx(0.4652, abs=5e-5)
    assert 1 / row.ours**2 == pytest.approx(0.5134, abs=5e-5)


@pytest.mark.slow
def test_all_rows() -> None:
    result = list(table.rows(slow=True))
    srm = [row for row in result if row.paper.startswith("Wang")]
    printed = [9.99, 14.13, 19.98, 4.50, 6.36, 9.00]
    assert [row.printed for row in srm] == pytest.approx(printed, abs=6e-3)
    pld = [3.375, 4.427, 5.923, 2.069, 2.571, 3.287]
    assert [row.ours for row in srm] == pytest.approx(pld, rel=2e-3)
    assert all(2.1 < row.factor < 3.5 for row in srm)
    psgd = [row for row in result if row.case.startswith("PSGD")]
    assert [row.factor < 1 for row in psgd] == [True, True, False]
    assert all(row.factor > 1 for row in result if row not in psgd)
