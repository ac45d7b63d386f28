r"""An audit of a federated client: the real state machine, thousands of times, on neighbouring data.

    result = audit_client(agreement)          # 10,000 runs with the worst example, 10,000 without
    result.mu_low, print(result.verdict())

The attacker is the server, and whoever sees all messages of one client. He knows the agreement and
everything about the client's data but one example (or, for unit "client", all of it), asks whatever he
likes in view of the answers, lies about what he has committed, and goes on until the client refuses.
Clipping, noise, cancelling and accounting are the client's own code (`sordino.together.federated._client`).

From the messages he computes ``R_l = message_l + rho(R_parent)``, which is Gaussian around one of two
known vectors (`sordino.together.federated._chain`),

    A_l = s_l + rho(R_p) - rho(R_p - A_p),        s_l what the data of that world adds to message l,

so that ``sum_l (|R_l - A0_l|^2 - |R_l - A1_l|^2) / 2 V_l`` is the log-likelihood ratio, exactly, although
requests, parents and even the number of messages depend on earlier ones. Its law is not Gaussian in
general; mu is that of the privacy curve through one event, as in `sordino.audit._own`.

If the code does something else than is agreed, that ratio need not be the best statistic. So a pilot also
fits Fisher's discriminant to the messages themselves, along the canary, and where that is clearly
better the main runs are scored by it (as in `sordino.audit._whitebox`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, require_count, require_fraction, require_positive
from sordino._base.types import PyTree
from sordino.audit._statistics import Array, separation
from sordino.audit._whitebox import (
    CLEARLY,
    CONFIDENCE,
    DELTA,
    RUNS,
    AuditResult,
    _best_shift,
    _discriminant,
    _moved,
    by_event,
    pilot_of,
    result_of,
)
from sordino.parts import LeastSquares
from sordino.privacy import MIN_MU, Adjacency, Guarantee
from sordino.together.federated import (
    LEAK_UNITS,
    ROUNDED,
    UNITS,
    Agreement,
    Client,
    ClientEvaluator,
    ClientState,
    LocalData,
    Reply,
    RoundRequest,
    insecure_secret,
    message_from_bytes,
)

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]

# One direction is enough to be told apart along; some more show what is not along it.
DIMENSIONS = 4
# Blocks of a client whose examples are used again: all of them, one after the other.
_BLOCKS = 3
# How far the canary's gradient is beyond its clip, and how far a server's points are from the start.
_BEYOND, _FAR = 1e6, 10.0


def audit_client(
    agreement: Agreement,
    *,
    trials: int = RUNS,
    adaptive: bool = True,
    unit: str | None = None,
    message: int = 1,
    insecure_seed: int = 0,
    confidence: float = CONFIDENCE,
    epsilon: float | None = None,
    delta: float | None = None,
) -> AuditResult:
    """Audit what one client of `agreement` reveals to a server that it does not trust.

    Args:
      agreement: for trust "untrusted"; plan a short one. It is run with few parameters and a canary
        that attains the agreed bounds, whatever the real model is.
      trials: runs with the canary; as many without, and a fifth more of both for the pilot.
      adaptive: whether the server lies: points, rounds and commits chosen by what it has seen, until
        the client refuses. Otherwise all requests are honest and the same in every run.
      unit: "example" or "client": whose data is there in one world only. By default the agreement's;
        for the other one the claim is what the client's own account of it says at the end.
      message: which message the special example is in (for the first time). The first one is the
        worst if the code is right; a bug may be worse for others.
      insecure_seed: of the clients' noise, and of the server's choices.
      confidence: of the interval of mu, and that no false alarm is raised.
      epsilon: where privacy curves are compared; by default where the claimed one is steep.
      delta: where epsilon is stated; by default the agreement's.
    """
    pair = ClientNeighbours.of(agreement, unit, message)
    trials = require_count("trials", trials, minimum=100)
    require_fraction("confidence", confidence)
    stated = agreement.delta if delta is None else require_fraction("delta", delta)

    def transcripts(first: int, runs: int) -> list[Transcripts]:
        return [pair.transcripts(w, 4 * insecure_seed + first + w, runs, adaptive) for w in (0, 1)]

    pilot = transcripts(2, pilot_of(trials))
    guarantee = pair.guarantee(pilot)
    # In the middle of the claimed privacy loss its curve is steep, and few runs measure it well.
    at = min(1.0, guarantee.mu**2 / 2) if epsilon is None else epsilon
    require_positive("epsilon", max(at, MIN_MU))
    attack, statistic = pair.chosen_attack(pilot, at)
    without, having = map(statistic, transcripts(0, trials))
    return result_of(
        _Audited(f"a client of {agreement.algorithm}", guarantee),
        attack,
        by_event(without, having, at, confidence),
        (statistic(pilot[0]), statistic(pilot[1])),
        (without, having),
        epsilon=at,
        delta=stated or DELTA,
        confidence=confidence,
    )


class _Audited(NamedTuple):
    recipe: str
    guarantee: Guarantee


@dataclass(frozen=True)
class Transcripts:
    """What a server has asked and been answered, in many runs of at most K messages.

    Attributes:
      messages: in lattice steps, int64 (runs, K, d); 0 beyond the last.
      parents: index of the message whose noise each cancels, 0 for none (runs, K).
      points, previous: that it was asked at, float32 (runs, K, d).
      rounds: t of each (runs, K).
      sent: how many there are (runs,).
      spent: mu^2 that the client says it has spent, for the audited unit (runs,).
    """

    messages: Integers
    parents: Integers
    points: Floats
    previous: Floats
    rounds: Integers
    sent: Integers
    spent: Array

    @classmethod
    def empty(cls, runs: int, most: int, d: int) -> Transcripts:
        return cls(
            np.zeros((runs, most, d), np.int64),
            np.zeros((runs, most), np.int64),
            np.zeros((runs, most, d), np.float32),
            np.zeros((runs, most, d), np.float32),
            np.ones((runs, most), np.int64),
            np.zeros(runs, np.int64),
            np.zeros(runs),
        )


@dataclass(frozen=True)
class ClientNeighbours:
    """One client with two neighbouring data sets: 0 without the canary, 1 with it.

    Under replace-one, world 0 has its opposite instead.
    """

    agreement: Agreement
    unit: str
    message: int
    worlds: tuple[Client, Client]
    kind: ClientEvaluator

    @classmethod
    def of(
        cls, agreement: Agreement, unit: str | None = None, message: int = 1
    ) -> ClientNeighbours:
        """The pair of an agreement."""
        message = require_count("message", message)
        if message > (agreement.cap if agreement.uses == 1 else _BLOCKS):
            raise SordinoError(f"there is no message {message} with an example of its own")
        unit = agreement.unit if unit is None else unit
        if unit not in UNITS:
            raise SordinoError(f"unit must be one of {', '.join(UNITS)}, got {unit!r}")
        if agreement.trust != "untrusted":
            raise SordinoError(
                f"this audit is of clients that trust nobody; under {agreement.trust!r} a client's own "
                "messages are not what is released"
            )
        small = replace(agreement, parameters=min(agreement.parameters, DIMENSIONS))
        start = np.zeros(small.parameters, np.float32)
        kind = ClientEvaluator.of(small, LeastSquares(), start)
        without = -1.0 if small.adjacency == Adjacency.REPLACE_ONE else 0.0

        def world(sign: float) -> Client:
            rows = _data(small, unit, message, sign)
            own = LocalData(small, LeastSquares(), start, rows, contribution=kind)
            return Client(small.clients[0], small, own)

        return cls(small, unit, message, (world(without), world(1.0)), kind)

    def guarantee(self, runs: list[Transcripts]) -> Guarantee:
        """What is claimed: the agreement's for its unit, else what the client's own account says."""
        claimed = self.agreement.guarantee
        if self.unit == self.agreement.unit:
            return claimed
        spent = max(float(world.spent.max()) for world in runs)
        return replace(claimed, gaussian_mu=float(np.sqrt(spent)), unit=self.unit)

    def transcripts(self, world: int, seed: int, runs: int, adaptive: bool = True) -> Transcripts:
        """So many runs of the real client against the server."""
        client = self.worlds[world]
        transcripts = Transcripts.empty(runs, self.agreement.cap, self.agreement.parameters)
        for run in range(runs):
            secret = insecure_secret(seed, f"audit/{run}")
            chance = np.random.default_rng([seed, run])
            needed = self.message if self.unit == "example" else self.agreement.cap
            server = _AuditedServer(self.agreement, adaptive, needed, chance)
            self._run(client, client.begin(secret), server, transcripts, run)
        return transcripts

    def _run(
        self,
        client: Client,
        state: ClientState,
        server: _AuditedServer,
        transcripts: Transcripts,
        run: int,
    ) -> None:
        for turn in range(1, 4 * self.agreement.cap + 1):
            request = server.request(turn)
            state, answer = client.respond(state, request)
            if not isinstance(answer, Reply):
                if not server.refused():
                    break
                continue
            # As it would come over the network.
            reply = message_from_bytes(answer.to_bytes())
            assert isinstance(reply, Reply)
            place = transcripts.sent[run]
            transcripts.messages[run, place] = reply.values
            transcripts.parents[run, place] = request.committed
            transcripts.points[run, place], transcripts.previous[run, place] = (
                request.point,
                request.previous,
            )
            transcripts.rounds[run, place] = request.round
            transcripts.sent[run] += 1
            server.received(reply.values)
        own = state.account if self.unit == self.agreement.unit else state.other
        transcripts.spent[run] = own.mu_squared

    def means(self, runs: Transcripts) -> tuple[Integers, Integers]:
        """s of either world at the requests of some runs, int64 (runs, K, d)."""
        shape = runs.messages.shape
        means = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for place in range(int(runs.sent.max(initial=0))):
            for client, totals in zip(self.worlds, means, strict=True):
                block = client.next_block(place + 1)
                if block < 0:
                    continue
                rows, mask = _block(client.data, block, self.agreement.batch)
                t = runs.rounds[:, place].astype(np.float32)
                terms = dict(self.kind.terms(self.agreement, 1))
                if self.kind.recursive:
                    terms |= {"now": t, "before": t - 1}
                totals[:, place] = _totals(
                    self.kind,
                    runs.points[:, place],
                    runs.previous[:, place],
                    rows,
                    mask,
                    terms,
                    np.float32(self.agreement.batch),
                )
        return means

    def ratios(self, runs: Transcripts) -> Array:
        """The log-likelihood ratio of each run that the agreement implies (runs,)."""
        agreement = self.agreement
        count = np.arange(len(runs.sent))
        seen, means = np.zeros_like(runs.messages), self.means(runs)
        moved = np.zeros_like(runs.messages), np.zeros_like(runs.messages)
        ratio = np.zeros(len(runs.sent))
        for place in range(int(runs.sent.max(initial=0))):
            parent = runs.parents[:, place]
            has = (parent > 0)[:, None]
            before = np.where(has, seen[count, parent - 1], 0)
            back = _rho(before, agreement.leak)
            seen[:, place] = runs.messages[:, place] + back
            distances = []
            for s, A in zip(means, moved, strict=True):
                last = np.where(has, A[count, parent - 1], 0)
                A[:, place] = s[:, place] + back - _rho(before - last, agreement.leak)
                rest = (seen[:, place] - A[:, place]).astype(np.float64)
                distances.append(np.sum(rest * rest, axis=1))
            variance = agreement.variance_of(place + 1) - ROUNDED
            loss = (distances[0] - distances[1]) / (2 * variance)
            ratio += np.where(place < runs.sent, loss, 0.0)
        return ratio

    def features(self, runs: Transcripts) -> Array:
        """Messages along the canary, less what everybody else adds (runs, K)."""
        rest = (runs.messages - self.means(runs)[0])[..., 0]
        within = np.arange(rest.shape[1]) < runs.sent[:, None]
        return np.where(within, rest, 0) / float(np.sqrt(self.agreement.variance))

    def chosen_attack(
        self, pilot: list[Transcripts], epsilon: float
    ) -> tuple[str, Callable[[Transcripts], Array]]:
        """The best attack on a pilot of runs that are used for nothing else.

        A discriminant is fitted to one half of them and tried on the other.
        """
        features = [self.features(runs) for runs in pilot]
        half = len(features[0]) // 2
        learned = _discriminant(features[0][:half], features[1][:half])
        if learned is None:
            return "likelihood", self.ratios
        without, having = (learned(part) for part in features)
        ratios = [self.ratios(runs)[half:] for runs in pilot]
        planned = separation(ratios[0], ratios[1], half, 0.9)[1]
        least = separation(without[half:], having[half:], half, 0.9)[0]
        if least > CLEARLY * max(planned, 0.0):
            fitted = _moved(learned, _best_shift(without, having, epsilon))
            return "learned", lambda runs: fitted(self.features(runs))
        return "likelihood", self.ratios


class _AuditedServer:
    """Asks one client, honestly or not.

    It says that the canary's message is committed, so that all later ones descend from it: those are the
    ones that the canary can be found in. After that a liar commits the last message or does not,
    as the last answer has it; and when the client refuses for its budget, it commits the last one after
    all, because what descends from that is cheaper. (Where all of a client's messages change there is
    nothing to be had from lies: each of them tells most if it has all the others above it.)
    """

    def __init__(
        self, agreement: Agreement, adaptive: bool, needed: int, chance: np.random.Generator
    ) -> None:
        """`needed`: messages that are committed in any case."""
        self._agreement, self._adaptive, self._chance = agreement, adaptive, chance
        self._needed = needed
        self._index = self._committed = 0
        self._round = 1
        zero = np.zeros(agreement.parameters, np.float32)
        self._point, self._previous = zero, zero
        self._may_retry = True

    def request(self, turn: int) -> RoundRequest:
        return RoundRequest(
            self._agreement.digest,
            turn,
            self._round,
            self._point,
            self._previous,
            self._committed,
        )

    def received(self, values: Integers) -> None:
        """What to ask next, in view of an answer."""
        self._index += 1
        self._may_retry = True
        last = self._agreement.rounds
        if not self._adaptive:
            self._committed = self._index
            self._round = min(self._round + 1, last)
            return
        if self._index <= self._needed or values[0] + values[-1] > 0:
            self._committed = self._index
        self._round = min(self._round + int(values[1 % len(values)] > 0), last)
        # Towards what it has seen, or away from it: far, if nothing forbids.
        towards = values / max(float(np.linalg.norm(values)), 1.0) + self._chance.normal(
            size=len(values)
        )
        far = self._agreement.radius or _FAR
        point = far * towards / max(float(np.linalg.norm(towards)), 1e-9)
        self._previous, self._point = -self._point, point.astype(np.float32)

    def refused(self) -> bool:
        """Whether another request may be worth it."""
        if not self._adaptive or not self._may_retry or self._committed == self._index:
            return False
        self._committed, self._may_retry = self._index, False
        return True


def _data(agreement: Agreement, unit: str, message: int, sign: float) -> tuple[Floats, Floats]:
    """Rows and targets of as many blocks as a client may send messages; canaries times `sign`.

    Least squares with rows along the first axis: the gradient is as far beyond the clip as float32
    allows, in one direction, wherever the server asks. A canary that is left out has a row of zeros.
    """
    d, batch = agreement.parameters, agreement.batch
    blocks = agreement.cap if agreement.uses == 1 else _BLOCKS
    if agreement.kind.whole:
        blocks = 1
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(blocks * batch, d)).astype(np.float32)
    targets = rng.normal(size=blocks * batch).astype(np.float32)
    canary = np.zeros(blocks * batch, bool)
    canary[slice(None) if unit == "client" else (message - 1) * batch] = True
    if agreement.unit == "client" and unit == "example":
        # A block is clipped as one: what an example can do depends on who is beside it.
        rows[~canary], targets[~canary] = 0.0, 0.0
        beside = np.arange((message - 1) * batch + 1, message * batch)
        rows[beside, 0], targets[beside] = 1.0, np.float32(_BEYOND * agreement.clip / batch)
    rows[canary] = 0.0
    rows[canary, 0] = sign
    targets[canary] = np.float32(-_BEYOND * agreement.clip * 4)
    return rows, targets


def _block(data: LocalData, block: int, batch: int) -> tuple[tuple[PyTree, ...], Floats]:
    """The examples of a block and their mask, as `LocalData.total` has them."""
    rows = data.rows(block)
    padding = batch - len(rows)
    index = np.pad(rows, (0, padding), constant_values=rows[0])
    picked = tuple(array[index] for array in data._arrays)
    return picked, np.pad(np.ones(len(rows), np.float32), (0, padding))


@partial(jax.jit, static_argnames=("kind",))
def _totals(
    kind: ClientEvaluator,
    points: jax.Array,
    previous: jax.Array,
    rows: PyTree,
    mask: jax.Array,
    terms: PyTree,
    batch: jax.Array,
) -> PyTree:
    """`ClientEvaluator.total` at many points (runs, d)."""
    weights = {name: 0 if name in ("now", "before") else None for name in terms}
    if not kind.recursive:
        weights = dict.fromkeys(terms, None)

    def one(point: PyTree, before: PyTree, numbers: PyTree) -> PyTree:
        return kind.total(point, before, rows, mask, numbers, batch).clipped

    return jax.vmap(one, in_axes=(0, 0, weights))(points, previous, dict(terms))


def _rho(noise: Integers, leak: int) -> Integers:
    """What the agreement says is cancelled: ``floor(leak y + 1/2)``."""
    return (noise * leak + LEAK_UNITS // 2) >> 16
