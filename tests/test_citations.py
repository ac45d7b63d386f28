"""Every citation of a paper's notes resolves: the file is in docs/papers and has that anchor.

A citation is ``papers/NN`` and the places meant, as in ``papers/01, sections 1.3 and 2.1 to 2.4``,
``papers/02 2.6``, ``papers/03 E15``, ``papers/04 erratum l``, ``papers/00 oracle 5``, ``papers/01, table
2.3`` or ``papers/04, Lemma 4.1``. "paper NN" means all of one. An "oracle 3" or "erratum l" without a
number before it is of the only paper that its file cites.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
NOTES = ROOT / "docs" / "papers"
# `benchmarks` and `tools` are not in the source distribution.
FOLDERS = ("src", "tests", "benchmarks", "docs", "examples", "fuzz", "tools")
TEXTS = (".py", ".md", ".toml", ".txt", ".j2", ".html")

_NUMBER = r"(?!0\d)\d+(?:\.\d+)*'?"
_COUNT = r"(?!0\d)\d+(?:(?: to |-)\d+)?(?!\.?\d)"
_RANGE = rf"{_NUMBER}(?:(?: to |-){_NUMBER})?"
_LETTERS = r"\(?(?:E?(?!0)\d+(?:(?: to |-)E?\d+)?|[a-z])\)?(?!\.?\w)"
# How an anchor begins; the word that cites it, and how its places are numbered.
_KINDS = {
    "section": (r"sections? ", _RANGE),
    "erratum": (r"errat(?:um|a) ", _LETTERS),
    "oracle": (r"oracles? ", _COUNT),
    "table": (r"[Tt]ables? ", _RANGE),
    "lemma": (r"Lemmas? ", r"(?:[A-Z]\.)?" + _RANGE),
    "theorem": (r"Theorems? ", _RANGE),
    "corollary": (r"Corollar(?:y|ies) ", _RANGE),
    "algorithm": (r"[Aa]lgorithms? ", _RANGE),
    "equation": (r"(?:[Ee]q\.|[Ee]quations?) ", r"\(?\d+\)?"),
}
_JOIN = r"(?:,? and |, |; | )"
_PAPER = re.compile(r"\b[Pp]apers?(?:/| (?=0))(\d\d)\b(?!-)(?:'s)?")
# Looks like a place, but none of the forms above.
_PLACE_LEFT = re.compile(
    r"(?:,? and |, |; | )"
    r"(?:sections?|errat(?:um|a)|oracles?|tables? \d|Lemma|Theorem|Eq\.|\d+\.\d|0\d\b|E-?\d)"
)
_ALONE = re.compile(r"\b(oracle|erratum) (E?\d+|[a-n])\b(?!-)|\((E\d+)\)")


def flat(text: str) -> str:
    """On one line: a citation may go over the end of a line, in a docstring or a comment."""
    return re.sub(r"\s+", " ", re.sub(r"\n\s*(?:#:? ?|\* |- )?", " ", text))


def anchors_of(kind: str, item: str) -> Iterator[str]:
    """``section``, ``2.1 to 2.3``: section-2-1, section-2-2, section-2-3."""
    item = item.strip("()").replace("'", "prime")
    first, *last = re.split(r" to |-(?=[\dE])", item)
    for name in [first] if not last else _between(first, last[0]):
        yield f"{kind}-{name.lower().replace('.', '-')}"


def _between(first: str, last: str) -> list[str]:
    head, low = re.fullmatch(r"(.*?)(\d+)", first).groups()  # type: ignore[union-attr]
    other, high = re.fullmatch(r"(.*?)(\d+)", last).groups()  # type: ignore[union-attr]
    if other not in (head, "") or int(high) <= int(low):
        raise ValueError(f"{first} to {last} is no range")
    return [f"{head}{k}" for k in range(int(low), int(high) + 1)]


class Cited(NamedTuple):
    """A paper's number and the places after it; where they stand in the text."""

    paper: str
    anchors: tuple[str, ...]
    first: int
    end: int


