"""What a search is before a record is read: its trials, what each may cost, and the price of all."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property

from sordino._base.codec import digest_of
from sordino._base.errors import SordinoError
from sordino._base.types import Json
from sordino.models._scores import FoldPrices
from sordino.planning import Plan
from sordino.privacy import Guarantee, SelectionGuarantee, composed_mu, rounded_up

STOPPING, COMPOSITION, FOLDS = "random-stopping", "composition", "folds"


@dataclass(frozen=True)
class SearchPlan:
    """A whole search, decided before a record is read: what a ledger charges as one run.

    Attributes:
      trial_mu: every trial, its score included, is trial_mu-GDP.
      searched: the candidates, in words.
      folds: what the parts of a search in folds may cost.
      best: the plan of the trial that was released, once there is one. It states a trial's share
        of the price, not the price: `guarantee` is what the release costs.
    """

    guarantee: Guarantee | SelectionGuarantee
    method: str
    trial_mu: float
    n_trials: float
    estimator: str
    searched: tuple[tuple[str, str], ...]
    holdout: int = 0
    folds: FoldPrices | None = None
    best: Plan | None = field(default=None, compare=False, repr=False)

    recipe = "search"

    def verify(self) -> None:
        """Refuse a search whose trials cost more than the guarantee that it states."""
        stated = self.guarantee
        if isinstance(stated, SelectionGuarantee):
            kept = self.trial_mu <= stated.base_mu and self.n_trials == stated.law.mean
        elif self.folds is not None:
            shares = (self.folds.fit, self.folds.candidates)
            kept = stated.is_gaussian and shares == (self.trial_mu, self.n_trials)
            kept = kept and self.folds.total() <= stated.gaussian_mu
        else:
            runs = int(self.n_trials)
            kept = runs == self.n_trials and not stated.is_amplified
            kept = kept and self.trial_mu <= composed_mu(stated.gaussian_mu, runs)
        if not kept:
            raise SordinoError(
                "this search states a guarantee that its trials do not give; plan the search again"
            )

    def to_json(self) -> Json:
        return {
            "format": "sordino-search",
            "version": 1,
            "method": self.method,
            "trial_mu": self.trial_mu,
            "n_trials": self.n_trials,
            "estimator": self.estimator,
            "searched": dict(self.searched),
            "holdout": self.holdout,
            **({} if self.folds is None else {"folds": asdict(self.folds)}),
            "guarantee": self.guarantee.to_json(),
        }

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON."""
        return digest_of(self.to_json())

    def lines(self) -> list[tuple[str, str]]:
        """The page as (heading, text) pairs, as of a `Plan`."""
        secret = self.method == STOPPING
        trials = f"{self.n_trials:.4g}{' on average, how many is secret' if secret else ''}"
        if self.folds is not None:
            trials += f", each in {self.folds.folds} folds"
        return [
            ("search", f"{self.method}, {self.estimator}"),
            ("guarantee", self.guarantee.sentence()),
            ("trials", f"{trials}; a trial's share is {rounded_up(self.trial_mu)}-GDP"),
            *((name, values) for name, values in self.searched),
            ("plan", self.hash[:16]),
        ]

    def __str__(self) -> str:
        pairs = self.lines()
        width = max(len(heading) for heading, _ in pairs)
        return "\n".join(f"{heading:>{width}}  {text}" for heading, text in pairs)


def check_price(price: object, plan: SearchPlan) -> None:
    """A trial that costs more than its share is refused; whether it does is known from its plan."""
    whole = plan.guarantee
    if isinstance(price, Guarantee) and any(side.lost for side in (price.own, *price.sides)):
        raise SordinoError(
            "a trial of this search looks for values of texts, with a small chance to show one that only "
            "one unit has, for which the price of a search is not known; declare the categories"
        )
    if not isinstance(price, Guarantee) or not price.is_gaussian:
        raise SordinoError(
            "a trial of this search relies on secret batches or on discrete noise, for which the price "
            "of a search is not known; use a method with public batches"
        )
    if (price.adjacency, price.unit) != (whole.adjacency, whole.unit):
        raise SordinoError(
            f"a trial's guarantee is for {price.adjacency} adjacency, the search's for "
            f"{whole.adjacency}; give the estimator its adjacency"
        )
    if not price.mu <= plan.trial_mu:
        raise SordinoError(
            f"a trial costs mu {price.mu:.6g} where the search has {plan.trial_mu:.6g} for it"
        )
