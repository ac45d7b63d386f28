"""What a ledger holds, as plain values: data sets, reservations, and the entries they follow from.

The entries are the truth. A `LedgerState` is what they add up to; the tables of the file repeat it for
people who look with other tools, and are compared with it whenever the ledger is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sordino._base.errors import SordinoError, nearest
from sordino._base.identity import Identity
from sordino.engine.ledger._composition import (
    Allowance,
    Charge,
    ComposedCost,
    charge_from_json,
    restated,
)

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
CREATED, DATASET = "created", "dataset"
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

    def to_json(self) -> dict[str, Any]:
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

    @property
    def is_charged(self) -> bool:
        return self.state != CANCELLED

    @property
    def prints(self) -> frozenset[str]:
        """Every fingerprint of its data."""
        return frozenset(one for one in (self.fingerprint, *self.also) if one is not None)

    def to_json(self) -> dict[str, Any]:
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
    facts: Mapping[str, Any]

    @property
    def dataset(self) -> str | None:
        return self.facts.get("dataset")

    @property
    def run(self) -> str | None:
        return self.facts.get("run")

    def to_json(self) -> dict[str, Any]:
        head = {"number": self.number, "what": self.what, "who": self.who, "at": self.at}
        return {**head, **self.facts}


@dataclass
class LedgerState:
    """What the entries add up to. Grows only by `add`, one verified entry after the other."""

    datasets: dict[str, Dataset] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    entries: list[LedgerEntry] = field(default_factory=list)
    seals: list[bytes] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.seals)

    def add(self, body: Mapping[str, Any], seal: bytes) -> None:
        """Take in one more entry, which is known to be the ledger's own."""
        facts = dict(body)
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
        seen = (held.fingerprint for held in self.charged(name) if held.fingerprint is not None)
        return replace(known, fingerprint=next(seen, None))

    def prints(self, name: str) -> frozenset[str]:
        """The fingerprints that a data set is known by; none as long as nothing has pinned it."""
        given = self.datasets[name].fingerprint
        if given is not None:
            return frozenset([given])
        return next((held.prints for held in self.charged(name) if held.prints), frozenset())

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
