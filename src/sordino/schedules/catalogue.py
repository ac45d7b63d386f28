"""Schedules by name, and the schedule for Poisson batches."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from sordino.errors import SordinoError
from sordino.schedules.allocate import SAFE_RATIO
from sordino.schedules.base import Schedule, Uniform, make
from sordino.schedules.shapes import Given
from sordino.schedules.subsampled import search_subsampled


def schedule_named(schedule: str | Schedule, steps: int, **parameters: Any) -> Schedule:
    """The schedule of this name with these parameters, checked to suit a run of `steps` steps.

    A ready `Schedule` is checked and returned.

    >>> schedule_named("exponential", 100, ratio=1.8).describe()
    "exponentially falling noise, the first step's 1.8 times the last's"
    """
    if isinstance(schedule, Schedule):
        if parameters:
            raise SordinoError("parameters go with a schedule's name, not with a ready schedule")
        made = schedule
    else:
        made = make(schedule, parameters)
    made.relative_noise(steps)
    return made


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
) -> Schedule:
    """The schedule for Poisson batches with this influence, `Uniform` where nothing is to be won.

    A step function of few levels, so that accounting for them loses nothing.
    """
    found = search_subsampled(
        log_q,
        rate=rate,
        steps=steps,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        method=method,
        ratio_cap=ratio_cap,
    )
    if found.method == "uniform":
        return Uniform()
    change = 100 * (found.relative_cost - 1)
    label = f"noise levels fitted to Poisson batches ({found.method}; noise cost {change:+.0f} %)"
    return Given(tuple(found.sigma.tolist()), label)
