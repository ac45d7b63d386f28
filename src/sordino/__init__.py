"""Sordino: train models with differential privacy.

    from sordino import PrivateClassifier                       # scikit-learn
    model = PrivateClassifier(epsilon=1.0, delta=1e-5).fit(X, y)

    plan = sordino.plan("dp-memf", examples=60_000, batch_size=500, epochs=1, epsilon=0.1, delta=1e-6)
    result = sordino.train(plan, loss, params, data)            # any JAX model

The rooms, from the ground up: `privacy` (what does a release reveal?), `parts` (what is an algorithm made
of?), `planning` (what will be asked of the data, at what cost?), `engine` (how is a plan carried out, and
paid for?), `models` (how do people with tables meet it?), `together` (how do several owners train one
model?), `audit` (is it true?). Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names
from sordino._version import __version__ as __version__

__all__ = [
    "Adjacency",
    "BudgetExceeded",
    "Guarantee",
    "LeastSquares",
    "Ledger",
    "LinearLoss",
    "Logistic",
    "MissingExtraError",
    "NoiseKind",
    "NonconvexLogistic",
    "Plan",
    "PlanMismatchError",
    "PrivacyWarning",
    "PrivateClassifier",
    "PrivateRegressor",
    "PrivateSearch",
    "PublicData",
    "Recipe",
    "Result",
    "RunKey",
    "Session",
    "Snapshot",
    "Softmax",
    "SordinoError",
    "Unit",
    "__version__",
    "audit",
    "compare",
    "compare_recipes",
    "compose",
    "engine",
    "models",
    "parts",
    "plan",
    "planning",
    "privacy",
    "register",
    "together",
    "train",
]

if TYPE_CHECKING:
    from sordino import audit as audit
    from sordino import engine as engine
    from sordino import models as models
    from sordino import parts as parts
    from sordino import planning as planning
    from sordino import privacy as privacy
    from sordino import together as together
    from sordino._base.errors import MissingExtraError as MissingExtraError
    from sordino._base.errors import PlanMismatchError as PlanMismatchError
    from sordino._base.errors import PrivacyWarning as PrivacyWarning
    from sordino._base.errors import SordinoError as SordinoError
    from sordino._base.keys import RunKey as RunKey
    from sordino.engine import Result as Result
    from sordino.engine import Session as Session
    from sordino.engine import Snapshot as Snapshot
    from sordino.engine import train as train
    from sordino.engine.ledger import BudgetExceeded as BudgetExceeded
    from sordino.engine.ledger import Ledger as Ledger
    from sordino.models import PrivateClassifier as PrivateClassifier
    from sordino.models import PrivateRegressor as PrivateRegressor
    from sordino.models import PrivateSearch as PrivateSearch
    from sordino.parts import LeastSquares as LeastSquares
    from sordino.parts import LinearLoss as LinearLoss
    from sordino.parts import Logistic as Logistic
    from sordino.parts import NonconvexLogistic as NonconvexLogistic
    from sordino.parts import Softmax as Softmax
    from sordino.parts.schedules import PublicData as PublicData
    from sordino.planning import Plan as Plan
    from sordino.planning import Recipe as Recipe
    from sordino.planning import compare as compare
    from sordino.planning import compare_recipes as compare_recipes
    from sordino.planning import plan as plan
    from sordino.planning import register as register
    from sordino.privacy import Adjacency as Adjacency
    from sordino.privacy import Guarantee as Guarantee
    from sordino.privacy import NoiseKind as NoiseKind
    from sordino.privacy import Unit as Unit
    from sordino.privacy import compose as compose
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
