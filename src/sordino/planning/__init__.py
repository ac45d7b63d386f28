"""Plan, then run: everything about privacy, decided before a single record is read.

    plan = sordino.plan("dp-memf", examples=60_000, batch_size=500, epochs=1, epsilon=0.1, delta=1e-6)
    print(plan); plan.guarantee.mu; plan.save("plan.json")

A plan is frozen and independent of the data. It holds the noise, the strategy, the guarantee and what
to expect; it prints as a page, saves as versioned JSON, and has a content hash. A run of it cannot
release anything the plan does not name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = [
    "DISCRETE",
    "GAUSSIAN",
    "OPTIONS",
    "QUERIES",
    "RECIPES",
    "THEOREMS",
    "ConvergenceBound",
    "Evaluation",
    "Option",
    "Plan",
    "Query",
    "Recipe",
    "Spectrum",
    "TableRelease",
    "Theorem",
    "Training",
    "compare",
    "compare_recipes",
    "needed_facts",
    "plan",
    "recipes",
    "register",
    "theory_defaults",
]

if TYPE_CHECKING:
    from sordino.planning import recipes as recipes
    from sordino.planning._accounting import FLOAT32_MARGIN as FLOAT32_MARGIN
    from sordino.planning._accounting import counting_on_slots as counting_on_slots
    from sordino.planning._accounting import float32_up as float32_up
    from sordino.planning._accounting import run_sensitivity as run_sensitivity
    from sordino.planning._bounds import ConvergenceBound as ConvergenceBound
    from sordino.planning._bounds import Theorem as Theorem
    from sordino.planning._comparison import RecipeRanking as RecipeRanking
    from sordino.planning._comparison import arguments_for as arguments_for
    from sordino.planning._comparison import compare_recipes as compare_recipes
    from sordino.planning._comparison import conclusion as conclusion
    from sordino.planning._decide import compare as compare
    from sordino.planning._decide import plan as plan
    from sordino.planning._options import DISCRETE as DISCRETE
    from sordino.planning._options import FACTS as FACTS
    from sordino.planning._options import GAUSSIAN as GAUSSIAN
    from sordino.planning._options import OPTIONS as OPTIONS
    from sordino.planning._options import Option as Option
    from sordino.planning._plans import Plan as Plan
    from sordino.planning._prediction import Spectrum as Spectrum
    from sordino.planning._query import QUERIES as QUERIES
    from sordino.planning._query import Query as Query
    from sordino.planning._table_queries import Evaluation as Evaluation
    from sordino.planning._table_queries import TableRelease as TableRelease
    from sordino.planning._texts import read_settings as read_settings
    from sordino.planning._theorems import THEOREMS as THEOREMS
    from sordino.planning._theory import needed_facts as needed_facts
    from sordino.planning._theory import theory_defaults as theory_defaults
    from sordino.planning._training import Training as Training
    from sordino.planning.recipes import RECIPES as RECIPES
    from sordino.planning.recipes import Recipe as Recipe
    from sordino.planning.recipes import register as register
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
