"""Noise rows on a lattice: whole numbers, a function of the step alone, and only where it can be."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sordino import SordinoError
from sordino.parts.mechanisms._base import Mechanism
from sordino.parts.mechanisms._cancelling import Cancelling
from sordino.parts.mechanisms._combined import ScaledDraws
from sordino.parts.mechanisms._independent import Independent
from sordino.parts.mechanisms._lattice import MOST_DRAWS, Lattice, LatticeNoise, is_on_lattice
from sordino.parts.mechanisms._toeplitz import Banded
from sordino.parts.mechanisms._tree import Tree

T = 13
ON = [
    Independent(T),
    Tree(T),
    Cancelling(T, 1.0),
    ScaledDraws(Cancelling(T, 1.0), np.linspace(1, 3, T).astype(np.float32)),
]
OFF = [
    Tree(T, 0.9),
    Cancelling(T, 0.5),
    Banded(np.array([1.0, 0.5], np.float32), None, T),
]


def derive(use: str) -> bytes:
    return hashlib.sha256(use.encode()).digest()


def fitted(mechanism: Mechanism, std: float = 1.0, batch: int = 100, **changes: Any) -> Lattice:
    settings: dict[str, Any] = {
        "bounds": np.ones((1, T)),
        "stds": np.full((T, 1), std, np.float32),
        "mechanism": mechanism,
        "largest_batch": batch,
    }
    return Lattice.fitted(**{**settings, **changes})


def noise_of(mechanism: Mechanism, size: int = 3, std: float = 1.0) -> LatticeNoise:
    stds = np.full((T, 1), std, np.float32)
    variances = fitted(mechanism, std).variances(mechanism, stds)
    return LatticeNoise(mechanism, variances, size, derive)


@pytest.mark.parametrize("mechanism", ON, ids=lambda m: m.kind)
def test_rows_are_the_mechanisms_whole_combinations_of_draws(mechanism: Mechanism) -> None:
    assert is_on_lattice(mechanism)
    inner = mechanism.inner if isinstance(mechanism, ScaledDraws) else mechanism
    matrix = inner.noising_matrix()
    np.testing.assert_array_equal(matrix, np.round(matrix))
    np.testing.assert_array_equal(np.linalg.inv(matrix).round(9) % 1, 0)
    noise = noise_of(mechanism)
    draws = np.stack([noise._draw(t) for t in range(T)])
    np.testing.assert_array_equal(noise.rows(0, T), matrix.astype(np.int64) @ draws)


@pytest.mark.parametrize("mechanism", OFF, ids=lambda m: m.kind)
def test_real_coefficients_are_on_no_lattice(mechanism: Mechanism) -> None:
    assert not is_on_lattice(mechanism)


@pytest.mark.parametrize("size", [1, 3, 5000, 9000])
@pytest.mark.parametrize("mechanism", ON, ids=lambda m: m.kind)
def test_a_row_depends_on_its_step_alone(mechanism: Mechanism, size: int) -> None:
    whole = noise_of(mechanism, size).rows(0, T)
    assert whole.dtype == np.int32
    chunks = noise_of(mechanism, size)
    parts = [chunks.rows(a, b - a) for a, b in ((0, 4), (4, 5), (5, 11), (11, T))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    # A run that is resumed, or asks again, has forgotten nothing that matters.
    np.testing.assert_array_equal(noise_of(mechanism, size).rows(7, T - 7), whole[7:])
    np.testing.assert_array_equal(chunks.rows(2, 3), whole[2:5])
    # No two steps, and no two keys, have draws in common.
    draws = [noise_of(mechanism, size)._draw(t).tolist() for t in range(T)]
    assert len(set(map(tuple, draws))) == T
    stds = np.ones((T, 1), np.float32)
    variances = fitted(mechanism).variances(mechanism, stds)
    other = LatticeNoise(mechanism, variances, size, derive, "another stream").rows(0, T)
    assert (other != whole).mean() > 0.99


def test_blocks_follow_the_variances_and_keys_are_never_shared() -> None:
    used: list[str] = []

    def noting(use: str) -> bytes:
        used.append(use)
        return derive(use)

    variances = ((9, 16),) + ((25, 25),) * 5
    noise = LatticeNoise(Independent(6), variances, 2 * 40_000, noting)
    rows = noise.rows(0, 6).astype(float)
    assert len(used) == len(set(used)) == 6
    for row, (first, second) in zip(rows, variances, strict=True):
        assert row[:40_000].var() == pytest.approx(first, rel=0.04)
        assert row[40_000:].var() == pytest.approx(second, rel=0.04)


def test_variances_are_whole_and_never_too_small() -> None:
    stds = np.array([[0.7], [0.1], [3.0]], np.float32)
    lattice = Lattice(-12)
    found = lattice.variances(Independent(3), stds)
    for (variance,), std in zip(found, stds[:, 0].tolist(), strict=True):
        exact = (Fraction(std) * 2**12) ** 2 + Fraction(1, 12)
        assert exact <= variance < exact + 1
    # The stated distance is that of the smallest.
    smallest = math.ceil((Fraction(float(stds[1, 0])) * 2**12) ** 2)
    stated = lattice.distance(Independent(3), stds)
    assert stated == pytest.approx(math.sqrt(MOST_DRAWS) / 64 / smallest**2, rel=1e-9)


@pytest.mark.parametrize(("std", "batch"), [(0.5, 1), (1.0, 500), (30.0, 60_000), (1.0, 10**6)])
def test_sums_and_noise_fit_and_the_lattice_is_the_finest(std: float, batch: int) -> None:
    for mechanism in ON[:3]:
        lattice = fitted(mechanism, std, batch)
        row = np.abs(mechanism.noising_matrix()).sum(axis=1).max()
        largest = (batch + 10 * math.sqrt(row) * std) / lattice.step
        assert largest <= 2**31 - 1
        assert std / lattice.step <= 2**24
        assert largest > 2**29 or std / lattice.step > 2**22


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(SordinoError, match="use smaller batches"):
        fitted(Independent(T), 0.01, 10**6)
    with pytest.raises(SordinoError, match="same bound in every step"):
        fitted(Tree(T), stds=np.linspace(1, 2, T, dtype=np.float32)[:, None])
    with pytest.raises(SordinoError, match=r"up to 2\^40 draws"):
        LatticeNoise(Independent(T), ((9,),) * T, MOST_DRAWS // T + 1, derive)
    for exponent in (-61, 61, 1.5, True, "x"):
        with pytest.raises(SordinoError):
            Lattice(exponent)  # type: ignore[arg-type]
