"""From a budget to an agreement: caps, the leak of the noise, lattice, variance and learning rate."""

from __future__ import annotations

import math
from dataclasses import replace

from sordino._base.errors import (
    SordinoError,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
)
from sordino.parts.mechanisms import MOST_VARIANCE, AnytimeMap, Cancelling
from sordino.privacy import FixedBatches, mu_from_epsilon_delta
from sordino.together.federated._agreement import (
    ADJACENCIES,
    ALGORITHMS,
    FITS,
    TRUST,
    UNITS,
    Agreement,
)
from sordino.together.federated._chain import LEAK_UNITS, ROUNDED, chain_cost

SCHEDULES = ("leaky", "uniform", "paper", "fresh")
# Noise is drawn with a standard deviation of at most this many lattice steps.
_MOST_STEPS = 2**24 - 2**4
_DEVIATIONS = 10
_LEAST_STEPS = 2**10
# A client that is picked at random is picked more often than the cap with this probability, any of them.
_OVER_CAP = 1e-6


def agree(
    *,
    clients: int | list[str] | tuple[str, ...],
    parameters: int,
    rounds: int,
    per_round: int | None = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    mu: float | None = None,
    clip: float = 1.0,
    batch: int = 1,
    uses: int = 1,
    examples: int | None = None,
    algorithm: str = "dp-mu2",
    trust: str = "untrusted",
    schedule: str | None = None,
    leak: float | None = None,
    unit: str = "example",
    adjacency: str = "zero-out",
    cap: int | None = None,
    learning_rate: float | None = None,
    radius: float | None = None,
    smoothness: float = 0.5,
    extra: int = 0,
    spare: float | None = None,
    colluders: int = 0,
    keys: tuple[str, ...] = (),
    name: str = "federation",
    nonce: str | None = None,
) -> Agreement:
    """An agreement whose noise is just enough for the budget.

    Args:
      clients: how many, or their names.
      parameters: d.
      rounds: T.
      per_round: m; all clients unless given.
      epsilon, delta: the budget of one example (or client); or `mu` instead of epsilon.
      clip: S, of one example's correction (unit "client": of one message).
      batch: examples in one message. "lowy-razaviyayn" needs `examples`, and takes all of them.
      uses: how often one example may be used.
      examples: the least number of examples a client has; only matters if `uses` is more than 1.
      schedule: "leaky" (takes back nearly all of the noise before; the default), "uniform" (all of it,
        same noise always), "paper" (all of it, noise growing with the number of messages) or "fresh"
        (nothing; the default for unit "client", where cancelling costs more than it saves).
      leak: how much is taken back, instead of the best for the expected number of messages.
      cap: most messages of one client; by default, what a client picked at random stays below.
      learning_rate: eta; by default from `smoothness` (L) and the noise, a starting point only.
      extra: clients asked beyond m in each round, whose messages are paid for in any case.
      spare: how many messages that come to nothing (too late, one too many) each client can pay for, per
        message that is committed; 1.5 times what `extra` causes unless given. Only a leaking chain has
        to make room for them: its noise has ``1 + spare`` times the variance.
      colluders: members of a cohort that may work with the server, under a secure sum.
      keys: under a secure sum, the clients' public keys (`secure.pads.public_key`, hex).
    """
    names = clients
    if not isinstance(names, (list, tuple)):
        count = require_count("clients", names)
        names = [f"client-{i:0{len(str(count - 1))}d}" for i in range(count)]
    members = tuple(names)
    per_round = len(members) if per_round is None else require_count("per_round", per_round)
    rounds = require_count("rounds", rounds)
    require_choice("algorithm", algorithm, ALGORITHMS)
    require_choice("unit", unit, UNITS)
    require_choice("trust", trust, TRUST)
    require_choice("adjacency", adjacency, ADJACENCIES)
    kind = ALGORITHMS[algorithm]
    if (epsilon is None) == (mu is None):
        raise SordinoError("give the budget as epsilon (and delta), or as mu; one of them")
    if mu is None:
        assert epsilon is not None
        # A little less than all of delta: discrete noise costs some of it, far below this.
        mu = mu_from_epsilon_delta(require_positive("epsilon", epsilon), delta * (1 - 1e-6))
    fresh = unit == "client" or not kind.accumulates or (trust == "secure-sum" and uses > 1)
    chosen, schedule = schedule, schedule or ("fresh" if fresh else "leaky")
    require_choice("schedule", schedule, SCHEDULES)
    if kind.whole:
        if examples is None:
            raise SordinoError(f"{algorithm} sends the gradient of all examples: give `examples`")
        batch = examples
        uses = rounds
    share = min(1.0, (per_round + extra) / len(members))
    expected = max(1, round(rounds * share))
    messages = rounds if trust == "trusted" else expected
    if cap is None:
        cap = rounds if schedule == "paper" else _cap(rounds, share, len(members))
    cap = require_count("cap", cap)
    apart = 1 if unit == "client" or kind.whole else _blocks(examples, batch, uses, messages)
    times = cap if unit == "client" else min(uses, cap)
    units = _leak(schedule, leak, messages, apart if uses > 1 else messages)
    built: dict[str, str] = {} if nonce is None else {"nonce": nonce}
    draft = Agreement(
        name=name,
        clients=members,
        parameters=parameters,
        algorithm=algorithm,
        trust=trust,
        per_round=per_round,
        rounds=rounds,
        batch=batch,
        uses=uses,
        clip=clip,
        adjacency=adjacency,
        unit=unit,
        mu=mu,
        delta=delta,
        cap=cap,
        leak=units,
        variance=4,
        growing=schedule == "paper",
        exponent=math.floor(math.log2(clip)) - 10 if 0 < clip < math.inf else 0,
        learning_rate=1.0,
        radius=radius,
        extra=extra,
        colluders=colluders,
        keys=tuple(keys),
        **built,
    )
    if spare is None:
        spare = 1.5 * extra / per_round
    if not 0 <= spare <= 100:
        raise SordinoError(f"spare must be between 0 and 100 messages per message, got {spare!r}")
    noised = _with_noise(draft, schedule, times, apart, spare)
    if chosen is None and 0 < units < LEAK_UNITS and uses == 1:
        # The leak's roundings cost the more the larger the model. Without them it saves a quarter of the
        # noise in w (papers/02 2.4: 0.735); where they cost more than that, it is not worth it.
        ideal = chain_cost(
            messages=draft.length, leak=units, uses=times, apart=apart, rounding=0.0
        ) * (1 + (spare if trust != "trusted" else 0.0))
        if noised.variance * noised.limit > ideal * noised.reach**2 / 0.735:
            noised = _with_noise(replace(draft, leak=LEAK_UNITS), "uniform", times, apart, spare)
    rate = learning_rate
    if rate is None:
        rate = _learning_rate(noised, smoothness)
    return replace(noised, learning_rate=require_positive("learning_rate", rate))


