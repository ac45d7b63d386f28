"""Scores of a search: on public rows, or released; and what a search in folds of the private rows costs.

A search in K folds trains each of G candidates K times, each time without the persons of one fold. The
models predict for the fold that they left out, and one noisy evaluation of all these predictions is the
candidate's score. The best one is trained once more, on everybody. A person is in K - 1 of a candidate's
trainings and in its one score (papers/06, section 7)::

    mu^2 = mu_shared^2 + (G (K - 1) + 1) mu_fit^2 + G mu_score^2

Which fold a person is in is drawn secretly, by its id alone where there are ids. Who is replaced by
somebody in another fold is missing from one training and new in another. Each costs half of a replacement,
a quarter in squares, so that the sum holds for replace-one as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils.validation import check_consistent_length

from sordino._base.errors import SordinoError, require_choice
from sordino._base.keys import RunKey
from sordino.models._checks import Features, Labels, Rows
from sordino.models._evaluation import run_evaluation
from sordino.models._linear import Public, public_pair
from sordino.models._prefix import rounded_off
from sordino.planning import Evaluation
from sordino.privacy import person_ids

Scorer: TypeAlias = Callable[[BaseEstimator, Features, ArrayLike], float]
# What scikit-learn calls a score, what an evaluation calls it, and whether more is better.
OF_CLASSES = {
    "accuracy": ("accuracy", 1),
    "balanced_accuracy": ("balanced_accuracy", 1),
    "roc_auc": ("auc", 1),
    "neg_log_loss": ("log_loss", -1),
}
OF_NUMBERS = {
    "neg_root_mean_squared_error": ("root_mean_squared_error", -1),
    "neg_mean_absolute_error": ("mean_absolute_error", -1),
    "neg_median_absolute_error": ("median_absolute_error", -1),
}
# Rounding of sums of squares stays below this.
_MARGIN = 1e-12


@dataclass(frozen=True)
class PublicScore:
    """A trial's score on public data: costs nothing."""

    X: Features
    y: ArrayLike
    scorer: Scorer

    @classmethod
    def of(cls, public: Public, scorer: Scorer) -> PublicScore:
        X, y = public_pair(public)
        check_consistent_length(X, y)
        return cls(X, y, scorer)

    def __call__(self, model: BaseEstimator) -> float:
        return float(self.scorer(model, self.X, self.y))


@dataclass(frozen=True)
class NoisyScore:
    """A trial's mean score on private rows of their own, each row's in [0, 1], with Gaussian noise.

    One row moves the sum by at most 1, under zero-out as under replace-one, so noise of standard
    deviation 1 / mu makes it mu-GDP. Rows are either trained on or scored on, so that a trial as a
    whole is mu-GDP where each of the two is.
    """

    X: Rows
    y: Labels
    std: float
    draw: np.random.Generator

    def __call__(self, model: BaseEstimator) -> float:
        # Silently, and with 0 for what has no score: one row must not show in any other way.
        with np.errstate(all="ignore"):
            predicted = np.asarray(model.predict(self.X))
            if predicted.shape != self.y.shape:
                raise SordinoError("a trial must predict one value for each row")
            if is_classifier(model):
                values = np.asarray(predicted == self.y, np.float64)
            else:
                low, high = model.target_bounds_
                error = (np.clip(predicted, low, high) - np.clip(self.y, low, high)) / (high - low)
                values = 1 - np.clip(error, -1.0, 1.0) ** 2
            values = np.where(np.isfinite(values), values, 0.0)
        noisy = np.asarray(values.sum() + self.std * self.draw.standard_normal())
        return float(rounded_off(noisy, self.std)) / len(self.y)


@dataclass(frozen=True)
class FoldPrices:
    """What each part of a search in folds may cost.

    Attributes:
      fit: mu of one training.
      score: mu of one candidate's score.
      shared: mu of what is asked once for all, such as facts about the columns.
    """

    candidates: int
    folds: int
    fit: float
    score: float
    shared: float = 0.0

    @classmethod
    def of(cls, mu: float, candidates: int, folds: int, shared: float = 0.0) -> FoldPrices:
        """The same price for every training and every score."""
        if not 0 <= shared < mu:
            raise SordinoError("what is shared by all trials leaves nothing of the budget for them")
        parts = candidates * folds + 1
        each = math.sqrt((mu - shared) * (mu + shared) / parts) * (1 - _MARGIN)
        return cls(candidates, folds, each, each, shared)

    def describe(self) -> str:
        """How often a unit takes part, in words."""
        trainings = self.candidates * (self.folds - 1) + 1
        return f"in {trainings} trainings and {self.candidates} scores of a search"

    def total(self) -> float:
        """mu of everything."""
        trainings = self.candidates * (self.folds - 1) + 1
        return math.sqrt(self.shared**2 + trainings * self.fit**2 + self.candidates * self.score**2)


