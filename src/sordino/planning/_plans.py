"""What a plan is: a private run in full, as a page to read, a file to keep and a promise to check."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from sordino._base.codec import digest_of
from sordino._base.errors import (
    DAMAGE,
    SordinoError,
    one_line,
    require_fraction,
    require_positive,
    shown,
)
from sordino._base.files import write_atomically
from sordino._base.types import Json
from sordino.parts import Population
from sordino.parts.contributions import Contribution
from sordino.parts.mechanisms import Lattice, LinearMap, Mechanism, Variances, check_noise_stays
from sordino.parts.schedules import AdaptiveBudget, NoiseSchedule
from sordino.parts.updates import UpdateSettings
from sordino.planning._accounting import check_rows
from sordino.planning._bounds import ConvergenceBound, Facts
from sordino.planning._prediction import Curvature, described_prediction
from sordino.planning._query import Query, guarantee_of_all, query_from_json
from sordino.planning._theorems import checked_facts, theorem_for
from sordino.planning._training import Training, plan_field
from sordino.planning.recipes import recipe_named
from sordino.privacy import Guarantee

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = "sordino-plan"
# A plan of the training run alone is written as version 2, as it always was: its hash is its identity.
ALONE, COMPOSED = 2, 3
# Post-processing: what does not decide whether a plan gives what it states.
_FREE = ("update", "workload")
# Digests of what was found to be true in this process, so that it is computed once.
_VERIFIED: set[str] = set()


@dataclass(frozen=True, eq=False)
class Plan:
    """A private run, decided but not yet run: charged queries under one guarantee.

    Attributes:
      queries: what is asked of the data, in this order; exactly one of them is the training run, whose
        fields (`population`, `mechanism`, `noise_multiplier`, ...) are the plan's own as well.
      training: the training run.
      guarantee: of all answers together.
      epsilon, delta: the budget that the plan was made for, if it was made for one.
      facts: public facts about the loss, where the plan has the settings of a theorem: `bound` says
        what it promises.
    """

    recipe: str
    queries: tuple[Query, ...]
    guarantee: Guarantee
    epsilon: float | None = None
    delta: float | None = None
    facts: Facts | None = None
    training: Training = field(init=False)

    def __post_init__(self) -> None:
        runs = [query for query in self.queries if isinstance(query, Training)]
        if len(runs) != 1:
            raise SordinoError(f"a plan has one training run, this one has {len(runs)}")
        object.__setattr__(self, "training", runs[0])

    @property
    def others(self) -> tuple[Query, ...]:
        """The queries beside the training run."""
        return tuple(query for query in self.queries if query is not self.training)

    # What the training run says, as the plan's own.

    @property
    def population(self) -> Population:
        return self.training.population

    @property
    def contribution(self) -> Contribution:
        return self.training.contribution

    @property
    def noise_multiplier(self) -> float:
        return self.training.noise_multiplier

    @property
    def mechanism(self) -> Mechanism:
        return self.training.mechanism

    @property
    def schedule(self) -> NoiseSchedule:
        return self.training.schedule

    @property
    def update(self) -> UpdateSettings:
        return self.training.update

    @property
    def workload(self) -> LinearMap:
        return self.training.workload

    @property
    def lattice(self) -> Lattice | None:
        return self.training.lattice

    @property
    def noise_kind(self) -> str:
        return self.training.noise_kind

    @property
    def clip(self) -> float:
        return self.training.clip

    @property
    def divisor(self) -> int:
        return self.training.divisor

    @property
    def noise_std(self) -> float:
        return self.training.noise_std

    @property
    def iterate_map(self) -> LinearMap:
        return self.training.iterate_map

    @property
    def predicted_error(self) -> float:
        return self.training.predicted_error

    @property
    def relative_error(self) -> float:
        return self.training.relative_error

    def predicted_loss(
        self, spectrum: Curvature = None, radius2: float | None = None
    ) -> float | None:
        return self.training.predicted_loss(spectrum, radius2)

    def best_learning_rate(
        self, spectrum: Curvature = None, radius2: float | None = None
    ) -> float | None:
        return self.training.best_learning_rate(spectrum, radius2)

    def why_unpredicted(self) -> str:
        return self.training.why_unpredicted()

    @property
    def gradient_evaluations(self) -> int:
        return self.training.gradient_evaluations

    def noise_stds(self) -> NDArray[np.float32]:
        return self.training.noise_stds()

    def noise_variances(self) -> Variances:
        return self.training.noise_variances()

    def distance(self) -> float:
        return self.training.distance()

    def noise_per_step(self) -> NDArray[np.float64]:
        return self.training.noise_per_step()

    def error_per_step(self) -> NDArray[np.float64]:
        return self.training.error_per_step()

    def state_bytes(self, parameters: int) -> int:
        return self.training.state_bytes(parameters)

    @property
    def noise(self) -> NoReturn:
        """Gone: it was a number, and is a word in `sordino.plan`."""
        raise AttributeError(
            "a plan has no `noise`: its amount is `noise_multiplier`, its kind is `noise_kind`"
        )

    def with_update(self, **changes: Any) -> Plan:
        """The same noise and guarantee with other update settings (learning rate, averaging, ...).

        An update is post-processing, so nothing about privacy is decided anew.
        """
        built = self.with_training(update=replace(self.update, **changes))
        if self._is_verified():
            built._remember()
        return built

    def settled(self, examples: int, **update: Any) -> Plan:
        """The same plan with an estimate of the number of units in its secret slots, once one is released.

        The estimate divides noisy sums, as post-processing: noise and guarantee stay as they are. `update`
        changes update settings besides, as in `with_update`.
        """
        population = self.population.settled(examples)
        return self.with_training(population=population, update=replace(self.update, **update))

    def with_training(self, **changes: Any) -> Plan:
        """The same plan with other fields of its training run; what it states stays as it was.

        `verify` (and so whoever runs or charges the plan) refuses it if that is no longer true.
        """
        run = replace(self.training, **changes)
        return replace(
            self, queries=tuple(run if query is self.training else query for query in self.queries)
        )

    def restated(self) -> Plan:
        """The same run with the guarantee that its fields give: for a plan that was edited.

        It is made for no budget: `epsilon` is None.
        """
        built = replace(self, guarantee=self._computed_guarantee(), epsilon=None)
        built.verify()
        return built

    def verify(self) -> None:
        """Refuse a plan that does not give the guarantee that it states.

        Whoever runs a plan or pays for one calls this before the first record is read. A plan that
        `sordino.plan` made, or that was verified before, costs microseconds.
        """
        if self._is_verified():
            return
        if not any(query is self.training for query in self.queries):
            raise SordinoError("this plan is damaged: its training run is none of its queries")
        self.training.check_parts()
        for query in self.others:
            if type(query_from_json(query.to_json())) is not type(query):
                raise SordinoError(
                    f"this plan is damaged: {type(query).__name__} is not what reads its description"
                )
        digest = self._decisive_digest()
        if digest not in _VERIFIED:
            self._check()
            _VERIFIED.add(digest)
        self._remember()

    def bound(self) -> ConvergenceBound | None:
        """What the theorem about the recipe says of this plan; None without facts about the loss.

        Raises `SordinoError` where the plan was changed so that the theorem does not hold.
        """
        return self._bound

    @cached_property
    def _bound(self) -> ConvergenceBound | None:
        if self.facts is None:
            return None
        return theorem_for(self.recipe, self.facts).bound(self.facts, self.training)

    def _is_verified(self) -> bool:
        """Whether its fields are the very objects that were found to give what it states."""
        decisive, known = self._decisive(), self.__dict__.get("_verified", ())
        return len(known) == len(decisive) and all(map(operator.is_, known, decisive))

    def _decisive(self) -> tuple[object, ...]:
        """The objects that decide whether the plan gives what it states."""
        parts = (part for query in self.queries for part in query.decisive())
        return (self.recipe, self.guarantee, self.epsilon, self.delta, self.training, *parts)

    def _decisive_digest(self) -> str:
        """Of what is written about them."""
        stated = [self.recipe, self.guarantee.to_json(), self.epsilon, self.delta]
        for query in self.queries:
            free = _FREE if isinstance(query, Training) else ()
            written = query.to_json().items()
            stated.append({name: value for name, value in written if name not in free})
        return digest_of(stated)

    def _remember(self) -> None:
        """This plan is known to give what it states, as long as its fields are these very objects."""
        self._make_read_only()
        self.__dict__["_verified"] = self._decisive()

    def _make_read_only(self) -> None:
        for part in (self.mechanism, self.schedule, self.contribution):
            _make_read_only(part)

    def __getstate__(self) -> dict[str, object]:
        # What was verified here is verified again elsewhere: a copy may be edited on the way.
        return {name: value for name, value in self.__dict__.items() if name != "_verified"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._make_read_only()  # copies of arrays can be written to

    def to_json(self) -> Json:
        """Plain, versioned data; floats and arrays read back bit for bit."""
        stated: Json = {
            "guarantee": self.guarantee.to_json(),
            "epsilon": self.epsilon,
            "delta": self.delta,
        }
        if self.facts is not None:  # plans without keep the identity they always had
            stated["facts"] = dict(self.facts)
        if not self.others:
            return {
                "format": FORMAT,
                "version": ALONE,
                "recipe": self.recipe,
                **self.training.fields_json(),
                **stated,
            }
        return {
            "format": FORMAT,
            "version": COMPOSED,
            "recipe": self.recipe,
            "queries": [query.to_json() for query in self.queries],
            **stated,
        }

    @classmethod
    def from_json(cls, data: object) -> Plan:
        """The plan that `to_json` described, its guarantee computed anew and compared."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise SordinoError(f"this is not a plan: the field 'format' must be {FORMAT!r}")
        version = data.get("version")
        if version not in (ALONE, COMPOSED):
            raise SordinoError(
                f"this plan has format version {shown(version)}; versions {ALONE} and {COMPOSED} are "
                "known here"
            )
        spec = plan_field(data, "recipe", recipe_named)
        if version == ALONE:
            queries: tuple[Query, ...] = (Training.from_json(data),)
        else:
            queries = plan_field(data, "queries", _queries_from_json)
        plan = cls(
            recipe=spec.name,
            queries=queries,
            guarantee=plan_field(data, "guarantee", Guarantee.from_json),
            epsilon=plan_field(data, "epsilon", _optional(partial(require_positive, "epsilon"))),
            delta=plan_field(data, "delta", _optional(partial(require_fraction, "delta"))),
            facts=plan_field(data, "facts", partial(checked_facts, spec.name))
            if "facts" in data
            else None,
        )
        plan._check()
        plan._remember()
        return plan

    def _check(self) -> None:
        """What `verify` promises, computed."""
        self.training.check(recipe_named(self.recipe))
        check_rows(self.population, self.guarantee.unit, self.noise_kind)
        try:
            check_noise_stays(self.mechanism)
            holds = self._verify()
        except SordinoError:
            raise
        except DAMAGE:
            raise SordinoError(
                "this plan is damaged: its fields do not fit together, so that no guarantee can be "
                "computed from them; make the plan again"
            ) from None
        if not holds:
            raise SordinoError(
                "this plan states a guarantee that its noise does not give; it was changed by hand "
                "or written by another version: make the plan again"
            )

    def _computed_guarantee(self) -> Guarantee:
        """The guarantee that the fields give, for what the stated one is about."""
        stated = self.guarantee
        return guarantee_of_all(
            self.queries, adjacency=stated.adjacency, unit=stated.unit, delta_hint=stated.delta_hint
        )

    def _verify(self) -> bool:
        """Whether the stated guarantee, and the budget it was made for, follow from the noise."""
        stated, computed = self.guarantee, self._computed_guarantee()
        # Another processor's linear algebra may differ in the last bits; the noise has a margin
        # of 1e-6 over what the guarantee needs.
        if len(computed.sides) != len(stated.sides):
            return False
        pairs = list(zip((computed.own, *computed.sides), (stated.own, *stated.sides), strict=True))
        if not all(math.isclose(a.gaussian_mu, b.gaussian_mu, rel_tol=1e-9) for a, b in pairs):
            return False
        sides = tuple(replace(a, gaussian_mu=b.gaussian_mu) for a, b in pairs[1:])
        if replace(computed, gaussian_mu=stated.gaussian_mu, sides=sides) != stated:
            return False
        if self.epsilon is None:
            return True
        return self.delta is not None and stated.epsilon(self.delta) <= self.epsilon * (1 + 1e-9)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, atomically."""
        write_atomically(Path(path), json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read what `save` wrote."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SordinoError(f"there is no plan at {str(path)!r}") from None
        except OSError as error:
            raise SordinoError(f"cannot read {str(path)!r}: {one_line(error.strerror)}") from None
        except RecursionError:
            raise SordinoError(f"{str(path)!r} is not a plan: it is nested too deeply") from None
        except ValueError as error:  # not UTF-8, not JSON, or a number of too many digits
            raise SordinoError(f"{str(path)!r} is not a plan: {one_line(error)}") from None
        try:
            return cls.from_json(data)
        except SordinoError as error:
            raise type(error)(f"in {str(path)!r}: {error}") from None

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON: the plan's identity."""
        return digest_of(self.to_json())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    def lines(self, spectrum: Curvature = None) -> list[tuple[str, str]]:
        """The page as (heading, text) pairs; `print(plan)` and the reports show these.

        `spectrum` is what the loss is predicted for (see `predicted_loss`).
        """
        population = self.population
        noise = self.noise_per_step()
        flat = math.isclose(noise.min(), noise.max(), rel_tol=1e-3)
        spread = f"{noise[0]:.4g}" if flat else f"{noise.min():.4g} to {noise.max():.4g}"
        recipe = recipe_named(self.recipe)
        pairs = [
            ("recipe", f"{self.recipe}: {recipe.title}"),
            ("guarantee", self.guarantee.sentence()),
            (
                "population",
                f"{population.sizes(self.guarantee.unit)}, {population.steps:,} steps "
                f"({population.epochs:.4g} epochs)",
            ),
            ("batches", population.describe()),
            ("asked besides", "; ".join(query.describe() for query in self.others)),
            ("contribution", self.contribution.describe().replace("example", self.guarantee.unit)),
            (
                "noise",
                f"{self.mechanism.describe()}; standard deviation {self.noise_multiplier:.5g} x the "
                f"contribution bound ({self.schedule.describe()})"
                + ("" if self.lattice is None else f"; {self.lattice.describe()}"),
            ),
            ("noise per step", f"{spread} per coordinate of the mean contribution"),
            (
                "predicted error",
                f"{self.predicted_error:.4g} rms per coordinate of the iterates at learning rate 1, "
                f"noise-to-displacement ratio {self.relative_error:.3g}",
            ),
            ("predicted loss", described_prediction(self.training, spectrum)),
            ("update", AdaptiveBudget.update if recipe.adaptive else self.update.describe()),
            *self._theory_lines(),
            ("gradient evaluations", f"{self.gradient_evaluations:,}"),
            (
                "memory",
                f"{self.training.noise_vectors:,} for noise and {self.training.state_vectors:,} for "
                "earlier iterates and the update, in vectors of the model's size",
            ),
            ("plan", self.hash[:16]),
        ]
        silent = (
            ()
            if recipe.private
            else ("noise", "noise per step", "predicted error", "predicted loss")
        )
        if population.is_open:  # what noisy sums are divided by is not known yet
            silent = ("noise per step", "predicted error", "predicted loss", "gradient evaluations")
        return [(heading, text) for heading, text in pairs if text and heading not in silent]

    def _theory_lines(self) -> list[tuple[str, str]]:
        """The theorem's bound, what it assumes, and what it is worth in practice."""
        try:
            bound = self.bound()
        except SordinoError as error:
            return [("theory", f"no bound: {error}")]
        if bound is None:
            return []
        spec, rate = recipe_named(self.recipe), self.update.learning_rate
        usual = spec.learning_rate(spec.defaults()["learning_rate"], self.population.steps)
        settings = (
            f"learning rate {rate:.3g} where the recipe's own is {usual:.3g}: settings for a proof, "
            "far from the best in practice (docs/theory.md)"
        )
        return [
            ("theory", bound.sentence()),
            ("it assumes", bound.assumes),
            ("it prescribes", settings),
        ]

    def __str__(self) -> str:
        pairs = self.lines()
        width = max(len(heading) for heading, _ in pairs)
        return "\n".join(f"{heading:>{width}}  {text}" for heading, text in pairs)

    def __repr__(self) -> str:
        return f"<Plan {self.recipe} {self.hash[:12]}: {self.guarantee.sentence()}>"

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Noise per step and predicted error as a matplotlib figure (saved to `path` if given)."""
        from sordino.report import plan_figure

        figure = plan_figure(self)
        if path is not None:
            figure.savefig(path)
        return figure


def _make_read_only(part: object) -> None:
    """No array inside a part of a plan can be edited in place."""
    if isinstance(part, np.ndarray):
        part.flags.writeable = False
    elif isinstance(part, tuple | list):
        for one in part:
            if isinstance(one, float | int | str):
                return  # numbers of a schedule: long, and no arrays among them
            _make_read_only(one)
    elif is_dataclass(part):
        for value in vars(part).values():
            _make_read_only(value)


def _optional(read: Callable[[float], float]) -> Callable[[float | None], float | None]:
    return lambda value: None if value is None else read(value)


def _queries_from_json(found: object) -> tuple[Query, ...]:
    if not isinstance(found, list) or len(found) < 2:
        raise SordinoError("a composed plan has a list of two queries or more")
    return tuple(query_from_json(one) for one in found)
