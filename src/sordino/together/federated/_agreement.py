r"""The agreement: everything public about a federated run, decided before a record is read.

All parties hold the same file, each its own copy; requests and replies carry its digest, and a client
that is asked under another agreement refuses. So clip, noise and budget are a client's own numbers,
whatever a server says. `sordino.together.federated._agreeing` makes one from a budget.

Who is trusted (papers/02 sections 1.3, 1.4 and 5.4):

    untrusted    each client's noise protects it against the server and everybody else
    secure-sum   the server sees sums over a cohort only; its honest members' noise adds up
    trusted      the server sees clipped sums, and adds one noise for all

Under a secure sum with n honest members in every cohort, every client limits its own stream, which an
example moves by ``reach / n + sqrt(d)`` at most, to ``mu^2 / n``. What it has spent (`Agreement.total`) is
its own stream's mu^2 and all that the n-1 others may still spend, where noise is cancelled; with fresh
noise, n times its own. Why: docs/federated.md, "Sums".
"""

from __future__ import annotations

import math
import secrets
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path

from sordino._base.codec import digest_of, load_json, save_json
from sordino._base.errors import (
    DAMAGE,
    SordinoError,
    known_fields,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
    shown,
)
from sordino._base.types import Json
from sordino.parts.mechanisms import MOST_DRAWS, MOST_VARIANCE, Lattice
from sordino.privacy import Adjacency, Guarantee, rounding_distance
from sordino.together._certificates import require_name
from sordino.together.federated._chain import LEAK_UNITS, ROUNDED, ChainAccountant

_VERSION = 1
TRUST = ("untrusted", "secure-sum", "trusted")
UNITS = ("example", "client")
ADJACENCIES = {a.value: a.factor for a in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)}
# Sums must fit int32.
FITS = 2**31 - 1
_MOST_CLIENTS = 1_000_000
# Beyond this an epsilon is a number, but no privacy.
_MOST_MU = 1e6
# Messages and rounds have numbers below this (`_messages.py`).
_MOST_MESSAGES = 1 << 48


@dataclass(frozen=True)
class Algorithm:
    """What a client computes and how the server moves.

    Attributes:
      recursive: whether messages are ``t grad(x_t) - (t-1) grad(x_{t-1})`` or plain gradients.
      accumulates: whether the server steps along the sum of all messages (mu^2) or of one round.
      whole: whether every message is of all the client's examples.
    """

    recursive: bool
    accumulates: bool
    whole: bool = False


ALGORITHMS = {
    "dp-mu2": Algorithm(recursive=True, accumulates=True),
    "noisy-sgd": Algorithm(recursive=False, accumulates=False),
    "lowy-razaviyayn": Algorithm(recursive=False, accumulates=False, whole=True),
}


