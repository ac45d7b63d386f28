"""What one example adds in a step: the numbers of a plan, the formula, and who computes it on a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = [
    "CONTRIBUTIONS",
    "Anchored",
    "Batch",
    "ClipSequence",
    "Contribution",
    "Evaluator",
    "Gradient",
    "GradientPair",
    "GradientRule",
    "Lagged",
    "Recursive",
    "Rule",
    "TwoClip",
    "VaryingRecursive",
    "WeightedGradient",
    "WeightedRecursive",
    "WeightedRule",
]

if TYPE_CHECKING:
    from sordino.parts._rounding import lattice_bounds as lattice_bounds
    from sordino.parts._rounding import to_lattice as to_lattice
    from sordino.parts.contributions._base import Batch as Batch
    from sordino.parts.contributions._base import Evaluator as Evaluator
    from sordino.parts.contributions._contributions import NO_CLIP as NO_CLIP
    from sordino.parts.contributions._contributions import Anchored as Anchored
    from sordino.parts.contributions._contributions import Contribution as Contribution
    from sordino.parts.contributions._contributions import Gradient as Gradient
    from sordino.parts.contributions._contributions import GradientPair as GradientPair
    from sordino.parts.contributions._contributions import Lagged as Lagged
    from sordino.parts.contributions._contributions import Recursive as Recursive
    from sordino.parts.contributions._contributions import TwoClip as TwoClip
    from sordino.parts.contributions._gradient import VmapEvaluator as VmapEvaluator
    from sordino.parts.contributions._gradient import clip_pytree as clip_pytree
    from sordino.parts.contributions._linear import LinearEvaluator as LinearEvaluator
    from sordino.parts.contributions._persons import LANES as LANES
    from sordino.parts.contributions._persons import PersonBatch as PersonBatch
    from sordino.parts.contributions._persons import person_terms as person_terms
    from sordino.parts.contributions._persons import sum_of_persons as sum_of_persons
    from sordino.parts.contributions._rules import PLAIN as PLAIN
    from sordino.parts.contributions._rules import GradientRule as GradientRule
    from sordino.parts.contributions._rules import RecursiveRule as RecursiveRule
    from sordino.parts.contributions._rules import Rule as Rule
    from sordino.parts.contributions._rules import RuleStream as RuleStream
    from sordino.parts.contributions._rules import WeightedRule as WeightedRule
    from sordino.parts.contributions._weighted import CONTRIBUTIONS as CONTRIBUTIONS
    from sordino.parts.contributions._weighted import ClipSequence as ClipSequence
    from sordino.parts.contributions._weighted import VaryingRecursive as VaryingRecursive
    from sordino.parts.contributions._weighted import Weighted as Weighted
    from sordino.parts.contributions._weighted import WeightedGradient as WeightedGradient
    from sordino.parts.contributions._weighted import WeightedRecursive as WeightedRecursive
    from sordino.parts.contributions._weighted import (
        contribution_from_json as contribution_from_json,
    )
    from sordino.parts.contributions._weighted import given_steps as given_steps
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
