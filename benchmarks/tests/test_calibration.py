"""`python -m benchmarks calibration`: one command that prints how much noise the papers waste."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["calibration", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_holds_the_factors() -> None:
    text = run()
    for factor in ("x5.55", "x5.07", "x8.41", "x6.41", "x6.08", "x4.70"):
        assert factor in text  # papers/00 section 2, replace-one
    for factor in ("x11.11", "x16.82", "x12.17"):
        assert factor in text  # zero-out
    assert "45 % more noise" in text
    assert "22 % more noise" in text
    assert "conditions fail" in text
    assert "x4.05 in variance" in text
    for budget in ("0.3927", "0.4652", "0.5134"):
        assert budget in text
    assert max(map(len, text.splitlines())) <= 80


def test_json() -> None:
    rows = json.loads(run("--json"))
    assert {"paper", "case", "printed_noise", "exact_noise", "factor", "adjacency"} <= set(rows[0])
    for row in rows:
        assert row["factor"] == pytest.approx(row["printed_noise"] / row["exact_noise"])
        assert row["factor"] > 1
    papers = {row["paper"].split(",")[0] for row in rows}
    assert len(papers) == 5


@pytest.mark.slow
def test_all_shows_where_the_printed_noise_breaks_its_promise() -> None:
    text = run("--all")
    assert "x0.59" in text
    assert "batch 50" in text
    assert "Algorithm 2" in text
