"""Parts that all pages of a federated report share: the frame, and small pieces of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from matplotlib.figure import Figure

from sordino._base.errors import one_line
from sordino._version import __version__
from sordino.report import CSS, to_svg
from sordino.together.federated._report_facts import Facts

# Nothing may be fetched or run; pictures may be in the page itself.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CSS = (
    CSS
    + """
a { color: var(--accent); }
nav { max-width: 52rem; margin: 0 auto; padding: 1rem 1.25rem 0; display: flex; gap: 1.5rem;
  flex-wrap: wrap; font-size: .95rem; }
nav + header { padding-top: 1.2rem; }
.tall { max-height: 38rem; overflow: auto; border-bottom: 1px solid var(--line); }
.tall thead th { position: sticky; top: 0; background: var(--page); }
td.event { overflow-wrap: anywhere; } td.when { white-space: nowrap; color: var(--soft); }
table.tight { font-size: .9rem; } .tight th, .tight td { padding-top: .28rem; padding-bottom: .28rem; }
tbody th.name { white-space: normal; overflow-wrap: break-word; min-width: 8.5rem; max-width: 15rem; }
.tight td.number, .tight th.number { padding-right: 1.1rem; }
td.status { overflow-wrap: break-word; min-width: 8.5rem; }
details { margin: .8rem 0; } summary { cursor: pointer; }
@media print { .tall { max-height: none; } nav { display: none; } }
"""
)
# Longer lists are shortened, and say so.
MOST_EVENTS = 100
LONG_TABLE = 25


def page(title: str, body: Iterable[str], facts: Facts, date: str) -> str:
    when = f", {escape(date)}" if date else ""
    foot = (
        f"<footer><p>Sordino {escape(__version__)} · agreement "
        f"<code>{facts.agreement.digest}</code>{when}</p></footer>"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in (*body, foot) if part)
        + "\n</body>\n</html>\n"
    )


def event_table(heading: str, events: Sequence[tuple[str, str]]) -> str:
    if not events:
        return ""
    shown = list(events)[-MOST_EVENTS:]
    rows = "".join(
        f'<tr><td class="when">{moment(at)}</td><td class="event">{escaped(text, 400)}</td></tr>'
        for at, text in reversed(shown)
    )
    some = f"the last {len(shown):,} of " if len(shown) < len(events) else ""
    tall = " tall" if len(shown) > LONG_TABLE else ""
    return (
        f"<section><h2>{heading}</h2><p>Messages that were refused, rejected, late or missing ({some}"
        f"{len(events):,} known events, the newest first).</p>"
        f'<div class="scroll{tall}"><table class="tight"><thead><tr><th scope="col">when (UTC)</th>'
        f'<th scope="col">what</th></tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def number_row(numbers: Iterable[tuple[str, str]]) -> str:
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in numbers
    )
    return f'<dl class="numbers">{items}</dl>'


def moment(at: str) -> str:
    """A point in time to the second."""
    return escaped(at[:19].replace("T", " "))


def shown_figure(figure: Figure, label: str, prefix: str, caption: str) -> str:
    drawing = to_svg(figure, label=label, prefix=prefix)
    return f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"


def listed(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def escaped(text: str, longest: int = 160) -> str:
    """Foreign text: one printable line, with nothing in it that a page would act on."""
    return escape(one_line(text, longest))
