"""Pages come from templates that escape, and that refuse to leave a fact out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jinja2 import StrictUndefined, UndefinedError
from tests.cli.test_report import HOSTILE, Page, comparison, render_report

import sordino
from sordino.report import _run as run
from sordino.report._render import _environment, render

ROOT = Path(sordino.__file__).parent
TEMPLATES = sorted(ROOT.rglob("*.html.j2"))
PACKAGES = ("sordino.report", "sordino.together.federated", "sordino.together.parties")


def given(**changes: Any) -> dict[str, Any]:
    """The facts of a report of one run, as its template gets them."""
    made = sordino.plan("dp-gd", examples=50, steps=2, epsilon=1.0, delta=1e-3)
    facts: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "render", lambda *_, **more: facts.update(more) or "")
        render_report(made, guarantee=made.guarantee, title="t", results=comparison())
    return facts | changes


def test_all_templates_are_in_rooms_and_every_environment_is_strict() -> None:
    folders = {path.parent.parent.relative_to(ROOT).as_posix() for path in TEMPLATES}
    assert folders == {package.removeprefix("sordino.").replace(".", "/") for package in PACKAGES}
    for package in PACKAGES:
        environment = _environment(package)
        assert environment.autoescape is True
        assert environment.undefined is StrictUndefined
        for name in environment.list_templates():
            environment.get_template(name)


def test_a_missing_fact_is_an_error() -> None:
    facts = given()
    assert render("sordino.report", "run.html.j2", **facts).startswith("<!doctype html>")
    for name in facts:
        with pytest.raises(UndefinedError, match=name):
            render("sordino.report", "run.html.j2", **{k: v for k, v in facts.items() if k != name})


def test_whatever_a_fact_says_stays_text() -> None:
    changes = {
        "title": HOSTILE,
        "date": HOSTILE,
        "notes": [HOSTILE],
        "numbers": [(HOSTILE, HOSTILE)],
    }
    page = Page(render("sordino.report", "run.html.j2", **given(**changes)))
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"script", "img", "iframe", "object"}
    assert page.text.count("<script>alert('x')</script>&amp;") >= 6


def test_only_drawings_are_taken_as_they_are() -> None:
    text = "\n".join(path.read_text("utf-8") for path in TEMPLATES)
    assert re.findall(r"\{\{[^}]*\bsafe\b[^}]*\}\}", text) == ["{{ svg | safe }}"]
    assert not re.search(r"autoescape|Markup|<script|\bon\w+=", text)


def test_html_is_written_in_templates_only() -> None:
    marked = [
        path.relative_to(ROOT).as_posix()
        for path in sorted(ROOT.rglob("*.py"))
        if re.search(
            r"</(?:p|h[1-6]|li|ul|td|th|tr|table|section|div|dl|main)>", path.read_text("utf-8")
        )
    ]
    assert marked == []


def test_plans_and_figures_do_without_templates() -> None:
    code = (
        "import sys, sordino; from sordino.report import plan_figure; "
        "plan_figure(sordino.plan('dp-gd', examples=50, steps=2, epsilon=1.0, delta=1e-3)); "
        "import sordino.together.federated._report, sordino.together.parties._report; "
        "assert 'jinja2' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
