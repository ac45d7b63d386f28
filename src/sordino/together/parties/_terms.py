r"""What data owners agree on before they train together: the plan, their sizes, the engine.

    terms = agree("dp-srm", examples=(3256,) * 10, parameters=123, batch_size=500, epochs=4,
                  engine="mask", colluders=1, epsilon=0.2, delta=1e-5, clip=1.0)
    print(terms.statement())

The plan is an ordinary one with discrete noise (papers/01 1.2). Two things differ from pooled records:

**Rate.** A record of party j is in a batch with probability ``b_j / n_j``, and is protected by that rate
alone, whatever the others do. So the plan is made for ``q = max_j b_j / n_j``. Unless sizes are given,
Poisson batches have one rate at all parties: all of them together are a Poisson batch of all records.

**Noise.** It is what the engine makes (`secure/_base.py`): inside the computation, with exactly the
planned variance, or as shares, of which those that t colluders cannot subtract have at least the
planned variance. How far it is from an exact discrete Gaussian adds to the guarantee's distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from sordino._base.codec import digest_of
from sordino._base.errors import DAMAGE, SordinoError, require_choice, require_count, shown
from sordino._base.types import Json
from sordino.engine import refuse_others
from sordino.parts.mechanisms import MOST_DRAWS, Mechanism
from sordino.parts.sampling import FIXED, RESHUFFLED
from sordino.planning import DISCRETE, Plan, plan
from sordino.planning.recipes import recipe_named
from sordino.privacy import POISSON, ROW, WITHOUT_REPLACEMENT, Guarantee, require_one_row
from sordino.together.secure._base import (
    TrustAssumption,
    engine_distance,
    from_tables,
    published_variance,
    require_fit,
)

FORMAT, VERSION = "sordino-terms", 1
# More than any consortium of data owners has; pads and codes go between all pairs.
MOST_PARTIES = 500
ENGINES = {
    "mask": "pads that cancel, and noise as shares; passive parties, of whom t may collude",
    "mpyc": "multi-party computation by all parties, noise inside; fewer than half may collude",
    "spu": "three compute nodes (ABY3), noise inside; no two nodes may collude",
    "plain": "no protection at all: for tests and simulations",
}


def assumption_of(engine: str, parties: int, colluders: int | None = None) -> TrustAssumption:
    """What an engine asks to be believed, with as many colluders as it is given (or its default)."""
    require_choice("engine", engine, ENGINES)
    least = {"mask": 2, "mpyc": 3, "spu": 3, "plain": 1}[engine]
    if not least <= require_count("parties", parties) <= MOST_PARTIES:
        raise SordinoError(f"the engine {engine!r} is for {least} to {MOST_PARTIES} parties")
    most = {"mask": parties - 1, "mpyc": (parties - 1) // 2, "spu": 1, "plain": 0}[engine]
    t = {"mask": 1, "mpyc": most, "spu": 1, "plain": 0}[engine] if colluders is None else colluders
    if not min(1, most) <= require_count("colluders", t, minimum=0) <= most:
        raise SordinoError(
            f"with {parties} parties the engine {engine!r} stands up to {most} colluders, not {t}"
        )
    noise: Literal["inside", "shares"] = "shares" if engine == "mask" else "inside"
    nodes, node_colluders = (3, 1) if engine == "spu" else (parties, t)
    if engine == "plain":
        nodes = 1
    return TrustAssumption(engine, parties, t, nodes, node_colluders, False, noise)


def growth(mechanism: Mechanism) -> int:
    """Largest row sum of C (`DifferenceCodec`): how many steps' sums one vector may hold."""
    rows: list[int] = []
    for step in range(mechanism.steps):
        rows.append(1 + sum(rows[j] for j in mechanism.cancelled_draws(step) or ()))
    return max(rows)


