"""How do people with tables meet it? Estimators after scikit-learn, schemas, tables, private searches.

model = PrivateClassifier(epsilon=1.0, delta=1e-5, feature_bounds=(0, 1)).fit(X, y)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = [
    "EvaluationMetrics",
    "PrivateClassifier",
    "PrivateRegressor",
    "PrivateSearch",
    "PublicWhitening",
    "Schema",
    "load_demo",
    "load_model",
    "read_table",
]

if TYPE_CHECKING:
    from sordino.models._cells import read_cells as read_cells
    from sordino.models._defaults import AVERAGE as AVERAGE
    from sordino.models._defaults import EPOCHS as EPOCHS
    from sordino.models._defaults import automatic_recipe as automatic_recipe
    from sordino.models._defaults import choose_learning_rate as choose_learning_rate
    from sordino.models._defaults import choose_settings as choose_settings
    from sordino.models._estimators import PrivateClassifier as PrivateClassifier
    from sordino.models._estimators import PrivateRegressor as PrivateRegressor
    from sordino.models._estimators import checked_classes as checked_classes
    from sordino.models._folder import GUARANTEE as GUARANTEE
    from sordino.models._folder import MODEL as MODEL
    from sordino.models._folder import PLAN as PLAN
    from sordino.models._folder import REPORT as REPORT
    from sordino.models._folder import check_free as check_free
    from sordino.models._folder import staged_folder as staged_folder
    from sordino.models._metrics import EvaluationMetrics as EvaluationMetrics
    from sordino.models._pack import TAKEN as TAKEN
    from sordino.models._pack import pack_facts as pack_facts
    from sordino.models._pack import verify_pack as verify_pack
    from sordino.models._pack import write_pack as write_pack
    from sordino.models._private_fit import CLASSES as CLASSES
    from sordino.models._private_fit import REGRESSION as REGRESSION
    from sordino.models._private_fit import Found as Found
    from sordino.models._rows import PublicWhitening as PublicWhitening
    from sordino.models._rows import RowPreparation as RowPreparation
    from sordino.models._saved import load_model as load_model
    from sordino.models._saved import model_bytes as model_bytes
    from sordino.models._schema import Schema as Schema
    from sordino.models._search import PrivateSearch as PrivateSearch
    from sordino.models._tables import load_demo as load_demo
    from sordino.models._tables import read_raw as read_raw
    from sordino.models._tables import read_table as read_table
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
