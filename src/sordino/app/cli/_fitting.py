"""Tables as the estimators see them: fitted and scored with the plan shown before it runs, and audited."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino._base.types import Json
from sordino.app.cli._console import show_plan
from sordino.engine import Source
from sordino.models import PrivateClassifier, PrivateRegressor, Schema, checked_classes
from sordino.parts import LeastSquares, LinearLoss, Logistic, Softmax
from sordino.planning import Plan
from sordino.report import COVERED, NO_PRIVATE_DATA, Measured, ScoreTable

if TYPE_CHECKING:
    import pandas as pd

Fitted: TypeAlias = PrivateClassifier | PrivateRegressor
# Codes of classes, or numbers in [-1, 1].
Labels: TypeAlias = NDArray[Any]

CLASSIFICATION = "classification"
MISLABELLED, RANDOM, GRADIENT = "mislabelled", "random", "gradient"
KINDS = (GRADIENT, MISLABELLED, RANDOM)
ACCURACY, ERROR = "accuracy", "root mean squared error"


class _OfTable:
    """Shows the plan before the first record is used; a ledger knows the data by the whole table."""

    frame: pd.DataFrame | None = None

    def _plan(self, examples: int, loss: LinearLoss, columns: int | None = None) -> Plan:
        plan: Plan = super()._plan(examples, loss, columns)  # type: ignore[misc]
        show_plan(plan)
        return plan

    def _source(self, X: Sized, y: object) -> Source:
        # All of a file is the data set: how many rows that is need not be public for it.
        return Source(X if self.frame is None else self.frame, rows=len(X), units=X)


class _Classifier(_OfTable, PrivateClassifier):
    pass


class _Regressor(_OfTable, PrivateRegressor):
    pass


def fit(
    task: str,
    frame: pd.DataFrame,
    schema: Schema,
    settings: Json,
    test: pd.DataFrame | None = None,
    *,
    people: pd.Series | None = None,
) -> Fitted:
    """A fitted estimator for the rows of `frame`, with everything public taken from `schema`.

    `test`, a public table, gives the curve in the report; `people`, an id for each row, is checked.
    """
    features, target = schema.split(frame)
    if target.isna().any():
        raise SordinoError(
            f"the target {schema.target!r} has missing values; remove those rows or fill them first"
        )
    public: Json = {
        "feature_bounds": schema.bounds,
        "categories": schema.categories,
        "examples": schema.examples,
    }
    model: _Classifier | _Regressor
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


def score(model: Fitted, test: pd.DataFrame, schema: Schema) -> ScoreTable:
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


def _epsilon(model: Fitted) -> float:
    delta = model.guarantee_.delta_hint
    assert delta is not None
    return float(model.guarantee_.epsilon(delta))


@dataclass(frozen=True, eq=False)
class AuditTable:
    """A table as a linear model sees it: rows of norm at most 1 and their labels.

    Labels are 0 .. classes-1, or numbers in [-1, 1] where there are no classes.
    """

    rows: NDArray[np.float32]
    labels: Labels
    loss: LinearLoss
    estimator: Fitted

    def plan(self, canaries: int) -> Plan:
        """The estimator's plan for these rows and some canaries."""
        examples, columns = len(self.rows) + canaries, self.rows.shape[1]
        built: Plan = self.estimator._plan(examples, self.loss, columns)
        return built

    def start(self) -> NDArray[np.float32]:
        """Weights before training."""
        return np.zeros(self.loss.parameter_shape(self.rows.shape[1]), np.float32)

    def canaries(self, kind: str, count: int) -> tuple[NDArray[np.float32], Labels] | int:
        """Canaries of a kind, from the operating system's entropy; see `sordino.audit.one_run`."""
        if kind == GRADIENT:
            return count
        rng = np.random.default_rng()
        if kind == RANDOM:
            rows = rng.normal(size=(count, self.rows.shape[1]))
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            return rows.astype(np.float32), self._other_labels(rng, rng.choice(self.labels, count))
        chosen = rng.integers(len(self.rows), size=count)
        return self.rows[chosen], self._other_labels(rng, self.labels[chosen])

    def _other_labels(self, rng: np.random.Generator, labels: Labels) -> Labels:
        """A wrong class each, or the far end of the range."""
        if isinstance(self.loss, LeastSquares):
            return np.where(labels > 0, -1.0, 1.0).astype(np.float32)
        classes = self.loss.classes if isinstance(self.loss, Softmax) else 2
        other = (labels + rng.integers(1, classes, size=len(labels))) % classes
        return np.asarray(other.astype(labels.dtype))


