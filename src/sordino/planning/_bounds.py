r"""Convergence bounds of the papers as inequalities in a run's own numbers.

The papers state rates: constants are left out, and their noise is not the noise of a plan. Their proofs
end in inequalities that hold for any noise, and those are computed here, with every constant, from the
standard deviations `s_t` per coordinate of the noise in each step's mean. Where a printed step is false
(docs/errata.md) the inequality is that of the corrected proof, which the docstring gives in full.

Symbols: F the loss, G its Lipschitz constant (of every example), M its smoothness, d the dimension,
D the diameter of the ball of iterates, `gap` = F(x_1) - min F, T steps. Expectations are over noise and
batches. All hold as long as nothing is clipped, which the theorems' conditions see to.

A `Theorem` says what it needs, prescribes and bounds; a `ConvergenceBound` is what it says about one plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc

from sordino.planning._options import FACTS as FACTS
from sordino.planning._theory import refuse_unless
from sordino.planning._training import Training

Array = NDArray[np.float64]


def descent_norm(
    noise: Array, *, rate: float, smoothness: float, gap: float, dimension: float
) -> float:
    r"""``E |grad F(x_R)|``, gradient descent on a smooth loss, R uniform over the T visited points.

    Descent lemma, eta < 2/M: ``F(x_t+1) <= F(x_t) - eta (1 - M eta/2) |grad|^2 + M eta^2 d s_t^2 / 2``
    in expectation; summed over t, with Jensen's inequality. At eta = 1/M it is
    ``sqrt(2 M gap / T + d mean s^2)``.
    """
    mean = float(np.mean(noise**2)) * dimension
    left = gap / (rate * noise.size) + smoothness * rate / 2 * mean
    return math.sqrt(left / (1 - smoothness * rate / 2))


def contracted_gap(
    variance: Array, rates: Array, *, smoothness: float, curvature: float, gap: float
) -> float:
    r"""``E F(x_T+1) - min F`` of unbiased gradient steps on a PL loss (papers/04 1.3, 1.4).

    ``gap_t+1 <= c_t gap_t + M eta_t^2 v_t / 2``, ``c_t = 1 - 2 mu eta_t (1 - M eta_t / 2)``, with v_t
    the variance of the whole gradient estimate, ``d s_t^2`` where batches are all the data. With
    eta = 1/M and uniform noise it is papers/04's ``E_uni(T) gap``.
    """
    kept = 1 - 2 * curvature * rates * (1 - smoothness * rates / 2)
    # The weight of step t is the product of what later steps keep.
    later = np.append(np.cumprod(kept[::-1])[::-1], 1.0)
    return float(later[0] * gap + later[1:] @ (smoothness * rates**2 / 2 * variance))


def momentum_limit(beta: float, kappa: float) -> float:
    """The largest eta_0 of Theorem 4.4 as corrected (papers/04, erratum g): eta = eta_0 / (2 M).

    ``1 - eta_0/2 - K eta_0^2 >= 0`` with ``K = beta gamma / ((gamma-beta)^2 (1-beta)^3)`` and
    ``gamma = 1 - eta_0 / (2 kappa) > beta``: gamma depends on eta_0, so by bisection.
    """

    def holds(eta_0: float) -> bool:
        gamma = 1 - eta_0 / (2 * kappa)
        if gamma <= beta:
            return False
        K = beta * gamma / ((gamma - beta) ** 2 * (1 - beta) ** 3)
        return 1 - eta_0 / 2 - K * eta_0**2 >= 0

    low, high = 0.0, 2.0
    if holds(high):
        return high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def averaged_noise(beta: float, steps: int) -> Array:
    """``sum_s w_ts^2`` of bias-corrected momentum's weights, for t = 1..steps (steps,)."""
    power = beta ** np.arange(1.0, steps + 1)
    return (1 - beta) / (1 + beta) * (1 - power**2) / (1 - power) ** 2


