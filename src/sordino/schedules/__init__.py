"""How the budget is spread over the steps; see `base` for what a schedule is."""

from sordino.schedules.allocate import (
    allocate,
    check_budget,
    optimal_cost,
    predicted_cost,
    uniform_cost,
    uniform_over_optimal,
)
from sordino.schedules.base import Schedule, Uniform, schedule_from_json
from sordino.schedules.catalogue import schedule_named, subsampled_schedule
from sordino.schedules.correlated import full_participation_bound, row_scaling
from sordino.schedules.fitting import exponential_fit, fit_exponential, fitted_expinfl, smoothed
from sordino.schedules.horizon import (
    Horizon,
    best_dynamic_steps,
    best_steps,
    best_uniform_steps,
)
from sordino.schedules.public import PublicData, require_public
from sordino.schedules.shapes import (
    ExpInfluence,
    Exponential,
    Given,
    GradientDescentPL,
    Influence,
    MomentumBound,
    MomentumQuadratic,
    MomExpInfluence,
    Participation,
    Quadratic,
)
from sordino.schedules.subsampled import allocate_subsampled, search_subsampled

__all__ = [
    "ExpInfluence",
    "Exponential",
    "Given",
    "GradientDescentPL",
    "Horizon",
    "Influence",
    "MomExpInfluence",
    "MomentumBound",
    "MomentumQuadratic",
    "Participation",
    "PublicData",
    "Quadratic",
    "Schedule",
    "Uniform",
    "allocate",
    "allocate_subsampled",
    "best_dynamic_steps",
    "best_steps",
    "best_uniform_steps",
    "check_budget",
    "exponential_fit",
    "fit_exponential",
    "fitted_expinfl",
    "full_participation_bound",
    "optimal_cost",
    "predicted_cost",
    "require_public",
    "row_scaling",
    "schedule_from_json",
    "schedule_named",
    "search_subsampled",
    "smoothed",
    "subsampled_schedule",
    "uniform_cost",
    "uniform_over_optimal",
]
