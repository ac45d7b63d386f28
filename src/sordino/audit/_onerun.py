r"""An audit in one training run, for real models (Steinke, Nasr & Jagielski 2023).

    canaries = ...                              # m examples, as a tuple of arrays like the data
    plan = sordino.plan(..., examples=n + m, ...)
    result = one_run(plan, loss, params, data, canaries)
    result.epsilon_low, print(result.verdict())

A coin is thrown for each of the m canaries, from the operating system. The real `sordino.train` runs
once, with the canaries that won; those that lost are zeroed out: they keep their place in the plan, so
that the divisor and everybody's batches are the same, and contribute nothing. Then each canary gets a
score that should be higher if it was in, and the highest are guessed to have been in. If the run is
(epsilon, delta)-DP with respect to one example, the number of right guesses among k is dominated by
a binomial of rate ``e^eps / (1 + e^eps)``, up to delta (their theorem 5.2); more right guesses
than that refute the claim.

**Which adjacency.** Coin and no coin differ by zeroing out one example of the n + m that the plan covers:
that is zero-out adjacency, and add-remove under Poisson sampling (docs/privacy.md). A replace-one claim
covers it as well, but promises more than is tested here.

**Canaries.** `canaries` is a tuple like `data`: mislabelled or random examples, whose score is how much
their loss fell. Or a whole number m: canaries in gradient space, for which the model gets m more
parameters that nothing else touches. Canary i has a gradient along the i-th of them, longer than the
clip, and its score is how far that parameter went. No input of the real model does as much, and whatever
the loss is, the noise on that parameter is the run's own. (Where a recipe pays for differences of
gradients, a constant gradient has none, and such canaries show little.)

**Which guesses.** k is not chosen by the outcome: `GUESSES` shares of m are tried, each with its part of
the error. The bound of Mahloujifar, Melis & Chaudhuri (2024) is for a Gaussian-DP claim only, and takes
half of the error where the plan makes one.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.stats import beta, norm, rankdata

from sordino._base.errors import (
    MissingExtraError,
    PlanMismatchError,
    SordinoError,
    require_count,
    require_fraction,
)
from sordino._base.types import Json, PyTree
from sordino.audit._recording import Loss
from sordino.audit._statistics import (
    POWER,
    Array,
    Points,
    detectable,
    detection,
    equivalent_mu,
    finite,
    least_enough,
    measured_curve,
    percent,
)
from sordino.audit._whitebox import CONFIDENCE, stated_delta
from sordino.engine import Result, as_records, train
from sordino.parts import LinearLoss
from sordino.parts.contributions import Evaluator
from sordino.planning import Plan
from sordino.privacy import Guarantee

Coins = NDArray[np.bool_]

# Shares of the canaries that are guessed to have been in, each tried at its part of the error.
GUESSES = (0.5, 0.25, 0.1, 0.05)
FEWEST = 20
# Length of a gradient-space canary in units of the clip: it is always clipped.
LENGTH = 16.0


@dataclass(frozen=True)
class OneRunResult:
    """What one training run with canaries showed.

    Attributes:
      canaries, included: how many there were, and how many the coins let in.
      guesses, right: of the share of guesses that gave the best bound.
      epsilon_low: lower bound on epsilon at `delta`, whatever the mechanism.
      epsilon_low_gdp: the same if the run is Gaussian-DP, as its plan says; None if it does not.
      epsilon_claimed: what the plan states at `delta`.
      confidence: that neither bound is too high.
      exposure: area under the attack's curve; 0.5 is guessing.
      detectable: the smallest mu, in units of the claim's, that would have refuted it with probability
        `power.POWER` for canaries as telling as these; infinite if none would.
      curve: (false positive rate, true positive rate) of the scores.
      training: the run's result, with the model.
    """

    recipe: str
    kind: str
    canaries: int
    included: int
    guesses: int
    right: int
    epsilon_low: float
    epsilon_low_gdp: float | None
    epsilon_claimed: float
    delta: float
    confidence: float
    exposure: float
    adjacency: str
    curve: Points = ()
    guarantee: Guarantee | None = None
    training: Result | None = None
    detectable: float = math.inf

    @property
    def best(self) -> float:
        """The higher of the lower bounds."""
        return max(self.epsilon_low, self.epsilon_low_gdp or 0.0)

    @property
    def violates(self) -> bool:
        """Whether the claim is refuted, at this confidence."""
        return self.best > self.epsilon_claimed

    def verdict(self) -> str:
        """The result as a sentence."""
        how = (
            f"{self.right:,} of {self.guesses:,} guesses right among {self.canaries:,} {self.kind} "
            f"canaries, {percent(self.confidence)} confidence"
        )
        bound = (
            f"epsilon at least {self.best:.4g} at delta {self.delta:g}, where "
            f"{self.epsilon_claimed:.4g} is claimed"
        )
        if self.violates:
            return f"{self.recipe} leaks more than its plan states: {bound} ({how})."
        could = detection(self.detectable, ", with canaries as telling as these")
        return (
            f"No violation found. {bound[0].upper()}{bound[1:]}; {could} ({self.recipe}: {how}, "
            f"{percent(POWER)} power; violations are of mu)."
        )

    def to_json(self) -> Json:
        """Plain data for continuous integration, without the model; infinite claims become null."""
        kept = {k: v for k, v in vars(self).items() if k not in ("training", "guarantee")}
        return {
            **kept,
            "kind": "one-run",
            "canary_kind": self.kind,
            "epsilon_claimed": finite(self.epsilon_claimed),
            "detectable": finite(self.detectable),
            "power": POWER,
            "guarantee": None if self.guarantee is None else self.guarantee.to_json(),
            "exceeded": self.violates,
            "verdict": self.verdict(),
        }


def one_run(
    plan: Plan,
    loss: Loss,
    params: PyTree,
    data: PyTree,
    canaries: PyTree,
    *,
    kind: str = "input",
    score: Callable[[PyTree, tuple[PyTree, ...]], ArrayLike] | None = None,
    absent: tuple[PyTree, ...] | None = None,
    confidence: float = CONFIDENCE,
    delta: float | None = None,
    coins: ArrayLike | None = None,
    **training: Any,
) -> OneRunResult:
    """Train once with canaries, and bound epsilon from below.

    Args:
      plan: for the rows of `data` and all canaries together: ``examples = n + m``.
      loss, params, data: as for `sordino.train`.
      canaries: a tuple like `data` with m rows, or a whole number m for gradient-space canaries.
      kind: a word for the report.
      score: ``score(trained params, canaries) -> (m,)``, higher for those that were in; by default
        how much their loss fell. A stream of your own needs one.
      absent: for a stream of your own, one example that contributes nothing.
      confidence: that the claim is not refuted by chance.
      delta: where epsilon is stated; by default the plan's, else 1e-5.
      coins: (m,) which canaries are in; for tests only, by default thrown by the operating system.
      training: more arguments of `sordino.train`, such as `optimizer`.
    """
    plan.verify()
    require_fraction("confidence", confidence)
    at = stated_delta(plan, delta)
    auditing()
    data = data if isinstance(data, tuple) else (data,)
    rows = len(jax.tree.leaves(data)[0])
    if isinstance(canaries, int | np.integer) and not isinstance(canaries, bool):
        setting = _in_gradient_space(plan, loss, params, data, int(canaries))
        kind = "gradient-space"
    else:
        setting = _in_input_space(loss, params, data, canaries, score, absent)
    m = setting.count
    require_count("canaries", m, minimum=FEWEST)
    if rows + m != plan.population.examples:
        raise PlanMismatchError(
            f"the plan is for {plan.population.examples:,} examples, but there are {rows:,} rows and "
            f"{m:,} canaries; plan again with examples={rows + m}"
        )
    thrown = flipped(m) if coins is None else np.asarray(coins, bool)
    if thrown.shape != (m,) or thrown.all() or not thrown.any():
        raise SordinoError(f"coins must be {m:,} truth values, not all alike")
    result = train(plan, setting.loss, setting.params, setting.data(thrown), **training)
    scores = np.asarray(setting.score(result.params), np.float64)
    if scores.shape != (m,) or not np.isfinite(scores).all():
        raise SordinoError("every canary needs one finite score; check the score or the training")
    return scored(plan, thrown, scores, kind, at, confidence, result)


def flipped(count: int) -> Coins:
    """Fair coins from the operating system."""
    bits = np.frombuffer(secrets.token_bytes(count), np.uint8) & 1
    return bits.astype(bool)


def scored(
    plan: Plan,
    coins: Coins,
    scores: Array,
    kind: str,
    delta: float,
    confidence: float,
    training: Result | None = None,
) -> OneRunResult:
    """The bounds from the scores of all canaries and the coins that let them in."""
    guarantee = plan.guarantee
    gaussian = guarantee.is_private and not guarantee.is_amplified
    error = (1 - confidence) / (2 if gaussian else 1)
    epsilon_low, guesses, right = _best_guesses(coins, scores, error, delta, gaussian=False)
    by_gdp = None
    if gaussian:
        by_gdp, more, of_them = _best_guesses(coins, scores, error, delta, gaussian=True)
        if by_gdp > epsilon_low:
            guesses, right = more, of_them
    auditor = auditing().CanaryScoreAuditor(scores[coins], scores[~coins])
    claimed = guarantee.epsilon(delta)
    least = math.inf
    if max(epsilon_low, by_gdp or 0.0) <= claimed < math.inf:
        mu = guarantee.mu if gaussian else equivalent_mu(claimed, delta)
        flagged = _flagged_mu(len(coins), claimed, error, delta, guesses if gaussian else None)
        # The area as it is: the auditor's own is of the convex hull, and never below one half.
        ranks = rankdata(scores)[coins].mean() - (coins.sum() + 1) / 2
        seen = min(float(ranks) / int((~coins).sum()), 1 - 1e-12)
        least = detectable(flagged, math.sqrt(2) * float(norm.ppf(seen)), mu)
    return OneRunResult(
        recipe=plan.recipe,
        kind=kind,
        canaries=len(coins),
        included=int(coins.sum()),
        guesses=guesses,
        right=right,
        epsilon_low=epsilon_low,
        epsilon_low_gdp=by_gdp,
        epsilon_claimed=claimed,
        delta=delta,
        confidence=confidence,
        exposure=float(auditor.attack_auroc()),
        adjacency=guarantee.adjacency,
        curve=measured_curve(scores[~coins], scores[coins]),
        guarantee=guarantee,
        training=training,
        detectable=least,
    )


def _flagged_mu(m: int, claimed: float, error: float, delta: float, gaussian: int | None) -> float:
    """The smallest mu of m canaries' scores that refutes `claimed` with probability `POWER`.

    Scores of mu-GDP canaries are at best Gaussian, mu apart. Each share of guesses raises the alarm by
    itself; the Gaussian bound takes long, and is looked at for `gaussian` guesses only.
    """
    tries = [(max(1, round(share * m)), False) for share in GUESSES]
    tries += [] if gaussian is None else [(gaussian, True)]
    result = math.inf
    for guesses, by_gdp in tries:
        refutes = partial(_refutes, m, claimed, error, delta, guesses, by_gdp)
        right = least_enough(refutes, guesses + 1)
        if right <= guesses:
            share = float(beta.ppf(POWER, right, guesses - right + 1))
            result = min(result, _mu_of_guesses(guesses / m, share))
    return result


def _refutes(
    m: int, claimed: float, error: float, delta: float, guesses: int, by_gdp: bool, right: int
) -> bool:
    """Whether so many right guesses among m canaries refute `claimed`."""
    inside, outside = np.zeros(max(m // 2, right)), np.zeros(max(m - m // 2, guesses - right))
    inside[:right], outside[: guesses - right] = 1.0, 1.0
    return _bound(inside, outside, 0.5, error, delta, by_gdp) > claimed


def _bound(
    inside: Array, outside: Array, threshold: float, error: float, delta: float, by_gdp: bool
) -> float:
    """The lower bound on epsilon from guessing that scores from `threshold` on were in."""
    module = auditing()
    auditor = module.CanaryScoreAuditor(inside, outside)
    bound = auditor.epsilon_one_run_fdp if by_gdp else auditor.epsilon_one_run
    return float(bound(error / len(GUESSES), delta, threshold_strategy=module.Explicit(threshold)))


def _mu_of_guesses(share: float, right: float) -> float:
    """mu at which, of the highest `share` of all scores, `right` are of canaries that were in."""

    def short(mu: float) -> float:
        def above(threshold: float) -> float:
            return float((norm.sf(threshold - mu) + norm.sf(threshold)) / 2) - share

        threshold = brentq(above, -40.0, 40.0 + mu)
        return float(norm.sf(threshold - mu)) / (2 * share) - right

    return float(brentq(short, 0.0, 40.0)) if short(0.0) < 0 < short(40.0) else math.inf


def _best_guesses(
    coins: Coins, scores: Array, error: float, delta: float, *, gaussian: bool
) -> tuple[float, int, int]:
    """The best lower bound over the shares of guesses, with the guesses made and those right.

    A threshold depends on all scores together and not on the coins, so that the guesses are a function
    of the release, as the theorems want it.
    """
    ranked = np.sort(scores)[::-1]
    result = []
    for share in GUESSES:
        threshold = float(ranked[max(1, round(share * len(scores))) - 1])
        value = _bound(scores[coins], scores[~coins], threshold, error, delta, gaussian)
        guessed = scores >= threshold
        result.append((value, int(guessed.sum()), int((guessed & coins).sum())))
    return max(result)


@dataclass(frozen=True)
class _Setting:
    """What is trained: loss, parameters, rows for given coins, and the score of each canary."""

    count: int
    loss: Loss
    params: PyTree
    data: Callable[[Coins], PyTree]
    score: Callable[[PyTree], ArrayLike]


def _in_input_space(
    loss: Loss,
    params: PyTree,
    data: tuple[PyTree, ...],
    canaries: PyTree,
    score: Callable[[PyTree, tuple[PyTree, ...]], ArrayLike] | None,
    absent: tuple[PyTree, ...] | None,
) -> _Setting:
    canaries = canaries if isinstance(canaries, tuple) else (canaries,)
    try:
        joined = jax.tree.map(lambda a, b: np.concatenate([a, b]), data, canaries)
    except (TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise SordinoError(f"canaries must be arrays like those of data: {reason}") from None
    n, m = (len(jax.tree.leaves(part)[0]) for part in (data, canaries))

    def present(coins: Coins) -> NDArray[np.bool_]:
        return np.concatenate([np.ones(n, bool), coins])

    if isinstance(loss, Evaluator):
        if score is None or absent is None:
            raise SordinoError(
                "for a stream of your own give `score`, and as `absent` an example that contributes "
                "nothing"
            )

        def blanked(coins: Coins) -> PyTree:
            gone = np.flatnonzero(~present(coins))

            def blank(leaf: PyTree, value: PyTree) -> PyTree:
                changed = np.array(leaf, copy=True)
                changed[gone] = value
                return changed

            return jax.tree.map(blank, joined, absent)

        trained: Loss = loss
        rows: Callable[[Coins], PyTree] = blanked
    elif isinstance(loss, LinearLoss):

        def zeroed(coins: Coins) -> PyTree:
            # The gradient is a multiple of the row: a row of zeros contributes nothing.
            return joined[0] * present(coins)[:, None], *joined[1:]

        trained, rows = loss, zeroed
    else:

        def marked(coins: Coins) -> PyTree:
            return *joined, present(coins).astype(np.float32)

        trained, rows = _Masked(loss), marked
    fall = partial(_fall, loss, params, as_records(canaries))
    return _Setting(
        m, trained, params, rows, fall if score is None else lambda point: score(point, canaries)
    )


def _fall(loss: Any, params: PyTree, canaries: PyTree, trained: PyTree) -> ArrayLike:
    """How much each canary's loss fell."""

    def losses(point: PyTree) -> jax.Array:
        return jax.vmap(lambda *example: loss(point, *example))(*canaries)

    return losses(jax.tree.map(jnp.asarray, params)) - losses(trained)