def momentum_gap(
    variance: Array, *, beta: float, rate: float, curvature: float, gap: float
) -> float:
    r"""``E F(x_T+1) - min F`` of bias-corrected momentum on a PL loss (papers/04 Theorem 4.4, corrected).

    ``F(x_t+1) <= F(x_t) - eta/2 |grad|^2 - eta/2 (1 - M eta) |m_t|^2 + eta/2 |grad - m_t|^2``. The
    last term is at most eta times the averaged noise, ``sum_s w_ts^2 v_s``, plus eta times the squared
    lag, which the terms in ``|m|^2`` pay for while eta_0 is below `momentum_limit`. So
    ``gamma^T gap + eta sum_t gamma^(T-t) sum_s w_ts^2 v_s``, ``gamma = 1 - eta mu``.
    """
    gamma = 1 - rate * curvature
    total, averaged, power = gap, 0.0, 1.0
    for v in variance:
        power *= beta
        averaged = beta**2 * averaged + v
        total = gamma * total + rate * ((1 - beta) / (1 - power)) ** 2 * averaged
    return float(total)


def recursive_norm(
    noise: Array,
    *,
    gamma: float,
    step_length: float,
    sampling: tuple[float, float],
    smoothness: float,
    gap: float,
    dimension: float,
) -> float:
    r"""``E |grad F(x_R)|`` of recursive momentum (papers/01, Theorem 4.4).

    Steps are ``min(zeta/(M |v|), 1/(2M))``. The error of v_t is unbiased given the past, so its variance
    is ``V_t = (1-gamma)^2 V_t-1 + sampling + d s_t^2``. The descent lemma with ``eta <= 1/(2M)`` and
    ``eta |v|^2 >= (zeta |v| - zeta^2/2) / M`` gives ``F(x_t+1) <= F(x_t) - (zeta |v_t| - zeta^2/2)/(4M)
    + V_t/(4M)``; hence ``4 M gap/(zeta T) + zeta/2 + mean V / zeta + mean sqrt(V)``.

    Args:
      sampling: variance of the first mean, and of every later one, by which examples were drawn.
    """
    zeta, variance = smoothness * step_length, 0.0
    errors = np.empty(noise.size)
    for t, s in enumerate(noise):
        variance = (1 - gamma) ** 2 * variance + sampling[min(t, 1)] + dimension * s**2
        errors[t] = variance
    steady = 4 * smoothness * gap / (zeta * noise.size) + zeta / 2
    return float(steady + errors.mean() / zeta + np.sqrt(errors).mean())


def normalized_norm(
    noise: Array,
    *,
    beta: float,
    rate: float,
    per_epoch: int,
    batch_size: int,
    fresh: bool,
    lipschitz: float,
    smoothness: float,
    gap: float,
    dimension: float,
) -> float:
    r"""``E |grad F(x_R)|`` of steps of length eta along an average of gradients (papers/00, Theorem 6).

    ``F(x_t+1) <= F(x_t) - eta |grad| + 2 eta |err_t| + M eta^2/2`` (Lemma 5), where ``err_t`` may be
    that of any positive multiple of the average: steps do not see its scale, so weights
    ``w_ts ~ beta^(t-s)`` sum to 1. It is noise (`noise` times sqrt d), a lag of ``M eta`` per step, and
    which examples were drawn:

    * an order that is drawn anew each epoch: at the epoch's first point the drawn gradients have
      variance ``G^2 N/(N-1) (sum w^2 / b - (sum w)^2 / N)``, independent over epochs; moving to the
      points in use costs ``2 M eta`` per step since (Lemma 11, with its constant);
    * one order for all epochs: nothing averages out over epochs, so only
      ``G sum_p |u_p - 1/B|`` holds, u_p the weight of the batch at place p. With alpha = 1/N it does not
      vanish: Theorem 9, which needs this order (Lemma 17) and the rate of the other, has no proof.

    Args:
      noise: per coordinate, in the average ``alpha sum beta^(t-s)`` (T,).
      per_epoch: B, batches of `batch_size` in an epoch of N examples.
    """
    T, B, N = noise.size, per_epoch, per_epoch * batch_size
    t = np.arange(1, T + 1)
    total = 1 - beta**t
    place = (t - 1) % B + 1  # steps of the current epoch so far
    done = (t - 1) // B
    lag = _mean_age(beta, t)
    if fresh:
        whole = (1 - beta**B) ** 2 * (1 - beta ** (2.0 * B * done)) / (1 - beta ** (2 * B))
        squares = (1 - beta) * (1 - beta ** (2 * t)) / (1 + beta)
        sums = beta ** (2 * place) * whole + (1 - beta**place) ** 2
        variance = np.maximum(squares / batch_size - sums / N, 0) * N / max(N - 1, 1)
        drawn = lipschitz * np.sqrt(variance)
        since = _mean_since(beta, place) + beta**place * _mean_since(beta, np.asarray(B)) * (
            1 - beta ** (1.0 * B * done)
        ) / (1 - beta**B)
        lag = lag + 2 * since
    else:
        drawn = lipschitz * total * _unevenness(beta, t, B)
    error = (math.sqrt(dimension) * noise + smoothness * rate * lag + drawn) / total
    return float(gap / (rate * T) + smoothness * rate / 2 + 2 * error.mean())


