"""Weights of rows and of classes, 0 to 1: they act after the clip, free of cost (papers/06, section 5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError, require_choice, shown
from sordino.models._cells import read_cells
from sordino.models._schema import Value


def bounded_weights(
    sample_weight: ArrayLike, bound: float | None, rows: int
) -> NDArray[np.float64]:
    """Weights of rows over their public bound, between 0 and 1; what is no number is 0."""
    if bound is None or not (math.isfinite(bound) and bound > 0):
        raise SordinoError(
            "sample_weight needs weight_bound, the largest weight that a row may have, from public "
            "knowledge"
        )
    cells = read_cells(sample_weight)
    if len(cells) != rows:
        raise SordinoError("there must be one sample_weight for each row of X")
    numbers = np.zeros(rows) if cells.numbers is None else np.nan_to_num(cells.numbers)
    return np.clip(numbers, 0.0, bound) / bound


def _words(classes: Sequence[Value]) -> tuple[str, ...]:
    """Declared classes as the texts that `Cells.as_values` has for them."""
    cells = read_cells(list(classes), values=tuple(classes)).as_values()
    codes = np.full(len(cells), -1) if cells.codes is None else cells.codes
    return tuple(
        str(value) if code < 0 else cells.vocabulary[code]
        for value, code in zip(classes, codes.tolist(), strict=True)
    )


def class_weights(
    given: object, classes: Sequence[Value], counts: NDArray[np.float64] | None, least: float
) -> NDArray[np.float64] | None:
    """The weight of each class, the largest 1; None for no weights.

    "balanced": ``min n_c / n_c`` from the released counts, which are floored at max(1, sigma) (`least`).
    """
    if given is None:
        return None
    if isinstance(given, str):
        require_choice("class_weight", given, ("balanced",))
        if counts is None:
            raise SordinoError("balanced class weights need the classes' counts")
        floored = np.maximum(counts, max(1.0, least))
        return np.asarray(np.clip(floored.min() / floored, 0.0, 1.0))
    if not isinstance(given, Mapping):
        raise SordinoError(
            f"class_weight is 'balanced' or a dict of weights by class, got {shown(given)}"
        )
    known = dict(zip(_words(tuple(given)), given.items(), strict=True))
    try:
        weights = np.array(
            [float(known.pop(word, (None, 1.0))[1]) for word in _words(classes)], np.float64
        )
    except (TypeError, ValueError):
        weights = np.zeros(0)
    if len(weights) != len(classes) or not (np.isfinite(weights).all() and weights.min() >= 0):
        raise SordinoError("class_weight needs a number of at least 0 for each class")
    for label, _ in known.values():
        raise SordinoError(f"class_weight has {shown(label)}, which is no class")
    if not weights.max() > 0:
        raise SordinoError("class_weight must be above 0 for one class")
    return np.asarray(weights / weights.max())