def cited(text: str) -> Iterator[Cited]:
    """All of a text that is `flat`; ValueError where a place cannot be read."""
    for paper in _PAPER.finditer(text):
        anchors: list[str] = []
        end, kind = paper.end(), ""
        while (step := _next(text, end, kind)) is not None:
            kind, item, end = step
            anchors += anchors_of(kind, item)
        if _PLACE_LEFT.match(text, end):
            raise ValueError(f"cannot be read: {text[paper.start() : end + 30]!r}")
        yield Cited(paper[1], tuple(anchors), paper.start(), end)


def _next(text: str, at: int, kind: str) -> tuple[str, str, int] | None:
    """The next place cited: its kind (that of the one before, if none is named), itself, its end."""
    for name, (word, item) in _KINDS.items():
        if match := re.compile(rf"{_JOIN}{word}({item})").match(text, at):
            return name, match[1], match.end()
    if match := re.compile(rf"{_JOIN}(E-?(?:\d+|[a-n])(?:-E?\d+)?)\b").match(text, at):
        return "erratum", match[1].replace("E-", ""), match.end()
    if kind and (
        match := re.compile(rf"(?:,? and |, )({_KINDS[kind][1]})(?![\w/])").match(text, at)
    ):
        return kind, match[1], match.end()
    if match := re.compile(rf"{_JOIN}(\d+\.\d+(?:(?: to |-)\d+\.\d+)?)(?![\d%])").match(text, at):
        return "section", match[1], match.end()
    return None


def alone(text: str, numbered: list[Cited]) -> Iterator[str]:
    """Anchors of oracles and errata that stand without a paper's number."""
    for match in _ALONE.finditer(text):
        if not any(each.first <= match.start() < each.end for each in numbered):
            kind, item = (match[1], match[2]) if match[1] else ("erratum", match[3])
            yield from anchors_of(kind, item)


@cache
def notes() -> dict[str, frozenset[str]]:
    """The anchors of every paper's notes, by number."""
    return {path.name[:2]: anchors_in(path.read_text()) for path in sorted(NOTES.glob("[0-9]*.md"))}


def anchors_in(text: str) -> frozenset[str]:
    names = re.findall(r'<a id="([^"]+)"></a>|^#+ .*\{#([^}]+)\}$', text, re.MULTILINE)
    result = [first or second for first, second in names]
    assert len(result) == len(set(result)), [name for name in result if result.count(name) > 1]
    return frozenset(result)


def problems(text: str, known: dict[str, frozenset[str]], own: str | None = None) -> list[str]:
    """What does not resolve in a text; `own` is the paper of the notes themselves."""
    text = flat(text)
    try:
        numbered = list(cited(text))
    except ValueError as error:
        return [str(error)]
    result = [f"papers/{each.paper}" for each in numbered if each.paper not in known]
    result += [
        f"papers/{each.paper} {anchor}"
        for each in numbered
        for anchor in each.anchors
        if anchor not in known.get(each.paper, ())
    ]
    papers = {own} if own else {each.paper for each in numbered}
    for anchor in alone(text, numbered):
        if len(papers) != 1:
            result.append(f"{anchor} of which paper? The file cites {sorted(papers)}")
        elif anchor not in known.get(next(iter(papers)), ()):
            result.append(f"papers/{next(iter(papers))} {anchor}")
    return result


def files() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in TEXTS and path != Path(__file__) and "__pycache__" not in path.parts:
                yield path
    yield from sorted(ROOT.glob("*.md"))


def test_every_citation_resolves() -> None:
    wrong = {}
    for path in files():
        if "paper" not in (text := path.read_text(errors="replace")).lower():
            continue
        own = path.name[:2] if path.parent == NOTES else None
        if result := problems(text, notes(), own):
            wrong[str(path.relative_to(ROOT))] = result
    assert not wrong


