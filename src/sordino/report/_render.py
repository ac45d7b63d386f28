"""Pages from templates: one base with the style, pieces that pages share, and a page in each room.

    text = render(__package__, "run.html.j2", title="Income", date="", ...)

What a template is given is escaped unless it is a drawing of ours, and a fact that a template names and is
not given is an error. jinja2 is imported when the first page is written. More words for people who do not
do this for a living are in the templates themselves.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sordino._base.errors import one_line
from sordino._version import __version__
from sordino.privacy import INSECURE, Guarantee, change, plural, rounded_up, secret

if TYPE_CHECKING:
    from jinja2 import Environment


def render(package: str, template: str, **facts: Any) -> str:
    """The page that `template` makes of `facts`.

    Args:
      package: whose folder ``templates`` has the template; those of this room can be used by all.
    """
    return _environment(package).get_template(template).render(facts)


@cache
def _environment(package: str) -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    rooms = dict.fromkeys((package, __package__))
    result = Environment(
        loader=ChoiceLoader([PackageLoader(room) for room in rooms]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    result.filters |= {
        "count": lambda number: f"{number:,}",
        "foreign": one_line,  # text of others: one printable line that is not too long
        "moment": lambda at: one_line(at[:19].replace("T", " ")),
        "rounded_up": rounded_up,
    }
    result.globals |= {
        "INSECURE": INSECURE,
        "change": change,
        "guessing": guessing,
        "plural": plural,
        "version": __version__,
    }
    return result


def guessing(guarantee: Guarantee) -> str:
    """The guarantee as a bet: how often can anyone guess right?

    With no prior inclination, the best guess between two data sets is right with probability
    ``(1 + TV) / 2``, and the total variation distance TV is at most delta at epsilon 0.
    """
    hidden = secret(guarantee.adjacency, guarantee.unit)
    who = "Someone without the seed of the noise" if guarantee.insecure else "Someone"
    best = (1 + guarantee.delta(0.0)) / 2
    # Rounded up: this is a promise.
    share = min(100.0, int(best * 1000 + 1) / 10)
    return (
        f"{who} who sees everything that was released, and knows all the rest of the data, and "
        f"must guess {hidden}, is right at most {share:g} % of the time; tossing a coin is right "
        f"50 % of the time."
    )