def one_order_norm(beta: float, per_epoch: int, lipschitz: float) -> float:
    """What one order for all epochs leaves of `normalized_norm` after any number of steps."""
    epochs = math.ceil(60 / (-math.log(beta) * per_epoch)) if beta > 0 else 1
    t = np.arange(epochs * per_epoch + 1, (epochs + 1) * per_epoch + 1)
    return float(2 * lipschitz * np.mean(_unevenness(beta, t, per_epoch)))


def _mean_age(beta: float, t: Array | NDArray[np.int64]) -> Array:
    """``(1-beta) sum_{k<t} k beta^k``."""
    power = beta ** (t - 1.0)
    return np.asarray(beta * (1 - t * power + (t - 1) * power * beta) / (1 - beta))


def _mean_since(beta: float, j: NDArray[np.int64]) -> Array:
    """``(1-beta) sum_{k<j} beta^k (j-1-k)``: steps since the epoch began, weighted by age."""
    return (j - 1) * (1 - beta**j) - _mean_age(beta, j)


def _unevenness(beta: float, t: NDArray[np.int64], B: int) -> Array:
    """``sum_p |u_p - 1/B|`` for weights ``~ beta^age`` on batches that return every B steps (T,)."""
    place, done = np.asarray((t - 1) % B + 1.0), (t - 1) // B
    scale = (1 - beta) / (1 - beta ** (1.0 * t)) / (1 - beta**B)
    result = np.zeros(t.size)
    # Ages below `place` are of this epoch, and so came once more than the rest.
    for low, high, visits in ((0 * place, place, done + 1), (place, 0 * place + B, done)):
        c = scale * (1 - beta ** (1.0 * B * visits))
        with np.errstate(divide="ignore"):
            turn = np.ceil(np.log(c * B) / -math.log(beta)) if beta > 0 else np.ones(t.size)
        turn = np.clip(turn, low, high)  # from here on weights are below 1/B

        def weight(first: Array, last: Array, c: Array = c) -> Array:
            return c * (beta**first - beta**last) / (1 - beta)

        result += weight(low, turn) - (turn - low) / B + (high - turn) / B - weight(turn, high)
    return result


