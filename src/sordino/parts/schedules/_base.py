"""Schedules: how the budget is spread over the steps.

A schedule gives the *relative* noise of each step, fixed before the run from public information. The
plan scales it to the budget; the sensitivity formula takes ``1 / relative noise`` as column weights.
Relative noise is normalised to ``sum_t 1/relative_t^2 = T``: with every record in every step, a plan's
`noise` then is the uniform noise that costs as much.

**Public data by type**: the only thing from which a schedule may be learned.

A schedule computed from private records would have to be paid for (papers/04, section 1.6 and
erratum j), and retraining on them is never affordable. So whatever estimates influence takes a
`PublicData` and nothing else; wrapping is the caller's statement that these records are public.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import ClassVar, TypeVar, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.codec import pack, unpack
from sordino._base.errors import (
    SordinoError,
    nearest,
    shown,
)
from sordino._base.registry import Registry
from sordino._base.types import Json

# Numbers in a plan unpack to no more than this, whatever they claim: one for each of many steps.
_LARGEST_PACKED = 128 << 20


class NoiseSchedule(ABC):
    """One way to spread the budget. Subclasses are frozen, hashable dataclasses of plain values."""

    kind: ClassVar[str]

    @abstractmethod
    def relative_noise(self, steps: int) -> NDArray[np.float64] | None:
        """Noise standard deviation of each step relative to the plan's, or None for all ones."""

    @abstractmethod
    def describe(self) -> str:
        """A short phrase for a plan's page."""

    def to_json(self) -> Json:
        """Plain data that `schedule_from_json` reads back bit for bit."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {
            "kind": self.kind,
            **{
                name: _packed(value) if isinstance(value, tuple) else value
                for name, value in values.items()
            },
        }


def _admit(kind: str, cls: object) -> type[NoiseSchedule]:
    if not (isinstance(cls, type) and issubclass(cls, NoiseSchedule) and is_dataclass(cls)):
        raise SordinoError(f"a schedule is a dataclass of NoiseSchedule, got {shown(cls)}")
    if getattr(cls, "kind", None) != kind:
        raise SordinoError(f"a schedule goes by its kind, {shown(getattr(cls, 'kind', None))}")
    return cls


# By kind, for plans that are read back and for `schedule_named`.
SCHEDULES: Registry[type[NoiseSchedule]] = Registry(
    "schedule", group="sordino.schedules", admit=_admit
)
_S = TypeVar("_S", bound=type[NoiseSchedule])


def register(cls: _S) -> _S:
    """Make a schedule known by its `kind`."""
    SCHEDULES.add(cls.kind, cls)
    return cls


@register
@dataclass(frozen=True)
class Uniform(NoiseSchedule):
    """The same noise in every step."""

    kind: ClassVar[str] = "uniform"

    def relative_noise(self, steps: int) -> None:
        return None

    def describe(self) -> str:
        return "the same noise level in every step"


def schedule_from_json(data: Json) -> NoiseSchedule:
    """The schedule that `to_json` described."""
    if not isinstance(data, dict):
        raise SordinoError(f"a schedule must be a table of fields, got {shown(data)}")
    values = dict(data)
    kind = values.pop("kind", "")
    unpacked = {
        name: _unpacked(value) if isinstance(value, dict) else value
        for name, value in values.items()
    }
    return make(kind, unpacked)


def schedule_fields(kind: str) -> Json:
    """What a schedule of this kind is made of, with types."""
    cls = SCHEDULES[kind]
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}  # type: ignore[arg-type]


def make(kind: str, parameters: Json) -> NoiseSchedule:
    """The schedule of this kind with these parameters, or an error that names the right ones."""
    cls = SCHEDULES[kind]
    known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for name in parameters:
        if name not in known:
            hint = nearest(name, known) if known else ", nor any other"
            raise SordinoError(f"schedule {kind!r} has no parameter {shown(name)}{hint}")
    needed = [f.name for f in fields(cls) if f.default is MISSING]  # type: ignore[arg-type]
    missing = [name for name in needed if name not in parameters]
    if missing:
        raise SordinoError(f"schedule {kind!r} needs {' and '.join(missing)}")
    try:
        return cls(**parameters)
    except TypeError:
        raise SordinoError(
            f"schedule {kind!r} takes {', '.join(known)}, got {shown(parameters)}"
        ) from None


def normalized(noise: ArrayLike) -> NDArray[np.float64]:
    """`noise` times the factor that makes ``sum 1/noise^2`` the number of steps; read-only.

    Only operations that every processor rounds alike, so that a plan reads back as it was.
    """
    values = np.asarray(noise, np.float64)
    # The largest first of all to 1, lest squares overflow.
    values = values / values.max()
    mean = math.fsum((1 / (values * values)).tolist()) / values.size
    relative = values * math.sqrt(mean)
    relative.flags.writeable = False
    return relative


def numbers(name: str, values: ArrayLike) -> tuple[float, ...]:
    """`values` as a non-empty tuple of finite floats: what frozen schedules hold."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise SordinoError(f"{name} must be a list of finite numbers")
    return tuple(array.tolist())


def plain(schedule: NoiseSchedule) -> None:
    """Turn numpy scalars among a frozen schedule's fields into Python numbers, for JSON."""
    for field in fields(schedule):  # type: ignore[arg-type]
        value = getattr(schedule, field.name)
        if isinstance(value, np.generic):
            object.__setattr__(schedule, field.name, value.item())


def _packed(values: tuple[float, ...]) -> Json:
    return {"count": len(values), "float64": pack(np.asarray(values, np.float64))}


def _unpacked(data: Json) -> tuple[float, ...]:
    what = "packed numbers in this schedule"
    return tuple(unpack(data, "float64", "count", largest=_LARGEST_PACKED, what=what).tolist())


@dataclass(frozen=True, eq=False, init=False)
class PublicData:
    """Arrays of public (or synthetic) records, one row each: ``PublicData(features, labels)``."""

    arrays: tuple[NDArray[np.generic], ...]

    def __init__(self, *arrays: ArrayLike) -> None:
        views = []
        for array in arrays:
            if isinstance(array, PublicData):
                raise TypeError("PublicData takes arrays, not another PublicData")
            view = np.asarray(array).view()
            if view.ndim == 0 or view.dtype == object:
                raise TypeError("PublicData takes numeric arrays with one row per record")
            view.flags.writeable = False
            views.append(view)
        if not views or any(len(view) != len(views[0]) for view in views):
            raise TypeError("PublicData takes at least one array, all with the same number of rows")
        object.__setattr__(self, "arrays", tuple(views))

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __repr__(self) -> str:
        shapes = ", ".join(str(array.shape) for array in self.arrays)
        return f"PublicData({shapes})"


def require_public(data: object, use: str = "influence estimation") -> PublicData:
    """`data` if it is `PublicData`, else a TypeError before anything is computed from it."""
    if not isinstance(data, PublicData):
        raise TypeError(
            f"{use} takes public data only, wrapped as PublicData(features, labels), because its "
            f"result is released without noise; got {type(data).__name__}"
        )
    return data
