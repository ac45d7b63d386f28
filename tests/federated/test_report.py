"""The report of a federated run: public facts only, escaped, linked, and right."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino._base.keystore import KeyStore
from sordino.privacy._guarantee import rounded_up
from sordino.report import _plots as plots
from sordino.together.federated import _report as federated
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._cohorts import random_cohorts
from sordino.together.federated._coordinator import DurableServer, RoundRecord
from sordino.together.federated._durable import VolatileClient
from sordino.together.federated._report import (
    TRUST_NAMES,
    plan_lines,
    schedule,
    write_federated_report,
)
from sordino.together.federated._report_facts import gathered, shares
from sordino.together.federated._report_plots import ClientPicture
from tests.cli.test_report import HOSTILE, Page
from tests.federated.worlds import agreed, secure_agreement, server_of, volatile

RUNS: list[dict[str, Any]] = [
    {"leak": 0.9, "extra": 1, "spare": 1.0, "batch": 3},
    {"schedule": "uniform", "extra": 1},
    {"schedule": "paper", "extra": 1},
    {"schedule": "fresh", "extra": 1},
]


def run(
    agreement: Agreement, folder: Path, *, private: Any = None, lost: float = 0.15, seed: int = 1
) -> tuple[DurableServer, dict[str, VolatileClient]]:
    """A whole run in which some messages get lost on their way back."""
    chance = np.random.default_rng(seed)
    clients = volatile(agreement, private=private)
    server = DurableServer.open(
        server_of(agreement),
        folder / "server.db",
        chance=np.random.default_rng(seed),
        store=KeyStore(folder / "keys"),
        evaluate=lambda w: {"public_loss": float(np.linalg.norm(w))},
    )
    for _ in range(500):
        if server.finished:
            break
        for name, raw in server.requests(agreement.clients):
            answer = clients[name].answer(raw)
            if chance.random() < lost:
                server.missing(name, "lost on the way back")
            else:
                server.receive(name, answer)
    assert server.finished
    return server, clients


def made_up(agreement: Agreement, seed: int = 0) -> list[RoundRecord]:
    """Records of a run that never was."""
    cohorts = random_cohorts(agreement, seed)
    sent: dict[str, int] = {}
    found = []
    for t, (members, late) in enumerate(zip(cohorts.members, cohorts.late, strict=True), start=1):
        asked = [agreement.clients[i] for i in (*members, *late)]
        for name in asked:
            sent[name] = sent.get(name, 0) + 1
        committed = {name: sent[name] for name in asked[: len(members)]}
        blocks = {name: index - 1 for name, index in committed.items()}
        at = f"2026-01-01T00:00:{t % 60:02d}.000+00:00"
        found.append(RoundRecord(t, t, committed, blocks, tuple(asked), {}, at))
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DurableServer]:
    folder = tmp_path_factory.mktemp("federated")
    server, _ = run(agreed(5, rounds=10, cap=40, **RUNS[0]), folder)
    agreement = server.server.agreement
    seen = dict.fromkeys(agreement.clients[1:], 0.1)
    index = write_federated_report(
        folder / "report",
        agreement,
        server.history(),
        [*server.events(), ("2026-01-02T03:04:05.678+00:00", agreement.clients[0], HOSTILE)],
        title=f"Hospitals {HOSTILE}",
        date="2026-01-02",
        out={agreement.clients[4]: HOSTILE},
        seen_by_clients=seen,
    )
    return index, server


def pages_of(index: Path) -> dict[Path, tuple[str, Page]]:
    paths = [index, *sorted((index.parent / "clients").iterdir())]
    return {path: (path.read_text("utf-8"), Page(path.read_text("utf-8"))) for path in paths}


def test_pages_are_well_formed_self_contained_and_linked(written: Any) -> None:
    index, server = written
    pages = pages_of(index)
    names = {f"{name}.html" for name in server.server.agreement.clients}
    assert {path.name for path in pages} == {"index.html"} | names
    reached = set()
    for path, (raw, page) in pages.items():
        assert page.open == []
        assert len(page.ids) == len(set(page.ids))
        assert not re.search(r"https?:|@import|<link|javascript:", raw)
        assert "default-src 'none'" in raw
        for link in page.links:
            if link.startswith("#"):
                assert link[1:] in page.ids
            elif not link.startswith("data:image/png;base64,"):
                target = (path.parent / link).resolve()
                assert target.is_file()
                reached.add(target.name)
        assert set(re.findall(r"url\(#([^)]*)\)", raw)) <= set(page.ids)
        assert sum(tag == "h1" for tag, _ in page.tags) == 1
        drawings = [given for tag, given in page.tags if tag == "svg"]
        assert len(drawings) == (3 if path == index else 1)
        assert all(given["role"] == "img" and given["aria-label"] for given in drawings)
    assert reached == {"index.html"} | names


def test_foreign_text_stays_text(written: Any) -> None:
    index, server = written
    for path, (_, page) in pages_of(index).items():
        assert not {tag for tag, _ in page.tags} & {"script", "img", "iframe", "object"}
        assert not any(name.startswith("on") for _, given in page.tags for name in given)
        assert "<script>alert('x')</script>&amp;" in page.text
        if path.stem in (server.server.agreement.clients[0], server.server.agreement.clients[4]):
            assert page.text.count("<script>alert('x')</script>&amp;") > 2


def test_index_says_what_matters(written: Any) -> None:
    index, server = written
    agreement = server.server.agreement
    text = Page(index.read_text("utf-8")).text
    std = math.sqrt(agreement.variance) * agreement.step
    for words in (
        agreement.guarantee.sentence(),
        "is right at most",
        TRUST_NAMES["untrusted"],
        "about examples, not about clients",
        "who was asked, who answered and when",
        "together with its seal",
        "M = 5, of which m = 3 make a round; 4 are asked",
        f"standard deviation {std:.5g}",
        schedule(agreement),
        "3 x 3 = 9, whoever answers",
        "at most 40 messages",
        "10 of 10 rounds are over. One client has refused for good",
        "public loss",
        "did not answer turn",
        agreement.digest,
        "2026-01-02",
    ):
        assert words in text
    facts = gathered(agreement, server.history())
    for client in facts.clients:
        counts = f"{client.sent:,} {len(client.taken):,} {client.uncommitted:,}"
        spent = f"{rounded_up(client.mu)} {facts.epsilon_text(client.mu)}"
        assert f"{client.number} {client.name} {counts} {spent}" in text


def test_a_clients_page_says_what_it_means_and_against_whom(written: Any) -> None:
    index, server = written
    agreement = server.server.agreement
    facts = gathered(agreement, server.history())
    first, second = facts.clients[:2]
    texts = [
        Page((index.parent / "clients" / f"{c.name}.html").read_text("utf-8")).text
        for c in (first, second)
    ]
    for text, client in zip(texts, (first, second), strict=True):
        assert f"mu = {rounded_up(client.mu)} (epsilon {facts.epsilon_text(client.mu)}" in text
        assert client.client_level is not None
        assert f"mu = {rounded_up(client.client_level)}" in text
        assert f"up to message {client.sent}" in text
        assert "the server, and all others with it" in text
        assert f"Messages taken in {len(client.taken)} rounds" in text
    assert "the other clients, if none" not in texts[0]
    assert "the other clients, if none works with the server mu = 0.1 " in texts[1]


@pytest.mark.parametrize("options", RUNS, ids=["leaky", "uniform", "paper", "fresh"])
def test_what_is_computed_from_public_facts_is_what_clients_know(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    agreement = agreed(4, rounds=10, cap=40, **options)
    server, clients = run(agreement, tmp_path)
    facts = gathered(agreement, server.history(), server.events(), server.state.out)
    exact = 0
    for client in facts.clients:
        state = clients[client.name].state
        assert client.sent <= state.index
        assert client.client_level is not None
        assert client.client_level <= state.other.mu * (1 + 1e-9)
        assert client.mu <= clients[client.name].client.spent(state) * (1 + 1e-9)
        if client.sent == state.index:
            exact += 1
            assert client.client_level == pytest.approx(state.other.mu, rel=1e-9)
            assert client.mu == pytest.approx(clients[client.name].client.spent(state), rel=1e-9)
    assert exact
    assert any(client.uncommitted for client in facts.clients)
    assert sum(len(client.taken) for client in facts.clients) == 30


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"unit": "client"}, marks=pytest.mark.slow),
        pytest.param({"uses": 2, "examples": 12, "batch": 4, "mu": 8.0}, marks=pytest.mark.slow),
    ],
    ids=["once", "client", "twice"],
)
def test_a_trusted_servers_noise_is_accounted_for_once_more(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    agreement = agreed(4, trust="trusted", rounds=8, cap=60, **options)
    server, _ = run(agreement, tmp_path, lost=0.0)
    facts = gathered(agreement, server.history())
    assert server.state.account is not None
    most = max(client.mu for client in facts.clients)
    assert most == pytest.approx(server.state.account.mu, rel=1e-9)
    assert most <= agreement.mu * (1 + 1e-9)
    for client in facts.clients:
        rounds, values = zip(*client.curve, strict=True)
        assert list(values) == sorted(values)
        assert rounds[0] == client.taken[0].round
        assert (client.client_level is None) == (agreement.unit == "client")
        if client.client_level is not None:
            assert client.client_level >= client.mu
    write_federated_report(tmp_path / "report", agreement, server.history(), title="Trusted")
    text = Page((tmp_path / "report" / "clients" / "client-0.html").read_text("utf-8")).text
    assert "none: it is trusted" in text


def test_under_a_secure_sum(tmp_path: Path) -> None:
    agreement, private = secure_agreement(
        5, rounds=4, per_round=4, colluders=1, cap=60, schedule="fresh"
    )
    server, clients = run(agreement, tmp_path, private=private, lost=0.0)
    facts = gathered(agreement, server.history())
    for client in facts.clients:
        state = clients[client.name].state
        expected = math.sqrt(state.other.mu_squared * agreement.honest)
        assert client.client_level == pytest.approx(expected, rel=1e-9)
    write_federated_report(tmp_path / "report", agreement, server.history(), title="Sums")
    text = Page((tmp_path / "report" / "index.html").read_text("utf-8")).text
    assert "sums over 4 clients" in text
    assert "one member of a cohort" in text
    leaky, _ = secure_agreement(5, rounds=4, per_round=4, colluders=1, cap=60)
    assert gathered(leaky, made_up(leaky)).clients[0].client_level is None


def test_the_picture_of_a_client_lies_where_its_axes_are() -> None:
    agreement = agreed(3, rounds=20, per_round=2)
    facts = gathered(agreement, made_up(agreement))
    curve = ((5, agreement.mu / 2), (11, agreement.mu))
    client = replace(facts.clients[0], curve=curve)
    drawing = ClientPicture(facts).svg(client, 'a "label" <here>')
    assert 'aria-label="a &quot;label&quot; &lt;here&gt;"' in drawing
    budget = re.findall(r'<path d="M \S+ (\S+) \nL \S+ \S+ \n"[^>]*stroke: #d55e00', drawing)
    for name, height in zip(("mu", "epsilon"), budget, strict=True):
        (path,) = re.findall(rf'id="client-{name}">\s*<path d="([^"]*)"', drawing)
        points = [tuple(map(float, p.split())) for p in re.split("[ML]", path)[1:]]
        assert points[-1][1] == pytest.approx(float(height), abs=0.06)
        assert points[0][1] == max(y for _, y in points)
        rounds = [points[2][0], points[4][0]]
        span = points[-1][0] - points[0][0]
        assert [(x - points[0][0]) / span * 20 + 0.5 for x in rounds] == pytest.approx(
            [5, 11], abs=0.05
        )
    (path,) = re.findall(r'id="client-taken">\s*<path d="([^"]*)"', drawing)
    assert path.count("V") == len(client.taken)


@pytest.mark.slow
def test_a_thousand_clients_need_no_thousand_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = agreed(300, rounds=30, per_round=20, extra=3)
    drawn = []
    real = plots.to_svg
    for module in (
        "sordino.report._plots.to_svg",
        "sordino.together.federated._report_plots.to_svg",
    ):
        monkeypatch.setattr(module, lambda *a, **k: drawn.append(1) or real(*a, **k))
    history = made_up(agreement)
    write_federated_report(tmp_path, agreement, history, title="Many")
    assert len(drawn) == 3
    assert len(list((tmp_path / "clients").iterdir())) == 300
    monkeypatch.setattr(federated, "MOST_PAGES", 7)
    write_federated_report(tmp_path / "fewer", agreement, history, title="Many")
    assert len(list((tmp_path / "fewer" / "clients").iterdir())) == 7
    assert "293 more clients are left out" in (tmp_path / "fewer" / "index.html").read_text("utf-8")


@pytest.mark.parametrize("rounds", [0, 1])
def test_before_and_after_the_first_round(tmp_path: Path, rounds: int) -> None:
    agreement = agreed(3, per_round=2)
    history = made_up(agreement)[:rounds]
    index = write_federated_report(tmp_path, agreement, history, title="Early")
    for _, page in pages_of(index).values():
        assert page.open == []
    assert f"{rounds} of 12 rounds are over" in index.read_text("utf-8")


@pytest.mark.slow
def test_what_a_client_says_about_itself_is_not_believed_blindly(tmp_path: Path) -> None:
    agreement = agreed(3, per_round=2, cap=10**6, schedule="fresh", mu=1.0)
    (first, *_) = made_up(replace(agreement, cap=12))
    name = next(iter(first.committed))
    lie = replace(
        first,
        committed={**first.committed, name: 10**6},
        metrics={"$\\frac{": 0.5, HOSTILE: math.nan},
    )
    index = write_federated_report(tmp_path, agreement, [lie], title="Lies")
    assert "its messages cost more than was agreed" in index.read_text("utf-8")
    text = Page((tmp_path / "clients" / f"{name}.html").read_text("utf-8")).text
    assert "This client's messages cost more than was agreed" in text
    assert "all examples of this client" not in text  # a million messages in one turn: not counted


def test_the_papers_budgets_have_their_epsilons(tmp_path: Path) -> None:
    agreement = agreed(3, per_round=2, mu=12.0)
    index = write_federated_report(tmp_path, agreement, made_up(agreement), title="Loud")
    text = Page(index.read_text("utf-8")).text
    assert "12-GDP" in text
    assert (
        "(127.5, 1e-05)" in text
    )  # 122 by GDP; e^122 times the distance of discrete noise is too much


@pytest.mark.slow
def test_names_that_differ_in_case_only_have_pages_of_their_own(tmp_path: Path) -> None:
    agreement = replace(agreed(3, per_round=2), clients=("ward", "Ward", "WARD"))
    index = write_federated_report(tmp_path, agreement, made_up(agreement), title="Wards")
    found = sorted(path.name for path in (tmp_path / "clients").iterdir())
    assert found == ["WARD~3.html", "Ward~2.html", "ward.html"]
    links = Page(index.read_text("utf-8")).links
    assert {"clients/ward.html", "clients/Ward~2.html", "clients/WARD~3.html"} <= set(links)


@pytest.mark.slow
def test_an_interrupted_report_leaves_the_old_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = agreed(3, per_round=2)
    index = write_federated_report(tmp_path, agreement, made_up(agreement)[:2], title="Old")
    before = index.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(federated, "write_atomically", full)
    with pytest.raises(OSError, match="No space left"):
        write_federated_report(tmp_path, agreement, made_up(agreement), title="New")
    assert index.read_bytes() == before


def test_words_for_every_kind_of_agreement(tmp_path: Path) -> None:
    fresh = agreed(4, schedule="fresh")
    for agreement, words in (
        (agreed(4), "leaky: "),
        (agreed(4, schedule="uniform"), "uniform: all"),
        (agreed(4, schedule="paper"), "k times that of the first"),
        (fresh, "fresh: "),
        (agreed(4, trust="trusted"), "the round before"),
    ):
        assert words in schedule(agreement)
    lines = dict(plan_lines(agreed(4, unit="client", cap=5), 3))
    assert "any number of times" in lines["message"]
    assert lines["divisor"] == "3 = 3, whoever answers"
    index = write_federated_report(tmp_path, agreed(4, unit="client"), [], title="Clients")
    text = Page(index.read_text("utf-8")).text
    assert "It is about clients. Whoever has records at several clients is protected less" in text
    assert "about examples, not about clients" not in text


def test_tables_of_shares_count_everything_once() -> None:
    agreement = agreed(7, rounds=13, per_round=3, extra=2)
    facts = gathered(agreement, made_up(agreement))
    whole, vain = shares(facts, 100, 100)
    assert whole.shape == (7, 13)
    assert set(np.unique(whole)) == {0.0, 1.0}
    assert whole.sum() == 39
    assert vain.sum() == 26
    small, _ = shares(facts, 3, 4)
    heights, widths = [3, 2, 2], [4, 3, 3, 3]
    assert float((small * np.outer(heights, widths)).sum()) == pytest.approx(39)
    assert plots.decimated(4, 11).tolist() == [1, 2, 3, 4]
    assert plots.decimated(1001, 11).tolist() == [1, *range(101, 1000, 100), 1001]