@dataclass(frozen=True)
class _Masked:
    """The loss of an example, or nothing where it was left out. Hashable, like the loss itself."""

    loss: Callable[..., jax.Array]

    def __call__(self, params: PyTree, *example: PyTree) -> jax.Array:
        *inputs, present = example
        return present * self.loss(params, *inputs)


@dataclass(frozen=True)
class _WithDials:
    """The loss of real examples; canary i is a slope along a parameter of its own, its dial."""

    loss: Callable[..., jax.Array]
    slope: float

    def __call__(self, params: PyTree, *example: PyTree) -> jax.Array:
        *inputs, dial, present = example
        own = self.slope * params["dials"][jnp.maximum(dial, 0)]
        return present * jnp.where(dial >= 0, own, self.loss(params["model"], *inputs))


def _in_gradient_space(
    plan: Plan, loss: Loss, params: PyTree, data: tuple[PyTree, ...], m: int
) -> _Setting:
    if isinstance(loss, Evaluator):
        raise SordinoError(
            "canaries in gradient space need the loss of one example, not a stream of your own; give "
            "canaries as examples"
        )
    n = len(jax.tree.leaves(data)[0])
    bounds = plan.contribution.bounds(plan.population.steps)
    longest = max(plan.clip, float(bounds.max()))
    # A plan without privacy clips nothing.
    slope = LENGTH * (longest if np.isfinite(longest) else 1.0)
    # The model's own inputs of a canary are never used; any real row has the right shape.
    padded = jax.tree.map(
        lambda leaf: np.concatenate([leaf, np.repeat(np.asarray(leaf)[:1], m, axis=0)]), data
    )
    dial = np.concatenate([np.full(n, -1, np.int32), np.arange(m, dtype=np.int32)])

    def rows(coins: Coins) -> PyTree:
        present = np.concatenate([np.ones(n, np.float32), coins.astype(np.float32)])
        return (*padded, dial, present)

    return _Setting(
        count=m,
        loss=_WithDials(loss, slope),
        params={"model": params, "dials": np.zeros(m, np.float32)},
        data=rows,
        # Descent goes against the slope.
        score=lambda trained: -np.asarray(trained["dials"], np.float64),
    )


def auditing() -> ModuleType:
    """The module `jax_privacy.auditing`, all that is taken from there; it takes a second to import.

    `CanaryScoreAuditor` turns scores of canaries that were in and that were out into lower bounds on
    epsilon: Steinke, Nasr & Jagielski 2023 (`epsilon_one_run`) for any (epsilon, delta) claim, and
    Mahloujifar, Melis & Chaudhuri 2024 (`epsilon_one_run_fdp`) for a Gaussian-DP claim.
    """
    try:
        from jax_privacy import auditing as module
    except ImportError:
        raise MissingExtraError(
            "an audit in one run needs jax-privacy; install it with: pip install 'sordino[audit]'"
        ) from None
    return module
