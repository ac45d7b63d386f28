"""scikit-learn estimators: private linear models in one line.

    model = PrivateClassifier(
        epsilon=1.0, delta=1e-6, classes=[0, 1], feature_bounds=(0, 1), examples=len(X)
    ).fit(X, y)
    print(model.guarantee_); model.predict(X_new)

The guarantee covers what the noise protects. What is not declared of a DataFrame is found inside the
budget (see `_table_fit.py`); what is taken from an array is named in one `PrivacyWarning`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import Tags

from sordino._base.errors import SordinoError
from sordino._base.types import PyTree
from sordino.models._checks import Features, Labels, discreetly
from sordino.models._linear import (
    NO_LABELS,
    Inspected,
    Public,
    checked_labels,
    checked_targets,
    is_text,
)
from sordino.models._private_fit import CLASSES, REGRESSION, Found
from sordino.models._schema import Value, parse_bounds
from sordino.models._table_fit import TableLinear
from sordino.parts import LeastSquares, LinearLoss, Logistic, Softmax


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateClassifier(ClassifierMixin, TableLinear):  # type: ignore[misc]
    """Private logistic regression (binary) or softmax regression (three or more classes).

    Parameters
    ----------
    epsilon, delta : float
        The budget of everything that is released. Without `delta`, a tenth of 1 over the number of
        rows, or 1e-5 where that number is private.
    recipe : str
        A name from `sordino.planning.RECIPES`, or "auto". (`method` is its old name, for this
        release.)
    adjacency, unit : str
        What the guarantee protects against ("zero-out", "add-remove", "replace-one") and whose data
        it protects: "example" (one row), "person", "user" or "client". With ``fit(groups=ids)`` it is a
        person with all rows.
    one_row_per_person : bool
        Your statement that every person (user, client) has one row. Without it, and without groups,
        only rows can be protected; ``fit(X, y, groups=ids)`` checks it.
    undeclared : str
        What becomes of facts that are not declared. "pay": they are found inside the budget. "refuse": a
        fit lists them and stops. "take": they are taken from the data, outside of the guarantee, with a
        warning. "auto": "pay" for DataFrames, "take" for arrays.
    preprocessing_share : float
        The part of the budget (of mu squared) that finds what is not declared.
    features : str
        What columns of numbers that were found become: "linear" (one number), "spline" (hat functions),
        "onehot" (indicators of bins), or "auto": linear where the budget is small for so many columns.
    bins : int
        About how many pieces a column of numbers is cut into.
    evaluate : float
        The share of persons who are held out to score the model privately: `evaluation_`. It costs the
        others nothing.
    person_power : float
        The sum of a person's n rows counts ``n ** -person_power`` before it is clipped: 1 fits the
        average person, 0 the average row.
    rows_per_person : int, optional
        Use so many rows of a person at most, each clipped by itself. Without it all rows of a person
        are added up and clipped once.
    weight_bound : float, optional
        The largest `sample_weight` that a row may have, from public knowledge; larger ones are cut.
    decimal : str
        The decimal mark of numbers that are text: "." or ",".
    date_formats : dict, optional
        How dates are written that are not in ISO 8601: column name -> format, such as "%d.%m.%Y".
    classes : list, optional
        All possible labels, from public knowledge. Otherwise they are found, or taken from y with a
        warning, as `undeclared` says.
    class_weight : dict or "balanced", optional
        How much the rows of a class count. "balanced": rare classes as much as frequent ones, by counts
        inside the budget. Noise stays as it is; probabilities are then those of the weighted classes.
    feature_bounds : (low, high), array of shape (2, n_features), or dict by column name, optional
        Public bounds. Values are clipped to them and mapped to [-1, 1]. Arrays without them have rows
        divided by their own norms.
    categories : dict, optional
        For DataFrames: column name -> all possible values. A column's type declares nothing.
    examples : int, optional
        The number of rows, or of persons with `groups`, where it is public; X must have as many.
        Otherwise it stays secret, or is used with a warning, as `undeclared` says.
    epochs, batch_size, clip, learning_rate, momentum : optional
        By default functions of public quantities, see `sordino.models._defaults`.
    options : dict, optional
        Other options of the recipe, by name: those that ``sordino recipes NAME`` lists, and fields of
        the chosen schedule or mechanism, as in ``{"schedule": "exponential", "schedule.ratio": 1.8}``.
    fit_intercept : bool
        Whether to add a constant to each row.
    random_state : int or RandomState, optional
        INSECURE: noise from a seed. Reproducible, for tests and demonstrations; there is no privacy
        against anyone who knows or guesses the seed, and `result_.insecure` says so.
    run_key : RunKey, optional
        The secret behind the noise, for one run on one data set; by default fresh from the
        operating system. Never fit other data with the same key: the noise would cancel. A pickle
        leaves it out: fits in other processes have keys of their own.
    noise : str
        "gaussian", or "discrete": integers on a lattice from a cryptographic generator, immune to
        attacks on floating point, slower. It needs everything declared, and `evaluate` 0.
    checkpoint : path, optional
        A file that a run killed at any instant goes on from, bit for bit, when `fit` is called again
        with the same data and settings.
    ledger, dataset : path or Ledger, and str, optional
        The ledger that keeps the data set's budget, and the data set's name in it: `fit` is charged
        once for all it releases, and refused where the budget does not pay for it. No fit of a
        cross-validation is charged: use `PrivateSearch`.
    parts : str
        "refuse" a fit on a part of the ledger's data set, or "charge" it like one on all of it.
    verbose : int
        Whether to show a progress bar.

    Attributes
    ----------
    coef_ : (1, features) or (classes, features);  intercept_ : (1,) or (classes,)
        Weights of the features mapped to [-1, 1] (or of rows divided by their norms, where there
        are no bounds). Rows longer than `sordino.models._rows` expects are shortened first.
    classes_, n_features_in_, feature_names_in_
        As everywhere in scikit-learn.
    guarantee_, plan_, history_, result_
        What this fit satisfies, the plan it followed, its public history, and the engine's result.
        Other fits on the same rows are not in it: a ledger, or `PrivateSearch`, counts several.
    schema_ : Schema or None
        How a DataFrame's columns are encoded.
    evaluation_ : EvaluationMetrics
        With `evaluate`: noisy scores by the persons held out, with error bars.
    columns_ : list of ColumnFact
        What became of each column, where some were found: used or ignored, and why.
    table_run_
        What was found, for `report`.
    """

    classes: ArrayLike | None = None
    class_weight: Mapping[Value, float] | str | None = None

    def fit(
        self,
        X: Features,
        y: ArrayLike,
        *,
        public: Public | None = None,
        groups: ArrayLike | str | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train on X (rows, features) and labels y (rows,).

        `public`, a pair (X, y) of PUBLIC data, is what the model is evaluated on about twenty times
        while it trains; `history_` then holds the curve. It needs everything declared.

        `groups`, an id of the person for each row or a column's name, makes persons with all of their
        rows the unit of the guarantee; where `one_row_per_person` is stated, that is checked and no more.
        Rows without an id count for nothing. `sample_weight` is private, and needs `weight_bound`.
        """
        declared = None if self.classes is None else tuple(_declared(self.classes).tolist())
        if self._fit_table(
            X,
            y,
            groups,
            sample_weight,
            task=CLASSES,
            classes=declared,
            class_weight=self.class_weight,
            public=public,
        ):
            return self
        data = self._inspect(X, y, groups)
        evaluate = None
        if public is not None:
            rows, public_y = self._public_rows(public, data.prepare)
            known = _checked_labels(data.values, checked_labels(public_y))
            truth = np.searchsorted(data.values, known).astype(np.int32)
            evaluate = partial(_classification_metrics, data.loss, rows, truth)
        self._train(data, evaluate)
        self.classes_ = data.values
        return self

    def _inspect(self, X: Features, y: ArrayLike, groups: ArrayLike | None = None) -> Inspected:
        X, prepare, undeclared = self._describe(X, y, groups)
        labels = checked_labels(y)
        if self.classes is None:
            undeclared.append("the list of classes (classes=[...])")
        classes = checked_classes(self.classes, labels)
        codes = np.searchsorted(classes, labels).astype(np.int32)
        loss = Logistic() if len(classes) == 2 else Softmax(len(classes))
        return Inspected(X, codes, loss, prepare, undeclared, labels, classes)

    def _keep_target(self, found: Found, y: ArrayLike) -> None:
        assert found.classes is not None
        kind = getattr(getattr(y, "dtype", None), "kind", "")
        known = np.array(found.classes)
        if kind == "b":
            known = np.array([str(label) == "True" for label in found.classes])
        elif kind == "U":
            known = known.astype(str)
        self.classes_ = known

    def _scores(self, X: Features) -> NDArray[np.float64]:
        return self.predict_proba(X)

    def decision_function(self, X: Features) -> NDArray[np.float64]:
        """Logits: (rows,) for two classes, else (rows, classes)."""
        logits = self._decision(X)
        return logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Features) -> NDArray[np.float64]:
        """Class probabilities (rows, classes)."""
        logits = self._decision(X)
        if len(self.classes_) == 2:
            positive = expit(logits[:, 0])
            return np.column_stack([1 - positive, positive])
        return np.asarray(softmax(logits, axis=1))

    def predict(self, X: Features) -> Labels:
        """The most likely class of each row."""
        logits = self._decision(X)
        binary = len(self.classes_) == 2
        chosen = (logits[:, 0] > 0).astype(int) if binary else np.argmax(logits, axis=1)
        return np.asarray(self.classes_[chosen])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # A few dozen rows at epsilon 1 teach nothing: that is what privacy means.
        tags.classifier_tags.poor_score = True
        return tags


