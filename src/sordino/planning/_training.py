"""The training run of a plan: every number that decides its noise, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import (
    DAMAGE,
    SordinoError,
    known_fields,
    one_line,
    require_choice,
    require_positive,
    shown,
)
from sordino._base.types import Json
from sordino.parts import Population
from sordino.parts.contributions import (
    ClipSequence,
    Contribution,
    Lagged,
    contribution_from_json,
    given_steps,
)
from sordino.parts.mechanisms import (
    Channels,
    Independent,
    Lattice,
    LinearMap,
    Mechanism,
    Variances,
    Workload,
    is_on_lattice,
    linear_map_from_json,
    mechanism_from_json,
)
from sordino.parts.schedules import AdaptiveBudget, NoiseSchedule, schedule_from_json
from sordino.parts.updates import UpdateSettings
from sordino.planning._accounting import float32_up, guarantee_of, rows_of
from sordino.planning._options import DISCRETE, GAUSSIAN, NOISE_KINDS
from sordino.planning._prediction import (
    Curvature,
    best_rate,
    predicted_losses,
    spectrum_of,
    why_not,
)
from sordino.planning._query import QUERIES
from sordino.planning.recipes import Recipe
from sordino.privacy import LARGEST_FACTOR, Guarantee

T = TypeVar("T")


def without_lattice(spec: Recipe, contribution: Contribution) -> str:
    """Why a recipe's noise cannot be on a lattice; nothing if it can."""
    if not spec.private:
        return "adds no noise"
    if isinstance(contribution, Lagged):
        return "splits its noise between streams by real factors"
    if spec.adaptive:
        return "decides during the run how much noise a query gets"
    return ""


