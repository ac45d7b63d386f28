r"""Privacy profiles of Gaussian noise on Poisson batches, in closed form and for many steps at once.

One step, noise multiplier s (std / contribution), inclusion probability p, ``D_mu`` the Gaussian profile
of `gdp.log_deltas` with ``mu = 1/s``:

* removing a record:  ``p D_mu(ln(1 + (e^e - 1)/p))`` for ``e > ln(1-p)``, else ``1 - e^e``;
* replacing a record: the loss is monotone in the output x, and ``e^{x/s^2}`` solves a quadratic
  equation; the profile is ``P(X > x) - e^e Q(X > x)``.

Adding is removing seen from the other side and never the worse of the two at e >= 0. `composed_epsilon`
composes any number of noise levels with one Fourier transform each, in milliseconds where the
general-purpose library takes seconds: it is for *searching* schedules and noise levels. Guarantees
are stated through `amplification`, which also bounds all truncation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from sordino._base.errors import SordinoError
from sordino.privacy._gdp import log_deltas
from sordino.privacy._terms import Adjacency

Array = NDArray[np.float64]
# Total loss beyond this probability is charged as infinite.
_TOTAL_TAIL = 1e-16
_LARGEST_GRID = 1 << 24


def poisson_delta(epsilon: ArrayLike, s: float, rate: float, adjacency: str) -> Array:
    """delta(epsilon) of one step, at any real epsilons."""
    e = np.atleast_1d(np.asarray(epsilon, np.float64))
    if adjacency == Adjacency.REPLACE_ONE:
        return _replaced(e, s, rate)
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = np.where(e > 30, e - math.log(rate), np.log1p(np.expm1(np.minimum(e, 30)) / rate))
    inside = np.isfinite(inner)
    value = -np.expm1(np.minimum(e, 0.0))
    value[inside] = rate * np.exp(log_deltas(inner[inside], 1 / s))
    return value


def _replaced(e: Array, s: float, rate: float) -> Array:
    # With z = e^{x/s^2}, a = p e^{-1/(2 s^2)} and b = 1 - p: (b + a z) / (b + a/z) = e^e, that is
    # a z^2 - b (e^e - 1) z - a e^e = 0; halving e keeps the exponentials in range.
    log_a, b = math.log(rate) - 0.5 / s**2, 1 - rate
    half = np.sinh(np.minimum(np.abs(e), 700.0) / 2) * b
    with np.errstate(divide="ignore"):
        # ln of the larger root over e^{e/2}, for |e|; the roots' product is -e^e.
        lift = np.arcsinh(half * math.exp(min(-log_a, 700.0)))
    x = s**2 * (e / 2 + np.sign(e) * lift)
    above = rate * ndtr((1 - x) / s) + b * ndtr(-x / s)
    below = rate * ndtr((-1 - x) / s) + b * ndtr(-x / s)
    return np.maximum(above - np.exp(e) * below, 0.0)


def loss_scale(s: float, rate: float, adjacency: str) -> float:
    """Standard deviation of one step's privacy loss in the central-limit regime."""
    u = min(1 / s**2, 40.0)
    if adjacency == Adjacency.REPLACE_ONE:
        return rate * math.sqrt(4 * math.sinh(u))
    return rate * math.sqrt(math.expm1(u))


def composed_epsilon(
    levels: Sequence[tuple[float, int]], *, rate: float, adjacency: str, delta: float
) -> float:
    """epsilon at `delta` of `count` steps at each noise multiplier, for ``(multiplier, count)``s.

    Pessimistic up to float rounding (connect-the-dots discretisation), about 2e-4 too large.
    """
    scales = [(loss_scale(s, rate, adjacency), count) for s, count in levels]
    mean_square = sum(n * v * v for v, n in scales) / sum(n for _, n in scales)
    step = min(1e-2, max(math.sqrt(mean_square) / 20, 1e-6))
    parts = [(*_masses(s, rate, adjacency, step), count) for s, count in levels]
    return _composed(parts, step, delta)