def checked_classes(declared: ArrayLike | None, labels: Labels) -> Labels:
    """The sorted classes; labels outside of them are refused without being shown."""
    seen = discreetly(lambda: np.unique(labels), "y", NO_LABELS)
    if declared is None:
        if len(seen) < 2:
            raise SordinoError(
                "a classifier needs at least two classes, but y has one class only; give "
                "classes=[...] if others are possible"
            )
        return seen
    known = _declared(declared)
    if is_text(known) != is_text(seen):
        raise SordinoError(
            "y and classes are of different types, text and numbers; declare classes in the type of y"
        )
    _checked_labels(known, seen)
    return known


def _declared(classes: ArrayLike) -> Labels:
    """The declared classes, sorted."""
    try:
        known = np.unique(np.asarray(classes))
    except (TypeError, ValueError):  # of types that have no order
        known = np.zeros(0)
    if np.ndim(known) != 1 or np.shape(classes) != known.shape or len(known) < 2:
        raise SordinoError("classes must be a list of at least two different labels")
    return known


def _checked_labels(classes: Labels, labels: Labels) -> Labels:
    """`labels`, if all of them are classes."""
    if not np.isin(np.unique(labels), classes).all():
        raise SordinoError(
            "y has labels that are not in classes; declare all that are possible, or remove those rows"
        )
    return labels


