"""What Sordino raises and warns with.

Every message is one sentence: what is wrong, where, and what would be right. Errors are raised
before any privacy budget is spent and before anything is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches

from sordino._base.types import Json

# Messages show no more of a value than this, and of a list of names no more than these.
_LONGEST_SHOWN = 80
_MOST_NAMES = 20
_LARGEST_COUNT = 2**63


class SordinoError(ValueError):
    """Bad input. A `ValueError`, so that scikit-learn's tools and users' handlers know it."""


# What reading damaged data may raise anywhere: a field is missing, of another type, or too large.
DAMAGE: tuple[type[Exception], ...] = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class PlanMismatchError(SordinoError):
    """The data, the step count or the participation at run time is not what the plan was made for."""


class MissingExtraError(ImportError):
    """An optional dependency is needed; the message names the extra that installs it."""


class PrivacyWarning(UserWarning):
    """Something outside the guarantee may reveal private data, or the guarantee is weak."""


def shown(value: object) -> str:
    """`value` as a message shows it: on one line, and not all of it where it is long.

    Values come from files that others wrote, so even their `repr` may fail or fill a page.
    """
    if isinstance(value, str | bytes):
        value = value[: 2 * _LONGEST_SHOWN]
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or an int of too many digits
        return f"something too large to show ({type(value).__name__})"
    return _shortened(text, _LONGEST_SHOWN)


def one_line(reason: object, longest: int = 160) -> str:
    """What another library said, fit to be the end of a sentence: one line, printable, short."""
    text = " ".join(str(reason)[: 4 * longest].split()).rstrip(".")
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return _shortened(text, longest)


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 13]}...{text[-10:]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``"; did you mean 'dp-sgd'?"``, or the list of what is known."""
    names = sorted(known)
    # Against a name of thousands of letters a comparison would take longer than it is worth.
    close = get_close_matches(name, names, n=1, cutoff=0.5) if len(name) < 1000 else []
    # Letters in another order are the likeliest slip.
    close = [other for other in names if sorted(other) == sorted(name)] or close
    if close:
        return f"; did you mean {shown(close[0])}?"
    listed = ", ".join(one_line(known_name, 40) for known_name in names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"; known are {one_line(listed, 260)}{more}"


def require_positive(name: str, value: float, *, maximum: float = math.inf) -> float:
    """`value` as a float if it is a finite number in ``(0, maximum]``."""
    number = _number(name, value)
    if not (math.isfinite(number) and 0 < number <= maximum):
        limit = "" if maximum == math.inf else f" and at most {maximum:g}"
        raise SordinoError(
            f"{name} must be a finite number greater than 0{limit}, got {shown(value)}"
        )
    return number


def require_count(name: str, value: int, *, minimum: int = 1) -> int:
    """`value` as an int if it is a whole number of at least `minimum`."""
    number = _number(name, value)
    if not math.isfinite(number) or number != int(number) or number < minimum:
        raise SordinoError(
            f"{name} must be a whole number of at least {minimum}, got {shown(value)}"
        )
    if number >= _LARGEST_COUNT:
        raise SordinoError(f"{name} must be less than 2^63, got {shown(value)}")
    return int(number)


def require_fraction(name: str, value: float, *, closed: bool = False) -> float:
    """`value` as a float if it lies in ``(0, 1)`` (or ``[0, 1]`` where `closed`)."""
    number = _number(name, value)
    inside = 0 <= number <= 1 if closed else 0 < number < 1
    if not inside:
        kind = "between 0 and 1" if closed else "greater than 0 and less than 1"
        raise SordinoError(f"{name} must be {kind}, got {shown(value)}")
    return number


def require_choice(name: str, value: str, allowed: Iterable[str]) -> str:
    """`value` if it is one of `allowed`."""
    options = list(allowed)
    if value not in options:
        hint = nearest(value if isinstance(value, str) else "", options)
        raise SordinoError(f"{name} {shown(value)} is not known{hint}")
    return value


def known_fields(what: str, data: object, cls: type) -> Json:
    """`data` if it is what the dataclass `cls` takes by name, or an error that says what is not."""
    if not isinstance(data, Mapping):
        raise SordinoError(f"{what} must be a table of fields, got {shown(data)}")
    known = {field.name: field for field in fields(cls) if field.init}
    for name in data:
        if name not in known:
            raise SordinoError(f"{what} has no field {shown(name)}{nearest(str(name), known)}")
    for name, field in known.items():
        if name not in data and field.default is MISSING and field.default_factory is MISSING:
            raise SordinoError(f"{what} needs the field {name!r}")
    return dict(data)


def _number(name: str, value: float) -> float:
    if isinstance(value, (bool, str)):
        raise SordinoError(f"{name} must be a number, got {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise SordinoError(f"{name} is a number too large to use, got {shown(value)}") from None
    except (TypeError, ValueError):
        raise SordinoError(f"{name} must be a number, got {shown(value)}") from None


# In tracebacks and filters of warnings these have the names that users import.
for _public in (SordinoError, PlanMismatchError, MissingExtraError, PrivacyWarning):
    _public.__module__ = "sordino"
