"""X and y as a fit takes them, and refusals that show nothing of a record.

What scikit-learn and numpy say about data that they refuse may show it ("could not convert string to
float: 'kuru'", a whole array). Their words are passed on only where they are known to hold shapes and
names alone; anything else is said in a sentence of ours, with no other error behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_matrix

Result = TypeVar("Result")
# What is predicted: text or numbers (rows,).
Labels: TypeAlias = NDArray[Any]
# A row for each record, once checked: numbers, dense or sparse, or named columns.
Rows: TypeAlias = "NDArray[Any] | csr_matrix | pd.DataFrame"
# The same as a caller gives them.
Features: TypeAlias = "ArrayLike | csr_matrix | pd.DataFrame"

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