def test_citations_are_seen() -> None:
    """A pattern that finds nothing would find nothing wrong."""
    count = dict.fromkeys(("src", "tests"), 0)
    for path in files():
        folder = path.relative_to(ROOT).parts[0]
        if folder in count:
            count[folder] += sum(1 for each in cited(flat(path.read_text())) if each.anchors)
    assert count["src"] > 60
    assert count["tests"] > 90


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("papers/02 2.6: a", ["section-2-6"]),
        ("(papers/04, sections 1.3 and 2.1)", ["section-1-3", "section-2-1"]),
        ("papers/00 1.3 and 5: b", ["section-1-3", "section-5"]),
        ("papers/01 sections 2.1-2.3, oracles 1, 3-5", [
            "section-2-1", "section-2-2", "section-2-3", "oracle-1", "oracle-3", "oracle-4", "oracle-5",
        ]),
        ("papers/02 E1 and E8-E10", ["erratum-e1", "erratum-e8", "erratum-e9", "erratum-e10"]),
        ("papers/04 errata a, b and\n    # l", ["erratum-a", "erratum-b", "erratum-l"]),
        ("papers/04 E-j and oracle 13", ["erratum-j", "oracle-13"]),
        ("papers/03, table\n    2.2", ["table-2-2"]),
        ("papers/04, Lemma 4.1", ["lemma-4-1"]),
        ("papers/00, algorithm 2'", ["algorithm-2prime"]),
        ("papers/04 (Eq. 7)", []),
        ("papers/04 Eq. 7", ["equation-7"]),
        ("paper 03 has 5 sections", []),
        ("papers/02 oracle 8, and 2.5: c", ["oracle-8", "section-2-5"]),
        ("papers/02 oracle 14 (E7): d", ["oracle-14"]),
    ],
)  # fmt: skip
def test_places_are_read(text: str, expected: list[str]) -> None:
    assert [anchor for each in cited(flat(text)) for anchor in each.anchors] == expected


@pytest.mark.parametrize(
    "text",
    [
        '"""As in papers/02 2.9."""',
        "# papers/05, section 9.1",
        "papers/99",
        "papers/03 E18",
        "papers/00, oracles 9 to 12",
        "papers/01 oracle\n# 17",
        "paper 04, section 7",
        "papers/04 erratum z",
        "papers/01, section two; papers/01, section 2.1; papers/01, sections",
        "papers/01, table 2.9",
        "papers/04, Lemma 4.2",
        "papers/00 and papers/01: see oracle 3",
        "papers/03 E15, 04 2.3",
        "papers/02 E1 (E17)",
        "papers/00 section 2. More words, many more of them. See oracle 30.",
    ],
)
def test_a_broken_citation_is_reported(text: str) -> None:
    assert problems(text, notes())


def drop(anchor: str) -> Callable[[str], str]:
    return lambda text: text.replace(f'<a id="{anchor}"></a>', "").replace(f"{{#{anchor}}}", "")


@pytest.mark.parametrize("anchor", ["section-2-6", "erratum-e3", "oracle-8"])
def test_an_anchor_that_is_lost_is_reported(anchor: str) -> None:
    """Without this anchor of paper 02, some file under src or tests has a broken citation."""
    [path] = NOTES.glob("02-*.md")
    known = {**notes(), "02": anchors_in(drop(anchor)(path.read_text()))}
    assert anchor in notes()["02"] - known["02"]
    assert any(problems(path.read_text(errors="replace"), known) for path in files())


PAGES = [page for page in files() if page.suffix == ".md" and "results" not in page.parts]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_exist(page: Path) -> None:
    """Paths as ``tests/privacy/test_gdp.py`` or ``parts/updates``, from the root or in the package."""
    if page.name == "CHANGELOG.md" or not (ROOT / "benchmarks").is_dir():
        pytest.skip("old releases named other files; the source distribution has no benchmarks")
    text = page.read_text()
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|toml))(?:::[^`]*)?`", text)
    named += re.findall(r"`((?:parts|together|engine|app)/[a-z_/]+)`", text)
    roots = (ROOT, ROOT / "src", ROOT / "src" / "sordino", ROOT / "tests", ROOT / "benchmarks")
    assert not [name for name in named if not any((root / name).exists() for root in roots)]


def test_links_inside_the_notes_resolve() -> None:
    for path in sorted(NOTES.glob("*.md")):
        text = path.read_text()
        assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors_in(text)
