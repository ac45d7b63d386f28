"""X and y as a fit takes them, and refusals that show nothing of a record.

What scikit-learn and numpy say about data that they refuse may show it ("could not convert string to
float: 'kuru'", a whole array). Their words are passed on only where they are known to hold shapes and
names alone; anything else is said in a sentence of ours, with no other error behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError

Result = TypeVar("Result")

# How messages of scikit-learn begin that hold no value of a record.
_HARMLESS = (
    "A sparse ",
    "Expected a 2-dimensional container",
    "Feature names are only supported",
    "Found array with ",
    "Found input variables with inconsistent numbers of samples",
    "Input X contains ",
    "Input y contains ",
    "Sparse data was passed",
    "The feature names should match",
    "X has ",
    "y should be a 1d array",
)
# What others begin with, and what is said instead.
_IN_OUR_WORDS = (
    ("Complex data not supported", "Complex data not supported: {what} must hold real numbers"),
    (
        "Expected 2D array",
        "Reshape your data: {what} must have rows and columns, such as {what}.reshape(-1, 1) for one "
        "feature and {what}.reshape(1, -1) for one row",
    ),
)
_NO_NUMBERS = (
    "{what} holds something that is no number that can be used, such as text or a number that is too "
    "large; convert it, or remove those rows"
)
_NO_ROWS = "{what} must be arrays of as many rows, with one target for each row"
# scikit-learn's tools know a refusal of labels by its first words.
NO_LABELS = (
    "Unknown label type: y must hold one label for each row, all of them text or all of them whole "
    "numbers; convert y, or remove the rows without such a label"
)


class NoNumberError(SordinoError, TypeError):
    """An object where a number is needed: a `TypeError` too, as scikit-learn's tools expect."""


def discreetly(act: Callable[[], Result], what: str, otherwise: str) -> Result:
    """The result of `act`; what it raises and numpy's warnings show no record, `otherwise` is said.

    The error that is raised has no context: what was caught is gone.
    """
    try:
        with np.errstate(all="ignore"):
            return act()
    except SordinoError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        refusal = _refusal(error, what, otherwise)
    raise refusal


def _refusal(error: Exception, what: str, otherwise: str) -> Exception:
    text = str(error)
    if text.startswith(_HARMLESS):
        return type(error)(text)
    for beginning, words in _IN_OUR_WORDS:
        if text.startswith(beginning):
            return SordinoError(words.format(what=what))
    said = otherwise.format(what=what)
    if isinstance(error, TypeError) and otherwise is _NO_NUMBERS:
        return NoNumberError(f"{said}: each argument must be a number or a string that is a number")
    return SordinoError(said)


def checked_numbers(act: Callable[[], Result], what: str) -> Result:
    """What `act` makes numbers of `what`, or one sentence."""
    return discreetly(act, what, _NO_NUMBERS)


def check_lengths(X: Any, y: Any) -> None:
    """Refuse data and targets that are not of one length."""
    from sklearn.utils.validation import check_consistent_length

    discreetly(lambda: check_consistent_length(X, y), "X and y", _NO_ROWS)


def checked_labels(y: Any) -> NDArray[Any]:
    """Labels (rows,): text or whole numbers, or one sentence whatever else they are."""
    from sklearn.utils import column_or_1d

    labels = discreetly(lambda: column_or_1d(y, warn=True), "y", NO_LABELS)
    kind = labels.dtype.kind
    if kind == "f":
        with np.errstate(all="ignore"):
            finite = bool(np.isfinite(labels).all())
            whole = finite and bool((labels == np.floor(labels)).all())
        if not finite:
            raise SordinoError(
                "y contains NaN or infinity where labels are needed; remove the rows without a label"
            )
        if not whole:
            raise SordinoError(
                "Unknown label type: continuous numbers are no classes; use PrivateRegressor, or give "
                "labels that are text or whole numbers"
            )
    elif kind == "O":
        if not is_text(labels):
            raise SordinoError(NO_LABELS)
    elif kind not in "biuU":
        raise SordinoError(NO_LABELS)
    return labels


def is_text(labels: NDArray[Any]) -> bool:
    """Whether all labels are text."""
    if labels.dtype.kind == "O":
        return all(isinstance(label, str) for label in labels.tolist())
    return labels.dtype.kind == "U"


def checked_targets(y: Any) -> NDArray[np.float64]:
    """Targets (rows,) as float64, all of them finite."""
    from sklearn.utils.validation import _check_y, column_or_1d

    def convert() -> NDArray[np.float64]:
        targets = np.asarray(_check_y(column_or_1d(y, warn=True), y_numeric=True), np.float64)
        # Again: text such as "nan" is a number only now.
        return np.asarray(_check_y(targets))

    return checked_numbers(convert, "y")