def anytime_gap(
    prefix: Array,
    predictable: Array,
    *,
    rate: float,
    batch_size: int,
    lipschitz: float,
    smoothness: float,
    diameter: float,
    dimension: float,
) -> float:
    r"""``E f(x) - min f`` on the population, mu^2-SGD with noise on its sums (papers/02, appendix F).

    Let ``A_t = t(t+1)/2 (f(x_t) - f*)``, at most ``sum_tau tau <grad f(x_tau), w_tau - w*>`` (the
    anytime lemma). One step of projected descent, ``|grad f(x) - grad f(w*)|^2 <= 2 M (f(x) - f*)``
    (for which f is convex and M-smooth on all of R^d) and summation by parts of ``grad f(w*)`` give,
    for every c > 0 and t <= T,

        A_t <= C + 2 M eta (1+c) sum_{tau<=t} A_tau,
        C = D^2/(2 eta) + T G D + D sum (e_tau-1 + sqrt(d) p_tau)
            + eta/2 sum [(1+1/c) (e_tau + sqrt(d) p_tau)^2 + d (s_tau^2 - p_tau^2)]

    and so ``A_T <= C / (1 - theta)``, ``theta = 2 M eta T (1+c) < 1``. ``e_tau^2 = sum S_s^2 / m`` bounds
    the sampling error of the sums, ``S_s = G + 2 M D (s-1)/(s+1)``. T counts the point that is returned,
    for which no step is taken. The step (C) that is false in print (papers/02, erratum E7) is about partial
    participation, and is not used.

    Args:
      prefix: noise of the sums, per coordinate (steps,).
      predictable: of it, what earlier releases determine; 0 where each sum has noise of its own.
    """
    steps, root = prefix.size, math.sqrt(dimension)
    T = steps + 1
    s = np.arange(1.0, steps + 1)
    S = lipschitz + 2 * smoothness * diameter * (s - 1) / (s + 1)
    error = np.sqrt(np.cumsum(S**2) / batch_size)
    before = np.append(0.0, error[:-1])
    fixed = diameter**2 / (2 * rate) + T * lipschitz * diameter
    fixed += diameter * float(np.sum(before + root * predictable))
    fixed += rate / 2 * dimension * float(np.sum(prefix**2 - predictable**2))
    spread = rate / 2 * float(np.sum((error + root * predictable) ** 2))
    least = 2 * smoothness * rate * T
    c = np.geomspace(1e-4, 1e4, 801)
    c = c[least * (1 + c) < 1]
    if not c.size:
        return math.inf
    return float(np.min((fixed + (1 + 1 / c) * spread) / (1 - least * (1 + c)))) * 2 / (T * (T + 1))


def coupled_gap(
    prefix: Array,
    predictable: Array,
    *,
    beta: float,
    clip: float,
    batch_size: int,
    lipschitz: float,
    smoothness: float,
    diameter: float,
    dimension: float,
) -> float:
    r"""``E f(y_T) - min f`` on the population, Accelerated-DP-SRGD, kappa = 1/2 (papers/03, Theorem 4.10).

    Linear coupling with ``eta_t = t+1``, ``H_t = (t+1)(t+2)/2`` and errors ``eta_t e_t`` in the sums:

        H_t (f(y_t+1) - f*) + beta |z_t+1 - x*|^2 <= H_t-1 (f(y_t) - f*) + beta |z_t - x*|^2
            + (t+2)/(4 (t+1) (beta - M)) |eta_t e_t|^2 - <eta_t e_t, z_t - x*>,

    which needs ``eta_t^2 <= 2 H_t`` and beta > M (papers/03, erratum E6). Telescoped, with
    ``|eta_t e_t|`` at most ``V_t^(1/2) + sqrt(d) s_t`` in mean square, where
    ``V_t = V_t-1 + (G + 2 M D + M/beta (t G + V_t-1^(1/2) + sqrt(d) s_t-1))^2 / B`` is the sampling
    error; the sum over t that was lost in print (papers/03, erratum E7) is here. The proof is of a run
    without clips; they bind with the probability (added, times G D) that some noise is longer than
    ``(clip - G - 2 M D) beta/M - t clip``.
    """
    root, D = math.sqrt(dimension), diameter
    base, V, inner, squares, beyond = lipschitz + 2 * smoothness * D, 0.0, 0.0, 0.0, 0.0
    for t, (s, p) in enumerate(zip(prefix, predictable, strict=True)):
        norm = lipschitz
        inner += D * (math.sqrt(V) + root * p)
        if t:
            earlier = root * prefix[t - 1]
            norm = base + smoothness / beta * (t * lipschitz + math.sqrt(V) + earlier)
            room = (clip - base) * beta / smoothness - t * clip
            if room <= 0:
                return math.inf
            if prefix[t - 1] > 0:
                beyond += float(gammaincc(dimension / 2, (room / prefix[t - 1]) ** 2 / 2))
        V += norm**2 / batch_size
        squares += (t + 2) / (4 * (t + 1) * (beta - smoothness)) * (math.sqrt(V) + root * s) ** 2
    T = prefix.size
    total = beta * D**2 + squares + inner
    return float(total * 2 / (T * (T + 1)) + min(beyond, 1.0) * lipschitz * D)


