"""Every block of the documentation is run: Python, commands, and the files that pages show.

The blocks of a page run one after the other, in one namespace and one empty folder:

* ```` ```python ````: executed; what a trailing ``# => text`` says must be printed, in that order.
* ```` ```console ````: each ``$ sordino ...`` runs through the command line's own code; lines of output
  that the page shows must be in what was printed (``...`` stands for anything).
* a block with a title (```` ```toml title="facts.toml" ````) is written to a file of that name first.

``<!-- not run: reason -->`` above a block leaves it out. `NOT_RUN` counts them, and commands in them, as
in blocks without a language, must still be ones that the command line understands.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import jax
import pytest
import typer
from typer.testing import CliRunner

from sordino import __version__
from sordino.app.cli._main import app
from sordino.planning.recipes import RECIPES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
ABOUT = [
    ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY", "CODE_OF_CONDUCT")
]
# The workshop is part of the repository, not of the source archive: there, pages that use it are not run.
WORKSHOP = (ROOT / "benchmarks").is_dir()
# Pages on which a guarantee must be printed.
PROMISING = ("README.md", "docs/guide.md", "docs/quickstart/", "docs/algorithms/")
# How many blocks of each page are not run; the pages say why.
NOT_RUN = {
    "docs/audit.md": 1,
    "docs/durable-runs.md": 1,
    "docs/guide.md": 1,
    "docs/index.md": 1,
    "docs/parties.md": 5,
    "docs/quickstart/data-owners.md": 2,
    "docs/quickstart/federated.md": 1,
    "docs/quickstart/research.md": 2,
    "docs/quickstart/tables.md": 1,
}
# Blocks of commands that are shown without being marked: their commands are checked, not run.
SHOWN = {"docs/bench.md": 1, "docs/federated.md": 4, "docs/which-recipe.md": 1}


@dataclass(frozen=True)
class Block:
    """One block of code of a page."""

    language: str
    title: str
    code: str
    reason: str

    @property
    def commands(self) -> list[list[str]]:
        """The ``sordino`` commands in it, without the program's name."""
        return self._commands("sordino ")

    @property
    def workshop(self) -> list[list[str]]:
        """The commands of the workshop in it, ``python -m benchmarks ...``, likewise."""
        return self._commands("python -m benchmarks ")

    def _commands(self, program: str) -> list[list[str]]:
        found = []
        lines = [line.strip() for line in self.code.replace("\\\n", " ").splitlines()]
        # Where there are prompts, the other lines are output.
        prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        for line in prompted or lines:
            if line.startswith(program):
                for part in shlex.join(shlex.split(line, comments=True)).split("'&&'"):
                    found.append(shlex.split(part)[len(program.split()) :])
        return found


FENCE = re.compile(r"^```([\w-]*)(?:[^\n]*?title=\"([^\"]+)\")?[^\n]*$")
REASON = re.compile(r"^<!-- not run: (.+) -->$")


def blocks(page: Path) -> Iterator[Block]:
    """All blocks of a page in order: fenced ones, and indented ones as one without a language."""
    lines = page.read_text(encoding="utf-8").splitlines()
    reason, at = "", 0
    while at < len(lines):
        line = lines[at]
        fence = FENCE.match(line)
        if fence:
            end = lines.index("```", at + 1)
            code = "".join(f"{one}\n" for one in lines[at + 1 : end])
            yield Block(fence[1], fence[2] or "", code, reason)
            at, reason = end, ""
        elif line.startswith("    ") and not lines[at - 1].strip():
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield Block("", "", "".join(f"{one}\n" for one in lines[at:end]), reason)
            at, reason = end - 1, ""
        elif line.strip():
            found = REASON.match(line)
            reason = found[1] if found else ""
        at += 1


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def is_run(block: Block) -> bool:
    return block.language in ("python", "console", "bash") and not block.reason


