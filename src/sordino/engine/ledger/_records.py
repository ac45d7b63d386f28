"""What a ledger holds, as plain values: data sets, reservations, and the entries they follow from.

The entries are the truth. A `LedgerState` is what they add up to; the tables of the file repeat it for
people who look with other tools, and are compared with it whenever the ledger is opened. A
`ChargeRequest` is a run that asks for its share: whether it gets it, and what is reported if not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sordino._base.errors import SordinoError, nearest
from sordino._base.keys import Identity, changes
from sordino._base.types import Json
from sordino.engine.ledger._composition import (
    Allowance,
    BudgetExceeded,
    Charge,
    ComposedCost,
    charge_from_json,
    noise_factor,
    restated,
    what_fits,
)
from sordino.engine.ledger._marks import Marks
from sordino.privacy import rounded_up

RESERVED, RUNNING, SPENT, RELEASED, CANCELLED = (
    "reserved",
    "running",
    "spent",
    "released",
    "cancelled",
)
STATES = {
    RESERVED: "charged, no record was read yet",
    RUNNING: "charged, records are or were being read",
    SPENT: "charged, the run has ended",
    RELEASED: "charged, the results were handed out",
    CANCELLED: "not charged: given back before any record was read",
}
CREATED, DATASET, KNOWN = "created", "dataset", "known"
# What may be asked of a run on a part of a data set: to refuse it, or to charge it like one on all of it.
REFUSE, CHARGE = "refuse", "charge"
# What a run's state may become; anything else is refused.
_NEXT = {RESERVED: (RUNNING, CANCELLED), RUNNING: (SPENT,), SPENT: (RELEASED,)}


@dataclass(frozen=True)
class Dataset:
    """A data set under its public name, and the budget that all runs on it share.

    Attributes:
      fingerprint: keyed digest of the data; from `add_dataset`, or from the first run.
      rows: how many rows it has, where that was stated; a run on fewer is not a run on it.
    """

    name: str
    allowance: Allowance
    adjacency: str
    unit: str
    fingerprint: str | None = None
    rows: int | None = None

    def describe(self) -> str:
        return f"{self.allowance.describe()}, {self.adjacency}, per {self.unit}"

    def to_json(self) -> Json:
        return {
            "name": self.name,
            "epsilon": self.allowance.epsilon,
            "delta": self.allowance.delta,
            "mu": self.allowance.mu,
            "adjacency": self.adjacency,
            "unit": self.unit,
            "fingerprint": self.fingerprint,
            "rows": self.rows,
        }


@dataclass(frozen=True)
class Reservation:
    """One run's share of a budget.

    Attributes:
      run: the public identity of the run; the same one again is the same release.
      guarantee: as the plan states it; `charge` is the same for the data set's adjacency.
      state: see `STATES`.
      at: when it was reserved, by this computer's clock: for people, nothing depends on it.
      also: other fingerprints that the run's data is known by: of the rows without their labels.
      identity: everything that decides the release, as digests that only the ledger's key can make;
        None where the run did not say (as in sordino 0.5.0): no other run is ever the same one.
      pins: whether its data became the data set, being the first: not those of an estimator's fit.
    """

    run: str
    dataset: str
    recipe: str
    plan_hash: str
    guarantee: Charge
    charge: Charge
    state: str
    fingerprint: str | None
    who: str
    at: str
    also: tuple[str, ...] = ()
    identity: Identity | None = None
    pins: bool = True

    @property
    def is_charged(self) -> bool:
        return self.state != CANCELLED

    @property
    def prints(self) -> frozenset[str]:
        """Every fingerprint of its data."""
        return frozenset(one for one in (self.fingerprint, *self.also) if one is not None)

    def to_json(self) -> Json:
        return {
            "run": self.run,
            "dataset": self.dataset,
            "recipe": self.recipe,
            "plan": self.plan_hash,
            "guarantee": self.guarantee.to_json(),
            "state": self.state,
            "fingerprint": self.fingerprint,
            "who": self.who,
            "at": self.at,
        }


@dataclass(frozen=True)
class LedgerEntry:
    """One line of the history. `number` gives the order; `at` is only what the clock said."""

    number: int
    what: str
    who: str
    at: str
    facts: Json

    @property
    def dataset(self) -> str | None:
        return self.facts.get("dataset")

    @property
    def run(self) -> str | None:
        return self.facts.get("run")

    def to_json(self) -> Json:
        head = {"number": self.number, "what": self.what, "who": self.who, "at": self.at}
        return {**head, **self.facts}


@dataclass
class LedgerState:
    """What the entries add up to. Grows only by `add`, one verified entry after the other."""

    datasets: dict[str, Dataset] = field(default_factory=dict)
    # What is in a data set, and the run that said so, if one did.
    known: dict[str, tuple[str | None, Marks]] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    entries: list[LedgerEntry] = field(default_factory=list)
    seals: list[bytes] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.seals)

    def add(self, body: Json, seal: bytes) -> None:
        """Take in one more entry, which is known to be the ledger's own."""
        facts = dict(body)
        if facts["what"] == KNOWN:
            marks = Marks.from_json(facts)
            self.known[facts["dataset"]] = (facts.get("run"), marks)
            facts["marks"] = len(marks.values)
        entry = LedgerEntry(
            self.count + 1, facts.pop("what"), facts.pop("who"), facts.pop("at"), facts
        )
        if entry.what == DATASET:
            allowance = Allowance(facts["epsilon"], facts["delta"], facts["mu"])
            self.datasets[facts["dataset"]] = Dataset(
                facts["dataset"],
                allowance,
                facts["adjacency"],
                facts["unit"],
                facts["fingerprint"],
                facts.get("rows"),
            )
        elif entry.what == RESERVED:
            guarantee = charge_from_json(facts["guarantee"])
            owner = self.datasets[facts["dataset"]]
            self.reservations[facts["run"]] = Reservation(
                run=facts["run"],
                dataset=owner.name,
                recipe=facts["recipe"],
                plan_hash=facts["plan"],
                guarantee=guarantee,
                charge=restated(guarantee, owner.adjacency, owner.unit),
                state=RESERVED,
                fingerprint=facts["fingerprint"],
                who=entry.who,
                at=entry.at,
                also=tuple(facts.get("also", ())),
                identity=facts.get("identity"),
                pins=facts.get("pins", True),
            )
        elif entry.what in STATES:
            held = self.reservations[facts["run"]]
            self.reservations[facts["run"]] = replace(held, state=entry.what)
        self.entries.append(entry)
        self.seals.append(seal)

    def dataset(self, name: str) -> Dataset:
        """The data set of that name, with the fingerprint that its runs have pinned."""
        if name not in self.datasets:
            hint = nearest(name, self.datasets) if self.datasets else "; it has none yet"
            raise SordinoError(f"the ledger has no data set {name!r}{hint}")
        known = self.datasets[name]
        if known.fingerprint is not None:
            return known
        first = self._pinning(name)
        return replace(known, fingerprint=None if first is None else first.fingerprint)

    def prints(self, name: str) -> frozenset[str]:
        """The fingerprints that a data set is known by; none as long as nothing has pinned it."""
        given = self.datasets[name].fingerprint
        if given is not None:
            return frozenset([given])
        first = self._pinning(name)
        return frozenset() if first is None else first.prints

    def marks(self, name: str) -> Marks | None:
        """The rows or persons of a data set one by one, where they are known."""
        run, found = self.known.get(name, (None, None))
        return found if run is None or self.reservations[run].is_charged else None

    def _pinning(self, name: str) -> Reservation | None:
        """The run whose data became the data set: the first one that could decide it."""
        held = (one for one in self.charged(name) if one.prints and one.pins)
        return next(held, None)

    def reservation(self, run: str) -> Reservation:
        if run not in self.reservations:
            raise SordinoError(f"the ledger has no run {run!r}; reserve before anything is read")
        return self.reservations[run]

    def charged(self, dataset: str) -> list[Reservation]:
        """The reservations that count against a data set's budget, in order."""
        held = self.reservations.values()
        return [one for one in held if one.dataset == dataset and one.is_charged]

    def total(self, dataset: str) -> ComposedCost:
        """Everything charged to a data set, composed."""
        return ComposedCost.of(held.charge for held in self.charged(dataset))