def independent_gap(
    noise: Array,
    *,
    beta: float,
    batch_size: int,
    lipschitz: float,
    smoothness: float,
    diameter: float,
    dimension: float,
) -> float:
    r"""``E f(y_T) - min f`` on the population, acceleration with independent gradients (papers/03, 1.7).

    The coupling of `coupled_gap` with the error e_t of a fresh batch and fresh noise, which is unbiased
    given z_t, so that the inner product vanishes in expectation:

        H_T-1 E gap <= beta D^2 + sum (t+1)(t+2) / (4 (beta - M)) (G^2 / B + d s_t^2)

    with H_T-1 = T(T+1)/2 and s_t the noise in the mean gradient. Theorem 4.11 has 8 L^2/sqrt(B) for
    G^2/B, and terms in |b_t| that unbiased noise does not need (papers/03, erratum E7).

    Args:
      noise: per coordinate, in the mean of weighted gradients (T,).
    """
    T = noise.size
    eta = np.arange(1.0, T + 1)
    variance = lipschitz**2 / batch_size + dimension * (noise / eta) ** 2
    total = beta * diameter**2 + float(eta * (eta + 1) @ variance) / (4 * (beta - smoothness))
    return total * 2 / (T * (T + 1))


def best_coupling(
    steps: Array, variance: Array, *, smoothness: float, diameter: float
) -> tuple[Array, Array]:
    """The beta with the least `independent_gap` at a constant variance, and that bound (papers/03, 1.7).

    ``beta = M + sqrt(T (T+1) (T+2) v / 12) / D`` makes it
    ``2 M D^2 / (T (T+1)) + 2 D sqrt((T+2) v / (3 T (T+1)))``.
    """
    T, H = steps, steps * (steps + 1) / 2
    beta = smoothness + np.sqrt(H * (T + 2) * variance / 6) / diameter
    bound = smoothness * diameter**2 / H + 2 * diameter * np.sqrt((T + 2) * variance / (6 * H))
    return beta, bound


def recursive_gap(
    prefix: Array,
    predictable: Array,
    *,
    rate: float,
    clip: float,
    batch_size: int,
    lipschitz: float,
    smoothness: float,
    diameter: float,
    dimension: float,
) -> float:
    r"""``E f(mean x_t) - min f`` on the population, recursion without acceleration (papers/03, 1.8).

    One projected step along ``grad f(x_t) + e_t``, M eta < 1, on a convex M-smooth loss:

        f(x_t+1) - f* <= (|x_t - x*|^2 - |x_t+1 - x*|^2) / (2 eta)
            + eta / (2 (1 - M eta)) |e_t|^2 - <e_t, x_t - x*>.

    ``(t+1) e_t`` is the error of the sums, ``V_t^(1/2) + sqrt(d) s_t`` in mean square, of which
    ``V_t-1^(1/2) + sqrt(d) p_t`` was there before step t. A contribution is no longer than
    ``G + M t |x_t - x_t-1|``, and ``t |x_t - x_t-1| <= min(t D, eta (t G + |error of the sums|))``;
    so V_t = V_t-1 + (its mean square) / B. `_clips_bind` adds what clips may cost.
    """
    root, D, T = math.sqrt(dimension), diameter, prefix.size
    V, total = 0.0, 0.0
    for t, (s, p) in enumerate(zip(prefix, predictable, strict=True)):
        total += D * (math.sqrt(V) + root * p) / (t + 1)
        error = math.sqrt(V) + root * prefix[t - 1] if t else 0.0
        moved = min(t * D, rate * (t * lipschitz + error))
        V += (lipschitz + smoothness * moved) ** 2 / batch_size
        total += rate / (2 * (1 - smoothness * rate)) * ((math.sqrt(V) + root * s) / (t + 1)) ** 2
    beyond = _clips_bind(
        prefix, smoothness * rate, smoothness * D, clip, batch_size, lipschitz, dimension
    )
    return float(D**2 / (2 * rate * T) + total / T + beyond * lipschitz * D)