@pytest.fixture
def quick_compilation() -> Iterator[None]:
    """Compile with less optimization: most of the time of a tiny run is spent on that."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def needs_workshop(page: Path) -> bool:
    return any("from benchmarks" in block.code for block in blocks(page) if is_run(block))


def said(code: str) -> list[str]:
    return re.findall(r"# => (.+)$", code, flags=re.M)


def run_console(block: Block) -> str:
    """Run the commands of a block; what they print must hold what the page shows."""
    printed = ""
    shown = [line for line in block.code.replace("\\\n", " ").splitlines() if line.strip()]
    for line in shown:
        if line.startswith("$ "):
            assert line.startswith("$ sordino "), f"only sordino's own commands are run: {line}"
    for command in block.commands:
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, f"{command}: {result.output}"
        printed += result.output
    text = " ".join(printed.split())
    for line in shown:
        if not line.startswith("$ ") and line.strip() != "...":
            assert " ".join(line.split()) in text, f"not printed: {line}\n{printed}"
    return printed


def run_pasted(block: Block) -> str:
    """Run a block of commands that is there to be pasted whole: no prompts, no output."""
    assert len(block.commands) == len(block.code.splitlines()), "only sordino's commands are run"
    printed = ""
    for command in block.commands:
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, f"{command}: {result.output}"
        printed += result.output
    return printed


@pytest.mark.usefixtures("quick_compilation", "own_recipes")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(map(is_run, blocks(page)))], ids=name_of
)
def test_blocks_run(
    page: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if needs_workshop(page) and not WORKSHOP:
        pytest.skip("this page uses benchmarks/, which is not in the source archive")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    namespace: dict[str, object] = {"__name__": "documentation"}
    everything = ""
    for block in blocks(page):
        if block.title:
            (tmp_path / block.title).write_text(block.code, encoding="utf-8")
        if not is_run(block):
            continue
        if block.language == "console":
            everything += run_console(block)
            continue
        if block.language == "bash":
            everything += run_pasted(block)
            continue
        exec(compile(block.code, name_of(page), "exec", dont_inherit=True), namespace)
        printed = capsys.readouterr().out
        everything += printed
        rest = " ".join(printed.split())
        for expected in said(block.code):
            assert expected in rest, f"{expected!r} was not printed: {printed}"
            rest = rest.split(expected, 1)[1]
    if name_of(page).startswith(PROMISING):
        assert "differential privacy" in " ".join(everything.split())


def test_what_is_not_run_is_counted_and_says_why() -> None:
    skipped = [(page, block) for page in PAGES for block in blocks(page) if block.reason]
    for page, block in skipped:
        assert len(block.reason.split()) >= 4, f"{name_of(page)}: say why: {block.reason!r}"
    assert Counter(name_of(page) for page, _ in skipped) == NOT_RUN
    shown = Counter(
        name_of(page)
        for page in PAGES
        for block in blocks(page)
        if (block.commands or block.workshop) and not block.reason and not is_run(block)
    )
    assert shown == SHOWN


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_ones_that_exist(page: Path) -> None:
    """Also where they are not run: names, options and types are those of the command line."""
    for block in blocks(page):
        for command in block.commands:
            understand(command)
        for command in block.workshop if WORKSHOP else []:
            understand(command, workshop_line())


@cache
def command_line() -> Any:
    return typer.main.get_command(app)


@cache
def workshop_line() -> Any:
    from benchmarks.__main__ import app as workshop

    return typer.main.get_command(workshop)


def understand(arguments: list[str], known: Any = None) -> None:
    """Parse a command without running it."""
    at, known = 0, known or command_line()
    context = known.make_context("sordino", [], resilient_parsing=True)
    while hasattr(known, "commands"):
        assert arguments[at] in known.commands, f"there is no command {' '.join(arguments)}"
        known, at = known.commands[arguments[at]], at + 1
    known.make_context(arguments[at - 1], arguments[at:], parent=context)


def test_a_wrong_command_is_noticed() -> None:
    for wrong in ("trian income.csv", "train income.csv --epsilonn 1", "plan --examples many"):
        with pytest.raises(Exception, match=r"(?i)no such option|no command|not a valid"):
            understand(wrong.split())
    for wrong in ("rnu a", "run a --epsilonn 1", "run a --jobs many") if WORKSHOP else ():
        with pytest.raises(Exception, match=r"(?i)no such option|no command|not a valid"):
            understand(wrong.split(), workshop_line())


def test_the_reader_of_pages_reads_what_it_should(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```toml title="a.toml"\nx = 1\n```\n\n<!-- not run: it takes an hour -->\n'
        "```console\n$ sordino plan dp-gd \\\n    --steps 3   # why not\n...\n```\n\n"
        "    sordino ledger init --ledger a && sordino recipes\n"
    )
    first, second, third = blocks(page)
    assert (first.language, first.title, first.code) == ("toml", "a.toml", "x = 1\n")
    assert second.reason == "it takes an hour"
    assert second.commands == [["plan", "dp-gd", "--steps", "3"]]
    assert third.commands == [["ledger", "init", "--ledger", "a"], ["recipes"]]


def test_the_schema_in_the_guide_is_one(tmp_path: Path) -> None:
    from sordino.models._schema import Schema

    (text,) = [block.code for block in blocks(DOCS / "guide.md") if block.language == "toml"]
    assert tomllib.loads(text)["target"] == "income"
    path = tmp_path / "facts.toml"
    path.write_text(text, encoding="utf-8")
    assert Schema.load(path).examples == 32561


def test_the_worked_examples_of_own_recipes_are_short() -> None:
    """`test_blocks_run` runs them from the page, each through `check_recipe`."""
    written = {block.title: block.code for block in blocks(DOCS / "own-recipe.md") if block.title}
    assert list(written) == ["averaged_blt.py", "own_recipe.py"]
    assert len(written["averaged_blt.py"].splitlines()) <= 25
    assert len(written["own_recipe.py"].splitlines()) <= 60
    assert written["own_recipe.py"] == (ROOT / "examples" / "own_recipe.py").read_text("utf-8")
    page = (DOCS / "own-recipe.md").read_text("utf-8")
    assert page.count("check_recipe(RECIPE, reference=reference)") == 1
    assert page.count('check_recipe("dp-shrink", reference=reference)') == 1


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, *ABOUT]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_figures_of_the_readme_are_those_of_the_pages_they_link_to() -> None:
    rows = [line for line in PAGES[0].read_text().splitlines() if line.startswith("| [")]
    assert len(rows) == 5
    for row in rows:
        page = (ROOT / str(re.search(r"\]\(([^)]+)\)", row)[1])).read_text(encoding="utf-8")  # type: ignore[index]
        figures = re.findall(r"\d+\.\d{2,}", row)
        assert figures
        for figure in figures:
            assert f" {figure} " in page.replace("*", " "), f"{figure} of {row}"


def resolved(name: str) -> object:
    """A module, or a name of a module that is not private."""
    module, _, last = name.rpartition(".")
    found = getattr(import_module(module), last, None) if module else None
    return import_module(name) if found is None else found


def test_replacements_that_the_upgrade_page_names_are_there() -> None:
    rows = re.findall(
        r"^\| (`sordino\..+) \| (`sordino.+) \|$", (DOCS / "upgrade.md").read_text(), re.M
    )
    assert len(rows) > 60
    for old, new in rows:
        names = re.findall(r"`([\w.]+)`", new)
        assert not any(part.startswith("_") for name in names for part in name.split("."))
        if new.endswith("the same names"):
            for name in re.findall(r"`(\w+)`", old.partition(":")[2]):
                assert hasattr(resolved(names[0]), name), f"{names[0]} has no {name}"
        else:
            assert all(resolved(name) is not None for name in names)


def test_names_of_the_reference_are_there() -> None:
    """Without building the site, which takes tools of its own."""
    pages = sorted((DOCS / "api").glob("*.md"))
    names = [n for page in pages for n in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]
    assert len(names) > 50
    for name in names:
        assert resolved(name) is not None


def test_decisions_are_short_and_listed() -> None:
    index = (DOCS / "decisions" / "index.md").read_text()
    records = sorted((DOCS / "decisions").glob("0*.md"))
    assert len(records) >= 7
    for record in records:
        assert len(record.read_text().splitlines()) <= 30, record.name
        assert f"({record.name})" in index


def test_the_version_is_the_same_everywhere() -> None:
    assert f"sordino-{__version__}-py3" in PAGES[0].read_text()
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] == __version__
    supported = __version__.rpartition(".")[0]
    assert f"| {supported} | yes |" in (ROOT / "SECURITY.md").read_text()


def test_every_algorithm_has_a_page_with_a_figure() -> None:
    """A private recipe is a heading of one of the pages; each page has its picture."""
    headings = ""
    for page in sorted((DOCS / "algorithms").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        headings += " ".join(re.findall(r"^# (.+)$", text, flags=re.M)) + " "
        assert re.search(r"!\[[^\]]{20,}\]\(\.\./images/algorithms/[\w-]+\.svg\)", text), page.name
    missing = {name for name, recipe in RECIPES.items() if recipe.private} - set(
        re.findall(r"[\w-]+", headings)
    )
    assert not missing


def module(name: str) -> Any:
    """A module that lies beside the pages."""
    spec = spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_pages_of_figures_get_into_the_menu(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for name, title in (("a", "A. Two tables"), ("a-times", "A: times"), ("index", "Results")):
        (tmp_path / "results" / f"{name}.md").write_text(f"\n# {title}\n")
    config = {"docs_dir": str(tmp_path), "nav": [{"Home": "index.md"}, {"Evidence": []}]}
    assert module("hooks").on_config(config)["nav"][1] == {
        "Evidence": [
            {"Results": "results/index.md"},
            {"A. Two tables": "results/a.md"},
            {"CPU times": [{"A: times": "results/a-times.md"}]},
        ]
    }


@pytest.mark.slow
@pytest.mark.skipif(not WORKSHOP, reason="docs/figures.py uses benchmarks/")
def test_figures_are_made_by_the_library() -> None:
    """All of them can be made again, with titles and labelled axes."""
    figures = module("figures")
    drawn = {path.stem for path in (DOCS / "images" / "algorithms").glob("*.svg")}
    assert drawn == set(figures.FIGURES)
    for make in figures.FIGURES.values():
        for axes in make().axes:
            assert axes.get_title(loc="left")
            assert axes.get_xlabel()
            assert axes.get_ylabel()


class Sources(HTMLParser):
    """What a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe"):
            self.found.append(given.get("src") or "")
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon"):
            self.found.append(given.get("href") or "")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="pip install 'sordino[docs]'")
def test_the_site_builds_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    """Strictly: a broken link, a missing page or an unknown name is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        sources = Sources()
        sources.feed(page.read_text(encoding="utf-8"))
        assert not [one for one in sources.found if "//" in one], page.name
