"""What does a release reveal? Guarantees, how they compose, and how sensitive a release is.

    guarantee = plan.guarantee; guarantee.epsilon(1e-6)         # exact, for any delta
    sensitivity(TreeStrategy(1000), FixedBatches(1000, 100))    # of a strategy, under a participation rule

Accounting is done here and in `sordino.planning`, in float64 on the host, and rounded against the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = [
    "Adjacency",
    "ClippedSum",
    "FixedBatches",
    "FreshPermutations",
    "Guarantee",
    "MatrixStrategy",
    "MinSeparation",
    "NoiseKind",
    "NoisedSum",
    "ParallelStrategy",
    "Participation",
    "PatternList",
    "PhasesStrategy",
    "PrivateEstimate",
    "SelectionGuarantee",
    "Sensitivity",
    "Side",
    "SinglePass",
    "Strategy",
    "ToeplitzStrategy",
    "TreeStrategy",
    "Unit",
    "compose",
    "delta_from_mu",
    "epsilon_from_mu",
    "mu_from_epsilon_delta",
    "person_ids",
    "sensitivity",
]

if TYPE_CHECKING:
    from sordino.privacy._accountant import SMALLEST_DELTA as SMALLEST_DELTA
    from sordino.privacy._amplification import GROUPED as GROUPED
    from sordino.privacy._amplification import MOST_LEVELS as MOST_LEVELS
    from sordino.privacy._amplification import POISSON as POISSON
    from sordino.privacy._amplification import WITHOUT_REPLACEMENT as WITHOUT_REPLACEMENT
    from sordino.privacy._amplification import SampledRelease as SampledRelease
    from sordino.privacy._amplification import calibrate_noise as calibrate_noise
    from sordino.privacy._amplification import composed_epsilon as composed_epsilon
    from sordino.privacy._amplification import levels as levels
    from sordino.privacy._amplification import mu_beside as mu_beside
    from sordino.privacy._amplification import sampled_levels as sampled_levels
    from sordino.privacy._budget import UNIT_BITS as UNIT_BITS
    from sordino.privacy._budget import BudgetExhausted as BudgetExhausted
    from sordino.privacy._budget import PrivacyFilter as PrivacyFilter
    from sordino.privacy._budget import cost_of as cost_of
    from sordino.privacy._budget import cost_of_mu_squared as cost_of_mu_squared
    from sordino.privacy._budget import units_of as units_of
    from sordino.privacy._dyadic import Node as Node
    from sordino.privacy._dyadic import nodes_between as nodes_between
    from sordino.privacy._dyadic import used_nodes as used_nodes
    from sordino.privacy._gdp import MAX_MU as MAX_MU
    from sordino.privacy._gdp import MIN_MU as MIN_MU
    from sordino.privacy._gdp import delta_from_mu as delta_from_mu
    from sordino.privacy._gdp import epsilon_from_mu as epsilon_from_mu
    from sordino.privacy._gdp import epsilon_from_zcdp as epsilon_from_zcdp
    from sordino.privacy._gdp import mu_from_epsilon_delta as mu_from_epsilon_delta
    from sordino.privacy._gdp import mu_of_gaussian_with_zcdp as mu_of_gaussian_with_zcdp
    from sordino.privacy._gdp import rounding_distance as rounding_distance
    from sordino.privacy._gdp import zcdp_from_epsilon_delta as zcdp_from_epsilon_delta
    from sordino.privacy._guarantee import FIT as FIT
    from sordino.privacy._guarantee import SEARCH as SEARCH
    from sordino.privacy._guarantee import Guarantee as Guarantee
    from sordino.privacy._guarantee import compose as compose
    from sordino.privacy._noisy_min import mu_of_pure as mu_of_pure
    from sordino.privacy._noisy_min import noisy_min as noisy_min
    from sordino.privacy._noisy_min import pure_of_mu as pure_of_mu
    from sordino.privacy._participation import FixedBatches as FixedBatches
    from sordino.privacy._participation import FreshPermutations as FreshPermutations
    from sordino.privacy._participation import MinSeparation as MinSeparation
    from sordino.privacy._participation import Participation as Participation
    from sordino.privacy._participation import PatternList as PatternList
    from sordino.privacy._participation import SinglePass as SinglePass
    from sordino.privacy._participation import times as times
    from sordino.privacy._realised import MOST_USES as MOST_USES
    from sordino.privacy._realised import is_affordable as is_affordable
    from sordino.privacy._realised import realised_sensitivity as realised_sensitivity
    from sordino.privacy._selection import KIND as KIND
    from sordino.privacy._selection import LOGARITHMIC as LOGARITHMIC
    from sordino.privacy._selection import SelectionGuarantee as SelectionGuarantee
    from sordino.privacy._selection import StoppingLaw as StoppingLaw
    from sordino.privacy._selection import base_mu_for as base_mu_for
    from sordino.privacy._selection import composed_mu as composed_mu
    from sordino.privacy._selection import epsilon_at_distance as epsilon_at_distance
    from sordino.privacy._selection import epsilon_of_selections as epsilon_of_selections
    from sordino.privacy._sensitivity import ENUMERATION_LIMIT as ENUMERATION_LIMIT
    from sordino.privacy._sensitivity import Sensitivity as Sensitivity
    from sordino.privacy._sensitivity import sensitivity as sensitivity
    from sordino.privacy._sides import Side as Side
    from sordino.privacy._sides import both_of as both_of
    from sordino.privacy._sides import budget_beside as budget_beside
    from sordino.privacy._sides import crossings as crossings
    from sordino.privacy._sides import epsilon_beside as epsilon_beside
    from sordino.privacy._sides import lost_together as lost_together
    from sordino.privacy._sides import mu_of_budget_beside as mu_of_budget_beside
    from sordino.privacy._sides import side_by_side as side_by_side
    from sordino.privacy._strategy import LARGEST_FACTOR as LARGEST_FACTOR
    from sordino.privacy._strategy import MatrixStrategy as MatrixStrategy
    from sordino.privacy._strategy import ParallelStrategy as ParallelStrategy
    from sordino.privacy._strategy import PhasesStrategy as PhasesStrategy
    from sordino.privacy._strategy import Strategy as Strategy
    from sordino.privacy._strategy import ToeplitzStrategy as ToeplitzStrategy
    from sordino.privacy._strategy import TreeStrategy as TreeStrategy
    from sordino.privacy._strategy import check_factors as check_factors
    from sordino.privacy._terms import ADJACENCIES as ADJACENCIES
    from sordino.privacy._terms import INSECURE as INSECURE
    from sordino.privacy._terms import ROW as ROW
    from sordino.privacy._terms import UNITS as UNITS
    from sordino.privacy._terms import Adjacency as Adjacency
    from sordino.privacy._terms import NoiseKind as NoiseKind
    from sordino.privacy._terms import Unit as Unit
    from sordino.privacy._terms import change as change
    from sordino.privacy._terms import plural as plural
    from sordino.privacy._terms import rounded_up as rounded_up
    from sordino.privacy._terms import secret as secret
    from sordino.privacy._units import person_ids as person_ids
    from sordino.privacy._units import require_one_row as require_one_row
    from sordino.privacy._values import ClippedSum as ClippedSum
    from sordino.privacy._values import NoisedSum as NoisedSum
    from sordino.privacy._values import PrivateEstimate as PrivateEstimate
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
