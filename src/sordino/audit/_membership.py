r"""Membership inference against a trained model: was this example in its training data?

    public = PublicData(X_public, y_public)
    simple = loss_attack(loss, params, members, others)
    strong = lira_attack(loss, params, members, others, shadow_models(plan, loss, start, public, 32))
    report = membership_report(plan.guarantee, simple, strong)
    print(report.verdict())

Two attacks, each a score that should be higher for members:

* *loss threshold* (Yeom et al. 2018): minus the loss of the example;
* *LiRA*, offline (Carlini et al. 2022, section V): shadow models are trained like the model, on PUBLIC
  data, so none of them has seen an example in question. They say how confident a model is that never
  saw it; the score is by how many standard deviations the audited model is more confident. Confidence is
  the logit ``log p / (1 - p)`` of the probability ``p = e^-loss`` of the right answer.

**Rates.** At a false positive rate a, the threshold is the (floor(a n) + 1)-th highest score of the n
non-members. Whatever the scores' distribution, the true rate there is Beta distributed, and its upper bound
is Clopper and Pearson's for floor(a n) hits; the true positive rate has their interval as well.

**What the guarantee implies.** A member and a non-member, drawn alike, swap places by one replacement. So a
guarantee against replacement bounds the power once, one against zeroing out or removal twice
(`largest_power`), for any attack and any threshold, on average over trainings. (The bound is convex in the
false positive rate, so averages over examples obey it too.) An attack beyond it, with both
intervals against it, is reported as exceeding the claim. The reverse says little: these attacks see
one model and typical examples, a guarantee is about every run and the worst example.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.stats import norm, rankdata

from sordino._base.errors import SordinoError, require_count, require_fraction
from sordino._base.types import Json, PyTree
from sordino.audit._statistics import (
    POWER,
    Array,
    Points,
    finite,
    largest_power,
    measured_curve,
    percent,
    proportion,
)
from sordino.engine import as_records, train
from sordino.parts.schedules import PublicData, require_public
from sordino.planning import Plan
from sordino.privacy import Adjacency, Guarantee

CONFIDENCE = 0.95
# False positive rates at which attacks are compared (Carlini et al. 2022).
RATES = (0.001, 0.01, 0.1)
SHADOWS = 32
FEWEST = 20
# Losses are kept above this, so that a probability of 1 has a finite logit.
SMALLEST_LOSS = 1e-7
# Few shadow models estimate a deviation badly: it is kept above this share of the typical one.
SMALLEST_SPREAD = 0.1


@dataclass(frozen=True, eq=False)
class AttackScores:
    """One attack's scores, higher for those it takes for members."""

    name: str
    members: Array
    others: Array


@dataclass(frozen=True)
class Power:
    """An attack at one threshold.

    Attributes:
      fpr: the false positive rate asked for; fpr_high: an upper bound on the one attained.
      tpr, tpr_low, tpr_high: the true positive rate and its interval.
      bound: the largest true positive rate that the guarantee allows at `fpr`.
      bound_high: the same at `fpr_high`.
    """

    fpr: float
    fpr_high: float
    tpr: float
    tpr_low: float
    tpr_high: float
    bound: float
    bound_high: float

    @property
    def exceeds(self) -> bool:
        """Whether the attack is beyond what the guarantee allows, both intervals considered."""
        return self.tpr_low > self.bound_high


@dataclass(frozen=True)
class AttackResult:
    """How well one attack tells members from others."""

    name: str
    auc: float
    auc_low: float
    auc_high: float
    powers: tuple[Power, ...]
    curve: Points