@dataclass(frozen=True)
class Terms:
    """See the module.

    Attributes:
      plan: with discrete noise, for the accounted rate.
      examples: n_j, how many records each party brings; public.
      batches: of secret batches, b_j, the expected number of records in a step (whole numbers without
        replacement); empty for public ones.
      first_batches: the same for the first step, where it differs; else empty.
      parameters: d, numbers in the model.
      engine: of `ENGINES`.
      colluders: t.
    """

    plan: Plan
    examples: tuple[int, ...]
    batches: tuple[float, ...]
    first_batches: tuple[float, ...]
    parameters: int
    engine: str
    colluders: int

    def __post_init__(self) -> None:
        for count in self.examples:
            require_count("examples", count)
        require_count("parameters", self.parameters)
        if self.plan.lattice is None or self.plan.contribution.channels != 1:
            raise SordinoError(
                "a secure sum needs one vector of whole numbers a step: plan with noise='discrete'"
            )
        if self.parameters * self.plan.population.steps > MOST_DRAWS or self.parameters >= 1 << 25:
            raise SordinoError(
                "parties sum models of up to 2^25 parameters, and 2^40 of them over all turns; "
                f"{self.parameters:,} in {self.plan.population.steps:,} turns are more"
            )
        _refuse_cyclic(self.plan.population.sampling)
        if self.plan.population.slots is not None:
            raise SordinoError(
                "this plan is accounted for the permutations of its order_seed, but each party shuffles "
                "its own records; plan with order_seed=None"
            )
        self._check_rates()
        # Built now, so that what does not fit is refused before anybody signs it.
        require_fit(
            largest=self.largest,
            parties=self.parties,
            variance=published_variance(max(self.variances), self.assumption),
            dimension=self.parameters,
        )
        if self.largest * self.parties >= 1 << 59:
            raise SordinoError("sums of this run need more than 59 bits; choose a shorter one")

    def _check_rates(self) -> None:
        population = self.plan.population
        if population.is_secret:
            sizes = [(population.batch_size, self.batches)]
            if population.first_batch is not None:
                sizes.append((population.first_batch, self.first_batches))
            elif self.first_batches:
                raise SordinoError("the plan has no first batch of another size, the parties do")
            for accounted, batches in sizes:
                if len(batches) != self.parties:
                    raise SordinoError("there must be one batch size for each party")
                for n, b in zip(self.examples, batches, strict=True):
                    whole = population.sampling == POISSON or float(b).is_integer()
                    if not (whole and 0 <= b <= n):
                        raise SordinoError(f"a party with {n:,} records cannot have batches of {b}")
                    # What was rounded once in double precision may be off by that much.
                    if Fraction(b) / n > Fraction(accounted, population.examples) * (1 + _ROUNDING):
                        raise SordinoError(
                            f"a party takes {b:g} of {n:,} records a step, which is more often than "
                            f"the {accounted:,} of {population.examples:,} that the plan accounts for"
                        )
        elif population.examples != sum(self.examples):
            raise SordinoError("the plan is for another number of records than the parties have")
        elif self.first_batches or self.batches:
            raise SordinoError("public batches are dealt evenly; they have no sizes of their own")

    @property
    def parties(self) -> int:
        return len(self.examples)

    @cached_property
    def assumption(self) -> TrustAssumption:
        return assumption_of(self.engine, self.parties, self.colluders)

    @cached_property
    def variances(self) -> tuple[int, ...]:
        """S of each step, in squared lattice steps."""
        return tuple(variance for (variance,) in self.plan.noise_variances())

    @cached_property
    def bound(self) -> int:
        """Bound on any entry of one record's vector, in lattice steps."""
        assert self.plan.lattice is not None
        bound = float(self.plan.contribution.bounds(self.plan.population.steps).max())
        return math.floor(Fraction(bound) / Fraction(self.plan.lattice.step)) + 1

    @cached_property
    def largest(self) -> int:
        """Bound on any entry of one party's vector: all its records at their bound, in every step."""
        return max(self.examples) * self.bound * growth(self.plan.mechanism)

    @cached_property
    def guarantee(self) -> Guarantee:
        """Of all noised sums together, against everybody whom the engine's assumption covers."""
        stated = self.plan.guarantee
        draws = self.plan.population.steps * self.parameters
        # Not monotone in the variance where noise comes from tables.
        extra = max(engine_distance(S, draws, self.assumption) for S in set(self.variances))
        return replace(
            stated,
            distance=min(1.0, (stated.distance + extra) * (1 + 1e-12)),
            is_zcdp=stated.is_zcdp and not from_tables(self.assumption),
        )

    def verify(self) -> None:
        """Refuse terms whose plan does not give the guarantee that it states."""
        self.plan.verify()
        refuse_others(self.plan, "training between parties")
        self.plan.population.require_declared("training between parties")

    def statement(self) -> str:
        """The guarantee, and on whose behaviour it rests, in sentences."""
        sentences = [self.guarantee.sentence(), assumption_sentence(self.assumption)]
        unit = self.guarantee.unit
        if unit != ROW:
            sentences.append(
                f"It holds for a {unit} who has one record, at one party only: nobody checks that."
            )
        return " ".join(sentences)

    @property
    def recipe(self) -> str:
        """For the ledger."""
        return self.plan.recipe

    def to_json(self) -> Json:
        return {
            "format": FORMAT,
            "version": VERSION,
            "plan": self.plan.to_json(),
            "examples": list(self.examples),
            "batches": list(self.batches),
            "first_batches": list(self.first_batches),
            "parameters": self.parameters,
            "engine": self.engine,
            "colluders": self.colluders,
        }

    @classmethod
    def from_json(cls, data: Json) -> Terms:
        try:
            if (data["format"], data["version"]) != (FORMAT, VERSION):
                raise SordinoError(f"these are not terms of version {VERSION}")
            return cls(
                Plan.from_json(data["plan"]),
                tuple(_whole(n) for n in data["examples"]),
                tuple(_size(b) for b in data["batches"]),
                tuple(_size(b) for b in data["first_batches"]),
                _whole(data["parameters"]),
                data["engine"],
                _whole(data["colluders"]),
            )
        except SordinoError:
            raise
        except DAMAGE:
            raise SordinoError(f"these are not terms: {shown(data)}") from None

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON."""
        return digest_of(self.to_json())


_ROUNDING = Fraction(1, 1 << 50)
# Arguments of `plan` that are not a recipe's options.
_ABOUT_PLAN = ("noise_multiplier", "lattice_steps", "adjacency", "unit")


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SordinoError(f"a whole number is needed, not {shown(value)}")
    return value


def _size(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SordinoError(f"a batch size is a number, not {shown(value)}")
    return value


def agree(
    recipe: str,
    *,
    examples: Sequence[int],
    parameters: int,
    batch_size: int | None = None,
    batches: Sequence[float] | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    engine: str = "mask",
    colluders: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    one_row_per_person: bool = False,
    **options: Any,
) -> Terms:
    """Decide a run between data owners; see `sordino.plan` for what is not listed.

    Args:
      examples: how many records each party brings.
      parameters: numbers in the model.
      batch_size: records of all parties together in a step; recipes on all records need none.
      batches: instead, each party's own; the accounted rate is the largest of them.
      epochs: times that the records are gone through, of all parties together.
      engine, colluders: how sums are made secret, and how many parties may work together against the
        others; the engine's default unless given.
      one_row_per_person: your statement that every user (or client) has one record, at one party only;
        units "user" and "client" are refused without it.
    """
    spec = recipe_named(recipe)
    about = {name: options.pop(name) for name in _ABOUT_PLAN if name in options}
    require_one_row(about.get("unit", ROW), stated=one_row_per_person)
    sizes = tuple(require_count("examples", n) for n in examples)
    assumption = assumption_of(engine, len(sizes), colluders)
    whole = sum(sizes)
    sampling = spec.resolve(options)["sampling"]
    _refuse_cyclic(sampling)
    secret = sampling in (POISSON, WITHOUT_REPLACEMENT)
    if sampling == RESHUFFLED:
        # Each party shuffles with a key of its own: no public order can be counted on.
        options.setdefault("order_seed", None)
    first = options.get("first_batch")
    shares: tuple[float, ...] = ()
    if batches is not None:
        if not secret or batch_size is not None:
            raise SordinoError("batches are for secret batches, and instead of batch_size")
        shares = tuple(_size(b) for b in batches)
        if len(shares) != len(sizes) or not all(math.isfinite(b) and b >= 0 for b in shares):
            raise SordinoError(f"batches must be one number from 0 for each party, got {shares}")
        batch_size = require_count("the sum of batches", math.ceil(sum(shares)))
    accounted = whole
    firsts: tuple[float, ...] = ()
    if secret and batch_size is not None:
        shares = shares or _shared(batch_size, sizes, sampling)
        rates = [Fraction(b) / n / batch_size for b, n in zip(shares, sizes, strict=True)]
        if first is not None:
            firsts = _shared(first, sizes, sampling)
            rates += [Fraction(b) / n / first for b, n in zip(firsts, sizes, strict=True)]
        accounted = max(batch_size, first or 0, math.floor(1 / max(rates) * (1 + _ROUNDING)))
    if assumption.noise == "inside" and engine != "plain":
        # Finer lattices only cost time there: what rounding takes off is below half a percent.
        about.setdefault("lattice_steps", 1 << max(12, math.ceil(math.log2(64 * parameters**0.5))))
    if epochs is not None and steps is None and batch_size is not None:
        steps, epochs = max(1, math.ceil(epochs * -(-whole // batch_size) - 1e-9)), None

    def make(at: float | None) -> Terms:
        result = plan(
            recipe,
            examples=accounted,
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            epsilon=epsilon,
            delta=at,
            noise=DISCRETE,
            **about,
            **options,
        )
        return Terms(result, sizes, shares, firsts, parameters, engine, assumption.colluders)

    terms = make(delta)
    if epsilon is None or delta is None or terms.guarantee.epsilon(delta) <= epsilon:
        return terms
    # What the engine's noise differs by is paid out of delta.
    extra = (1 + math.exp(epsilon)) * (terms.guarantee.distance - terms.plan.guarantee.distance)
    terms = make(delta - max(2 * extra, 1e-9 * delta))
    if terms.guarantee.epsilon(delta) > epsilon * (1 + 1e-9):
        raise SordinoError(
            f"the engine {engine!r} cannot make noise close enough to exact for this delta"
        )
    return terms


def _refuse_cyclic(sampling: str) -> None:
    if sampling not in (POISSON, WITHOUT_REPLACEMENT, FIXED, RESHUFFLED):
        raise SordinoError(
            f"parties do not train with {sampling} batches: nobody could draw the groups of all records; "
            "use 'poisson' or 'fixed'"
        )


def _shared(size: int, examples: Sequence[int], sampling: str) -> tuple[float, ...]:
    """A batch of `size` records divided among parties in proportion to what they have."""
    whole = sum(examples)
    if size > whole:
        raise SordinoError(f"batches of {size:,} are larger than the {whole:,} records there are")
    exact = [Fraction(size * n, whole) for n in examples]
    if sampling == POISSON:
        return tuple(float(b) for b in exact)
    parts = [math.floor(b) for b in exact]
    by_rest = sorted(range(len(exact)), key=lambda j: parts[j] - exact[j])
    for j in by_rest[: size - sum(parts)]:
        parts[j] += 1
    return tuple(parts)


def assumption_sentence(assumption: TrustAssumption) -> str:
    """Whom a noised sum protects against, in words."""
    m, t = assumption.parties, assumption.colluders
    if assumption.engine == "plain":
        return "Sums are added up in the clear: this is a simulation, and protects nobody."
    whom = "any one of the other parties" if t == 1 else f"any {t} of the other parties together"
    if assumption.engine == "spu":
        whom = "any one of the three compute nodes and those of the parties that run none"
    noise = (
        "The noise is made inside the computation, and nobody knows it"
        if assumption.noise == "inside"
        else f"Each party adds a share of the noise, and the shares of {m - t} parties are enough"
    )
    return (
        f"It holds against {whom}, as long as they follow the protocol. {noise} "
        f"(engine {assumption.engine}, {m} parties)."
    )


def shares(terms: Terms) -> list[tuple[str, str]]:
    """Of each party: how many of its records are in a step, and the rate of one of them."""
    population = terms.plan.population
    result = []
    for place, n in enumerate(terms.examples):
        if terms.batches:
            b = terms.batches[place]
            batch = f"{b:,.4g}" if b < 1000 else f"{b:,.0f}"
            result.append((batch, f"1 in {n / b:.4g}" if b else "never"))
        elif population.steps_per_epoch == 1:
            result.append((f"{n:,}", "every step"))
        else:
            result.append((f"{n / population.steps_per_epoch:,.4g}", "once an epoch"))
    return result


def collusion(terms: Terms) -> str:
    """How many may put together what they see, of how many."""
    assumption = terms.assumption
    if assumption.compute_nodes != assumption.parties or assumption.engine == "spu":
        return f"{assumption.node_colluders:,} of {assumption.compute_nodes:,} nodes"
    return f"{assumption.colluders:,} of {assumption.parties:,}"
