"""Pads cancel in a sum over exactly the cohort, and hide everything else."""

from __future__ import annotations

import numpy as np
import pytest

from sordino import SordinoError
from sordino.together.secure._mask import Pads, new_private_key, public_key

D = 257


def members(count: int) -> dict[str, Pads]:
    private = {f"m{i}": new_private_key() for i in range(count)}
    public = {name: public_key(key) for name, key in private.items()}
    return {name: Pads(name, key, public) for name, key in private.items()}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_sum_over_a_cohort_is_the_sum(count: int) -> None:
    rng = np.random.default_rng(0)
    everybody = members(6)
    cohort = list(everybody)[:count]
    values = {name: rng.integers(-(2**40), 2**40, D) for name in cohort}
    with np.errstate(over="ignore"):
        padded = sum(everybody[n].padded(values[n], cohort, b"turn 1") for n in cohort)
    assert (padded == sum(values.values())).all()


def test_a_padded_vector_is_uniform_and_depends_on_everything() -> None:
    everybody = members(3)
    zeros = np.zeros(100_000, np.int64)
    seen = everybody["m0"].padded(zeros, everybody, b"a")
    # 64 bits of 100,000 words: each within 5 standard errors of one half (1 in 10^6 for all of them).
    ones = [float(np.mean((seen >> bit) & 1)) for bit in range(64)]
    assert np.abs(np.array(ones) - 0.5).max() < 5 * 0.5 / np.sqrt(len(zeros))
    for other in (
        everybody["m0"].padded(zeros, everybody, b"b"),
        everybody["m0"].padded(zeros, ["m0", "m1"], b"a"),
        everybody["m1"].padded(zeros, everybody, b"a"),
    ):
        assert np.mean(seen == other) < 1e-3
    again = everybody["m0"].padded(zeros, ["m2", "m1", "m0"], b"a")
    assert (seen == again).all()  # in whatever order the cohort is named


def test_with_one_member_missing_nothing_is_left_of_the_others() -> None:
    everybody = members(3)
    values = np.arange(D, dtype=np.int64)
    with np.errstate(over="ignore"):
        partial = sum(everybody[n].padded(values, everybody, b"x") for n in ("m0", "m1"))
    assert np.mean(np.abs(partial.astype(float)) > 2**50) > 0.9


def test_what_does_not_fit_is_refused() -> None:
    private, other = new_private_key(), new_private_key()
    public = {"a": public_key(private), "b": public_key(other)}
    with pytest.raises(SordinoError, match="does not belong"):
        Pads("a", other, public)
    with pytest.raises(SordinoError, match="the same public key"):
        Pads("a", private, {**public, "c": public["b"]})
    pads = Pads("a", private, public)
    with pytest.raises(SordinoError, match="at least two"):
        pads.padded(np.zeros(3, np.int64), ["a"], b"")
    with pytest.raises(SordinoError, match="no member 'z'"):
        pads.padded(np.zeros(3, np.int64), ["a", "z"], b"")
    with pytest.raises(SordinoError, match="not a good one"):
        Pads("a", private, {**public, "b": bytes(32)}).padded(np.zeros(3, np.int64), "ab", b"")