@dataclass(frozen=True)
class MembershipReport:
    """Attacks on one trained model, beside what its guarantee allows.

    Attributes:
      members, others: how many examples of each kind.
      auc_bound: the largest area under the curve that the guarantee allows.
      changes: neighbouring steps between a model with an example and one with another in its place.
      confidence: of all bounds against the claim together.
      detectable: the smallest area that would have exceeded the claim with probability `POWER`;
        infinite if none would.
    """

    members: int
    others: int
    attacks: tuple[AttackResult, ...]
    auc_bound: float
    changes: int
    confidence: float
    guarantee: Guarantee
    detectable: float = math.inf

    @property
    def violates(self) -> bool:
        """Whether some attack goes beyond the guarantee, at this confidence."""
        return bool(self._excesses())

    def _excesses(self) -> list[str]:
        """What goes beyond the guarantee, in words."""
        excesses = []
        for attack in self.attacks:
            excesses += [
                f"the {attack.name} attack finds at least {power.tpr_low:.2%} of members at a false "
                f"positive rate of at most {power.fpr_high:.2%}, where {power.bound_high:.2%} is allowed"
                for power in attack.powers
                if power.exceeds
            ]
            if attack.auc_low > self.auc_bound:
                excesses.append(
                    f"the {attack.name} attack has an area of at least {attack.auc_low:.3f}, where "
                    f"{self.auc_bound:.3f} is allowed"
                )
        return excesses

    def verdict(self) -> str:
        """The report as a sentence."""
        best = max(self.attacks, key=lambda attack: attack.auc)
        measured = (
            f"the {best.name} attack has an area of {best.auc:.3f} ({best.auc_low:.3f} to "
            f"{best.auc_high:.3f}), where the guarantee allows {self.auc_bound:.3f}"
        )
        size = f"{self.members:,} members, {self.others:,} others, {percent(self.confidence)} confidence"
        beyond = self._excesses()
        if beyond:
            return f"The model leaks more than its guarantee allows: {beyond[-1]} ({size})."
        could = "no area could have been called a violation"
        if math.isfinite(self.detectable):
            could = f"an area of {self.detectable:.3f} or more would have been detected"
        return (
            f"No violation found. {measured[0].upper()}{measured[1:]}; {could} ({size}, {percent(POWER)} "
            "power). These attacks see one model and typical examples."
        )

    def to_json(self) -> Json:
        """Plain data for continuous integration."""
        return {
            **asdict(self),
            "kind": "membership",
            "detectable": finite(self.detectable),
            "power": POWER,
            "guarantee": self.guarantee.to_json(),
            "exceeded": self.violates,
            "verdict": self.verdict(),
        }


def membership_report(
    guarantee: Guarantee,
    *attacks: AttackScores,
    rates: Sequence[float] = RATES,
    confidence: float = CONFIDENCE,
) -> MembershipReport:
    """Put the attacks beside what `guarantee` allows.

    Args:
      guarantee: of the model under attack.
      attacks: scores of `loss_attack`, `lira_attack` or any other attack, all on the same examples.
      rates: false positive rates.
      confidence: that no bound against the guarantee is wrong; all of them share the error.
    """
    require_fraction("confidence", confidence)
    if not guarantee.is_private:
        raise SordinoError("this model was promised no privacy: there is nothing to hold it to")
    for rate in rates:
        require_fraction("rates", rate)
    if not attacks:
        raise SordinoError("a membership report needs at least one attack")
    sizes = {(len(attack.members), len(attack.others)) for attack in attacks}
    if len(sizes) != 1:
        raise SordinoError("all attacks must score the same members and the same others")
    ((members, others),) = sizes
    for name, count in (("members", members), ("others", others)):
        require_count(name, count, minimum=FEWEST)
    changes = 1 if guarantee.adjacency == Adjacency.REPLACE_ONE else 2
    # Of each attack: two bounds against the claim at each rate, and one on the area.
    tail = (1 - confidence) / ((2 * len(rates) + 1) * len(attacks))
    grid = np.linspace(0.0, 1.0, 2001)
    allowed = largest_power(guarantee, grid, changes=changes)
    bound = min(1.0, float(np.trapezoid(allowed, grid)))
    return MembershipReport(
        members=members,
        others=others,
        attacks=tuple(_attacked(attack, guarantee, changes, rates, tail) for attack in attacks),
        auc_bound=bound,
        changes=changes,
        confidence=confidence,
        guarantee=guarantee,
        detectable=_detectable_area(bound, members, others, tail),
    )


def _detectable_area(bound: float, members: int, others: int, tail: float) -> float:
    """The smallest area whose interval lies above `bound` with probability `POWER`; infinite if none.

    The error is that of Gaussian scores of that area (Hanley & McNeil 1982), which is close for others.
    """

    def short(auc: float) -> float:
        above, below = auc / (2 - auc) - auc**2, 2 * auc**2 / (1 + auc) - auc**2
        spread = auc * (1 - auc) + (members - 1) * above + (others - 1) * below
        error = math.sqrt(spread / (members * others))
        return auc - float(norm.isf(tail) + norm.isf(1 - POWER)) * error - bound

    highest = 1 - 1 / (members + others)
    if short(highest) <= 0:
        return math.inf
    return float(brentq(short, bound, highest)) if short(bound) < 0 else bound


def _attacked(
    attack: AttackScores,
    guarantee: Guarantee,
    changes: int,
    rates: Sequence[float],
    tail: float,
) -> AttackResult:
    members, others = attack.members, attack.others
    ranked = np.sort(others)[::-1]
    powers = []
    for rate in rates:
        wrong = math.floor(rate * len(others))
        hits = int((members > ranked[wrong]).sum())
        low, high = proportion(hits, len(members), tail)
        fpr_high = proportion(wrong, len(others), tail)[1]
        bound, bound_high = largest_power(guarantee, [rate, fpr_high], changes=changes)
        powers.append(
            Power(rate, fpr_high, hits / len(members), low, high, float(bound), float(bound_high))
        )
    auc, low, high = area(members, others, tail)
    return AttackResult(attack.name, auc, low, high, tuple(powers), measured_curve(others, members))