@dataclass(frozen=True)
class Agreement:
    """One federated run in numbers.

    Attributes:
      name: for people.
      clients: names of all who may take part (M of them).
      parameters: d.
      algorithm: one of `ALGORITHMS`.
      trust: one of `TRUST`.
      per_round: m messages make a round, and the divisor is always m times `batch`.
      rounds: T.
      batch: examples in one message.
      uses: how often one example may be used.
      clip: S, the largest norm of what one example (or, for unit "client", one message) adds.
      adjacency, unit: what the guarantee is for.
      mu: the budget of one example (or client), as a GDP parameter.
      delta: at which the guarantee is printed.
      cap: most messages that one client sends.
      leak: how much of its parent's noise a message takes back, in 65536ths.
      variance: V of a message's noise, in squared lattice steps; of the k-th one ``V k`` if `growing`.
      growing: whether noise grows with the number of messages sent (the paper's schedule).
      exponent: the lattice is all multiples of ``2^exponent``.
      learning_rate: eta.
      radius: of the ball around the start that iterates are projected to; None for none.
      extra: how many clients more than m are asked in a round.
      colluders: under a secure sum, how many members of a cohort may work with the server.
      keys: under a secure sum, every client's public X25519 key (hex), in the order of `clients`.
      nonce: makes agreements that are otherwise equal different (hex).
    """

    name: str
    clients: tuple[str, ...]
    parameters: int
    algorithm: str
    trust: str
    per_round: int
    rounds: int
    batch: int
    uses: int
    clip: float
    adjacency: str
    unit: str
    mu: float
    delta: float
    cap: int
    leak: int
    variance: int
    growing: bool
    exponent: int
    learning_rate: float
    radius: float | None = None
    extra: int = 0
    colluders: int = 0
    keys: tuple[str, ...] = ()
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        for name in ("parameters", "per_round", "rounds", "batch", "uses", "cap"):
            require_count(name, getattr(self, name))
        for name in ("leak", "extra", "colluders"):
            require_count(name, getattr(self, name), minimum=0)
        for name, most in (("clip", math.inf), ("mu", _MOST_MU), ("learning_rate", math.inf)):
            require_positive(name, getattr(self, name), maximum=most)
        if self.mu < 1 / _MOST_MU:
            raise SordinoError(f"mu must be at least {1 / _MOST_MU:g}, got {shown(self.mu)}")
        for name in ("name", "nonce"):
            text = getattr(self, name)
            if not isinstance(text, str) or not text.isprintable() or len(text) > 200:
                raise SordinoError(f"{name} must be a short printable text, got {shown(text)}")
        require_fraction("delta", self.delta)
        if self.radius is not None:
            require_positive("radius", self.radius)
        require_choice("algorithm", self.algorithm, ALGORITHMS)
        require_choice("trust", self.trust, TRUST)
        require_choice("adjacency", self.adjacency, ADJACENCIES)
        require_choice("unit", self.unit, UNITS)
        if self.leak > LEAK_UNITS:
            raise SordinoError(f"leak must be at most {LEAK_UNITS} 65536ths, got {self.leak}")
        if len(set(self.clients)) != len(self.clients) or not self.clients:
            raise SordinoError("an agreement needs clients of different names")
        if len(self.clients) > _MOST_CLIENTS:
            raise SordinoError(f"an agreement has at most {_MOST_CLIENTS:,} clients")
        for client in self.clients:
            require_name("a client", client)
        if self.per_round > len(self.clients):
            raise SordinoError(
                f"per_round must be at most the number of clients ({len(self.clients):,}), got "
                f"{self.per_round:,}"
            )
        if self.trust == "secure-sum":
            if self.colluders >= self.per_round - 1:
                raise SordinoError(
                    f"a secure sum over {self.per_round} clients of which {self.colluders} may collude "
                    "hides nothing; at least two honest clients are needed"
                )
            if self.extra:
                raise SordinoError("under a secure sum a round needs exactly its cohort: extra=0")
            keys = set(self.keys)
            good = all(len(k) == 64 and set(k) <= set("0123456789abcdef") for k in keys)
            if self.keys and (
                len(keys) != len(self.clients) or len(self.keys) != len(keys) or not good
            ):
                raise SordinoError(
                    "under a secure sum every client has a public key of its own (hex)"
                )
            if self.leak and (self.uses > 1 or self.unit == "client"):
                raise SordinoError(
                    "under a secure sum what is in more than one message is accounted for with fresh "
                    "noise only; choose schedule='fresh', or uses=1 and unit='example'"
                )
            if self.growing and not self.leak:
                # A helper that comes later would have less noise than the client counts on.
                raise SordinoError(
                    "under a secure sum fresh noise is the same in every message; choose "
                    "growing=false, or a leak above 0"
                )
        if self.trust == "trusted" and self.extra:
            raise SordinoError("a trusted server needs no spare messages: extra=0")
        Lattice(self.exponent)
        if not isinstance(self.variance, int) or not 4 <= self.variance <= MOST_VARIANCE:
            raise SordinoError(
                f"variance must be a whole number from 4 to 2^48, got {shown(self.variance)}"
            )
        if max(self.cap, self.rounds) > _MOST_MESSAGES:
            raise SordinoError(f"rounds and cap must be at most 2^48, got {shown(self.cap)}")
        if not self.clip / self.step >= 1 or self.batch * self.clip / self.step > FITS:
            raise SordinoError(
                "clip must be at least one lattice step, and a message's clips together below 2^31"
            )

    @property
    def kind(self) -> Algorithm:
        return ALGORITHMS[self.algorithm]

    @property
    def step(self) -> float:
        """Distance of neighbours on the lattice."""
        return 2.0**self.exponent

    @property
    def kappa(self) -> int:
        return ADJACENCIES[self.adjacency]

    @property
    def divisor(self) -> int:
        """What a round's sum is divided by: constant, whoever answers (papers/02 E4)."""
        return self.per_round * (1 if self.unit == "client" else self.batch)

    @property
    def honest(self) -> int:
        """How many independent streams hide one example."""
        return self.per_round - self.colluders if self.trust == "secure-sum" else 1

    @property
    def length(self) -> int:
        """Most messages of one chain of noise: a client's, or the trusted server's."""
        return self.rounds if self.trust == "trusted" else self.cap

    @property
    def reach(self) -> float:
        """How far one example or client moves one noised stream in one message, in lattice steps."""
        return self._share(self.kappa * self.clip / self.step)

    @property
    def other_reach(self) -> float:
        """The same for the unit that is not planned for: a whole client, or an example of one.

        A client's message is its block's sum, of `batch` examples. An example in a block that is
        clipped as one can turn it around, also by being left out: twice the clip in any case.
        """
        if self.unit == "client":
            return self._share(2 * self.clip / self.step)
        return self._share(self.batch * self.kappa * self.clip / self.step)

    def _share(self, moved: float) -> float:
        """What of a change of the sum falls to one of the streams that hide it."""
        return moved if self.honest == 1 else moved / self.honest + math.sqrt(self.parameters)

    @property
    def limit(self) -> float:
        """mu^2 that one noised stream may reach."""
        return self.mu**2 / self.honest

    @property
    def is_lent(self) -> bool:
        """Whether a client is hidden by noise that others cancel later, whatever it does itself."""
        return self.honest > 1 and self.leak > 0

    def total(self, own: float) -> float:
        """mu^2 of a client whose own stream has told `own`, against whoever sees the sums (or messages).

        Whatever the others do from now on; at most the agreed mu^2 as long as `own` is within `limit`.
        """
        if self.is_lent:
            return own + (self.honest - 1) * self.limit if own > 0 else 0.0
        return own * self.honest

    def allowance(self, mu: float) -> float:
        """What of mu^2 is a client's own stream's, if `total` is to stay within it; may be negative."""
        if self.is_lent:
            return mu**2 - (self.honest - 1) * self.limit
        return mu**2 / self.honest

    @property
    def least_mu(self) -> float:
        """mu of a client that has sent one message: no budget of its own can be below it."""
        return math.sqrt(self.total(self.reach**2 / (self.variance - ROUNDED)))

    def check_own_budget(self, mu: float) -> None:
        """Raise for a client's own budget that nobody would keep, or that one message is too much for."""
        require_positive("mu", mu)
        if self.trust == "trusted":
            raise SordinoError(
                "a client of a trusted server has no budget of its own: the noise is the server's; "
                "leave out mu, or agree on a smaller one"
            )
        if mu < self.least_mu * (1 - 1e-9):
            helpers = ", with what the other clients may still cancel" if self.is_lent else ""
            raise SordinoError(
                f"mu = {mu:.6g} is not enough for one message, which costs {self.least_mu:.6g}{helpers}"
            )

    @property
    def tells_blocks(self) -> bool:
        """Whether replies name their block: a trusted server counts how often each one was used."""
        return self.trust == "trusted" and self.unit == "example" and self.uses > 1

    def variance_of(self, index: int) -> int:
        """V of the message with that index (from 1)."""
        return self.variance * index if self.growing else self.variance

    def account(self) -> ChainAccountant:
        """An empty account of one stream."""
        return ChainAccountant.opened(reach=self.reach, leak=self.leak, parameters=self.parameters)

    @cached_property
    def guarantee(self) -> Guarantee:
        """What every client's data gets, as long as the client runs this code."""
        uses = "in one message" if self.uses == 1 else f"in up to {self.uses} messages"
        if self.unit == "client":
            uses = f"in up to {self.cap:,} messages"
        seen = {
            "untrusted": "each of which the server and everybody else may see",
            "secure-sum": f"of which everybody sees sums over {self.honest} or more honest clients "
            "only",
            "trusted": "which nobody but the server sees before noise is added",
        }[self.trust]
        return Guarantee.gaussian(
            self.mu,
            adjacency=self.adjacency,
            unit=self.unit,
            participation=f"{uses}, {seen}",
            exact=self.trust != "secure-sum",
            delta_hint=self.delta,
            distance=rounding_distance(self.variance, MOST_DRAWS),
            is_zcdp=True,
        )

    @cached_property
    def digest(self) -> str:
        """What requests and replies name the agreement by."""
        return digest_of(self.to_json())

    def to_json(self) -> Json:
        return {
            "version": _VERSION,
            **asdict(self),
            "clients": list(self.clients),
            "keys": list(self.keys),
        }

    @classmethod
    def from_json(cls, data: Json) -> Agreement:
        if not isinstance(data, dict) or data.get("version") != _VERSION:
            raise SordinoError(f"this is not an agreement of version {_VERSION}: {shown(data)}")
        values = {name: value for name, value in data.items() if name != "version"}
        values = known_fields("an agreement", values, cls)
        kinds = {entry.name: entry.type for entry in fields(cls)}
        try:
            for name, value in values.items():
                values[name] = _read(str(kinds[name]), value)
            return cls(**values)
        except SordinoError:
            raise
        except DAMAGE:
            raise SordinoError(f"this agreement is damaged: {shown(data)}") from None

    def save(self, path: Path | str) -> None:
        save_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path | str) -> Agreement:
        return load_json(path, "an agreement", cls.from_json)


def _read(kind: str, value: object) -> object:
    """A field's value, if it is one of that kind (an annotation, as text)."""
    if kind == "float | None":
        return None if value is None else _read("float", value)
    if kind == "tuple[str, ...]" and isinstance(value, list):
        return tuple(_read("str", entry) for entry in value)
    if isinstance(value, bool) or kind == "bool":
        good = isinstance(value, bool) and kind == "bool"
    elif kind == "str":
        good = isinstance(value, str) and len(value) <= 400
    elif kind == "float" and isinstance(value, int | float):
        return float(value)
    else:
        good = kind == "int" and isinstance(value, int) and abs(value) < 1 << 63
    if not good:
        raise TypeError
    return value