def _classification_metrics(
    loss: LinearLoss, rows: NDArray[np.float32], truth: NDArray[np.int32], params: PyTree
) -> dict[str, float]:
    logits = rows @ np.asarray(params).T
    chosen = logits > 0 if logits.ndim == 1 else np.argmax(logits, axis=1)
    return {
        "accuracy": float(np.mean(chosen == truth)),
        "log loss": float(np.mean(np.asarray(loss.value(jnp.asarray(logits), jnp.asarray(truth))))),
    }


def _regression_metrics(
    rows: NDArray[np.float32],
    truth: NDArray[np.float64],
    middle: float,
    half: float,
    params: PyTree,
) -> dict[str, float]:
    predicted = middle + half * np.clip(rows @ np.asarray(params), -1.0, 1.0)
    return {"root mean squared error": float(np.sqrt(np.mean((predicted - truth) ** 2)))}


def _middle_and_half(low: float, high: float) -> tuple[float, float]:
    """The middle of an interval and half its length; the sum of its ends may be too large."""
    return low / 2 + high / 2, high / 2 - low / 2


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateRegressor(RegressorMixin, TableLinear):  # type: ignore[misc]
    """Private linear regression (least squares).

    Parameters are those of `PrivateClassifier`, except for `classes` and `class_weight`, and:

    target_bounds : (low, high), optional
        The public range of y. Values are clipped to it and mapped to [-1, 1], and predictions
        stay in it. Otherwise it is found, or the smallest and largest y are used with a warning, as
        `undeclared` says.

    Attributes are those of `PrivateClassifier` without `classes_`; `coef_` (features,) and
    `intercept_` (a number) predict y mapped to [-1, 1], and `target_bounds_` maps it back.
    """

    target_bounds: Sequence[float] | None = None

    def fit(
        self,
        X: Features,
        y: ArrayLike,
        *,
        public: Public | None = None,
        groups: ArrayLike | str | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train on X (rows, features) and targets y (rows,); the rest as in `PrivateClassifier`."""
        declared = None
        if self.target_bounds is not None:
            declared = parse_bounds("target_bounds", self.target_bounds)
        if self._fit_table(
            X, y, groups, sample_weight, task=REGRESSION, bounds=declared, public=public
        ):
            return self
        data = self._inspect(X, y, groups)
        low, high = data.values
        evaluate = None
        if public is not None:
            rows, public_y = self._public_rows(public, data.prepare)
            truth = checked_targets(public_y)
            evaluate = partial(_regression_metrics, rows, truth, *_middle_and_half(low, high))
        self._train(data, evaluate)
        self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]
        self.target_bounds_ = (low, high)
        return self

    def _inspect(self, X: Features, y: ArrayLike, groups: ArrayLike | None = None) -> Inspected:
        X, prepare, undeclared = self._describe(X, y, groups)
        targets = checked_targets(y)
        if self.target_bounds is None:
            undeclared.append("the smallest and largest y (target_bounds=(low, high))")
            low, high = float(targets.min()), float(targets.max())
            if low == high:
                low, high = low - 1.0, high + 1.0
        else:
            low, high = parse_bounds("target_bounds", self.target_bounds)
        middle, half = _middle_and_half(low, high)
        with np.errstate(all="ignore"):
            scaled = ((np.clip(targets, low, high) - middle) / half).astype(np.float32)
        return Inspected(X, scaled, LeastSquares(), prepare, undeclared, targets, (low, high))

    def _keep_target(self, found: Found, y: ArrayLike) -> None:
        assert found.bounds is not None
        self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]
        self.target_bounds_ = found.bounds

    def _scores(self, X: Features) -> NDArray[np.float64]:
        return self.predict(X)

    def predict(self, X: Features) -> NDArray[np.float64]:
        """Targets (rows,), inside `target_bounds_`."""
        scaled = np.clip(self._decision(X)[:, 0], -1.0, 1.0)
        low, high = self.target_bounds_
        return np.asarray(low + (high - low) * (scaled + 1) / 2)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags
