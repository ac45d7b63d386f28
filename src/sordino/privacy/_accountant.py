r"""The accountant: epsilon and delta of Gaussian releases on secret random batches, composed.

One function searches, states and checks again. docs/privacy.md has what it was compared with.

*One step* is a law on a lattice that dominates it (`_loss_laws.py`).

*Many steps.* The laws are tilted by ``e^{lambda L}`` (exactly undone afterwards), which puts the losses
that decide at `delta` in the middle; then one Fourier transform for each level of noise composes all its
steps. Rounding is thereby relative to delta itself, not to 1:

    delta(eps) = e^K sum_{L > eps} w^{*T}(L) e^{-lambda L} (1 - e^{eps - L}),  K = sum_j T_j ln M_j(lambda).

Rounding of the transforms, losses outside their window and what was cut off are charged upwards.

At tiny rates no tilt helps; there `_rare_losses.py` counts rare large losses one by one.

The result is the least of all these, of the moments bound and of the bound without any credit for sampling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import fft

from sordino.privacy._gdp import delta_from_mu, epsilon_from_mu
from sordino.privacy._loss_laws import (
    MOST_CELLS,
    Array,
    Law,
    Level,
    U,
    law_of,
    loss_at,
    normal_quantile,
)
from sordino.privacy._rare_losses import Jumps, least_rare_loss

# delta is certified down to this.
SMALLEST_DELTA = 1e-14
# Less noise, in units of a contribution, and nothing is credited for sampling.
LEAST_NOISE = 0.03
MOST_FREQUENCIES = 1 << 20
# Share of epsilon that the lattice may add, and shares of delta that may be cut off or wrapped around.
LATTICE_SHARE = 2e-5
CUT_SHARE = 2.5e-7
WRAPPED_SHARE = 1e-5
# Coarsest and finest lattices that are tried, as powers of two.
COARSEST, FINEST = 0, -60
_GOLDEN = (math.sqrt(5) - 1) / 2


# ---- the tilt: where the losses are that decide ---------------------------------------------------------


class _Guide:
    """Moments of the losses by quadrature: for choosing a tilt and a lattice, not for stating anything."""

    def __init__(self, levels: tuple[Level, ...], forward: bool) -> None:
        self.levels, self.forward = levels, forward

    def nodes(self, level: Level, tilt: float) -> tuple[Array, Array, Array] | None:
        """Losses of this direction, the weights ``(e^{tilt L} - 1 - ...) dP`` and ``e^{tilt L} dP``."""
        s = level.width
        # Where the tilted density is: its peaks are at (1 + tilt) pi(x), backwards at -tilt pi(x), with
        # pi(x) the probability, given x, that the unit was there.
        low, high = 10 * s, 1 + tilt + 10 * s
        if not self.forward:
            odds = level.rate * math.exp(-0.5 / s**2)
            low, high = low + tilt * odds / (1 - level.rate + odds), 1 + 10 * s
        step = max(min(s / 4, s * s / 2), (low + high) / 20_000)
        x = np.arange(-low, high, step)
        loss = loss_at(level, x)
        order = 1 + tilt if self.forward else -tilt
        if np.max(order * loss) > 600:
            return None
        density = step / (s * math.sqrt(2 * math.pi)) * np.exp(-0.5 * (x / s) ** 2)
        if level.pair == "replace":
            other = step / (s * math.sqrt(2 * math.pi)) * np.exp(-0.5 * ((x + 1) / s) ** 2)
            density = (1 - level.rate) * density + level.rate * other
        if level.pair == "exchange":
            # P(loss = -l) = e^{-l} P(loss = l): both halves from the right one.
            half = density * np.where(loss > 0, 1.0, 0.0)
            excess = half * (
                np.exp(loss) * np.expm1(tilt * loss) + np.expm1(-tilt * np.maximum(loss, 0))
            )
            tilted = half * np.exp(order * loss)
            return loss, excess, tilted
        # E_Q[e^L] = 1: what is subtracted adds up to 0 and leaves no small difference of large sums.
        excess = density * (np.expm1(order * loss) - order * np.expm1(np.minimum(loss, 600.0)))
        return (loss if self.forward else -loss), excess, density * np.exp(order * loss)

    def log_moment(self, tilt: float) -> float:
        """K(tilt) of the whole composition."""
        total = 0.0
        for level in self.levels:
            nodes = self.nodes(level, tilt)
            if nodes is None:
                return math.inf
            total += level.steps * math.log1p(max(float(nodes[1].sum()), 0.0))
        return total

    def mean(self, tilt: float) -> float:
        """K'(tilt): the mean loss under the tilt."""
        low, high = tilt * (1 - 1e-4), tilt * (1 + 1e-4)
        return (self.log_moment(high) - self.log_moment(low)) / (high - low)

    def bound(self, tilt: float, delta: float) -> float:
        """The moments bound on epsilon."""
        return (self.log_moment(tilt) - math.log(delta) + _log_peak(tilt)) / tilt

    def best(self, delta: float, near: float | None = None) -> tuple[float, float]:
        """The tilt of the best moments bound, and that bound; it is looked for around `near` first."""

        def bound(log: float) -> float:
            return self.bound(2.0**log, delta)

        if near is None:
            tried = np.arange(-7, 31, 1.5)
            middle, width = float(tried[int(np.argmin([bound(log) for log in tried]))]), 1.5
        else:
            middle, width = math.log2(near), 1.0
            while (beside := min(middle - width, middle + width, key=bound)) and (
                bound(beside) < bound(middle) and -8 < beside < 31
            ):
                middle = beside
        low, high = middle - width, middle + width
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        at_left, at_right = bound(left), bound(right)
        for _ in range(8):
            if at_left <= at_right:
                high, right, at_right = right, left, at_left
                left = high - _GOLDEN * (high - low)
                at_left = bound(left)
            else:
                low, left, at_left = left, right, at_right
                right = low + _GOLDEN * (high - low)
                at_right = bound(right)
        value, log = min((bound(middle), middle), (at_left, left), (at_right, right))
        return 2.0**log, value

    def best_tail(self, epsilon: float) -> tuple[float, float]:
        """The tilt of the best moments bound on delta at `epsilon`, and ln of that bound."""
        tried = 2.0 ** np.arange(-7, 31, 0.5)
        bounds = [self.log_moment(t) - t * epsilon + _log_peak(t) for t in tried]
        at = int(np.argmin(bounds))
        return float(tried[at]), bounds[at]

    def tilt_at(self, loss: float, near: float) -> float:
        """The tilt under which the mean loss is `loss`."""
        low, high = near, near
        while self.mean(low) > loss and low > 1e-3:
            low /= 2
        while self.mean(high) < loss and high < 1e9:
            high *= 2
        for _ in range(40):
            middle = math.sqrt(low * high)
            mean = self.mean(middle)
            low, high = (middle, high) if mean < loss else (low, middle)
            if high < low * 1.01:
                break
        return low

    def lattice(self, tilt: float, most: float, finest: float) -> int:
        """Exponent of the coarsest lattice that adds at most `most` to epsilon."""
        parts = []
        for level in self.levels:
            nodes = self.nodes(level, tilt)
            if nodes is None:
                continue
            loss, _, tilted = nodes
            keep = tilted > 1e-12 * tilted.max()
            weight = tilted[keep] / tilted[keep].sum()
            parts.append((level.steps, np.abs(loss[keep]), weight))
        for exponent in range(COARSEST, FINEST, -1):
            h = 2.0**exponent
            added = sum(n * float(w @ np.minimum(h * h / 6, size * h)) for n, size, w in parts)
            if added * (tilt + 1) / 2 <= most or h / 2 < finest:
                return exponent
        return FINEST


