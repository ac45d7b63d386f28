"""How the budget is spread over the steps; see `base` for what a schedule is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = [
    "SCHEDULES",
    "ByParticipation",
    "ExpInfluence",
    "Exponential",
    "FilteredBudget",
    "FixedSchedule",
    "GradientDescentPL",
    "Horizon",
    "Influence",
    "MomExpInfluence",
    "MomentumBound",
    "MomentumQuadratic",
    "NoiseSchedule",
    "Optimal",
    "PublicData",
    "Quadratic",
    "Uniform",
    "allocate",
    "allocate_subsampled",
    "best_dynamic_steps",
    "best_momentum_steps",
    "best_steps",
    "best_uniform_steps",
    "check_allocation",
    "exponential_fit",
    "fit_exponential",
    "fitted_expinfl",
    "fitted_momexpinfl",
    "full_participation_bound",
    "momentum_quadratic",
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

if TYPE_CHECKING:
    from sordino.parts.schedules._adaptive import AdaptiveBudget as AdaptiveBudget
    from sordino.parts.schedules._adaptive import FilteredBudget as FilteredBudget
    from sordino.parts.schedules._adaptive import budget_mu as budget_mu
    from sordino.parts.schedules._allocate import SAFE_RATIO as SAFE_RATIO
    from sordino.parts.schedules._allocate import allocate as allocate
    from sordino.parts.schedules._allocate import check_allocation as check_allocation
    from sordino.parts.schedules._allocate import optimal_cost as optimal_cost
    from sordino.parts.schedules._allocate import predicted_cost as predicted_cost
    from sordino.parts.schedules._allocate import uniform_cost as uniform_cost
    from sordino.parts.schedules._allocate import uniform_over_optimal as uniform_over_optimal
    from sordino.parts.schedules._base import NoiseSchedule as NoiseSchedule
    from sordino.parts.schedules._base import PublicData as PublicData
    from sordino.parts.schedules._base import Uniform as Uniform
    from sordino.parts.schedules._base import require_public as require_public
    from sordino.parts.schedules._bounds import Horizon as Horizon
    from sordino.parts.schedules._bounds import best_dynamic_steps as best_dynamic_steps
    from sordino.parts.schedules._bounds import best_momentum_steps as best_momentum_steps
    from sordino.parts.schedules._bounds import best_steps as best_steps
    from sordino.parts.schedules._bounds import best_uniform_steps as best_uniform_steps
    from sordino.parts.schedules._bounds import dynamic_error as dynamic_error
    from sordino.parts.schedules._bounds import full_participation_bound as full_participation_bound
    from sordino.parts.schedules._bounds import row_scaling as row_scaling
    from sordino.parts.schedules._influence import MomExpFit as MomExpFit
    from sordino.parts.schedules._influence import expinfl as expinfl
    from sordino.parts.schedules._influence import exponential_fit as exponential_fit
    from sordino.parts.schedules._influence import fit_exponential as fit_exponential
    from sordino.parts.schedules._influence import fitted_expinfl as fitted_expinfl
    from sordino.parts.schedules._influence import fitted_momexpinfl as fitted_momexpinfl
    from sordino.parts.schedules._influence import geometric as geometric
    from sordino.parts.schedules._influence import momentum_quadratic as momentum_quadratic
    from sordino.parts.schedules._influence import momexpinfl as momexpinfl
    from sordino.parts.schedules._influence import smoothed as smoothed
    from sordino.parts.schedules._shapes import SCHEDULES as SCHEDULES
    from sordino.parts.schedules._shapes import ByParticipation as ByParticipation
    from sordino.parts.schedules._shapes import ExpInfluence as ExpInfluence
    from sordino.parts.schedules._shapes import Exponential as Exponential
    from sordino.parts.schedules._shapes import FixedSchedule as FixedSchedule
    from sordino.parts.schedules._shapes import FromInfluence as FromInfluence
    from sordino.parts.schedules._shapes import GradientDescentPL as GradientDescentPL
    from sordino.parts.schedules._shapes import Influence as Influence
    from sordino.parts.schedules._shapes import MomentumBound as MomentumBound
    from sordino.parts.schedules._shapes import MomentumQuadratic as MomentumQuadratic
    from sordino.parts.schedules._shapes import MomExpInfluence as MomExpInfluence
    from sordino.parts.schedules._shapes import Optimal as Optimal
    from sordino.parts.schedules._shapes import Quadratic as Quadratic
    from sordino.parts.schedules._shapes import schedule_fields as schedule_fields
    from sordino.parts.schedules._shapes import schedule_from_json as schedule_from_json
    from sordino.parts.schedules._shapes import schedule_named as schedule_named
    from sordino.parts.schedules._shapes import write_influence as write_influence
    from sordino.parts.schedules._subsampled import allocate_subsampled as allocate_subsampled
    from sordino.parts.schedules._subsampled import search_subsampled as search_subsampled
    from sordino.parts.schedules._subsampled import subsampled_schedule as subsampled_schedule
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