def _cap(rounds: int, share: float, clients: int) -> int:
    """What none of the clients exceeds but with probability 1e-6, if they are picked at random."""
    if share >= 1:
        return rounds
    from scipy.stats import binom  # here, because it takes long to import

    return int(min(rounds, max(1, binom.isf(_OVER_CAP / clients, rounds, share))))


def _blocks(examples: int | None, batch: int, uses: int, messages: int) -> int:
    if uses == 1:
        return messages
    if examples is None:
        raise SordinoError(
            "to use examples more than once, give `examples`, the least number that a client has"
        )
    return max(1, -(-require_count("examples", examples) // batch))


def _leak(schedule: str, leak: float | None, messages: int, apart: int) -> int:
    if schedule == "fresh":
        return 0
    if schedule in ("uniform", "paper"):
        return LEAK_UNITS
    if leak is None:
        if messages == 1:
            return 0
        apart = min(apart, messages)
        leak = Cancelling.leaky(AnytimeMap(), FixedBatches(messages, apart)).leak
    return round(require_fraction("leak", leak, closed=True) * LEAK_UNITS)


def _with_noise(draft: Agreement, schedule: str, times: int, apart: int, spare: float) -> Agreement:
    """The lattice and the variance: the finest lattice on which everything fits, then what it costs."""
    bound = draft.kappa * draft.clip / draft.honest
    share = draft.leak / LEAK_UNITS

    def needed(rounding: float) -> float:
        """Variance over reach^2."""
        if schedule == "paper" and times == 1:
            return (1 + math.log(draft.rounds)) / draft.limit
        cost = chain_cost(
            messages=draft.length,
            leak=draft.leak,
            uses=times,
            apart=apart,
            rounding=rounding,
            weights="linear" if draft.growing else "constant",
        )
        # A message that is never committed is one more leaf beside the next one in the chain.
        leaves = 1 + spare if 0 < draft.leak < LEAK_UNITS and draft.trust != "trusted" else 1.0
        return cost * leaves / draft.limit

    std = bound * math.sqrt(needed(0.0))
    growth = draft.length if draft.growing else 1
    largest = std * math.sqrt(growth)
    messages = draft.per_round if draft.trust == "trusted" else 1
    room = draft.batch * draft.clip * messages + _DEVIATIONS * largest * math.hypot(1, share)
    step = max(room / FITS, 1.01 * largest / _MOST_STEPS)
    # Rounding makes it a little more, the more so the larger the model: then a coarser lattice.
    finest = math.ceil(math.log2(step))
    for exponent in range(finest, finest + 8):
        step = 2.0**exponent
        if min(std, draft.kappa * draft.clip) / step < _LEAST_STEPS:
            break
        reach = bound / step + (math.sqrt(draft.parameters) if draft.honest > 1 else 0.0)
        rounding = math.sqrt(draft.parameters) / reach if 0 < share < 1 else 0.0
        variance = math.ceil(reach**2 * needed(rounding * (1 + 1e-9)) + ROUNDED)
        if variance * growth <= MOST_VARIANCE:
            return replace(draft, exponent=exponent, variance=variance)
    advice = "schedule='uniform' or 'fresh', " if 0 < share < 1 else ""
    raise SordinoError(
        f"with {draft.parameters:,} parameters and sums of {draft.batch:,} contributions, clip and noise "
        f"do not both fit into 32-bit messages; choose {advice}smaller batches, another budget or "
        "fewer rounds"
    )


def _learning_rate(made: Agreement, smoothness: float) -> float:
    """What the loss allows, or what keeps the noise's walk within the radius; a starting point.

    In the limit of many rounds, ``w' = -eta t g(x)`` and ``x' = 2 (w - x) / t`` make ``x'' + 3 x'/t +
    2 eta g = 0``: Nesterov's method with steps of 2 eta. So eta may be of the order of 1/L, and the
    paper's 1/(8 L T) is far too small (papers/02 E15) as long as the noise is. That is a random walk
    of std ``eta sigma sqrt(M T (2 - p) / p) / m`` in each coordinate of w (2.4).
    """
    smooth = require_positive("smoothness", smoothness)
    p = made.per_round / len(made.clients)
    sigma = math.sqrt(made.variance) * made.step / made.divisor
    draws = len(made.clients) * made.rounds * (2 - p) / p
    if not made.kind.accumulates:
        draws = made.per_round * made.rounds
    elif made.trust == "trusted":
        draws = made.rounds
    walk = sigma * math.sqrt(draws * made.parameters)
    return min(1 / (5 * smooth), (made.radius or 4 / math.sqrt(smooth)) / walk)