def _masses(s: float, rate: float, adjacency: str, step: float) -> tuple[int, Array, float]:
    """Lowest index, probabilities and infinite mass of one step's discretised loss.

    The piecewise linear interpolation, in ``e^epsilon``, of the profile at multiples of `step`
    dominates it; its kinks are the probabilities.
    """
    last = math.ceil(_largest_loss(s, rate, adjacency) / step) + 1
    if last > _LARGEST_GRID:
        raise SordinoError(f"a noise multiplier of {s:g} is too small to be analysed")
    if adjacency == Adjacency.REPLACE_ONE:
        # The pair of distributions is symmetric: P(loss = -y) = e^{-y} P(loss = y).
        delta = poisson_delta(np.arange(last + 1) * step, s, rate, adjacency)
        up = _kinks(delta, step)
        down = (up * np.exp(-step * np.arange(1, last)))[::-1]
        middle = 1 - delta[-1] - up.sum() - down.sum()
        return 1 - last, np.concatenate([down, [max(middle, 0.0)], up]), float(delta[-1])
    first = -last if rate == 1 else max(-last, math.floor(math.log1p(-rate) / step) - 1)
    delta = poisson_delta(np.arange(first, last + 1) * step, s, rate, adjacency)
    up = _kinks(delta, step)
    return first, np.append(max(1 - delta[-1] - up.sum(), 0.0), up), float(delta[-1])


def _largest_loss(s: float, rate: float, adjacency: str) -> float:
    """The loss at the output ``1 + 9.5 s``, beyond which lies a probability of 1e-21."""
    x = 1 + 9.5 * s
    with np.errstate(divide="ignore"):
        absent, present = np.log1p(-rate), math.log(rate)
    loss = np.logaddexp(absent, present + (x - 0.5) / s**2)
    if adjacency == Adjacency.REPLACE_ONE:
        loss -= np.logaddexp(absent, present + (-x - 0.5) / s**2)
    return float(loss)


def _kinks(delta: Array, step: float) -> Array:
    drop = np.diff(delta)
    return np.maximum(drop[1:] / math.expm1(step) + drop[:-1] / math.expm1(-step), 0.0)


def _composed(parts: list[tuple[int, Array, float, int]], step: float, delta: float) -> float:
    low, high = _window(parts, step)
    size = 1 << max(high - low, 16).bit_length()
    if size > _LARGEST_GRID:
        raise SordinoError("this much privacy loss cannot be analysed; use more noise")
    spectrum = np.ones(size // 2 + 1, np.complex128)
    offset = 0
    for first, masses, _, count in parts:
        folded = masses
        if masses.size > size:  # beyond the window nothing is left of it in the sum
            folded = np.asarray(np.bincount(np.arange(masses.size) % size, masses), np.float64)
        spectrum *= np.fft.rfft(folded, size) ** count
        offset += first * count
    total = np.maximum(np.roll(np.fft.irfft(spectrum, size), (offset - low) % size), 0.0)
    infinite = sum(count * mass for _, _, mass, count in parts) + _TOTAL_TAIL
    losses = (low + np.arange(size)) * step
    # delta(e) = tail(e) - e^e weighted(e), sums over losses above e.
    tail = np.append(np.cumsum(total[::-1])[::-1], 0.0) + infinite
    weighted = np.append(np.cumsum((total * np.exp(-losses))[::-1])[::-1], 0.0)
    meets = tail[1:] - np.exp(losses) * weighted[1:] <= delta
    index = int(np.argmax(meets))
    if not meets[index]:
        return math.inf
    if tail[index] <= delta or weighted[index] <= 0:
        return max(0.0, float(losses[index]))
    return max(0.0, math.log((tail[index] - delta) / weighted[index]))


def _window(parts: list[tuple[int, Array, float, int]], step: float) -> tuple[int, int]:
    """Indices between which the total loss lies but for `_TOTAL_TAIL` (Chernoff, both sides)."""
    bounds = []
    for sign in (1, -1):
        order, best = 0.5, math.inf
        powers = [np.exp(sign * order * step * (a + np.arange(m.size))) for a, m, _, _ in parts]
        # Orders 1/2, 1, 2, ..., 32 by squaring, as long as nothing overflows.
        while order <= 32 and all(power.max() < 1e150 for power in powers):
            log_moment = sum(
                count * math.log(float(masses @ power))
                for (_, masses, _, count), power in zip(parts, powers, strict=True)
            )
            best = min(best, (log_moment - math.log(_TOTAL_TAIL)) / (order * step))
            powers = [power * power for power in powers]
            order *= 2
        if not math.isfinite(best):
            raise SordinoError("this much privacy loss cannot be analysed; use more noise")
        bounds.append(best)
    return math.floor(-bounds[1]), math.ceil(bounds[0])
