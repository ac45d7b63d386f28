"""Fitting and scoring for the commands: the estimators, with the plan shown before it runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from sordino._base.errors import SordinoError
from sordino.app.cli._console import show_plan
from sordino.engine import Source
from sordino.models import PrivateClassifier, PrivateRegressor, Schema
from sordino.planning import Plan
from sordino.report import COVERED, NO_PRIVATE_DATA, Measured, ScoreTable

CLASSIFICATION = "classification"
ACCURACY, ERROR = "accuracy", "root mean squared error"


class _OfTable:
    """Shows the plan before the first record is used; a ledger knows the data by the whole table."""

    frame: Any = None

    def _plan(self, *arguments: Any) -> Plan:
        plan: Plan = super()._plan(*arguments)  # type: ignore[misc]
        show_plan(plan)
        return plan

    def _source(self, X: Any, y: Any) -> Source:
        # All of a file is the data set: how many rows that is need not be public for it.
        return Source(X if self.frame is None else self.frame, rows=len(X))


class _Classifier(_OfTable, PrivateClassifier):
    pass


class _Regressor(_OfTable, PrivateRegressor):
    pass


def fit(
    task: str,
    frame: Any,
    schema: Schema,
    settings: dict[str, Any],
    test: Any | None = None,
    *,
    people: Any | None = None,
) -> Any:
    """A fitted estimator for the rows of `frame`, with everything public taken from `schema`.

    `test`, a public table, gives the curve in the report; `people`, an id for each row, is checked.
    """
    features, target = schema.split(frame)
    if target.isna().any():
        raise SordinoError(
            f"the target {schema.target!r} has missing values; remove those rows or fill them first"
        )
    public: dict[str, Any] = {
        "feature_bounds": schema.bounds,
        "categories": schema.categories,
        "examples": schema.examples,
    }
    model: Any
    if task == CLASSIFICATION:
        model = _Classifier(classes=schema.classes, verbose=1, **public, **settings)
    else:
        model = _Regressor(target_bounds=schema.target_bounds, verbose=1, **public, **settings)
    model.frame = frame
    try:
        watched = None
        if test is not None:
            test_features, test_target = schema.split(test)
            watched = (test_features, test_target.to_numpy())
        fitted = model.fit(features, target.to_numpy(), public=watched, groups=people)
        fitted.frame = None
        return fitted
    except SordinoError:
        raise
    except ValueError as error:
        # scikit-learn's own checks: their first line says what is wrong.
        raise SordinoError(str(error).strip().splitlines()[0]) from None


def score(model: Any, test: Any, schema: Schema) -> ScoreTable:
    """The private model beside a constant answer, on a test table that is public."""
    features, target = schema.split(test)
    if not len(test) or target.isna().any():
        raise SordinoError("the test file has no rows, or rows without a target")
    truth = target.to_numpy()
    private = f"private, epsilon {_epsilon(model):.4g}"
    if hasattr(model, "classes_"):
        if not np.isin(truth, model.classes_).all():
            raise SordinoError(
                f"the test file has labels of {schema.target!r} that are not among the classes"
            )
        right = float(np.mean(model.predict(features) == truth))
        most = max(float(np.mean(truth == label)) for label in model.classes_)
        rows = (
            Measured(private, right, COVERED, model.plan_.recipe),
            Measured(
                "majority class", most, NO_PRIVATE_DATA, "always the test rows' most frequent class"
            ),
        )
        return ScoreTable(ACCURACY, rows, len(test))
    error = float(np.sqrt(np.mean((model.predict(features) - truth) ** 2)))
    rows = (
        Measured(private, error, COVERED, model.plan_.recipe),
        Measured("constant", float(np.std(truth)), NO_PRIVATE_DATA, "always the test rows' mean"),
    )
    return ScoreTable(ERROR, rows, len(test))


def _epsilon(model: Any) -> float:
    return float(model.guarantee_.epsilon(model.guarantee_.delta_hint))
