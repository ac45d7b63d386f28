"""Schedules by name, and the schedule for Poisson batches."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from sordino._base.errors import SordinoError
from sordino.parts.schedules._allocate import SAFE_RATIO
from sordino.parts.schedules._base import SCHEDULES as SCHEDULES
from sordino.parts.schedules._base import NoiseSchedule, Uniform, make
from sordino.parts.schedules._base import schedule_fields as schedule_fields
from sordino.parts.schedules._shapes import FixedSchedule, Influence, read_influence
from sordino.parts.schedules._subsampled import search_subsampled


def schedule_named(schedule: str | NoiseSchedule, steps: int, **parameters: Any) -> NoiseSchedule:
    """The schedule of this name with these parameters, checked to suit a run of `steps` steps.

    A ready `NoiseSchedule` is checked and returned. An influence may also be named by the `file` that
    ``sordino influence`` wrote; other parameters come before what is in it.

    >>> schedule_named("exponential", 100, ratio=1.8).describe()
    "exponentially falling noise, the first step's 1.8 times the last's"
    """
    if isinstance(schedule, NoiseSchedule):
        if parameters:
            raise SordinoError("parameters go with a schedule's name, not with a ready schedule")
        built = schedule
    else:
        if schedule == Influence.kind and "file" in parameters:
            parameters = read_influence(parameters.pop("file")) | parameters
        built = make(schedule, parameters)
    built.relative_noise(steps)
    return built


def subsampled_schedule(
    log_q: ArrayLike,
    *,
    rate: float,
    steps: int,
    epsilon: float,
    delta: float,
    adjacency: str = "add-remove",
    method: str = "auto",
    ratio_cap: float | None = SAFE_RATIO,
) -> NoiseSchedule:
    """The schedule for Poisson batches with this influence, `Uniform` where nothing is to be won.

    A step function of few levels, so that accounting for them loses nothing.
    """
    result = search_subsampled(
        log_q,
        rate=rate,
        steps=steps,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        method=method,
        ratio_cap=ratio_cap,
    )
    if result.method == "uniform":
        return Uniform()
    change = 100 * (result.relative_cost - 1)
    label = f"noise levels fitted to Poisson batches ({result.method}; noise cost {change:+.0f} %)"
    return FixedSchedule(tuple(result.sigma.tolist()), label)
