"""The loss that a plan leaves, predicted on quadratics before any record is read.

A loss is taken for ``f(x) = sum_l l x_l^2 / 2``, one eigenvalue l for each parameter. On it every update
of the library is a linear recursion, and the expected excess loss of what the run returns is

    sum_l (l/2) [ |(C^-1)^T diag(s c_t relative_t / B_t) r_l|^2  +  beta_l^2 distance2_l ]

``r_l(t)`` is the response of the returned point to noise in the mean of step t, ``beta_l`` its response to
the start. One sweep backwards through the run gives both, for all eigenvalues and learning rates at once.
Unlike `predicted_error` this knows that descent forgets noise, that small learning rates do not arrive,
that late noise counts more than early noise, and what averaging is worth.

It does not know of clips that bind, of the differences between batches, of projections, and of losses
that are not quadratic. Steps whose length depends on the estimate (normalized, adaptive, adam) are linear
once that length is known; it is computed from the expected squared norm of the estimate, with the
iterates' own noise left out.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import DAMAGE, SordinoError, one_line, require_count, require_positive
from sordino._base.files import write_atomically
from sordino.parts.contributions import Lagged, Weighted
from sordino.parts.mechanisms import Channels, LinearMap, Mechanism, Workload
from sordino.parts.schedules import AdaptiveBudget
from sordino.parts.updates import AVERAGING

if TYPE_CHECKING:
    from sordino.planning._training import Training

Array = NDArray[np.float64]
FORMAT = "sordino-spectrum"
# A model that nothing is known about: as many parameters as a table has columns.
PARAMETERS = 100
# The usual spectrum is that of logistic regression on a9a at its optimum, in round numbers: half of the
# curvature is along the mean row, the rest falls geometrically to e^-10; its trace (with rows of norm 1)
# and the loss that there is to gain from the start. No other data had a part in it.
_SPIKE, _DECAY, _TRACE, _TO_GAIN = 0.5, 10.0, 0.1, 0.37
# Squared distance to the optimum for eigenvalues that come without one (page 05, section 6).
RADIUS2 = 400.0
# Eigenvalues are binned to so many; a prediction changes by less than 1 %.
NODES = 32
# Numbers that the responses of one sweep may take (256 MB), and steps: about 30 microseconds each.
MOST_ENTRIES = 1 << 25
LONGEST = 100_000
LONGEST_ON_PAGE = 4096
# Losses beyond this are those of a run that diverges.
_DIVERGED = 1e3
# Iterates that stand for a random one.
_RANDOM = 16
# Learning rates tried, in powers of 2 of a natural one; then finer around the best.
_COARSE, _FINE = np.arange(-14.0, 4.0), np.arange(-3.0, 8.0) / 4
# Adam's decays, those of optax.
_ADAM = (0.9, 0.999)
_BY_LENGTH = ("normalized", "adaptive", "adam")


@dataclass(frozen=True)
class Spectrum:
    """The quadratic that a prediction assumes.

    Attributes:
      eigenvalues: of the Hessian of the mean loss (d,), none negative.
      distances2: squared distance from the start to the optimum along each eigenvector (d,).
    """

    eigenvalues: tuple[float, ...]
    distances2: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("eigenvalues", "distances2"):
            numbers = np.asarray(getattr(self, name), np.float64)
            if numbers.ndim != 1 or not (np.isfinite(numbers).all() and (numbers >= 0).all()):
                raise SordinoError(f"{name} of a spectrum must be finite numbers of 0 or more")
            object.__setattr__(self, name, tuple(numbers.tolist()))
        if len(self.eigenvalues) != len(self.distances2):
            raise SordinoError(
                f"a spectrum has a distance for each eigenvalue, got {len(self.eigenvalues)} "
                f"eigenvalues and {len(self.distances2)} distances"
            )
        if not max(self.eigenvalues, default=0.0) > 0:
            raise SordinoError("a spectrum needs an eigenvalue greater than 0")

    @classmethod
    def usual(cls, parameters: int = PARAMETERS, clip: float = 1.0) -> Spectrum:
        """What tables are like: logistic regression whose rows have norm at most `clip`."""
        d = require_count("parameters", parameters)
        rest = np.exp(-_DECAY * np.arange(d - 1) / d)
        shares = np.append(_SPIKE, (1 - _SPIKE) * rest / rest.sum()) if d > 1 else np.ones(1)
        values = _TRACE * clip**2 * shares
        return cls(tuple(values), (2 * _TO_GAIN / (_TRACE * clip**2),) * d)

    @classmethod
    def evenly(cls, eigenvalues: Sequence[float], radius2: float | None = None) -> Spectrum:
        """These eigenvalues, an optimum at squared distance `radius2` (default 400), spread evenly."""
        far = RADIUS2 if radius2 is None else require_positive("radius2", radius2)
        count = max(1, len(eigenvalues))
        return cls(tuple(eigenvalues), (far / count,) * len(eigenvalues))

    def nodes(self, most: int = NODES) -> tuple[Array, Array, Array]:
        """At most so many eigenvalues, their numbers of parameters, and the distances2 of all of these.

        Eigenvalues of one geometric bin become their mean: trace and squared distance stay the same.
        """
        values, far = np.asarray(self.eigenvalues), np.asarray(self.distances2)
        if len(values) <= most:
            return values, np.ones(len(values)), far
        floor = values.max() * 1e-6
        scale = np.log(np.maximum(values, floor) / floor)
        bins = np.minimum((scale / scale.max() * most).astype(int), most - 1)
        counts = np.bincount(bins, minlength=most)
        used = counts > 0
        total = np.bincount(bins, values, minlength=most)[used]
        distance2 = np.asarray(np.bincount(bins, far, minlength=most)[used], np.float64)
        return total / counts[used], counts[used].astype(float), distance2

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, atomically, for ``sordino plan --spectrum``."""
        data = {"format": FORMAT, "eigenvalues": self.eigenvalues, "distances2": self.distances2}
        write_atomically(Path(path), json.dumps(data) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Spectrum:
        """Read what `save` wrote."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise SordinoError(f"cannot read {str(path)!r}: {one_line(error.strerror)}") from None
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise SordinoError(
                f"{str(path)!r} is no spectrum: the field 'format' must be {FORMAT!r}"
            )
        try:
            return cls(tuple(data["eigenvalues"]), tuple(data["distances2"]))
        except DAMAGE:
            raise SordinoError(f"the spectrum in {str(path)!r} is damaged") from None


Curvature = Spectrum | Sequence[float] | None


def spectrum_of(run: Training, given: Curvature, radius2: float | None = None) -> Spectrum:
    """The given one, even distances where only eigenvalues are given, or the usual one."""
    if given is None:
        return Spectrum.usual(clip=min(run.clip, 1e6))
    if not isinstance(given, Spectrum):
        return Spectrum.evenly(given, radius2)
    return given if radius2 is None else Spectrum.evenly(given.eigenvalues, radius2)


def best_rate(run: Training, spectrum: Spectrum) -> tuple[float, float]:
    """The learning rate with the least predicted loss, and that loss (see `why_not` first).

    Least is the larger of the losses at the rate and at 1.4 times the rate: real curvature is not
    constant, and a run at the edge of its stability would fall off it.
    """
    natural = _natural_rate(run, spectrum)
    losses = predicted_losses(run, spectrum, natural * 2.0**_COARSE)
    middle = _COARSE[np.argmin(np.maximum(losses[:-1], losses[1:]))]
    rates = natural * 2.0 ** (middle + _FINE)
    losses = predicted_losses(run, spectrum, rates)
    best = int(np.argmin(np.maximum(losses[:-2], losses[2:])))
    return float(rates[best]), float(losses[best])


def _natural_rate(run: Training, spectrum: Spectrum) -> float:
    """A learning rate at the edge of being too large, by what the optimizer does with it."""
    update, steps = run.update, run.population.steps
    far = math.sqrt(sum(spectrum.distances2))
    if update.optimizer == "normalized":
        return 8 * far / steps
    if update.optimizer == "adam":
        return 8 * far / steps / math.sqrt(len(spectrum.eigenvalues))
    steady = 2 / max(spectrum.eigenvalues)
    if update.optimizer == "anytime":
        return steady / steps
    return steady * (1 - update.momentum) if update.optimizer == "sgd" else steady


@dataclass(frozen=True, eq=False)
class _Steps:
    """The recursion of one run: with ``G = a l x + e``, ``e <- keep e + noise`` and rates' coefficients

        u <- P u + Q G ,    x <- R x + S (u + extra) + U G

    each (T, 1) or (T, rates); `extra` is noise that enters behind the memory u. `from_start`: whether
    u starts at x instead of at 0. With `V`, what is returned is of the points ``y = x + V G`` before a
    step's coupling.
    """

    a: Array
    keep: Array
    P: Array
    Q: Array
    R: Array
    S: Array
    U: Array
    from_start: bool = False
    V: Array | None = None


def why_not(run: Training) -> str:
    """Why the loss of a run cannot be predicted; nothing if it can."""
    if isinstance(run.schedule, AdaptiveBudget):
        return "the run itself decides on its steps and their noise"
    if run.update.optimizer == "storm":
        return "its weights depend on the data"
    if run.population.steps > LONGEST:
        return f"predictions are for up to {LONGEST:,} steps"
    return ""


def described_prediction(run: Training, given: Curvature = None) -> str:
    """A line for a plan's page."""
    reason = why_not(run)
    if not reason and run.population.steps > LONGEST_ON_PAGE:
        reason = f"runs of more than {LONGEST_ON_PAGE:,} steps are slow to predict"
    if reason:
        return f"none: {reason}"
    spectrum, own = spectrum_of(run, given), run.update.learning_rate
    loss = float(predicted_losses(run, spectrum, np.array([own]))[0])
    rate, least = best_rate(run, spectrum)
    here = f"{loss:.3g} above the optimum" if loss < _DIVERGED else "the run diverges"
    better = f" ({least:.3g} at {rate:.3g})" if least < 0.99 * loss else ""
    what = f"logistic regression with {PARAMETERS} parameters" if given is None else "your spectrum"
    return f"{here} at learning rate {own:g}{better}; estimated for {what}"


def predicted_losses(run: Training, spectrum: Spectrum, rates: Array) -> Array:
    """The predicted excess loss at each learning rate, shape (rates,); inf where the run diverges."""
    values, counts, distances2 = spectrum.nodes()
    steps = run.population.steps
    width = max(1, MOST_ENTRIES // (steps * len(values) * run.contribution.channels))
    with np.errstate(over="ignore", invalid="ignore"):
        found = [
            _losses(run, values, counts, distances2, rates[first : first + width])
            for first in range(0, len(rates), width)
        ]
    losses = np.concatenate(found)
    return np.where(np.isfinite(losses), losses, math.inf)


def _losses(run: Training, values: Array, counts: Array, distances2: Array, rates: Array) -> Array:
    recursion = _recursion(run, values, counts, distances2, rates)
    stds, maps = _noise_stds(run), _extra_maps(run)
    total = np.zeros(len(rates))
    for share, weights in _outputs(run):
        inside, extra, start = _responses(recursion, values, len(rates), weights, bool(maps))
        # Each channel's noise enters either the estimate or, through a map of its own, behind it.
        responses = [inside] if not maps else [_transposed(one, extra) for one in maps]
        noise = _energy(
            run.mechanism, [r * s[:, None] for r, s in zip(responses, stds, strict=True)]
        )
        noise = noise.reshape(len(rates), -1) * counts
        total += share * ((noise + start**2 * distances2) @ values) / 2
    return total


def _recursion(
    run: Training, values: Array, counts: Array, distances2: Array, rates: Array
) -> _Steps:
    """The coefficients of a run's update at several learning rates."""
    update, contribution, T = run.update, run.contribution, run.population.steps
    t = np.arange(float(T))[:, None]
    one, zero = np.ones((T, 1)), np.zeros((T, 1))
    lr = replace(update, learning_rate=1.0).learning_rates(T).astype(float)[:, None] * rates
    a, keep = _gain(run)[:, None], contribution.carry_over(T)[:, None]
    power = contribution.power if isinstance(contribution, Weighted) else 1.0
    eta = (t + 1) ** power
    if update.optimizer == "nesterov":
        following = (t + 2) ** power
        tau = following / (np.cumsum(eta)[:, None] + following)
        V = -lr / eta
        # A random iterate is one where gradients are evaluated.
        y = V if update.output == "last" else None
        Q = -update.kappa * lr
        return _Steps(a, keep, one, Q, 1 - tau, tau, (1 - tau) * V, from_start=True, V=y)
    if update.optimizer == "srg":
        return _Steps(a, keep, zero, one, one, -lr / eta, zero)
    if update.optimizer == "anytime":
        share = 2 / (t + 3)
        return _Steps(a, keep, one, -lr, 1 - share, share, zero, from_start=True)
    beta, fresh = update.momentum, 1.0
    if isinstance(contribution, Lagged) or update.optimizer in AVERAGING:
        fresh = 1 - beta
    elif update.optimizer == "adam":
        beta, fresh = _ADAM[0], 1 - _ADAM[0]
    elif update.optimizer != "sgd":
        beta = 0.0
    if update.optimizer in ("bias-corrected", "adam") and not isinstance(contribution, Lagged):
        lr = lr / (1 - beta ** (t + 1))
    plain = _Steps(a, keep, beta * one, fresh * one, one, -lr, zero)
    if update.optimizer not in _BY_LENGTH:
        return plain
    return replace(plain, S=-_limited(run, plain, values, counts, distances2))


def _gain(run: Training) -> Array:
    """What the estimate of a constant gradient is a multiple of: 1, or t + 1 for weighted streams (T,)."""
    T = run.population.steps
    terms = run.contribution.terms(T)
    if "now" in terms:
        return np.asarray(terms["now"], float)
    if isinstance(run.contribution, Lagged):
        return np.ones(T)
    signal, keep = run.contribution.signal(T), run.contribution.carry_over(T)
    gain = np.array(signal, float)
    for t in range(1, T):
        gain[t] += keep[t] * gain[t - 1]
    return gain


def _limited(
    run: Training, plain: _Steps, values: Array, counts: Array, distances2: Array
) -> Array:
    """Effective learning rates (T, rates) of steps whose length depends on the estimate.

    The estimate's squared norm is that of the run without noise plus that of the noise in it.
    """
    update, T, decay = run.update, run.population.steps, run.contribution.decay
    stepped: LinearMap = Workload("recursion", ratios=(decay,)) if decay else Workload.identity()
    if update.optimizer == "normalized":
        stepped = update.workload(run.contribution)
    noise2 = run.noise_in(stepped) ** 2 * counts.sum()
    x = np.tile(np.sqrt(distances2), (plain.S.shape[1], 1))
    u, seen = np.zeros_like(x), np.zeros((x.shape[0], 1))
    lr, result = -plain.S, np.empty(plain.S.shape)
    for t in range(T):
        G = plain.a[t] * values * x
        u = plain.P[t] * u + plain.Q[t] * G
        now = u if update.optimizer == "normalized" else G
        norm2 = np.sum(now**2, axis=1, keepdims=True) + noise2[t]
        rate = lr[t][:, None]
        if update.optimizer == "normalized":
            rate = rate / np.sqrt(norm2)
        elif update.optimizer == "adaptive":
            assert update.step_length is not None
            rate = np.minimum(rate, update.step_length / np.sqrt(norm2))
        else:
            seen = _ADAM[1] * seen + (1 - _ADAM[1]) * norm2 / counts.sum()
            rate = rate / np.sqrt(seen / (1 - _ADAM[1] ** (t + 1)))
        x = x - rate * u
        result[t] = rate[:, 0]
    return result


def _outputs(run: Training) -> list[tuple[float, Array]]:
    """What may be returned, with its probability: the weights of the iterates x_0 .. x_T in it (T + 1,).

    Of a random iterate, some stand for those between them: the loss changes most at first.
    """
    update, T = run.update, run.population.steps
    if update.output == "random":
        chosen = np.unique(np.append(np.geomspace(1, T, _RANDOM).round().astype(int) - 1, T - 1))
        nearest = [np.interp(np.arange(T), chosen, row) for row in np.eye(len(chosen))]
        return [
            (float(np.mean(share)), np.eye(1, T + 1, k)[0])
            for k, share in zip(chosen, nearest, strict=True)
        ]
    if update.average:
        begin = min(math.floor((1 - update.average) * T), T - 1)
        return [(1.0, np.where(np.arange(T + 1) > begin, 1.0, 0.0) / (T - begin))]
    return [(1.0, np.eye(1, T + 1, T)[0])]


def _responses(
    steps: _Steps, values: Array, rates: int, weights: Array, behind: bool
) -> tuple[Array, Array, Array]:
    """Of the returned point to noise in each step's estimate and behind it (T, rates * l), and to the
    start (rates, l): the recursion backwards."""
    T, shape = len(weights) - 1, (rates, len(values))
    px, pu, pe = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    inside = np.empty((T, *shape))
    extra = np.empty((T, *shape)) if behind else np.empty(0)
    P, Q, R, S, U = (x[:, :, None] for x in (steps.P, steps.Q, steps.R, steps.S, steps.U))
    V = None if steps.V is None else steps.V[:, :, None]
    remembers = bool(np.any(steps.keep))
    for t in range(T - 1, -1, -1):
        weight = weights[t + 1]
        if weight and V is None:
            px = px + weight
        moved = S[t] * px
        if behind:
            extra[t] = moved
        pu = pu + moved
        pg = Q[t] * pu + U[t] * px
        if weight and V is not None:
            pg = pg + V[t] * weight
        pe = pe + pg if remembers else pg
        inside[t] = pe
        px = R[t] * px + (steps.a[t] * values) * pg + (0.0 if V is None else weight)
        pu = P[t] * pu
        pe = steps.keep[t] * pe
    start = px + weights[0] + (pu if steps.from_start else 0.0)
    return inside.reshape(T, -1), extra.reshape(T, -1) if behind else extra, start


def _noise_stds(run: Training) -> list[Array]:
    """Of the noise in each channel's mean, for a unit row of ``C^-1 Z``: (T,) for each channel."""
    sizes = [np.full(count, float(size)) for size, count in run.population.batch_sizes()]
    stds = run.noise_multiplier * run.clip * run._relative_bounds() / np.concatenate(sizes)[:, None]
    return list(stds.T)


def _extra_maps(run: Training) -> tuple[LinearMap, ...]:
    """From each channel's noise to what it adds behind the memory: of lagged streams only."""
    if not isinstance(run.contribution, Lagged):
        return ()
    found = run.update.workload(run.contribution)
    return found.parts if isinstance(found, Channels) else (found,)


def _transposed(one: LinearMap, responses: Array) -> Array:
    return one.matrix(len(responses)).T @ responses


def _energy(mechanism: Mechanism, columns: Sequence[Array]) -> Array:
    """``sum over channels |(C^-1)^T y|^2`` for each column y of (T, k)."""
    if len(columns) > 1:
        parts, scales = mechanism.parts, mechanism.scales  # type: ignore[attr-defined]
        each = zip(parts, scales, columns, strict=True)
        return np.sum([scale**2 * part.draw_energy(y) for part, scale, y in each], axis=0)
    return mechanism.draw_energy(columns[0])