def prepared(task: str, frame: pd.DataFrame, schema: Schema, settings: Json) -> AuditTable:
    """The rows of a table, prepared as `sordino train` does."""
    features, target = schema.split(frame)
    if target.isna().any():
        raise SordinoError(f"the target {schema.target!r} has missing values; remove those rows")
    public: Json = {
        "feature_bounds": schema.bounds,
        "categories": schema.categories,
    }
    estimator: Fitted
    loss: LinearLoss
    if task == CLASSIFICATION:
        estimator = PrivateClassifier(**public, **settings)
        labels = target.to_numpy()
        classes = checked_classes(schema.classes, labels)
        loss = Logistic() if len(classes) == 2 else Softmax(len(classes))
        numbers = np.searchsorted(classes, labels).astype(np.int32)
    else:
        estimator, loss = PrivateRegressor(**public, **settings), LeastSquares()
        numbers = _scaled(target, schema.target_bounds)
    X, prepare, _ = estimator._describe(features, target.to_numpy())
    return AuditTable(prepare(X), numbers, loss, estimator)


def _scaled(target: pd.Series, bounds: tuple[float, float] | None) -> NDArray[np.float32]:
    try:
        values = np.asarray(target.to_numpy(), np.float64)
    except (TypeError, ValueError, OverflowError):
        values = None
    if values is None:  # raised here, so that what numpy said of a value is no part of it
        raise SordinoError("the target of a regression must be a column of numbers")
    low, high = (values.min(), values.max()) if bounds is None else bounds
    middle, half = low / 2 + high / 2, high / 2 - low / 2 or 1.0
    with np.errstate(all="ignore"):
        return ((np.clip(values, low, high) - middle) / half).astype(np.float32)


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A saved model as weights and a loss, and its rows of any table."""

    model: Fitted
    target: str

    @property
    def loss(self) -> LinearLoss:
        if not hasattr(self.model, "classes_"):
            return LeastSquares()
        count = len(self.model.classes_)
        return Logistic() if count == 2 else Softmax(count)

    @property
    def weights(self) -> NDArray[np.float64]:
        """The trained weights, in the shape that the loss takes."""
        model = self.model
        stacked = model._preparation.to_rows(model.coef_, model.intercept_, model.n_features_in_)
        return stacked.reshape(self.loss.parameter_shape(stacked.shape[1]))

    def rows(self, frame: pd.DataFrame, name: str) -> tuple[NDArray[np.float32], Labels]:
        """Prepared rows and labels of a table."""
        model, schema = self.model, self.model.schema_
        assert schema is not None
        schema.check_columns(frame)
        if self.target not in frame.columns:
            raise SordinoError(f"the table of {name} has no column {self.target!r}")
        truth = frame[self.target]
        if truth.isna().any():
            raise SordinoError(f"the table of {name} has rows without a {self.target!r}")
        rows = model._preparation(frame[list(schema.names)])
        if not hasattr(model, "classes_"):
            return rows, _scaled(truth, model.target_bounds_)
        labels, classes = truth.to_numpy(), np.asarray(model.classes_)
        if classes.dtype.kind == "U":
            labels = labels.astype(str)
        if not np.isin(labels, classes).all():
            raise SordinoError(f"the table of {name} has labels that are not among the classes")
        return rows, np.searchsorted(classes, labels).astype(np.int32)