def folds_of(
    key: RunKey, ids: Sequence[str | None] | None, rows: int, folds: int
) -> NDArray[np.int64]:
    """The fold of each row (rows,): secret; by persons where there are ids, of equal sizes where not."""
    if ids is None:
        order = key.generator("folds").permutation(rows)
        result = np.empty(rows, np.int64)
        result[order] = np.arange(rows) * folds // rows
        return result
    known = list(dict.fromkeys(one for one in ids if one is not None))
    words = key.words("folds", known) % np.uint64(folds) if known else np.zeros(0, np.uint64)
    place: dict[str | None, int] = dict(zip(known, words.tolist(), strict=True))
    return np.fromiter((place.get(one, 0) for one in ids), np.int64, rows)


def owners_of(groups: ArrayLike | None) -> tuple[list[str | None] | None, NDArray[np.int64] | None]:
    """Canonical ids, and the index of each row's person (-1: nobody's)."""
    if groups is None:
        return None, None
    ids = person_ids(groups).tolist()
    places: dict[str, int] = {}
    owners = [-1 if one is None else places.setdefault(one, len(places)) for one in ids]
    return ids, np.array(owners, np.int64)


def checked_scoring(scoring: object, estimator: BaseEstimator) -> str:
    """The name of a score that can be released."""
    known = OF_CLASSES if is_classifier(estimator) else OF_NUMBERS
    if scoring is None:
        return next(iter(known))
    if not isinstance(scoring, str):
        raise SordinoError(
            "scoring by a function is for public validation data, fit(..., public=(X, y)); private scores "
            f"are {', '.join(known)}"
        )
    return str(require_choice("scoring", scoring, tuple(known)))


@dataclass(frozen=True)
class EvaluationOf:
    """Scores of predictions for private rows, each a release of its own with the same noise.

    Attributes:
      scoring: one of `OF_CLASSES` or `OF_NUMBERS`.
      sigma: of the whole release; its mu is 1 / sigma, or sqrt(2) / sigma under replace-one.
      share: of the rows that one training leaves out, for the query's own description.
      key: of the search; each score has its own.
    """

    scoring: str
    sigma: float
    share: float
    key: RunKey

    def __call__(
        self,
        name: str,
        model: BaseEstimator,
        predictions: NDArray[np.float64],
        targets: Labels,
        owners: NDArray[np.int64] | None,
    ) -> float:
        """More is better; NaN where the noise leaves nothing to say."""
        key = RunKey(self.key.derive(f"score/{name}"), insecure=self.key.insecure)
        if self.scoring in OF_CLASSES:
            metric, sign = OF_CLASSES[self.scoring]
            task = "binary" if len(model.classes_) == 2 else "classes"
            query = Evaluation(task, self.sigma, self.share, name=name)
            answer = run_evaluation(
                query,
                codes_of(model.classes_, targets),
                predictions,
                owners,
                key,
                classes=np.asarray(model.classes_).tolist(),
            )
        else:
            metric, sign = OF_NUMBERS[self.scoring]
            query = Evaluation("regression", self.sigma, self.share, name=name)
            answer = run_evaluation(
                query, targets, predictions, owners, key, bounds=model.target_bounds_
            )
        return sign * answer.metrics().scores[metric].value


def predictions_of(model: BaseEstimator, X: Features) -> NDArray[np.float64]:
    """Probabilities (rows, classes), or predicted numbers (rows,); silently, whatever a row holds."""
    with np.errstate(all="ignore"):
        values = model.predict_proba(X) if is_classifier(model) else model.predict(X)
    return np.asarray(values, np.float64)


def codes_of(classes: Labels, labels: Labels) -> NDArray[np.int64]:
    """The index of each label among the sorted classes; -1 for others."""
    place = np.clip(np.searchsorted(classes, labels), 0, len(classes) - 1)
    return np.where(np.asarray(classes)[place] == labels, place, -1).astype(np.int64)


def whole_targets(params: Mapping[str, object], y: Labels) -> dict[str, object]:
    """The classes or bounds of all rows, where they are not declared."""
    if "classes" in params:
        return {} if params["classes"] is not None else {"classes": np.unique(y)}
    if params.get("target_bounds") is not None:
        return {}
    return {"target_bounds": (float(y.min()), float(y.max()))}
