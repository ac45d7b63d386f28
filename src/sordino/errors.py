"""What Sordino raises and warns with.

Every message is one sentence: what is wrong, where, and what would be right. Errors are raised
before any privacy budget is spent and before anything is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches


class SordinoError(ValueError):
    """Bad input. A `ValueError`, so that scikit-learn's tools and users' handlers know it."""


class PlanMismatchError(SordinoError):
    """The data, the step count or the participation at run time is not what the plan was made for."""


class MissingExtraError(ImportError):
    """An optional dependency is needed; the message names the extra that installs it."""


class PrivacyWarning(UserWarning):
    """Something outside the guarantee may reveal private data, or the guarantee is weak."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``"; did you mean 'dp-sgd'?"``, or the list of what is known."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names)}"


def require_positive(name: str, value: float, *, maximum: float = math.inf) -> float:
    """`value` as a float if it is a finite number in ``(0, maximum]``."""
    number = _number(name, value)
    if not (math.isfinite(number) and 0 < number <= maximum):
        limit = "" if maximum == math.inf else f" and at most {maximum:g}"
        raise SordinoError(f"{name} must be a finite number greater than 0{limit}, got {value!r}")
    return number


def require_count(name: str, value: int, *, minimum: int = 1) -> int:
    """`value` as an int if it is a whole number of at least `minimum`."""
    number = _number(name, value)
    if not math.isfinite(number) or number != int(number) or number < minimum:
        raise SordinoError(f"{name} must be a whole number of at least {minimum}, got {value!r}")
    return int(number)


def require_fraction(name: str, value: float, *, closed: bool = False) -> float:
    """`value` as a float if it lies in ``(0, 1)`` (or ``[0, 1]`` where `closed`)."""
    number = _number(name, value)
    inside = 0 <= number <= 1 if closed else 0 < number < 1
    if not inside:
        kind = "between 0 and 1" if closed else "greater than 0 and less than 1"
        raise SordinoError(f"{name} must be {kind}, got {value!r}")
    return number


def require_choice(name: str, value: str, allowed: Iterable[str]) -> str:
    """`value` if it is one of `allowed`."""
    options = list(allowed)
    if value not in options:
        hint = nearest(value, options) if isinstance(value, str) else f"; known are {options}"
        raise SordinoError(f"{name} {value!r} is not known{hint}")
    return value


def _number(name: str, value: float) -> float:
    if isinstance(value, (bool, str)):
        raise SordinoError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise SordinoError(f"{name} must be a number, got {value!r}") from None