def _log_peak(tilt: float) -> float:
    """ln of the largest value of ``e^{-tilt y} (1 - e^{-y})`` over y > 0."""
    if tilt == 0:
        return 0.0
    return tilt * math.log(tilt) - (1 + tilt) * math.log1p(tilt)


# ---- composition ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sum:
    """All steps: tilted probabilities of the losses ``(first + i) h``, and what is charged besides.

    Attributes:
      untilt: what each probability counts, ``e^{K - tilt L}``.
      rounding: root of the sum of squares of all errors in `tilted`.
      charge: to delta, at any epsilon.
      log_wrapped: to delta, times ``e^{-tilt eps}``.
    """

    first: int
    h: float
    tilted: Array
    untilt: Array
    rounding: float
    charge: float
    log_wrapped: float
    tilt: float

    def _above(self, epsilon: float) -> tuple[slice, Array]:
        """The places of losses above `epsilon`, and by how much they are."""
        start = max(math.floor(epsilon / self.h) + 1 - self.first, 0)
        places = np.arange(start, self.tilted.size, dtype=np.float64)
        return slice(start, None), (self.first + places) * self.h - epsilon

    def delta(self, epsilon: float) -> float:
        where, gap = self._above(epsilon)
        counts = self.untilt[where] * -np.expm1(-gap)
        wrapped = math.exp(min(self.log_wrapped - self.tilt * epsilon, 50.0))
        # Errors of either sign, by Cauchy and Schwarz.
        with np.errstate(over="ignore"):
            rounding = self.rounding * math.sqrt(float(counts @ counts))
        return float(self.tilted[where] @ counts) + rounding + self.charge + wrapped

    def _log_delta(self, place: int) -> float:
        return math.log(min(max(self.delta(place * self.h), 1e-300), 1e300))

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 with at most `delta`."""
        if self.delta(0.0) <= delta:
            return 0.0
        low, high = 0, self.first + self.tilted.size
        if high <= 0 or self.delta(high * self.h) > delta:
            return math.inf
        # ln delta falls smoothly: by secants, in between which the bracket is halved.
        ends = [self._log_delta(i) for i in (low, high)]
        while high - low > 1:
            for share in ((ends[0] - math.log(delta)) / (ends[0] - ends[1]), 0.5):
                middle = min(max(round(low + share * (high - low)), low + 1), high - 1)
                value = self._log_delta(middle)
                if value > math.log(delta):
                    low, ends[0] = middle, value
                else:
                    high, ends[1] = middle, value
                if high - low <= 1:
                    break
        # Between two lattice points the sum is linear in e^epsilon; charges only fall.
        at = low * self.h
        where, gap = self._above(at)
        slope = float(self.tilted[where] @ (self.untilt[where] * np.exp(-gap)))
        over = self.delta(at) - delta
        return min(high * self.h, at + math.log1p(over / slope)) if slope > 0 else high * self.h


def _spread(laws: list[tuple[Law, Array, int]], log_tail: float) -> tuple[float, float]:
    """How far below and above its mean the tilted sum lies, but for e^log_tail on each side (Chernoff)."""

    def centred() -> Iterator[tuple[Array, Array, int]]:
        for law, w, steps in laws:
            losses = law.losses
            yield losses - float(w @ losses), w, steps

    sd = math.sqrt(sum(n * float(w @ (c * c)) for c, w, n in centred()))
    size = max(float(np.max(np.abs(c))) for c, _, _ in centred())
    if sd == 0:
        return 0.0, 0.0
    orders = np.geomspace(min(2 / sd, 2 / size), min(600 / size, max(30 / sd, 30 / size)), 9)
    signed = np.concatenate([-orders, orders])
    moments = np.zeros(signed.size)
    for c, w, n in centred():
        moments += n * np.log([float(w @ np.exp(order * c)) for order in signed])
    reach = (moments - log_tail) / np.abs(signed)
    found = [float(reach[: orders.size].min()), float(reach[orders.size :].min())]
    return found[0], found[1]


class _TooFineError(Exception):
    """The lattice has too many points."""


def _compose(laws: list[tuple[Law, int]], tilt: float, delta: float) -> _Sum:
    """The law of the sum, with all rounding charged upwards."""
    h = laws[0][0].h
    tilted: list[tuple[Law, Array, int]] = []
    K, mean, relative = 0.0, 0.0, 0.0
    for law, steps in laws:
        exponent = tilt * law.losses
        peak = float(exponent.max())
        w = law.masses * np.exp(exponent - peak)
        total = float(w.sum())
        w /= total
        K += steps * (math.log(total) + peak)
        mean += steps * float(w @ law.losses)
        # Of weights and their sum: relative, for each step.
        relative += steps * 4 * U * (4 + float(w @ np.abs(exponent - peak)))
        tilted.append((law, w, steps))
    # A tail of e^log_tail, at most this share of delta where epsilon is.
    log_tail = min(
        math.log(1e-9), math.log(WRAPPED_SHARE * delta) - (K - tilt * mean) - _log_peak(tilt)
    )
    below, above = _spread(tilted, log_tail)
    low = math.floor((mean - below) / h) - 1
    size = fft.next_fast_len(math.ceil((mean + above) / h) + 2 - low, real=True)
    if size > MOST_FREQUENCIES:
        raise _TooFineError
    gamma = 4 * U * math.log2(size)
    log_size = np.zeros(size // 2 + 1)
    log_more = np.zeros(size // 2 + 1)
    phase = np.zeros(size // 2 + 1)
    offset = 0
    for law, w, steps in tilted:
        heaviest = int(np.argmax(w))
        place = (np.arange(w.size) - heaviest) % size
        buffer = np.bincount(place, w, size) if w.size > size else np.zeros(size)
        if w.size <= size:
            buffer[place] = w
        buffer[0] = 0.0
        others = float(buffer.sum())
        buffer[0] = -others
        less = fft.rfft(buffer)  # the characteristic function less 1
        x, y = less.real, less.imag
        square = 2 * x + x * x + y * y
        error = gamma * 2 * others + 4 * U * (np.abs(x) + np.abs(y))
        with np.errstate(divide="ignore"):
            # Either way is exact where it is taken.
            one = np.where(
                square > -0.75,
                0.5 * np.log1p(np.maximum(square, -0.75)),
                np.log(np.hypot(1 + x, y)),
            )
        log_size += steps * one
        log_more += steps * np.log(np.exp(one) + error)
        phase += steps * np.arctan2(y, 1 + x)
        offset += steps * (law.first + heaviest)
    # Roll to the window's first place: by the phase, exactly.
    spectrum = np.exp(log_size) * np.exp(1j * phase)
    bins = np.roll(fft.irfft(spectrum, size), (offset - low) % size)
    error = np.exp(log_more) * -np.expm1(np.minimum(log_size - log_more, 0.0))
    error += np.exp(log_size) * (
        2 * gamma + 4 * U * (4 + np.abs(phase) + np.minimum(-log_size, 700))
    )
    with np.errstate(under="ignore"):
        untilt = np.exp(np.minimum(K - tilt * (low + np.arange(size)) * h, 600.0))
    return _Sum(
        first=low,
        h=h,
        tilted=np.maximum(bins, 0.0) * math.exp(relative),
        untilt=untilt,
        rounding=math.sqrt(2 * float(error @ error) / size) * math.exp(relative),
        charge=math.fsum(steps * law.cut for law, steps in laws),
        log_wrapped=math.log(2) + log_tail + K + _log_peak(tilt),
        tilt=tilt,
    )


# ---- the accountant -------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def epsilon_of(levels: tuple[Level, ...], delta: float, *, share: float = LATTICE_SHARE) -> float:
    """The smallest epsilon at `delta` that is certified for all releases together.

    Args:
      levels: all releases; their order does not matter.
      delta: at least `SMALLEST_DELTA`.
      share: of epsilon that the lattice may add: less is tighter and takes longer.
    """
    # Releases that the unit takes part in with next to no probability may as well be left out.
    rare, missed = _negligible(levels, delta)
    if rare:
        rest = tuple(level for level in levels if level not in rare)
        return epsilon_of(rest, delta - missed, share=share) if rest else 0.0
    plain = epsilon_from_mu(_plain_mu(levels), delta)
    if _is_hopeless(levels):
        return plain
    guide = _Guide(levels, forward=True)
    tilt, guess = guide.best(delta)
    worst, exponent = _epsilon_one_way(guide, delta, tilt, min(guess, plain), share, 0.0)
    if worst < plain and not all(level.symmetric for level in levels):
        # The other direction is seldom the worse one, and its moments are often enough to know.
        guide = _Guide(levels, forward=False)
        tilt, guess = guide.best(delta, tilt)
        laws = _laws(levels, exponent, delta, forward=False)
        if all(_moments_epsilon(laws, tilt / 4**fewer, delta) > worst for fewer in range(8)):
            other, _ = _epsilon_one_way(guide, delta, tilt, min(guess, plain), share, worst)
            worst = max(worst, other)
    return min(worst, plain)


@lru_cache(maxsize=256)
def delta_of(levels: tuple[Level, ...], epsilon: float, *, share: float = LATTICE_SHARE) -> float:
    """The smallest delta at `epsilon` that is certified for all releases together."""
    plain = delta_from_mu(epsilon, _plain_mu(levels))
    rare, missed = _negligible(levels, SMALLEST_DELTA)
    if rare:
        rest = tuple(level for level in levels if level not in rare)
        others = delta_of(rest, epsilon, share=share) if rest else 0.0
        return min(plain, others + missed)
    if _is_hopeless(levels):
        return plain
    worst = 0.0
    for forward in (True,) if all(level.symmetric for level in levels) else (True, False):
        guide = _Guide(levels, forward)
        tilt, log_delta = guide.best_tail(epsilon)
        # Below this, charges are all there is.
        wanted = min(max(math.exp(min(log_delta, 0.0)), SMALLEST_DELTA), 0.5)
        found = 1.0
        for _ in range(5):
            laws, composed, _ = _on_lattice(guide, wanted, tilt, share, max(epsilon, 1e-9))
            if composed is None:
                break
            shift = epsilon * (1 - 1e-9) - _backlash(guide.levels, laws)
            found = min(found, composed.delta(max(shift, 0.0)) * (1 + 1e-9))
            if found > 0.1 * wanted or wanted <= SMALLEST_DELTA:
                break
            wanted = max(found, SMALLEST_DELTA)
            tilt = guide.tilt_at(max(epsilon, 1e-6), tilt)
        if found < 0.1 * math.exp(min(log_delta, 0.0)) and forward and len(levels) == 1:
            jumps = _jumps(levels[0], wanted, max(epsilon, 1e-6))
            if jumps is not None:
                shift = epsilon * (1 - 1e-9) - jumps[1]
                found = min(found, jumps[0].delta(max(shift, 0.0)))
        worst = max(worst, found)
    return min(worst, plain, math.fsum(level.steps * level.rate for level in levels) * (1 + 1e-12))


def _negligible(levels: tuple[Level, ...], delta: float) -> tuple[tuple[Level, ...], float]:
    """Levels that take next to nothing of delta, or all of them where they fit into it; and what they take.

    A unit is in none of T batches but for a probability of T times the rate.
    """

    def taken(some: tuple[Level, ...]) -> float:
        return math.fsum(level.steps * level.rate for level in some) * (1 + 1e-12)

    if taken(levels) <= delta:
        return levels, taken(levels)
    rare = tuple(level for level in levels if level.steps * level.rate <= 1e-4 * delta)
    return (rare, taken(rare)) if taken(rare) <= 1e-3 * delta else ((), 0.0)


def _plain_mu(levels: tuple[Level, ...]) -> float:
    return math.hypot(*(level.mu for level in levels))


def _is_hopeless(levels: tuple[Level, ...]) -> bool:
    """Whether noise is so small that losses leave the range of double precision."""
    return any(level.width < LEAST_NOISE for level in levels)


def _backlash(levels: tuple[Level, ...], laws: list[tuple[Law, int]]) -> float:
    """What break points that are off by a rounding add to epsilon."""
    size = max(float(np.abs(law.losses) @ law.masses) for law, _ in laws)
    return 8 * U * sum(level.steps for level in levels) * (1 + 4 * size)


def _on_lattice(
    guide: _Guide, delta: float, tilt: float, share: float, epsilon: float
) -> tuple[list[tuple[Law, int]], _Sum | None, int]:
    """Laws and their sum on the coarsest lattice that is fine enough, or the finest that fits."""
    limit = _finest(guide.levels, delta, guide.forward)
    chosen = guide.lattice(tilt, share * epsilon, limit)
    if (
        2.0**chosen > 0.01 * epsilon
    ):  # results are near a point of the lattice where losses are rare
        chosen = math.floor(math.log2(max(0.01 * epsilon, limit, 2.0**FINEST)))
    while True:
        laws = _laws(guide.levels, chosen, delta, guide.forward)
        try:
            return laws, _compose(laws, tilt, delta), chosen
        except _TooFineError:
            if chosen >= COARSEST:
                return laws, None, chosen
            chosen += 1


def _epsilon_one_way(
    guide: _Guide, delta: float, tilt: float, expected: float, share: float, enough: float
) -> tuple[float, int]:
    """Epsilon of one direction and its lattice; all values up to `enough` are as good."""
    best = math.inf
    for attempt in range(5):
        least = max(expected, enough, 1e-9)
        laws, composed, chosen = _on_lattice(guide, delta, tilt, share, least)
        earlier, best = best, min(best, _moments_epsilon(laws, tilt, delta))
        if composed is None:
            break
        backlash = _backlash(guide.levels, laws)
        # Total variation changes by no more than losses do.
        certain = composed.delta(0.0) + backlash <= delta
        result = 0.0 if certain else composed.epsilon(delta) * (1 + 1e-9) + backlash
        best = min(best, result)
        fine = 2.0**chosen < max(0.02 * result, 1e-9)
        if best <= enough or (fine and result > 0.7 * expected):
            break
        # Rare large losses: the tilt that the moments ask for is too strong.
        if attempt and result > 0.97 * earlier:
            break
        expected, tilt = result, guide.tilt_at(result, tilt)
    if attempt and best > enough and guide.forward and len(guide.levels) == 1:
        best = min(best, _jumps_epsilon(guide.levels[0], delta, best))
    return best, chosen


def _jumps(level: Level, delta: float, epsilon: float) -> tuple[Jumps, float] | None:
    """The bound by rare losses for about this epsilon, and its backlash; None where it is of no use."""
    c = least_rare_loss(level, delta)
    if level.steps < 2 or not 0 < c < epsilon:
        return None
    # Losses far below h are on its ends by chance: the spread that this adds must not be seen.
    spread = (1e-3 * epsilon) ** 2 / (2 * level.steps * level.rate)
    exponent = math.ceil(math.log2(max(min(spread, epsilon / 2048), 4 * c / MOST_CELLS)))
    cut = CUT_SHARE * delta / level.steps
    while exponent <= COARSEST:
        h = 2.0**exponent
        common = law_of(level, h, cut, True, end=math.ceil(c / h))
        try:
            # Of the common losses' sum, no more may wrap than matters beside a rare one.
            bulk = _compose([(common, level.steps - 1)], 0.0, min(math.sqrt(delta), 1e-3))
        except _TooFineError:
            exponent += 1
            continue
        weight = float(bulk.untilt.max())
        rounding, outside = bulk.rounding * weight, math.exp(bulk.log_wrapped)
        jumps = Jumps.of(level, common, bulk.tilted * weight, bulk.first, rounding, outside)
        return jumps, _backlash((level,), [(common, level.steps)])
    return None


def _jumps_epsilon(level: Level, delta: float, near: float) -> float:
    """Epsilon by rare losses, at first for about `near`, which is known to hold."""
    best = near
    for _ in range(4):
        found = _jumps(level, delta, best)
        if found is None:
            break
        result = found[0].epsilon(delta, 2 * best) * (1 + 1e-9) + found[1]
        earlier, best = best, min(best, result)
        if best > 0.8 * earlier or best == 0:
            break
    return best


def _moments_epsilon(laws: list[tuple[Law, int]], tilt: float, delta: float) -> float:
    """The moments bound of the lattice laws themselves, so that it holds."""
    left = delta - math.fsum(steps * law.cut for law, steps in laws)
    if left <= 0:
        return math.inf
    K = 0.0
    for law, steps in laws:
        exponent = tilt * law.losses
        peak = float(exponent.max())
        total = math.log(float((law.masses * np.exp(exponent - peak)).sum())) + peak
        K += steps * (total + 16 * U * (1 + abs(peak)))
    return max(0.0, (K - math.log(left) + _log_peak(tilt)) / tilt) * (1 + 1e-9)


def _finest(levels: tuple[Level, ...], delta: float, forward: bool) -> float:
    """The finest lattice on which all laws have few enough cells."""
    steps = sum(level.steps for level in levels)
    cut = CUT_SHARE * delta / steps
    widths = []
    for level in levels:
        s, q = level.width, level.rate
        top = max(-s * normal_quantile(cut / 2), 1 - s * normal_quantile(cut / (2 * q)))
        if not forward and q < 1:
            top = 6 * s
        ends = loss_at(level, np.array([s * normal_quantile(cut), top]))
        widths.append(2 * ends[1] if level.is_mirrored else ends[1] - ends[0])
    # Many levels together hold no more than four of full size.
    return float(max(widths)) / MOST_CELLS * max(1.0, len(levels) / 4)


def _laws(
    levels: tuple[Level, ...], exponent: int, delta: float, forward: bool
) -> list[tuple[Law, int]]:
    cut = CUT_SHARE * delta / sum(level.steps for level in levels)
    return [(_cached_law(level, exponent, cut, forward), level.steps) for level in levels]


@lru_cache(maxsize=8)
def _cached_law(level: Level, exponent: int, cut: float, forward: bool) -> Law:
    return law_of(level, 2.0**exponent, cut, forward)