def area(members: Array, others: Array, tail: float) -> tuple[float, float, float]:
    """Area under the curve, and bounds that are each missed with probability about `tail`.

    The probability that a member scores higher than another, ties by half; the interval is DeLong's
    (1988), from the variances of each example's share, and normal.
    """
    m, n = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))
    above = (ranks[:m] - rankdata(members)) / n
    below = 1 - (ranks[m:] - rankdata(others)) / m
    auc = float(above.mean())
    error = math.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / n)
    reach = float(norm.isf(tail)) * error
    return auc, max(0.0, auc - reach), min(1.0, auc + reach)


def losses_of(loss: Callable[..., jax.Array], params: PyTree, data: PyTree) -> Array:
    """Losses of all rows of `data`, float64 (rows,)."""
    data = as_records(data if isinstance(data, tuple) else (data,))
    return np.asarray(jax.vmap(lambda *example: loss(params, *example))(*data), np.float64)


def loss_attack(
    loss: Callable[..., jax.Array], params: PyTree, members: PyTree, others: PyTree
) -> AttackScores:
    """The loss-threshold attack (Yeom et al. 2018) on a model: minus the loss.

    `members` were in the training data, `others` were not and are drawn alike; tuples of arrays.
    """
    return AttackScores(
        "loss threshold",
        -losses_of(loss, params, members),
        -losses_of(loss, params, others),
    )


def confidences(losses: ArrayLike) -> Array:
    """``log p / (1 - p)`` with ``p = e^-loss``; for other losses, a function that spreads small ones."""
    positive = np.maximum(np.asarray(losses, np.float64), SMALLEST_LOSS)
    # log(e^x - 1) without overflow.
    return -(positive + np.log(-np.expm1(-positive)))


def lira_attack(
    loss: Callable[..., jax.Array],
    params: PyTree,
    members: PyTree,
    others: PyTree,
    shadows: Sequence[PyTree],
) -> AttackScores:
    """The offline likelihood-ratio attack (Carlini et al. 2022) on a model.

    Args:
      loss, params: the model under attack.
      members, others: as for `loss_attack`.
      shadows: parameters of models that never saw them; see `shadow_models`.
    """
    if len(shadows) < 2:
        raise SordinoError(f"the attack needs at least 2 shadow models, got {len(shadows)}")
    scores = []
    for data in (members, others):
        seen = confidences(losses_of(loss, params, data))
        unseen = np.stack([confidences(losses_of(loss, shadow, data)) for shadow in shadows])
        scores.append(lira_scores(seen, unseen))
    return AttackScores("LiRA", scores[0], scores[1])


def lira_scores(seen: Array, unseen: Array) -> Array:
    """How many deviations a model's confidences (rows,) are above those of shadows (shadows, rows)."""
    spread = unseen.std(axis=0, ddof=1)
    typical = float(np.median(spread))
    floor = max(SMALLEST_SPREAD * typical, 1e-12)
    return np.asarray((seen - unseen.mean(axis=0)) / np.maximum(spread, floor))


def shadow_models(
    plan: Plan,
    loss: Callable[..., jax.Array],
    params: PyTree,
    public: PublicData,
    count: int = SHADOWS,
    *,
    seed: int | None = None,
    **training: Any,
) -> list[PyTree]:
    """Parameters of `count` models trained as planned, each on rows drawn from public data.

    Args:
      plan, loss, params: as for `sordino.train`: what the model under attack was made with.
      public: PUBLIC rows like the private ones. Each model gets as many as the plan has examples:
        a random half of the public rows at least, repeated as often as needed.
      seed: of the drawing and the noise, for tests; by default the operating system's entropy.
      training: more arguments of `sordino.train`.
    """
    arrays = require_public(public, "a shadow model").arrays
    count = require_count("count", count, minimum=2)
    n, available = plan.population.examples, len(public)
    if available < 2:
        raise SordinoError("shadow models need at least 2 public rows")
    rng = np.random.default_rng(seed)
    # What else the plan asks says nothing of these rows, and nobody asks it.
    others = tuple(query.name for query in plan.others)
    models = []
    for i in range(count):
        # Other rows for other models; more than half of them would make the models too alike.
        chosen = rng.permutation(available)[: max(1, min(n, (available + 1) // 2))]
        rows = rng.permutation(np.resize(chosen, n))
        own = None if seed is None else (seed << 20) + i
        data = tuple(array[rows] for array in arrays)
        # The rows are public: of whom they are does not matter.
        stated = {"one_row_per_person": True, "elsewhere": others, **training}
        trained = train(plan, loss, params, data, insecure_seed=own, **stated)
        models.append(trained.params)
    return models
