"""The report of a run between data owners: public facts only, escaped, and right."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.together.parties._consortium import Consortium
from sordino.together.parties._journal import TurnRecord
from sordino.together.parties._report import (
    PAPER,
    Turns,
    cost_figure,
    paper_cost,
    write_parties_report,
)
from sordino.together.parties._terms import agree, collusion, shares
from sordino.together.sites._parties import create_party
from tests.cli.test_report import HOSTILE, Page

NAMES = ("north", "south", "east")
SIZES = (300, 400, 500)
STEPS = 12
SCORES = [{"step": t, "accuracy": 0.9 - 0.3 / t, "$loss$": 1.0 / t} for t in range(1, STEPS + 1)]

RESTS_ON = (
    "Every party runs this code, on a machine of its own, and keeps to the protocol.",
    "At most one party of 3 put together what they see. Each party's share of the noise is so large that "
    "the shares of the other 2 are enough; the published noise has 1.5 times the planned variance.",
    "Names, numbers of records, the model's form and the course of the model are public.",
)


@pytest.fixture(scope="module")
def usual(consortium: Consortium) -> tuple[str, Page]:
    return rendered(consortium)


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    folder = tmp_path_factory.mktemp("parties")
    cards = [
        create_party(folder / name, name, examples=n, port=7000 + 10 * i)
        for i, (name, n) in enumerate(zip(NAMES, SIZES, strict=True))
    ]
    terms = agree("dp-gd", examples=SIZES, parameters=123, steps=STEPS, epsilon=1.0, delta=1e-5)
    return Consortium(f"study {HOSTILE}", tuple(cards), terms, {"kind": "own", "name": HOSTILE})


def turned(count: int = STEPS, lost: tuple[int, ...] = (), scale: float = 1.0) -> list[TurnRecord]:
    return [
        TurnRecord(t, t in lost, 0.0 if t in lost else scale * (1 + t), 0 if t in lost else 1000)
        for t in range(count)
    ]


def rendered(consortium: Consortium, records: Any = None, **more: Any) -> tuple[str, Page]:
    own = more.pop("own", "north")
    found = records if records is not None else {"north": turned()}
    settings = {"title": f"Study {HOSTILE}", "own": own, "history": SCORES, "date": "2026-01-02"}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        write_parties_report(path, consortium, found, **(settings | more))
        text = path.read_text("utf-8")
    return text, Page(text)


def words(page: Page) -> str:
    return " ".join(" ".join(page.words).split())


def test_the_page_is_well_formed_escaped_and_asks_nobody_for_anything(
    consortium: Consortium, usual: tuple[str, Page], tmp_path: Path
) -> None:
    raw, page = usual
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert "<script" not in raw
    assert "onerror=y>" not in raw.replace("&gt;", "")
    assert all(link.startswith("#") for link in page.links), page.links
    assert not re.search(r"https?://", raw)
    assert "default-src 'none'" in raw
    path = tmp_path / "report.html"
    write_parties_report(path, consortium, {"north": turned()}, title="x", own="north")
    assert path.read_text("utf-8").startswith("<!doctype html>")


def test_it_says_what_was_agreed_and_what_it_rests_on(
    consortium: Consortium, usual: tuple[str, Page]
) -> None:
    raw, page = usual
    said = words(page)
    terms = consortium.terms
    assert terms.guarantee.sentence() in said
    assert terms.statement().removeprefix(terms.guarantee.sentence()).strip() in said
    assert consortium.digest in raw
    assert terms.plan.hash in raw
    for partner in consortium.partners:
        assert partner.member.fingerprint[:16] in raw
        assert f"{partner.examples:,}" in said
    for text in RESTS_ON:
        assert text in said
    assert "as north saw it" in said
    assert "A simulation" not in said
    assert "computed the same model up to rounding" not in said
    assert "PRIVATE KEY" not in raw


def test_costs_are_what_the_journals_say(consortium: Consortium) -> None:
    records = {"north": turned(lost=(3,)), "south": turned(lost=(3,), scale=2.0)}
    turns = Turns.of(records)
    assert turns.lost == (4,)
    assert np.isnan(turns.seconds[3])
    assert np.nanmax(turns.seconds) == 2.0 * STEPS
    assert np.nansum(turns.sent) == 2000 * (STEPS - 1)
    _, page = rendered(consortium, records, own=None, different=["east"])
    said = words(page)
    assert "12 of 12" in said
    assert "Turn 4 was lost" in said
    assert "A simulation" in said
    assert "east computed the same model up to rounding" in said
    assert "22 kB sent by all parties together" in said
    assert "18.04 s and 1,634 MB" in said  # d = 123
    assert "2,370 s" not in said
    left, right = cost_figure(turns).axes[:2]
    assert len(left.lines) == len(right.lines) == 2


def test_turns_that_nobody_saw_and_runs_without_any(consortium: Consortium) -> None:
    unseen = [TurnRecord(0, False, 0.0, 0)]
    assert not Turns.of({"north": unseen}).seen
    said = words(rendered(consortium, {"north": unseen}, history=())[1])
    assert "1 of 12 turns are settled" in said
    assert "time of a turn" not in said
    with pytest.raises(SordinoError, match="at least one party"):
        Turns.of({})
    with pytest.raises(SordinoError, match="different turns"):
        Turns.of({"north": turned(5), "south": turned(6)})


def test_deltas_that_the_noise_is_not_exact_enough_for(consortium: Consortium) -> None:
    """Noise inside an engine is exact up to a distance: smaller deltas have no epsilon."""
    terms = consortium.terms
    coarse = replace(
        terms.plan, guarantee=replace(terms.plan.guarantee, distance=1e-9, is_zcdp=False)
    )
    other = replace(consortium, terms=replace(terms, plan=coarse))
    assert math.isinf(other.terms.guarantee.epsilon(1e-10))
    raw, page = rendered(other)
    assert page.open == []
    assert "inf" not in re.findall(r'<td class="number">([^<]*)</td>', raw)
    assert rounded(other) in raw


def rounded(consortium: Consortium) -> str:
    from sordino.privacy._guarantee import rounded_up

    return rounded_up(consortium.terms.guarantee.epsilon(1e-5))


@pytest.mark.parametrize(
    ("parameters", "near"),
    [(22, 22), (123, 123), (100, 123), (26_010, 26_010), (4, None), (1000, None)],
)
def test_the_papers_figures_only_where_they_compare(parameters: int, near: int | None) -> None:
    found = paper_cost(parameters)
    assert (None if found is None else found.numbers) == near
    assert len({cost.numbers for cost in PAPER}) == 3


def test_shares_and_collusion_in_words(consortium: Consortium) -> None:
    assert shares(consortium.terms) == [(f"{n:,}", "every step") for n in SIZES]
    assert collusion(consortium.terms) == "1 of 3"
    sampled = agree(
        "dp-sgd", examples=(100, 200, 300), parameters=5, steps=3, batches=(10, 10, 0),
        engine="mpyc", epsilon=1.0, delta=1e-5,
    )  # fmt: skip
    assert shares(sampled) == [("10", "1 in 10"), ("10", "1 in 20"), ("0", "never")]
    dealt = agree(
        "dp-memf", examples=(100, 200, 300), parameters=5, epochs=2, batch_size=60,
        engine="spu", epsilon=1.0, delta=1e-5,
    )  # fmt: skip
    assert [rate for _, rate in shares(dealt)] == ["once an epoch"] * 3
    assert collusion(dealt) == "1 of 3 nodes"


ENGINES = {
    "spu": (
        {"epochs": 2, "batch_size": 60},
        ("No two of the three parties that run compute nodes put together what they see.",),
    ),
    "mpyc": (
        {"steps": 3, "batches": (10, 10, 0)},
        (
            "At most 1 of 3 parties put together what they see. The noise is made inside",
            "Which of its records a party takes in a step stays with that party.",
        ),
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_rests_on_something_else(consortium: Consortium, engine: str) -> None:
    settings: dict[str, Any] = ENGINES[engine][0]
    recipe = "dp-sgd" if "batches" in settings else "dp-memf"
    terms = agree(
        recipe, examples=SIZES, parameters=5, engine=engine, epsilon=1.0, delta=1e-5, **settings
    )
    _, page = rendered(replace(consortium, terms=terms), {"north": turned(1)}, history=())
    said = words(page).partition("What this rests on")[2].partition("What the guarantee means")[0]
    for text in ENGINES[engine][1]:
        assert text in said
    assert RESTS_ON[0] in said
    assert RESTS_ON[1] not in said
