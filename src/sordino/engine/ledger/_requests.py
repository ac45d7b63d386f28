"""A run that asks for its share of a budget: whether it gets it, and what is reported if not."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sordino._base.errors import SordinoError
from sordino._base.identity import Identity, changes
from sordino.engine.ledger._composition import (
    BudgetExceeded,
    Charge,
    ComposedCost,
    noise_factor,
    restated,
    what_fits,
)
from sordino.engine.ledger._records import LedgerState, Reservation
from sordino.privacy import rounded_up


class Chargeable(Protocol):
    """What can be reserved for: a `Plan`, or anything else that says what it will cost."""

    @property
    def guarantee(self) -> Charge: ...

    def verify(self) -> None:
        """Raise a `SordinoError` unless the run as planned gives `guarantee`."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class ChargeRequest:
    """A run that asks for its share; see `Ledger.reserve`."""

    run: str
    dataset: str
    recipe: str
    plan_hash: str
    guarantee: Charge
    fingerprint: str | None
    also: tuple[str, ...] = ()
    rows: int | None = None
    pins: bool = True
    identity: Identity | None = None

    @classmethod
    def of(
        cls, dataset: str, plan: Chargeable, text: str, *, run: str, **about: Any
    ) -> ChargeRequest:
        plan.verify()
        recipe = str(getattr(plan, "recipe", type(plan).__name__))
        if not plan.guarantee.is_private:
            raise SordinoError(
                f"{recipe} is not private and cannot be charged to any budget; run it on public "
                "data, without a ledger"
            )
        digest = hashlib.sha256(text.encode()).hexdigest()
        return cls(run, dataset, recipe, digest, plan.guarantee, **about)

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "run": self.run,
            "dataset": self.dataset,
            "recipe": self.recipe,
            "plan": self.plan_hash,
            "guarantee": self.guarantee.to_json(),
            "fingerprint": self.fingerprint,
        }
        # Absent in the entries of sordino 0.5.0, which had neither.
        if self.also:
            facts["also"] = list(self.also)
        if self.identity is not None:
            facts["identity"] = dict(self.identity)
        return facts

    @property
    def prints(self) -> frozenset[str]:
        return frozenset(one for one in (self.fingerprint, *self.also) if one is not None)

    def held(self, book: LedgerState) -> Reservation | None:
        """The reservation that this very run has already; an error if it is another run's."""
        held = book.reservations.get(self.run)
        if held is None or not held.is_charged:
            return None
        book.dataset(self.dataset)
        if held.dataset != self.dataset:
            raise SordinoError(
                f"run {self.run!r} is reserved for the data set {held.dataset!r}, not for "
                f"{self.dataset!r}; another run needs another identity"
            )
        if held.plan_hash != self.plan_hash:
            raise SordinoError(
                f"run {self.run!r} is reserved for another plan ({held.plan_hash[:12]}, not "
                f"{self.plan_hash[:12]}); another plan is another run with an identity of its own"
            )
        if held.prints != self.prints and not held.prints & self.prints:
            raise other_data(self.dataset)
        if held.identity is None or self.identity is None:
            raise SordinoError(
                f"run {self.run!r} is reserved already, without a record of everything that decides its "
                "release, so that this cannot be known to be the same run: finish it with the version "
                "that began it, or take a new key"
            )
        if changed := changes(held.identity, self.identity):
            raise SordinoError(
                f"run {self.run!r} is reserved with other inputs ({'; '.join(changed)}), and its noise "
                "must not be used twice: run it with those it was reserved for, or take a new key"
            )
        return held

    def fits(self, book: LedgerState) -> bool:
        """Whether everything reserved and this run together are within the budget."""
        owner = book.dataset(self.dataset)
        if owner.rows is not None and self.rows not in (None, owner.rows):
            raise SordinoError(
                f"the ledger knows {self.dataset!r} as {owner.rows:,} rows, and these are "
                f"{self.rows:,}: a part of a data set, such as a fold, is not the data set"
            )
        # Who sees the data only piece by piece has no fingerprint, and goes by the name alone.
        if self.prints:
            known = book.prints(self.dataset)
            if known and not known & self.prints:
                raise other_data(self.dataset)
            if not known and owner.rows is None and not self.pins:
                raise SordinoError(
                    f"the first run on {self.dataset!r} decides which rows the ledger knows by that "
                    "name, so say how many there are: with examples=, or with rows= when the data set "
                    "is added"
                )
        charge = restated(self.guarantee, owner.adjacency, owner.unit)
        charges = [one.charge for one in book.charged(self.dataset)]
        return ComposedCost.of([*charges, charge]).within(owner.allowance)

    def exceeded(self, book: LedgerState) -> BudgetExceeded:
        """The refusal, with what would still fit."""
        owner = book.dataset(self.dataset)
        charge = restated(self.guarantee, owner.adjacency, owner.unit)
        charges = [one.charge for one in book.charged(self.dataset)]
        factor = noise_factor(charges, charge, owner.allowance)
        fits = replace(what_fits(charges, owner.allowance), noise_factor=factor)
        spent, delta = ComposedCost.of(charges), owner.allowance.delta
        if delta is None:
            had, asks = (
                f"mu {rounded_up(spent.mu)}",
                f"mu {rounded_up(ComposedCost.of([charge]).mu)}",
            )
        else:
            had = f"epsilon {rounded_up(spent.epsilon(delta))}"
            asks = f"epsilon {rounded_up(ComposedCost.of([charge]).epsilon(delta))}"
        more = f", or this plan with at least {factor:.4g} times its noise" if factor else ""
        runs = "1 run" if len(charges) == 1 else f"{len(charges)} runs"
        return BudgetExceeded(
            f"the budget of {self.dataset!r} ({owner.allowance.describe()}) has {had} reserved in "
            f"{runs} and no room for this one ({asks} by itself); still possible: "
            f"{fits.describe()}{more}",
            fits,
        )


def other_data(dataset: str) -> SordinoError:
    return SordinoError(
        f"these are other data than those the ledger knows as {dataset!r}; register them under their "
        "own name"
    )
