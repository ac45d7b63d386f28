"""Sordino: train models with differential privacy.

    from sordino import PrivateClassifier                       # scikit-learn
    model = PrivateClassifier(epsilon=1.0, delta=1e-5).fit(X, y)

    plan = sordino.plan("dp-memf", examples=60_000, batch_size=500, epochs=1, epsilon=0.1, delta=1e-6)
    result = sordino.train(plan, loss, params, data)            # any JAX model

Names are imported when they are first used, so that ``import sordino`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sordino._version import __version__ as __version__

if TYPE_CHECKING:
    from sordino import audit as audit
    from sordino import federated as federated
    from sordino import parties as parties
    from sordino.comparison import compare_recipes as compare_recipes
    from sordino.engine.keys import RunKey as RunKey
    from sordino.engine.session import Session as Session
    from sordino.engine.train import Result as Result
    from sordino.engine.train import Snapshot as Snapshot
    from sordino.engine.train import train as train
    from sordino.errors import PlanMismatchError as PlanMismatchError
    from sordino.errors import PrivacyWarning as PrivacyWarning
    from sordino.errors import SordinoError as SordinoError
    from sordino.ledger import BudgetExceeded as BudgetExceeded
    from sordino.ledger import Ledger as Ledger
    from sordino.models.estimators import PrivateClassifier as PrivateClassifier
    from sordino.models.estimators import PrivateRegressor as PrivateRegressor
    from sordino.models.search import PrivateSearch as PrivateSearch
    from sordino.planning import Plan as Plan
    from sordino.planning import compare as compare
    from sordino.planning import plan as plan
    from sordino.privacy.guarantee import Guarantee as Guarantee
    from sordino.privacy.guarantee import compose as compose
    from sordino.schedules.public import PublicData as PublicData

_WHERE = {
    "BudgetExceeded": "sordino.ledger",
    "Guarantee": "sordino.privacy.guarantee",
    "Ledger": "sordino.ledger",
    "Plan": "sordino.planning",
    "PlanMismatchError": "sordino.errors",
    "PrivacyWarning": "sordino.errors",
    "PrivateClassifier": "sordino.models.estimators",
    "PrivateRegressor": "sordino.models.estimators",
    "PrivateSearch": "sordino.models.search",
    "PublicData": "sordino.schedules.public",
    "Result": "sordino.engine.train",
    "RunKey": "sordino.engine.keys",
    "Session": "sordino.engine.session",
    "Snapshot": "sordino.engine.train",
    "SordinoError": "sordino.errors",
    "compare": "sordino.planning",
    "compare_recipes": "sordino.comparison",
    "compose": "sordino.privacy.guarantee",
    "plan": "sordino.planning",
    "train": "sordino.engine.train",
}

# Packages with a public surface of their own.
_PACKAGES = ("audit", "federated", "parties")

__all__ = ["__version__", *_PACKAGES, *_WHERE]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"sordino.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'sordino' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