def _clips_bind(
    prefix: Array,
    shrink: float,
    spread: float,
    clip: float,
    batch_size: int,
    lipschitz: float,
    dimension: float,
) -> float:
    """At most the probability that `recursive_gap`'s run is clipped; inf where that is sure.

    As long as nothing was clipped, no contribution of step t is longer than ``G + t M D``, nor than
    ``G + M eta (t G + |sampling error| + |noise|)`` with the errors of the sums up to step t-1. Those are a
    martingale of one example at a time, with jumps of at most 2 clip/B: beyond r with probability
    ``2 exp(-r^2 B / (8 t clip^2))`` at most, at any time up to t (Pinelis 1994, Theorem 3.5); and Gaussian.

    Args:
      shrink, spread: M eta and M D.
    """
    T = prefix.size
    t = np.arange(1.0, T)
    t = t[lipschitz + t * spread > clip * (1 + 1e-9)]
    if not t.size:
        return 0.0
    room = (clip - lipschitz) / shrink - t * lipschitz
    if room[-1] <= 0:
        return math.inf
    noise, least = np.maximum(prefix[:-1][-t.size :], 1e-100 * room), math.inf
    for share in np.linspace(0.05, 0.95, 19):
        sampled = 2 * math.exp(-((share * room[-1] / clip) ** 2) * batch_size / (8 * (T - 1)))
        noisy = gammaincc(dimension / 2, ((1 - share) * room / noise) ** 2 / 2)
        least = min(least, sampled + float(np.sum(noisy)))
    return min(least, 1.0)


Facts = Mapping[str, float]
Asked = Mapping[str, Any]


@dataclass(frozen=True)
class ConvergenceBound:
    """What a theorem says about a plan.

    Attributes:
      theorem: its name.
      quantity: what is bounded, in expectation.
      value: the bound.
      known: what is known of the same quantity without any training, and `known_as` why.
      assumes: what the loss must be for it to hold.
    """

    theorem: str
    quantity: str
    value: float
    known: float
    known_as: str
    assumes: str

    @property
    def is_vacuous(self) -> bool:
        """Whether it says no more than what holds without training."""
        return not self.value < self.known

    def sentence(self) -> str:
        """The bound, and what it is worth."""
        said = f"{self.quantity} at most {self.value:.4g} ({self.theorem})"
        against = f"{self.known_as} = {self.known:.4g}"
        if self.is_vacuous:
            return f"{said}; vacuous here: larger than {against}, which holds without training"
        return f"{said}; {self.value / self.known:.0%} of {against}, which holds without training"


@dataclass(frozen=True)
class Theorem:
    """One theorem about a recipe.

    Attributes:
      facts: names of `FACTS` that it needs.
      quantity, assumes: what it bounds, and for which losses.
      settings: the options of `plan` that it prescribes, from the facts and the request.
      value: the bound of a run; refuses a run that breaks a condition.
      known: what holds without training, and why.
    """

    recipe: str
    name: str
    facts: tuple[str, ...]
    quantity: str
    assumes: str
    settings: Callable[[Asked], dict[str, Any]]
    value: Callable[[Theorem, Facts, Training], float]
    known: Callable[[Facts], tuple[float, str]]

    def demand(self, holds: bool, condition: str) -> None:
        """Refuse what is outside the conditions."""
        refuse_unless(holds, self.name, condition)

    def demand_update(self, run: Training, **wanted: object) -> None:
        """Demand settings of the update; steps of one size and no ball unless something else is wanted."""
        settings = {"lr_schedule": "constant", "radius": None, "average": 0, **wanted}
        for name, want in settings.items():
            got = getattr(run.update, name)
            self.demand(got == want, f"it is about {name}={want!r}, not {got!r}")

    def bound(self, facts: Facts, run: Training) -> ConvergenceBound:
        """What it says about a run, or an error that names the condition that the run breaks."""
        self.demand(
            run.clip >= facts["lipschitz"] * (1 - 1e-9),
            f"clip {run.clip:g} is below the Lipschitz constant {facts['lipschitz']:g}, so that "
            "gradients are clipped",
        )
        value = self.value(self, facts, run)
        known, why = self.known(facts)
        return ConvergenceBound(self.name, self.quantity, value, known, why, self.assumes)
