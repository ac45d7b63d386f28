"""What a plan is: a private run in full, as a page to read, a file to keep and a promise to check."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino._base.codec import digest_of
from sordino._base.errors import (
    DAMAGE,
    SordinoError,
    known_fields,
    one_line,
    require_choice,
    require_fraction,
    require_positive,
    shown,
)
from sordino._base.files import write_atomically
from sordino.parts import Population
from sordino.parts.contributions import Contribution, contribution_from_json
from sordino.parts.mechanisms import (
    Channels,
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
from sordino.planning._accounting import float32_up, guarantee_of
from sordino.planning._kinds import DISCRETE, GAUSSIAN, NOISE_KINDS, without_lattice
from sordino.planning.recipes import recipe_named
from sordino.privacy import Guarantee

FORMAT = "sordino-plan"
FORMAT_VERSION = 2
# What decides whether a plan gives what it states: every field but the post-processing.
_DECISIVE = (
    "recipe",
    "population",
    "contribution",
    "noise",
    "mechanism",
    "schedule",
    "guarantee",
    "epsilon",
    "delta",
    "lattice",
)
_STATED = tuple(name for name in _DECISIVE if name != "lattice")  # as `to_json` names them
# Digests of what was found to be true in this process, so that it is computed once.
_VERIFIED: set[str] = set()


@dataclass(frozen=True, eq=False)
class Plan:
    """A private run, decided but not yet run.

    Attributes:
      contribution: what one example adds to the sum of each step, and the norm bounds ``c_t`` of it.
      noise: standard deviation of each fresh Gaussian draw in units of the bound; the noise on the
        sum of step t is row t of ``diag(noise * c_t * relative_t) C^-1 Z``.
      schedule: the relative noise of each step.
      workload: the linear map of the released sums that the noise is shaped for.
      lattice: where noise is discrete, what sums and noise are whole multiples of.
    """

    recipe: str
    population: Population
    contribution: Contribution
    noise: float
    mechanism: Mechanism
    schedule: NoiseSchedule
    update: UpdateSettings
    workload: LinearMap
    guarantee: Guarantee
    epsilon: float | None = None
    delta: float | None = None
    lattice: Lattice | None = None

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
        return float32_up(self.noise * self.clip)

    def noise_stds(self) -> NDArray[np.float32]:
        """Standard deviation of the fresh draws of each step and channel (steps, channels)."""
        exact = self.noise * self._relative_bounds() * self.clip
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
        return self._error(Workload.identity())

    def error_per_step(self) -> NDArray[np.float64]:
        """Predicted noise in the iterates at learning rate 1, per coordinate (steps,).

        The iterates add up what the optimizer makes of the noisy sums: noise that later noise
        cancels counts once, noise that a recursion carries along counts every time.
        """
        return self._error(self.iterate_map)

    @cached_property
    def iterate_map(self) -> LinearMap:
        """The linear map from the released sums to the iterates at learning rate 1."""
        return self.update.iterate_map(self.contribution)

    def _error(self, iterate_map: LinearMap) -> NDArray[np.float64]:
        scale = self.noise * self.clip / self.divisor
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

        Comparable between recipes with other streams, batch sizes, steps or momentum: the quantity
        that `compare` ranks by.
        """
        signal = self.contribution.signal(self.population.steps)
        iterate_map = (
            self.iterate_map.maps[0] if isinstance(self.iterate_map, Channels) else self.iterate_map
        )
        displacement = float(iterate_map.apply(signal[:, None])[-1, 0]) * self.clip
        return self.predicted_error / displacement

    @property
    def gradient_evaluations(self) -> int:
        """Expected number of per-example gradients in the whole run."""
        return self.population.gradient_evaluations * self.contribution.gradients

    def with_update(self, **changes: Any) -> Plan:
        """The same noise and guarantee with other update settings (learning rate, averaging, ...).

        An update is post-processing, so nothing about privacy is decided anew.
        """
        built = replace(self, update=replace(self.update, **changes))
        if "_verified" in self.__dict__:
            built.__dict__["_verified"] = self.__dict__["_verified"]
        return built

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
        decisive = tuple(getattr(self, name) for name in _DECISIVE)
        known = self.__dict__.get("_verified")
        if known is not None and all(a is b for a, b in zip(known, decisive, strict=True)):
            return
        self._check_parts()
        content = self.to_json()
        text = json.dumps({name: content[name] for name in _STATED}, sort_keys=True)
        digest = hashlib.sha256(f"{self.lattice}/{text}".encode()).hexdigest()
        if digest not in _VERIFIED:
            self._check()
            _VERIFIED.add(digest)
        self._remember()

    def _remember(self) -> None:
        """This plan is known to give what it states, as long as its fields are these very objects."""
        self._make_read_only()
        self.__dict__["_verified"] = tuple(getattr(self, name) for name in _DECISIVE)

    def _make_read_only(self) -> None:
        for part in (self.mechanism, self.schedule, self.contribution):
            _make_read_only(part)

    def __getstate__(self) -> dict[str, Any]:
        # What was verified here is verified again elsewhere: a copy may be edited on the way.
        return {name: value for name, value in self.__dict__.items() if name != "_verified"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_read_only()  # copies of arrays can be written to

    def state_bytes(self, parameters: int) -> int:
        """Memory of the noise state for a model of this many parameters."""
        return 4 * parameters * self.contribution.channels * (self.mechanism.state_vectors() + 1)

    def to_json(self) -> dict[str, Any]:
        """Plain, versioned data; floats and arrays read back bit for bit."""
        data = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "recipe": self.recipe,
            "population": self.population.to_json(),
            "contribution": self.contribution.to_json(),
            "noise": self.noise,
            "mechanism": self.mechanism.to_json(),
            "schedule": self.schedule.to_json(),
            "update": asdict(self.update),
            "workload": self.workload.to_json(),
            "guarantee": self.guarantee.to_json(),
            "epsilon": self.epsilon,
            "delta": self.delta,
        }
        # Absent means gaussian: plans of that kind keep the identity they always had.
        if self.lattice is None:
            return data
        return {**data, "noise_kind": DISCRETE, "lattice": self.lattice.exponent}

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """The plan that `to_json` described, its guarantee computed anew and compared."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise SordinoError(f"this is not a plan: the field 'format' must be {FORMAT!r}")
        if data.get("version") != FORMAT_VERSION:
            raise SordinoError(
                f"this plan has format version {shown(data.get('version'))}; version {FORMAT_VERSION} "
                "is known here"
            )
        spec = _field(data, "recipe", recipe_named)
        plan = cls(
            recipe=spec.name,
            population=_field(
                data,
                "population",
                lambda value: Population(**known_fields("a population", value, Population)),
            ),
            contribution=_field(data, "contribution", contribution_from_json),
            noise=_field(data, "noise", partial(require_positive, "noise"))
            if spec.private
            else 0.0,
            mechanism=_field(data, "mechanism", mechanism_from_json),
            schedule=_field(data, "schedule", schedule_from_json),
            update=_field(
                data,
                "update",
                lambda value: UpdateSettings(**known_fields("an update", value, UpdateSettings)),
            ),
            workload=_field(data, "workload", linear_map_from_json),
            guarantee=_field(data, "guarantee", Guarantee.from_json),
            epsilon=_field(data, "epsilon", _optional(partial(require_positive, "epsilon"))),
            delta=_field(data, "delta", _optional(partial(require_fraction, "delta"))),
            lattice=_lattice_from_json(data),
        )
        plan._check()
        plan._remember()
        return plan

    def _check_parts(self) -> None:
        """Refuse parts of other classes than their descriptions name: what they do would be their own."""
        for part, known in (
            (self.contribution, contribution_from_json),
            (self.mechanism, mechanism_from_json),
            (self.schedule, schedule_from_json),
        ):
            if type(known(part.to_json())) is not type(part):
                raise SordinoError(
                    f"this plan is damaged: {type(part).__name__} is not what its recipe is made of; "
                    "register a recipe of your own with sordino.register"
                )

    def _check(self) -> None:
        """What `verify` promises, computed."""
        spec = recipe_named(self.recipe)
        if self.mechanism.steps != self.population.steps:
            raise SordinoError("this plan is damaged: its strategy has another number of steps")
        if self.lattice is not None and (
            not is_on_lattice(self.mechanism) or without_lattice(spec, self.contribution)
        ):
            raise SordinoError("this plan is damaged: its noise is on no lattice")
        if isinstance(self.schedule, AdaptiveBudget) != spec.adaptive:
            raise SordinoError("this plan is damaged: its recipe has another kind of schedule")
        if spec.private != (self.noise > 0):
            raise SordinoError(
                f"this plan is damaged: {spec.name} is "
                + (
                    "private and must add noise"
                    if spec.private
                    else "not private and adds no noise"
                )
            )
        try:
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
        return guarantee_of(
            noise=self.noise,
            population=self.population,
            mechanism=self.mechanism,
            schedule=self.schedule,
            contribution=self.contribution,
            adjacency=stated.adjacency,
            unit=stated.unit,
            delta_hint=stated.delta_hint,
            distance=self.distance(),
        )

    def _verify(self) -> bool:
        """Whether the stated guarantee, and the budget it was made for, follow from the noise."""
        stated, computed = self.guarantee, self._computed_guarantee()
        # Another processor's linear algebra may differ in the last bits; the noise has a margin
        # of 1e-6 over what the guarantee needs.
        same_mu = math.isclose(computed.gaussian_mu, stated.gaussian_mu, rel_tol=1e-9)
        if not same_mu or replace(computed, gaussian_mu=stated.gaussian_mu) != stated:
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

    def lines(self) -> list[tuple[str, str]]:
        """The page as (heading, text) pairs; `print(plan)` and the reports show these."""
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
                f"{population.examples:,} examples, batches of {population.batch_size:,}, "
                f"{population.steps:,} steps ({population.epochs:.4g} epochs)",
            ),
            ("batches", population.describe()),
            ("contribution", self.contribution.describe()),
            (
                "noise",
                f"{self.mechanism.describe()}; standard deviation {self.noise:.5g} x the contribution "
                f"bound ({self.schedule.describe()})"
                + ("" if self.lattice is None else f"; {self.lattice.describe()}"),
            ),
            ("noise per step", f"{spread} per coordinate of the mean contribution"),
            (
                "predicted error",
                f"{self.predicted_error:.4g} rms per coordinate of the iterates at learning rate 1, "
                f"noise-to-displacement ratio {self.relative_error:.3g}",
            ),
            ("update", AdaptiveBudget.update if recipe.adaptive else self.update.describe()),
            ("gradient evaluations", f"{self.gradient_evaluations:,}"),
            (
                "noise memory",
                f"{self.mechanism.state_vectors() + 1:,} vectors of the model's size",
            ),
            ("plan", self.hash[:16]),
        ]
        silent = () if recipe.private else ("noise", "noise per step", "predicted error")
        return [pair for pair in pairs if pair[0] not in silent]

    def __str__(self) -> str:
        pairs = self.lines()
        width = max(len(heading) for heading, _ in pairs)
        return "\n".join(f"{heading:>{width}}  {text}" for heading, text in pairs)

    def __repr__(self) -> str:
        return f"<Plan {self.recipe} {self.hash[:12]}: {self.guarantee.sentence()}>"

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Noise per step and predicted error as a matplotlib figure (saved to `path` if given)."""
        from sordino.report import plan_figure

        figure = plan_figure(self)
        if path is not None:
            figure.savefig(path)
        return figure


def _make_read_only(part: Any) -> None:
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


def _field(data: dict[str, Any], name: str, read: Callable[[Any], Any]) -> Any:
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


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _lattice_from_json(data: dict[str, Any]) -> Lattice | None:
    kind = require_choice("noise_kind", data.get("noise_kind", GAUSSIAN), NOISE_KINDS)
    return None if kind == GAUSSIAN else _field(data, "lattice", Lattice)
