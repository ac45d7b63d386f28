"""Pages from templates: one base with the style, pieces that pages share, and a page in each room.

    text = render(__package__, "run.html.j2", title="Income", date="", ...)

What a template is given is escaped unless it is a drawing of ours, and a fact that a template names and is
not given is an error. jinja2 is imported when the first page is written.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sordino._base.errors import one_line
from sordino._version import __version__
from sordino.privacy import INSECURE, change, plural, rounded_up
from sordino.report._words import guessing

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