def next_state(held: Reservation, wanted: str) -> bool:
    """Whether `held` has to change to become `wanted`; an error where it may not.

    What was reached already is no change: a resumed run goes through its states again.
    """
    order = (RESERVED, RUNNING, SPENT, RELEASED)
    if wanted == held.state:
        return False
    if held.state == CANCELLED:
        raise SordinoError(f"run {held.run!r} was cancelled; reserve again before reading any data")
    if wanted in _NEXT.get(held.state, ()):
        return True
    if wanted == CANCELLED:
        raise SordinoError(
            f"run {held.run!r} is {held.state}: it may have read records, so it stays charged; only "
            "a run that never started can be cancelled"
        )
    if order.index(wanted) < order.index(held.state):
        return False
    raise SordinoError(f"run {held.run!r} is {held.state} and cannot become {wanted} yet")


class Chargeable(Protocol):
    """What can be reserved for: a `Plan`, or anything else that says what it will cost."""

    @property
    def guarantee(self) -> Charge: ...

    def verify(self) -> None:
        """Raise a `SordinoError` unless the run as planned gives `guarantee`."""

    def to_json(self) -> Json: ...


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
    marks: Marks | None = None
    parts: str = REFUSE

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

    def facts(self) -> Json:
        facts: Json = {
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
        if not self.pins:
            facts["pins"] = False
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
        self._check_data(book)
        charge = restated(self.guarantee, owner.adjacency, owner.unit)
        charges = [one.charge for one in book.charged(self.dataset)]
        return ComposedCost.of([*charges, charge]).within(owner.allowance)

    def _check_data(self, book: LedgerState) -> None:
        """Refuse other data than the data set's, and a part of it that was not asked to be charged."""
        owner, known = book.dataset(self.dataset), book.prints(self.dataset)
        if owner.rows is not None and self.rows not in (None, owner.rows) and self.parts == REFUSE:
            raise SordinoError(
                f"the ledger knows {self.dataset!r} as {owner.rows:,} rows, and these are "
                f"{self.rows:,}: {_PART}"
            )
        # Who sees the data only piece by piece has no fingerprint, and goes by the name alone.
        if not self.prints or known & self.prints:
            return
        there, own = book.marks(self.dataset), self.marks
        if there is not None and own is not None and own.by == there.by:
            if own.is_all_of(there):
                return
            if not own.share_in(there):
                raise other_data(self.dataset)
            if self.parts == REFUSE:
                raise SordinoError(f"the ledger knows more of {self.dataset!r} than this: {_PART}")
        elif known:
            raise other_data(self.dataset)

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


_PART = (
    "a part of a data set, such as a fold, is not the data set; to choose settings use "
    "sordino.PrivateSearch, which is charged once for the whole search, or have each part charged in full "
    "with parts='charge'"
)


def other_data(dataset: str) -> SordinoError:
    return SordinoError(
        f"these are other data than those the ledger knows as {dataset!r}; register them under their "
        "own name"
    )
