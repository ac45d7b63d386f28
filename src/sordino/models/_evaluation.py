"""Questions about a released model, put to persons that were held out, and answered with noise.

    heldout = held_out(key, ids, len(frame), share=0.1)             before anything else
    answer = run_evaluation(query, truth, scores, owners, key, classes=("no", "yes"))
    answer.metrics()

A person of n rows adds 1/n to the cells of its rows, so one person moves what is released by at most 1
in norm, whatever its rows are (papers/06, sections 6 and 6.2). What does not fit (a missing truth, a
score that is no number, a row of nobody) adds nothing, and nothing is said about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.codec import digest_of, pack, unpack
from sordino._base.errors import (
    DAMAGE,
    SordinoError,
    one_line,
    require_choice,
    require_count,
    require_fraction,
    shown,
)
from sordino._base.keys import RunKey
from sordino._base.types import Json
from sordino.models._prefix import prefix_noise, rounded_off
from sordino.models._schema import Value
from sordino.planning import Evaluation

if TYPE_CHECKING:
    from sordino.models._metrics import EvaluationMetrics

Array: TypeAlias = NDArray[np.float64]

CLASSES, REGRESSION = "classes", "regression"
# Weights are whole multiples of 2^-24: their sums are exact, whatever the order of the rows.
_UNIT = 2**24
# Files may claim any shape; no answer is larger than this.
_LARGEST = 1 << 27


def held_out(
    key: RunKey, ids: Sequence[str | None] | None, rows: int, share: float
) -> NDArray[np.bool_]:
    """Which rows are held out (rows,): a secret draw for each person, by its id alone.

    Args:
      ids: whose each row is, in the one spelling of `person_ids`; None if each row is a person.
      share: how likely a person is held out.
    """
    require_fraction("the share of held-out persons", share, closed=True)
    if ids is None:
        return np.asarray(key.generator("heldout").random(rows) < share)
    known = [person for person in dict.fromkeys(ids) if person is not None]
    words = key.words("heldout", known) if known else np.zeros(0, np.uint64)
    chosen: dict[str | None, bool] = dict(zip(known, words < share * 2.0**64, strict=True))
    return np.fromiter((chosen.get(person, False) for person in ids), np.bool_, rows)


@dataclass(frozen=True, eq=False)
class EvaluationAnswer:
    """What was released about the held-out persons: noisy weights, and what is public about them.

    Attributes:
      task: "classes" or "regression".
      sigma: the standard deviation that stands for the whole budget of the evaluation; what shares it
        (`sigma_of`) has more.
      classes: in the order of the weights.
      bounds: of the target, of a regression.
      majority: index of the class that is the largest in what was released before; None: by these weights.
      weights: by part. "scores" (tasks, 2, cells): persons by predicted probability, those of other classes
        and those of the class; one task if there are two classes, else one for each. "matrix" (classes,
        classes): persons by true and predicted class, if there are more than two. "errors" (1, cells):
        persons by the size of the error.
    """

    task: str
    sigma: float
    cells: int
    weights: Mapping[str, Array] = field(repr=False)
    classes: tuple[Value, ...] = ()
    bounds: tuple[float, float] | None = None
    majority: int | None = None
    unit: str = "person"

    def sigma_of(self, part: str) -> Array:
        """Standard deviation of a part's noise, before `prefix_noise` shapes it, to multiply it with."""
        return self.sigma * _factors(self.task, len(self.classes))[part]

    @property
    def tasks(self) -> int:
        """How many yes-or-no questions the classes are: one for two classes, else one for each."""
        return 1 if len(self.classes) == 2 else len(self.classes)

    def confusion(self, threshold: float = 0.5) -> Array:
        """Persons by true and predicted class (2, 2), where more than `threshold` means the second class.

        Thresholds are rounded to the nearest cell: with 256 cells, to multiples of 1/256.
        """
        if self.tasks != 1:
            raise SordinoError("a threshold needs a classification with two classes")
        require_fraction("the threshold", threshold, closed=True)
        cut = round(threshold * self.cells)
        clean = self.denoised["scores"][0]
        return np.stack([clean[:, :cut].sum(axis=1), clean[:, cut:].sum(axis=1)], axis=1)

    @cached_property
    def denoised(self) -> Mapping[str, Array]:
        """The weights, by part, as they could be true."""
        from sordino.models._metrics import denoised

        return {name: denoised(name, weights) for name, weights in self.weights.items()}

    def metrics(self) -> EvaluationMetrics:
        """AUC, accuracy and others with 95 % intervals; costs no privacy, and is the same each time."""
        from sordino.models._metrics import metrics_of

        return metrics_of(self)

    def to_json(self) -> Json:
        """Plain data; numbers bit for bit."""
        return {
            "task": self.task,
            "sigma": self.sigma,
            "cells": self.cells,
            "classes": list(self.classes),
            "bounds": None if self.bounds is None else list(self.bounds),
            "majority": self.majority,
            "unit": self.unit,
            "weights": {name: {"float64": pack(part)} for name, part in self.weights.items()},
        }

    @classmethod
    def from_json(cls, data: Json) -> EvaluationAnswer:
        """What `to_json` wrote; it comes from strangers."""
        try:
            task = require_choice("task", data["task"], (CLASSES, REGRESSION))
            cells = require_count("cells", data["cells"], minimum=2)
            classes = tuple(data["classes"])
            bounds = data["bounds"]
            weights = {
                name: unpack(
                    {**data["weights"][name], "shape": _shape(name, cells, len(classes))},
                    "float64",
                    "shape",
                    largest=_LARGEST,
                    what=f"the part {name!r} of an evaluation",
                )
                for name in _factors(task, len(classes))
            }
            if not all(np.isfinite(part).all() for part in weights.values()):
                raise ValueError("numbers that are not finite")
            if not all(isinstance(value, str | int | float | bool) for value in classes):
                raise ValueError("classes that are no values")
            majority = data["majority"]
            if majority is not None and not 0 <= int(majority) < len(classes):
                raise ValueError("a majority that is no class")
            sigma = float(data["sigma"])
            if not 0 <= sigma < np.inf:
                raise ValueError("a noise that is no amount")
            return cls(
                task,
                sigma,
                cells,
                weights,
                classes,
                None if task == CLASSES else checked_bounds(bounds),
                None if majority is None else int(majority),
                str(data["unit"]),
            )
        except SordinoError:
            raise
        except DAMAGE as error:
            raise SordinoError(f"an evaluation cannot be read: {one_line(error)}") from None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all of it."""
        return digest_of(self.to_json())


def run_evaluation(
    query: Evaluation,
    truth: ArrayLike,
    scores: ArrayLike,
    owners: NDArray[np.int64] | None,
    key: RunKey,
    *,
    classes: Sequence[Value] | None = None,
    bounds: tuple[float, float] | None = None,
    majority: int | None = None,
    unit: str = "person",
) -> EvaluationAnswer:
    """Ask the held-out persons how good the released model is: noisy numbers, and nothing else.

    Args:
      truth: for classes the index of each row's class (rows,), -1 where it is missing or undeclared; for a
        regression its target, NaN where it is missing.
      scores: for two classes the probability of the second (rows,) or both (rows, 2); for more classes the
        probability of each (rows, classes); for a regression the prediction (rows,).
      owners: index of the row's person (rows,), -1 where there is none; None if each row is a person.
      key: of this query alone; its noise is derived from it.
      classes: in the order of `truth`, for a classification.
      bounds: of the target, for a regression: an error as large as they are wide, or larger, is one.
      majority: index of the largest class by what was released of the training persons.
    """
    numbers = np.asarray(scores, np.float64)
    if query.task == REGRESSION:
        limits = checked_bounds(bounds)
        target = np.asarray(truth, np.float64)
        _check_rows(numbers.shape == target.shape and target.ndim == 1)
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.abs(target - numbers) / (limits[1] - limits[0])
        valid = np.isfinite(target) & np.isfinite(numbers)
        weight = _weights(valid, owners)
        part = _histogram((error_cells(error, query.cells),), weight, (query.cells,))[None]
        empty = EvaluationAnswer(REGRESSION, query.sigma, query.cells, {}, bounds=limits, unit=unit)
        return _released(empty, key, {"errors": part})
    known = tuple(_plain(value) for value in classes or ())
    count = len(known)
    if count < 2:
        raise SordinoError(f"an evaluation of classes needs at least two of them, got {count}")
    labels = np.asarray(truth, np.int64)
    if count == 2 and numbers.ndim == 1:
        numbers = np.stack([1 - numbers, numbers], axis=1)
    _check_rows(labels.ndim == 1 and numbers.shape == (len(labels), count))
    valid = (labels >= 0) & (labels < count) & np.isfinite(numbers).all(axis=1)
    labels, numbers = np.where(valid, labels, 0), np.where(valid[:, None], numbers, 0.0)
    weight = _weights(valid, owners)
    parts = {}
    if count > 2:
        parts["matrix"] = _histogram((labels, np.argmax(numbers, axis=1)), weight, (count, count))
    tasks = [1] if count == 2 else range(count)
    parts["scores"] = np.stack(
        [
            _histogram(
                ((labels == task).astype(np.int64), score_cells(numbers[:, task], query.cells)),
                weight,
                (2, query.cells),
            )
            for task in tasks
        ]
    )
    empty = EvaluationAnswer(
        CLASSES, query.sigma, query.cells, {}, known, majority=majority, unit=unit
    )
    return _released(empty, key, parts)


def score_cells(probability: Array, cells: int) -> NDArray[np.int64]:
    """The cell of a probability: the k-th ends at k/cells, which is in it, as "no" is at 0.5."""
    return np.clip(np.ceil(probability * cells) - 1, 0, cells - 1).astype(np.int64)


def error_cells(error: Array, cells: int) -> NDArray[np.int64]:
    """The cell of an error as a share of the bounds: the k-th ends at (k/cells)^2."""
    with np.errstate(invalid="ignore"):
        place = np.ceil(np.sqrt(error) * cells) - 1
    return np.clip(np.nan_to_num(place), 0, cells - 1).astype(np.int64)


def checked_bounds(bounds: Sequence[float] | None) -> tuple[float, float]:
    if bounds is None or len(bounds) != 2:
        raise SordinoError("an evaluation of a regression needs the bounds of its target")
    low, high = float(bounds[0]), float(bounds[1])
    if not (np.isfinite(high - low) and low < high):
        raise SordinoError(
            f"the bounds of the target must be finite and rise, got {shown((low, high))}"
        )
    return low, high


def _factors(task: str, classes: int) -> dict[str, Array]:
    """What is released, and the factors on sigma: mu of the parts, squared, adds up to 1/sigma^2.

    Of two classes a row is in one cell of one half. Of K classes it is in one cell of the matrix (half of
    mu^2), in one of all halves of a class's own persons together (a quarter), and in K - 1 of the halves of
    others (a quarter): with the share a_k of a person's rows in class k, the squared norm of the last is
    at most ``sum (1 - a_k)^2 <= K - 1``. So noise on a class's own persons does not grow with K.
    """
    if task == REGRESSION:
        return {"errors": np.ones(1)}
    if classes == 2:
        return {"scores": np.ones((2, 1))}
    return {
        "matrix": np.full(1, 2**0.5),
        "scores": np.array([[2 * (classes - 1) ** 0.5], [2.0]]),
    }


def _shape(part: str, cells: int, classes: int) -> tuple[int, ...]:
    tasks = 1 if classes == 2 else classes
    return {"errors": (1, cells), "matrix": (classes, classes)}.get(part, (tasks, 2, cells))


def _check_rows(fits: bool) -> None:
    if not fits:
        raise SordinoError("an evaluation needs a truth and scores for each of the same rows")


def _plain(value: Value) -> Value:
    return value.item() if isinstance(value, np.generic) else value


def _weights(valid: NDArray[np.bool_], owners: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """1/n for each of the n valid rows of a person, rounded down, in units of 2^-24."""
    if owners is None:
        return valid * np.int64(_UNIT)
    person = np.asarray(owners, np.int64)
    _check_rows(person.shape == valid.shape)
    counts = valid & (person >= 0)
    rows = np.bincount(person[counts])
    result = np.zeros(len(valid), np.int64)
    result[counts] = _UNIT // rows[person[counts]]
    return result


def _histogram(
    cells: tuple[NDArray[np.int64], ...], weight: NDArray[np.int64], shape: tuple[int, ...]
) -> Array:
    """The sum of the weights in each cell, exactly."""
    total = np.zeros(np.prod(shape), np.int64)
    np.add.at(total, np.ravel_multi_index(cells, shape), weight)
    return np.asarray(total.reshape(shape) / _UNIT)


def _released(empty: EvaluationAnswer, key: RunKey, parts: Mapping[str, Array]) -> EvaluationAnswer:
    """The parts with their noise: the only way out of this module."""
    noisy = {}
    for name, part in parts.items():
        noise = part_noise(name, part.shape, key.generator(f"evaluation/{name}"))
        noisy[name] = rounded_off(part + empty.sigma_of(name) * noise, empty.sigma)
    return replace(empty, weights=noisy)


def part_noise(part: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Noise of one part at sigma 1: independent in the matrix, shaped for running sums along cells."""
    if part == "matrix":
        return rng.standard_normal(shape)
    return prefix_noise(shape[-1], rng, shape[:-1])