@dataclass(frozen=True, eq=False)
class Training:
    """One training run, decided but not yet run.

    Attributes:
      contribution: what one example adds to the sum of each step, and the norm bounds ``c_t`` of it.
      noise_multiplier: standard deviation of each fresh Gaussian draw in units of the bound; the noise
        on the sum of step t is row t of ``diag(noise_multiplier * c_t * relative_t) C^-1 Z``.
      schedule: the relative noise of each step.
      workload: the linear map of the released sums that the noise is shaped for.
      lattice: where noise is discrete, what sums and noise are whole multiples of.
    """

    population: Population
    contribution: Contribution
    noise_multiplier: float
    mechanism: Mechanism
    schedule: NoiseSchedule
    update: UpdateSettings
    workload: LinearMap
    lattice: Lattice | None = None

    kind: ClassVar[str] = "training"

    @property
    def name(self) -> str:
        return self.kind

    def guarantee(self, *, adjacency: str, unit: str, delta_hint: float | None) -> Guarantee:
        """What the run's releases guarantee, computed from its numbers."""
        return guarantee_of(
            noise=self.noise_multiplier,
            population=self.population,
            mechanism=self.mechanism,
            schedule=self.schedule,
            contribution=self.contribution,
            adjacency=adjacency,
            unit=unit,
            delta_hint=delta_hint,
            distance=self.distance(),
        )

    def decisive(self) -> tuple[object, ...]:
        """Every field but the post-processing (update and workload)."""
        return (
            self.population,
            self.contribution,
            self.noise_multiplier,
            self.mechanism,
            self.schedule,
            self.lattice,
        )

    def describe(self) -> str:
        return f"{self.population.steps:,} steps of training"

    @property
    def noise_kind(self) -> str:
        """`GAUSSIAN` or `DISCRETE`."""
        return GAUSSIAN if self.lattice is None else DISCRETE

    @property
    def clip(self) -> float:
        """Largest norm of one example's clipped gradient."""
        return self.contribution.clip

    @property
    def divisor(self) -> int:
        """The public constant by which noisy sums are divided (after a first batch of another size)."""
        return self.population.batch_size

    @property
    def noise_std(self) -> float:
        """Standard deviation of a fresh draw on a sum of contributions of norm at most `clip`."""
        return float32_up(self.noise_multiplier * self.clip)

    def noise_stds(self) -> NDArray[np.float32]:
        """Standard deviation of the fresh draws of each step and channel (steps, channels)."""
        exact = self.noise_multiplier * self._relative_bounds() * self.clip
        rounded = exact.astype(np.float32)
        up = np.nextafter(rounded, np.float32(math.inf))
        return np.where(rounded.astype(np.float64) < exact, up, rounded)

    def noise_variances(self) -> Variances:
        """Of discrete noise: the parameter S of each step's draws, in squared lattice steps."""
        if self.lattice is None:
            raise SordinoError("this plan's noise is on no lattice; plan with noise='discrete'")
        return self.lattice.variances(self.mechanism, self.noise_stds())

    def distance(self) -> float:
        """Total variation between the run's noise and rounded Gaussian noise."""
        if self.lattice is None:
            return 0.0
        return self.lattice.distance(self.mechanism, self.noise_stds())

    def _relative_bounds(self) -> NDArray[np.float64]:
        """Noise of each step and channel relative to ``noise * clip`` (steps, channels)."""
        steps = self.population.steps
        bounds = self.contribution.bounds(steps).T / self.clip
        relative = self.schedule.relative_noise(steps)
        return bounds if relative is None else bounds * relative[:, None]

    def noise_per_step(self) -> NDArray[np.float64]:
        """Standard deviation, per coordinate, of the noise in each mean contribution (steps,).

        Where a step releases several vectors: of the first one.
        """
        return self.noise_in(Workload.identity())

    def error_per_step(self) -> NDArray[np.float64]:
        """Predicted noise in the iterates at learning rate 1, per coordinate (steps,).

        The iterates add up what the optimizer makes of the noisy sums: noise that later noise
        cancels counts once, noise that a recursion carries along counts every time.
        """
        return self.noise_in(self.iterate_map)

    @cached_property
    def iterate_map(self) -> LinearMap:
        """The linear map from the released sums to the iterates at learning rate 1."""
        return self.update.iterate_map(self.contribution)

    def noise_in(self, iterate_map: LinearMap) -> NDArray[np.float64]:
        """Standard deviation, per coordinate, of the noise in a linear map of the means (steps,)."""
        scale = self.noise_multiplier * self.clip / self.divisor
        weights = self._relative_bounds()
        if np.all(weights == weights.flat[0]):
            return self.mechanism.workload_error(iterate_map) * scale * weights.flat[0]
        if weights.shape[1] == 1:
            weights = weights[:, 0]
        return self.mechanism.workload_error(iterate_map, weights) * scale

    @cached_property
    def predicted_error(self) -> float:
        """Root mean square of `error_per_step`."""
        return float(np.sqrt(np.mean(self.error_per_step() ** 2)))

    @cached_property
    def relative_error(self) -> float:
        """`predicted_error` relative to the displacement by a constant gradient of norm `clip`.

        Comparable between recipes with other streams, batch sizes, steps or momentum, but blind to how
        far a run gets: `predicted_loss` knows that.
        """
        signal = self.contribution.signal(self.population.steps)
        iterate_map = (
            self.iterate_map.maps[0] if isinstance(self.iterate_map, Channels) else self.iterate_map
        )
        displacement = float(iterate_map.apply(signal[:, None])[-1, 0]) * self.clip
        return self.predicted_error / displacement

    def predicted_loss(
        self, spectrum: Curvature = None, radius2: float | None = None
    ) -> float | None:
        """Predicted excess loss of what the run returns, at its learning rate, on a quadratic.

        inf where the run diverges; None where it cannot be predicted (`why_unpredicted` says why).

        Args:
          spectrum: a `Spectrum` (from public data: `sordino.engine.influence.public_spectrum`), or
            eigenvalues of the Hessian; by default what is usual for tables of 100 columns.
          radius2: squared distance from the start to the optimum, spread evenly; by default the
            spectrum's own, and 400 for mere eigenvalues.
        """
        if self.why_unpredicted():
            return None
        rates = np.array([self.update.learning_rate])
        return float(predicted_losses(self, spectrum_of(self, spectrum, radius2), rates)[0])

    def best_learning_rate(
        self, spectrum: Curvature = None, radius2: float | None = None
    ) -> float | None:
        """The learning rate with the least `predicted_loss`; None where that cannot be predicted."""
        if self.why_unpredicted():
            return None
        return best_rate(self, spectrum_of(self, spectrum, radius2))[0]

    def why_unpredicted(self) -> str:
        """Why there is no `predicted_loss`; empty where there is one."""
        return why_not(self)

    @property
    def gradient_evaluations(self) -> int:
        """Expected number of per-example gradients in the whole run."""
        return self.population.gradient_evaluations * self.contribution.gradients

    @property
    def noise_vectors(self) -> int:
        """Vectors of the model's size that the noise takes: its state, and a row of each channel."""
        return self.mechanism.state_vectors() + self.contribution.channels

    @cached_property
    def state_vectors(self) -> int:
        """Vectors of the model's size that a run holds beside the parameters and the noise.

        Earlier iterates that contributions need, sums and averages of the update: counted from what the
        run itself begins with.
        """
        import jax

        size = 64
        start = jax.ShapeDtypeStruct((size,), np.float32)
        held = (
            jax.eval_shape(self.contribution.rule().init, start),
            jax.eval_shape(self.update.build(self.contribution).init, start),
        )
        return sum(math.prod(leaf.shape) // size for leaf in jax.tree.leaves(held))

    def state_bytes(self, parameters: int) -> int:
        """Memory of a run beside its parameters, noise included, for so many of them (float32)."""
        return 4 * parameters * (self.noise_vectors + self.state_vectors)

    def check_parts(self) -> None:
        """Refuse parts of other classes than their descriptions name: what they do would be their own."""
        if _classes(self.population) != [Population] or type(self) is not Training:
            raise SordinoError(
                "this plan is damaged: its run or its population is of another class"
            )
        if self.lattice is not None and type(self.lattice) is not Lattice:
            raise SordinoError("this plan is damaged: its lattice is of another class")
        for part, known in (
            (self.contribution, contribution_from_json),
            (self.mechanism, mechanism_from_json),
            (self.schedule, schedule_from_json),
        ):
            if _classes(known(part.to_json())) != _classes(part):
                raise SordinoError(
                    f"this plan is damaged: {type(part).__name__} is not what its recipe is made of; "
                    "register a recipe of your own with sordino.register"
                )

    def check(self, recipe: Recipe) -> None:
        """Refuse parts that do not fit together, or not with the recipe."""
        largest = float(self.contribution.bounds(self.population.steps).max())
        units = self.population.examples if self.population.is_declared else _MOST_UNITS
        if recipe.private and largest * units * rows_of(self.population) > _LARGEST_SUM:
            raise SordinoError(
                f"contributions of norm {largest:g} may add up beyond float32; divide the loss and the "
                "clip by one number"
            )
        given = given_steps(self.contribution)
        if given not in (None, self.population.steps):
            raise SordinoError(
                f"a sequence with a number for each step has {given:,} of them, and the run has "
                f"{self.population.steps:,} steps"
            )
        if isinstance(self.contribution, ClipSequence) and not isinstance(
            self.mechanism, Independent
        ):
            raise SordinoError(
                "clips of their own go with independent noise: other noise would no longer cancel"
            )
        relative = self.schedule.relative_noise(self.population.steps)
        most = 1.0 if relative is None else float(np.max(relative))
        if self.noise_multiplier * most > LARGEST_FACTOR:
            raise SordinoError(
                f"noise of {self.noise_multiplier * most:g} times the bounds is more than float32 is good "
                f"for; use at most {LARGEST_FACTOR:g}"
            )
        if self.mechanism.steps != self.population.steps:
            raise SordinoError("this plan is damaged: its strategy has another number of steps")
        if self.lattice is not None and (
            not is_on_lattice(self.mechanism) or without_lattice(recipe, self.contribution)
        ):
            raise SordinoError("this plan is damaged: its noise is on no lattice")
        if isinstance(self.schedule, AdaptiveBudget) != recipe.adaptive:
            raise SordinoError("this plan is damaged: its recipe has another kind of schedule")
        if recipe.private != (self.noise_multiplier > 0):
            kind = (
                "private and must add noise" if recipe.private else "not private and adds no noise"
            )
            raise SordinoError(f"this plan is damaged: {recipe.name} is {kind}")

    def fields_json(self) -> Json:
        """The fields as plain data; floats and arrays read back bit for bit."""
        data = {
            "population": self.population.to_json(),
            "contribution": self.contribution.to_json(),
            "noise": self.noise_multiplier,
            "mechanism": self.mechanism.to_json(),
            "schedule": self.schedule.to_json(),
            "update": asdict(self.update),
            "workload": self.workload.to_json(),
        }
        # Absent means gaussian: plans of that kind keep the identity they always had.
        if self.lattice is None:
            return data
        return {**data, "noise_kind": DISCRETE, "lattice": self.lattice.exponent}

    def to_json(self) -> Json:
        return {"kind": self.kind, "name": self.name, **self.fields_json()}

    @classmethod
    def from_json(cls, data: Json) -> Training:
        """The run whose fields `fields_json` described; noise of 0 is for `check` to judge."""
        return cls(
            population=plan_field(
                data,
                "population",
                lambda found: Population(**known_fields("a population", found, Population)),
            ),
            contribution=plan_field(data, "contribution", contribution_from_json),
            noise_multiplier=plan_field(data, "noise", _multiplier),
            mechanism=plan_field(data, "mechanism", mechanism_from_json),
            schedule=plan_field(data, "schedule", schedule_from_json),
            update=plan_field(
                data,
                "update",
                lambda found: UpdateSettings(**known_fields("an update", found, UpdateSettings)),
            ),
            workload=plan_field(data, "workload", linear_map_from_json),
            lattice=_lattice_from_json(data),
        )


# Half of what float32 holds, with room for noise: a sum that overflows before its noise is no sum.
_LARGEST_SUM = 1e37
# Where their number is private, there are no more of them.
_MOST_UNITS = 1e10


def _classes(part: Any) -> list[type]:
    """The classes of a part and of all parts inside it."""
    inside: list[type] = []
    for value in (getattr(part, field.name) for field in fields(part)):
        for one in value if isinstance(value, tuple | list) else (value,):
            if is_dataclass(one):
                inside += _classes(one)
    return [type(part), *inside]


QUERIES.add(Training.kind, Training.from_json)


def _multiplier(found: float) -> float:
    """A noise multiplier: greater than 0, or exactly 0 for what is not private."""
    if found == 0 and not isinstance(found, bool):
        return 0.0
    return require_positive("noise", found)


def plan_field(data: Json, name: str, read: Callable[[Any], T]) -> T:
    """One field of a plan's JSON; whatever its reader trips over, the message names the field."""
    if name not in data:
        raise SordinoError(f"this plan is damaged: the field {name!r} is missing")
    try:
        return read(data[name])
    except SordinoError as error:
        raise SordinoError(
            f"the field {name!r} of this plan is damaged: {one_line(error, 240)}"
        ) from None
    except DAMAGE:
        raise SordinoError(
            f"the field {name!r} of this plan is damaged: it is {shown(data[name])}"
        ) from None


def _lattice_from_json(data: Json) -> Lattice | None:
    kind = require_choice("noise_kind", data.get("noise_kind", GAUSSIAN), NOISE_KINDS)
    return None if kind == GAUSSIAN else plan_field(data, "lattice", Lattice)
