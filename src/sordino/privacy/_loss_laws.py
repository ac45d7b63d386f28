"""One release on a random batch as a law of its privacy loss, on a lattice, that dominates it.

The loss is monotone in the output x. It is cut into cells ``(ih, (i+1)h]``, and each cell's probability
is put on its two ends so that its probability under both distributions is kept: the cell is then a
post-processing of its two ends, so that the law dominates the pair in both directions, alone and in every
adaptive composition. What lies beyond the lattice is taken out of the law, to be charged to delta in full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri_exp

Array = NDArray[np.float64]

U = 2.0**-52
MOST_CELLS = 1 << 19


@dataclass(frozen=True)
class Level:
    """`steps` releases of ``N(x, s^2)`` against ``N(0, s^2)``, x at most 1, each on a random batch.

    Attributes:
      s: noise in units of the largest contribution.
      rate: probability that the unit is in the batch.
      steps: number of releases.
      pair: "remove" (the unit or nothing; rate 1 is a plain Gaussian release), "replace" (one unit or
        another, Poisson batches), "exchange" (one unit or another, batches of fixed size).
    """

    s: float
    rate: float
    steps: int
    pair: str = "remove"

    @property
    def symmetric(self) -> bool:
        """Whether both directions are one."""
        return self.pair != "remove" or self.rate == 1

    @property
    def mu(self) -> float:
        """Without credit for sampling, all steps together are mu-GDP."""
        return (1 if self.pair == "remove" else 2) * math.sqrt(self.steps) / self.s

    @property
    def is_mirrored(self) -> bool:
        """Whether the law is made from its positive half."""
        return self.pair != "remove"

    @property
    def width(self) -> float:
        """Standard deviation of the distributions that the loss is taken of."""
        return self.s / 2 if self.pair == "exchange" else self.s


def loss_at(level: Level, x: Array) -> Array:
    """The privacy loss at output x."""
    q, v = level.rate, level.width**2
    with np.errstate(divide="ignore"):
        absent, present = np.log1p(-q), math.log(q)
    above = np.logaddexp(absent, present + (x - 0.5) / v)
    if level.pair == "replace":
        return np.asarray(above - np.logaddexp(absent, present + (-x - 0.5) / v))
    return np.asarray(above)


def output_at(level: Level, loss: Array) -> Array:
    """The output x at which the privacy loss is `loss`; -inf below all losses."""
    q, v = level.rate, level.width**2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if level.pair == "replace":
            # b y^2 - a (e^l - 1) y - b e^l = 0 with y = e^{x/v}: y = e^{l/2} exp(arcsinh(a sinh(l/2) / b)).
            log_b = math.log(q) - 0.5 / v
            ratio = (1 - q) * np.sinh(np.abs(loss) / 2)
            lift = np.where(
                np.log(ratio) - log_b > 300,
                np.log(2 * ratio) - log_b,
                np.arcsinh(ratio * math.exp(min(-log_b, 700.0))),
            )
            return np.asarray(v * (loss / 2 + np.sign(loss) * np.where(ratio > 0, lift, 0.0)))
        small = np.log1p(np.expm1(np.minimum(loss, 30.0)) / q)
        inner = np.where(loss > 30, loss + np.log1p(-(1 - q) * np.exp(-loss)) - math.log(q), small)
        x = v * inner + 0.5
        return np.where(np.isnan(x), -np.inf, x)


@dataclass(frozen=True)
class Law:
    """One step: probabilities of the losses ``(first + i) h``, and that of what was cut off."""

    first: int
    masses: Array
    cut: float
    h: float

    @property
    def losses(self) -> Array:
        return np.asarray((self.first + np.arange(self.masses.size)) * self.h)


def _cells(x: Array, mean: float, s: float) -> tuple[Array, Array]:
    """Probability of N(mean, s^2) between neighbours of x, and the tails that it is the difference of."""
    z = (x - mean) / s
    right = z[:-1] >= 0
    below, above = ndtr(z), ndtr(-z)
    mass = np.where(right, above[:-1] - above[1:], below[1:] - below[:-1])
    return np.maximum(mass, 0.0), np.where(right, above[:-1], below[1:])


def tails(level: Level, x: Array) -> tuple[Array, Array]:
    """Probability of an output above x, under the distribution that losses are of and the other one."""
    q, s = level.rate, level.width
    absent, present = ndtr(-x / s), ndtr((1 - x) / s)
    other = absent
    if level.pair == "replace":
        other = (1 - q) * absent + q * ndtr((-1 - x) / s)
    return np.asarray((1 - q) * absent + q * present), np.asarray(other)


def law_of(level: Level, h: float, cut: float, forward: bool, end: int | None = None) -> Law:
    """The lattice law; at most about `cut` is cut off at either end.

    For the other direction a law may be cut short: there, losses above its last one are large gains, and
    counting them as smaller gains only raises what is stated.

    With `end`, losses above ``end h`` are left out, for the caller to count; their mirror image is at 0.
    """
    q, s = level.rate, level.width
    shift = -1.0 if level.pair == "replace" else 0.0  # of the unit's other distribution
    top = max(-s * normal_quantile(cut / 2), 1 - s * normal_quantile(cut / (2 * q)))
    last = end or max(1, math.ceil(float(loss_at(level, np.array([top]))[0]) / h))
    first = 0
    if not level.is_mirrored:
        bottom = float(loss_at(level, np.array([s * normal_quantile(cut)]))[0])
        least = -math.inf if q == 1 else math.log1p(-q)
        first = math.floor(max(bottom, least) / h)
        if not forward:
            last = min(last, first + MOST_CELLS)
    losses = np.arange(first, last + 1, dtype=np.float64) * h
    x = output_at(level, losses)
    absent, absent_tail = _cells(x, 0.0, s)
    present, present_tail = _cells(x, 1.0, s)
    other, other_tail = (absent, absent_tail) if shift == 0 else _cells(x, shift, s)
    keep = 0.0 if shift == 0 else 1 - q  # of the second distribution, that has no unit in it
    p = (1 - q) * absent + q * present
    r = keep * absent + (1 - keep) * other
    p_tail = (1 - q) * absent_tail + q * present_tail
    r_tail = keep * absent_tail + (1 - keep) * other_tail
    with np.errstate(over="ignore", invalid="ignore"):
        scale = np.exp(losses[:-1])
        # Rounded to where losses of this direction are larger.
        rounding = 8 * U * (p_tail + scale * r_tail)
        up = p - scale * r + (rounding if forward else -rounding)
        # Where e^loss r overflows, r is 0 in double precision: all of the cell goes up.
        up = np.where(np.isfinite(up), up, p) / -math.expm1(-h)
    up = np.clip(up, 0.0, p)
    masses = np.zeros(losses.size)
    masses[:-1] += p - up
    masses[1:] += up
    beyond_p, beyond_q = (float(tail) for tail in tails(level, x[-1]))
    if level.is_mirrored:
        half = masses[1:]
        mirrored = half * np.exp(-losses[1:])
        middle = 1.0 - float(half.sum()) - float(mirrored.sum())
        middle -= 0.0 if end is None else beyond_p
        whole = np.concatenate([mirrored[::-1], [max(middle, 0.0)], half])
        return Law(-last, whole, beyond_p + beyond_q if end is None else 0.0, h)
    before_p, before_q = (1 - q) * ndtr(x[0] / s) + q * ndtr((x[0] - 1) / s), ndtr(x[0] / s)
    if forward:
        return Law(first, masses, float(before_p) + (beyond_p if end is None else 0.0), h)
    with np.errstate(under="ignore"):
        backwards = (masses * np.exp(-losses))[::-1]
    backwards[0] += beyond_q
    return Law(-last, backwards, float(before_q), h)


def normal_quantile(probability: float) -> float:
    """z with Phi(z) = probability, also for tiny ones."""
    return float(ndtri_exp(math.log(min(probability, 0.5))))
