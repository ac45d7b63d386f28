"""The report: self-contained, escaped, accessible; its figures show what the code does."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.planning._accounting import guarantee_of
from sordino.planning._decide import plan
from sordino.planning._plans import Plan
from sordino.privacy._guarantee import rounded_up
from sordino.report import _plots as plots
from sordino.report._measure import (
    COVERED,
    NO_PRIVATE_DATA,
    NOT_COVERED,
    Measured,
    ScoreTable,
    independent_counterpart,
    measured_noise,
)
from sordino.report._render import guessing
from sordino.report._run import write_report
from sordino.report._score_plots import CALIBRATION, ROC, EvaluationFacts, ScoreCurve, scores_figure

HOSTILE = "\"><script>alert('x')</script>&amp;<img src=x onerror=y>"
VOID = {"meta", "br", "img", "link", "hr", "input"}
HISTORY = [{"step": step, "accuracy": 0.8 - 0.1 / step, "loss": 1 / step} for step in range(1, 21)]


class Page(HTMLParser):
    """Reads a page and keeps what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [
            value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "action")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def render_report(plan: Plan, **facts: Any) -> str:
    """What `write_report` writes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        write_report(path, plan, **facts)
        return path.read_text("utf-8")


@pytest.fixture(scope="module")
def small() -> Plan:
    return plan("dp-memf", examples=400, batch_size=20, epochs=2, epsilon=1.0, delta=1e-4)


def comparison() -> ScoreTable:
    rows = (
        Measured("private", 0.76, COVERED, "dp-memf"),
        Measured(HOSTILE, 0.77, NOT_COVERED, HOSTILE),
        Measured("majority", 0.5, NO_PRIVATE_DATA),
    )
    return ScoreTable("accuracy", rows, 1000)


@pytest.fixture(scope="module")
def page(small: Plan) -> Page:
    text = render_report(
        small,
        guarantee=small.guarantee,
        title=f"Predicting {HOSTILE}",
        history=HISTORY,
        results=comparison(),
        notes=[HOSTILE],
        date="2026-01-02",
    )
    page = Page(text)
    page.raw = text  # type: ignore[attr-defined]
    return page


def test_page_is_well_formed_and_self_contained(page: Page) -> None:
    raw: str = page.raw  # type: ignore[attr-defined]
    assert page.open == []
    assert raw.startswith("<!doctype html>")
    assert all(link.startswith("#") for link in page.links)
    assert not re.search(r"https?:|@import|<link|javascript:", raw)
    used = re.findall(r"url\(#([^)]*)\)", raw) + [link[1:] for link in page.links]
    assert set(used) <= set(page.ids)


def test_ids_are_unique(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))


def test_hostile_text_stays_text(page: Page) -> None:
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "iframe", "object"}
    assert not any(name.startswith("on") for _, given in page.tags for name in given)
    assert page.text.count("<script>alert('x')</script>&amp;") >= 3


def test_page_is_accessible(page: Page) -> None:
    raw: str = page.raw  # type: ignore[attr-defined]
    assert ("html", {"lang": "en"}) in page.tags
    drawings = [given for tag, given in page.tags if tag == "svg"]
    assert len(drawings) == 5
    assert all(given["role"] == "img" and given["aria-label"] for given in drawings)
    assert sum(tag == "h1" for tag, _ in page.tags) == 1
    assert "prefers-color-scheme: dark" in raw
    assert "@media print" in raw
    scopes = [given.get("scope") for tag, given in page.tags if tag == "th"]
    assert set(scopes) == {"row", "col"}


def test_page_says_what_matters(page: Page, small: Plan) -> None:
    for words in (
        small.guarantee.sentence(),
        "is right at most",
        "What it does not promise",
        "not covered",
        "may be published only if those data are public",
        small.hash,
        "2026-01-02",
        "Is the noise what the plan says?",
    ):
        assert words in page.text


def test_report_is_a_pure_function_and_written_atomically(small: Plan, tmp_path: Path) -> None:
    arguments = {"guarantee": small.guarantee, "title": "Twice"}
    once = render_report(small, **arguments)
    write_report(tmp_path / "report.html", small, **arguments)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == once
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
    assert "Results" not in once
    assert "Training" not in once


def evaluated() -> EvaluationFacts:
    line = tuple(np.linspace(0, 1, 11).tolist())
    rates = [ScoreCurve(ROC, HOSTILE + "$x$ $", line, line, line, line)] * 2
    groups = ScoreCurve(CALIBRATION, "", line[:3], line[:3], (0.0, 0.1, 0.1), line[1:4])
    figure = scores_figure([*rates, groups])
    return EvaluationFacts(
        plots.to_svg(figure, label=HOSTILE, prefix="evaluation"),
        "about 1,200 persons (± 20)",
        [("AUC", "0.80 (95 % interval 0.78 to 0.82)")],
        [HOSTILE],
        [HOSTILE, "yes"],
        [(HOSTILE, ["90 ± 3", "1"]), ("yes", ["2", "40"])],
        [(HOSTILE, ["0.8", "0.9"]), ("yes", ["0.8", "0.9"])],
    )


def test_scores_on_held_out_data_are_shown(small: Plan) -> None:
    raw = render_report(small, guarantee=small.guarantee, title="T", evaluation=evaluated())
    page = Page(raw)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert not {tag for tag, _ in page.tags} & {"script", "img", "iframe", "object"}
    for words in (
        "On held-out data",
        "about 1,200 persons (± 20)",
        "AUC",
        "90 ± 3",
        "is inside the",
    ):
        assert words in page.text
    drawing = next(given for tag, given in page.tags if tag == "svg")
    assert drawing["role"] == "img"
    assert "On held-out data" not in render_report(small, guarantee=small.guarantee, title="T")


def test_recalls_stand_where_calibration_cannot() -> None:
    line = (0.0, 1.0)
    rates = [ScoreCurve(ROC, f"class {k} $", line, line, line, line) for k in range(6)]
    figure = scores_figure(rates, [(f"class {k} $", 0.5, 0.4, 0.6) for k in range(6)])
    left, right = figure.axes
    assert next(label.get_text() for label in right.get_yticklabels()) == r"class 0 \$"
    assert len(left.lines) == 7
    assert plots.to_svg(figure).startswith("<svg")


PLANS = {
    "one step": {"recipe": "dp-gd", "examples": 50, "steps": 1, "epsilon": 2.0, "delta": 1e-3},
    "noise only": {"recipe": "dp-gd", "examples": 50, "steps": 3, "noise_multiplier": 5.0},
    "poisson": {
        "recipe": "dp-sgd",
        "examples": 1000,
        "batch_size": 50,
        "epochs": 1,
        "epsilon": 1.0,
        "delta": 1e-5,
    },
    "long": {
        "recipe": "dp-memf",
        "examples": 100_000,
        "batch_size": 50,
        "epochs": 2,
        "epsilon": 0.1,
        "delta": 1e-8,
        "mechanism": "blt",
    },
    "huge epsilon": {
        "recipe": "dp-gd",
        "examples": 50,
        "steps": 2,
        "epsilon": 900.0,
        "delta": 1e-3,
    },
}


@pytest.mark.parametrize("name", PLANS)
def test_every_kind_of_plan_has_a_report(name: str) -> None:
    arguments = dict(PLANS[name])
    made = plan(arguments.pop("recipe"), **arguments)  # type: ignore[arg-type]
    text = render_report(made, guarantee=made.guarantee, title=name)
    assert len(text) < 400_000
    assert Page(text).open == []


def test_measured_noise_follows_the_prediction(small: Plan) -> None:
    coordinates = 4000
    found = measured_noise(small, coordinates)
    # Five standard errors of a standard deviation; the key is fixed, so this never flickers.
    tolerance = 5 / np.sqrt(2 * coordinates)
    np.testing.assert_allclose(found.per_step, small.noise_per_step(), rtol=tolerance)
    np.testing.assert_allclose(found.accumulated, small.error_per_step(), rtol=tolerance)


def test_independent_counterpart_has_the_same_guarantee(small: Plan) -> None:
    other = independent_counterpart(small)
    assert other is not None
    found = guarantee_of(
        noise=other.noise_multiplier,
        population=other.population,
        mechanism=other.mechanism,
        schedule=other.schedule,
        contribution=other.contribution,
        adjacency="zero-out",
        unit="example",
        delta_hint=None,
    )
    assert found.mu == pytest.approx(small.guarantee.mu, rel=1e-5)
    assert other.predicted_error > 1.5 * small.predicted_error
    assert independent_counterpart(other) is None


def test_long_curves_are_thinned() -> None:
    history = [{"step": step, "accuracy": 0.5} for step in range(1, 5001)]
    (axes,) = plots.curves_figure(history).axes
    steps = axes.lines[0].get_xdata()
    assert len(steps) <= plots.POINTS
    assert (steps[0], steps[-1]) == (1, 5000)


def test_figures_follow_the_page_colours(small: Plan) -> None:
    svg = plots.to_svg(plots.plan_figure(small), label='a "label" & <more>', prefix="p")
    assert "currentColor" in svg
    assert plots.INK not in svg
    assert "var(--plot-blue" in svg
    assert 'aria-label="a &quot;label&quot; &amp; &lt;more>"' in svg
    assert all(name.startswith("p-") for name in Page(svg).ids)


def test_plan_plot_writes_a_file(small: Plan, tmp_path: Path) -> None:
    small.plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_coverage_must_be_known() -> None:
    with pytest.raises(SordinoError, match="coverage 'cover' is not known; did you mean 'covered'"):
        Measured("model", 0.5, "cover")


def test_guessing_is_rounded_up(small: Plan) -> None:
    percent = float(re.search(r"at most ([\d.]+) %", guessing(small.guarantee)).group(1))  # type: ignore[union-attr]
    exact = 50 * (1 + small.guarantee.delta(0.0))
    assert exact <= percent <= exact + 0.11


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1.0, "1"), (0.99999999999, "1"), (1.00001, "1.001"), (12345.6, "12350")],
)
def test_rounded_up(value: float, text: str) -> None:
    assert rounded_up(value) == text
