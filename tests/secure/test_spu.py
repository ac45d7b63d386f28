"""The spu engine with real processes on this machine: five parties, three of them with a node."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino._base.errors import MissingExtraError, SordinoError
from sordino.together.secure._spu_engine import (
    LARGEST_SUM,
    VARIABLE,
    SpuSum,
    _Node,
    find_environment,
)
from sordino.together.secure._spu_side import _FLIP, drawing, public_numbers
from sordino.together.secure._table import ladder, table
from tests.secure.processes import (
    Parties,
    Tap,
    addresses,
    certificates,
    chi_square,
    free_ports,
    gone,
)
from tests.secure.test_table import require_ladder

needs_spu = pytest.mark.skipif(
    VARIABLE not in os.environ, reason=f"SPU has an environment of its own; set {VARIABLE}"
)
# Starting jax and SPU three times takes 5 to 10 s on two busy processors.
slow = pytest.mark.slow
PARTIES = 5
TIMEOUT = 60.0


@contextmanager
def running(**changes: Any) -> Iterator[Parties]:
    settings = {
        "parties": PARTIES,
        "addresses": addresses(3),
        "links": addresses(3),
        "timeout": TIMEOUT,
        **changes,
    }
    parties = Parties(SpuSum, [settings] * settings["parties"])
    try:
        yield parties
    finally:
        parties.end()


@needs_spu
@slow
def test_sums_are_right_equal_everywhere_and_noised_exactly() -> None:
    d, variance = 20_000, 64
    chance = np.random.default_rng(0)
    with running() as parties:
        opened = parties.answers()
        assert [kind for kind, _ in opened] == ["open"] * PARTIES
        assumed = opened[0][1]
        assert (assumed.colluders, assumed.compute_nodes, assumed.noise) == (1, 3, "inside")
        before = 0
        for turn, size in ((0, 1), (1, d), (5, d)):
            vectors = [chance.integers(-1000, 1000, size) for _ in range(PARTIES)]
            answers = parties.ask(vectors, variance, turn)
            assert [kind for kind, *_ in answers] == ["sum"] * PARTIES
            assert all((answer[1] == answers[0][1]).all() for answer in answers)
            noise = answers[0][1] - sum(vectors)
            assert np.abs(noise).max() <= table(variance).largest
            if size == d:
                # The words come from the system: a false alarm in a million for each of two turns.
                assert chi_square(noise, variance) > 1e-6
            total = sum(answer[2] for answer in answers)
            assert total > before
            before = total
        # A turn is for one vector only, and nothing has left when it is refused.
        answers = parties.ask(vectors, variance, 5)
        assert {answer[1] for answer in answers} == {"turn 5 has been used: the last one was 5"}
        largest = np.full(3, LARGEST_SUM // PARTIES)
        noise = parties.ask([largest] * PARTIES, 4, 6)[0][1] - PARTIES * largest
        assert np.abs(noise).max() <= table(4).largest
        answers = parties.ask([largest + 1] * PARTIES, 4, 7)
        assert all("beyond" in answer[1] for answer in answers)
        children = parties.children()
        assert len(children) == 3
    assert gone(children)


@pytest.mark.parametrize("words", [1, 2])
@pytest.mark.parametrize("variance", [64, 12_300, 2**24 + 77, 2**40 + 1])
def test_given_words_are_looked_up_in_every_rung(words: int, variance: int) -> None:
    """The nodes' program, on numbers that are not secret."""
    import jax

    made = ladder(variance, 63 * words)
    columns, d = made.columns(), 200
    bits = columns[0].bits
    chance = np.random.default_rng(5)
    rows = 1 + words * len(columns)
    inputs = chance.integers(-(2**63), 2**63 - 1, (3, rows, d), dtype=np.int64)
    total = inputs.view(np.uint64).sum(axis=0, dtype=np.uint64)
    expected = total[0].copy().view(np.int64)
    for r, ((factor, _), one) in enumerate(zip(made.rungs, columns, strict=True)):
        for i in range(d):
            word, *more = (int(total[1 + words * r + w, i]) ^ _FLIP for w in range(words))
            column, level = (word >> 1) % (1 << bits), word >> (1 + bits)
            for lower in more:
                level = (level << 63) + (lower >> 1)
            magnitude = column if level < one.cut[column] else one.other[column]
            expected[i] += factor * (-magnitude if word & 1 else magnitude)
    rungs = [
        {"factor": factor, "cut": one.cut, "other": one.other}
        for (factor, _), one in zip(made.rungs, columns, strict=True)
    ]
    given = (*inputs, *public_numbers(words, bits, rungs))
    with jax.enable_x64(True):
        found = drawing(words, bits, len(rungs))(*(jax.numpy.asarray(one) for one in given))
    assert np.asarray(found).tolist() == expected.tolist()


@pytest.mark.parametrize(
    "rungs", [[], [[2, 64]], [[1, 64], [8, 64]], [[1, 2**49]], [[1]], ["x"], 64, [[1, 0]], None]
)
def test_a_node_takes_no_other_ladder_than_its_own(rungs: Any) -> None:
    """What a node gets from the network, before anything is computed."""
    head = {"turn": 0, "rungs": rungs, "dimension": 1, "words": 1}
    node = object.__new__(_Node)
    with pytest.raises(SordinoError, match="party 3 sent something"):
        node._checked(3, head, bytes(16))
    good = {**head, "rungs": [[1, 64]]}
    assert node._checked(3, good, bytes(16)).shape == (2,)
    two = {**head, "rungs": [list(rung) for rung in ladder(2**24).rungs]}
    assert node._checked(3, two, bytes(24)).shape == (3,)
    with pytest.raises(SordinoError, match="party 3 sent something"):
        node._checked(3, two, bytes(16))


@needs_spu
@slow
def test_large_noise_comes_from_a_ladder() -> None:
    variance, size = 2**24 + 77, 3000
    chance = np.random.default_rng(1)
    with running(parties=3) as parties:
        assert {kind for kind, _ in parties.answers()} == {"open"}
        vectors = [chance.integers(-(2**40), 2**40, size) for _ in range(3)]
        answers = parties.ask(vectors, variance, 0)
        assert all((answer[1] == answers[0][1]).all() for answer in answers)
        require_ladder(answers[0][1] - sum(vectors), variance)
        # The largest noise that there is, with the largest vectors: nothing wraps.
        largest = np.full(3, LARGEST_SUM // 3)
        noise = parties.ask([largest] * 3, 2**48, 1)[0][1] - 3 * largest
        assert 0 < np.abs(noise).max() <= ladder(2**48).largest


@needs_spu
@slow
def test_two_words_give_the_same_noise() -> None:
    d, variance = 10_000, 1024
    with running(words=2, parties=3) as parties:
        assert {kind for kind, _ in parties.answers()} == {"open"}
        zeros = np.zeros(d, np.int64)
        answers = parties.ask([zeros] * 3, variance, 0)
        assert chi_square(answers[0][1], variance) > 1e-6  # a false alarm in a million


@needs_spu
@slow
def test_certificates_are_used_between_parties_and_between_nodes(tmp_path: Path) -> None:
    shared = {"parties": 4, "addresses": addresses(3), "links": addresses(3), "timeout": TIMEOUT}
    parties = Parties(SpuSum, [{**shared, "tls": tls} for tls in certificates(tmp_path, 4)])
    try:
        assert {kind for kind, _ in parties.answers()} == {"open"}
        answers = parties.ask([np.arange(5)] * 4, 64, 0)
        assert all((answer[1] == answers[0][1]).all() for answer in answers)
        assert np.abs(answers[0][1] - 4 * np.arange(5)).max() <= table(64).largest
        # A node does not talk to another one without: what does not start with TLS gets TLS's alarm.
        for link in shared["links"]:
            host, port = link.split(":")
            with socket.create_connection((host, int(port)), timeout=5) as plain:
                plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"HTTP" not in plain.recv(100)
    finally:
        parties.end()


@needs_spu
@slow
@pytest.mark.parametrize("dies", [0, 4])
def test_a_party_that_dies_ends_it_for_all_and_leaves_no_process(dies: int) -> None:
    timeout = 30.0
    with running(timeout=timeout) as parties:
        assert {kind for kind, _ in parties.answers()} == {"open"}
        children = parties.children()
        left = [i for i in range(PARTIES) if i != dies]
        for i in left:
            parties.pipes[i].send((np.arange(50), 64, 0))
        time.sleep(0.3)
        began = time.monotonic()
        os.kill(parties.processes[dies].pid or 0, signal.SIGKILL)
        answers = parties.answers(left, within=timeout)
        assert {kind for kind, *_ in answers} == {"error"}
        assert time.monotonic() - began < timeout
        assert gone(children)


@needs_spu
@slow
def test_a_party_at_another_turn_is_noticed() -> None:
    with running(parties=3) as parties:
        assert {kind for kind, _ in parties.answers()} == {"open"}
        for i in range(3):
            parties.pipes[i].send((np.arange(5), 64, 1 if i == 2 else 0))
        answers = parties.answers()
        assert {kind for kind, *_ in answers} == {"error"}
        assert any("another turn" in answer[1] for answer in answers)


@needs_spu
@slow
def test_nothing_planted_is_in_what_a_node_receives() -> None:
    """Everything that goes to node 1, from parties and from nodes, goes through a tap."""
    own, link = free_ports(2)
    taps = [Tap(own), Tap(link)]
    others = addresses(4)
    seen_by = [
        {"parties": 3, "addresses": [others[0], a, others[1]], "links": [others[2], b, others[3]]}
        for a, b in (
            (f"127.0.0.1:{taps[0].port}", f"127.0.0.1:{taps[1].port}"),
            (f"127.0.0.1:{own}", f"127.0.0.1:{link}"),
            (f"127.0.0.1:{taps[0].port}", f"127.0.0.1:{taps[1].port}"),
        )
    ]
    parties = Parties(SpuSum, seen_by)
    try:
        assert {kind for kind, _ in parties.answers()} == {"open"}
        planted = np.full(500, 0x0123456789ABCD)
        vectors = [planted, np.zeros(500, np.int64), -planted + 7]
        answers = parties.ask(vectors, 64, 0)
        assert np.abs(answers[0][1] - 7).max() <= table(64).largest
    finally:
        parties.end()
        for tap in taps:
            tap.close()
    # Rows of 500 numbers came in, twice from parties and from two nodes; 8 bytes that are planted
    # would be there by chance once in 10^12 such tests.
    assert len(taps[0].seen) > 2 * 8 * 1000
    assert len(taps[1].seen) > 2 * 8 * 1000
    for tap in taps:
        for value in (planted[0], -planted[0] + 7, -planted[0]):
            for order in ("<i8", ">i8"):
                assert np.array(value, order).tobytes() not in tap.seen


@pytest.mark.slow
def test_an_environment_without_spu_ends_it_at_once(tmp_path: Path) -> None:
    """Here /bin/false stands for a Python that cannot import SPU."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/bin/false")
    with running(parties=4, environment=tmp_path, timeout=10.0) as parties:
        answers = parties.answers(within=40.0)
    assert {kind for kind, *_ in answers} == {"error"}
    # Who runs a node says why; who does not, that it is not there.
    assert any("the SPU process of node" in answer[1] for answer in answers[:3])
    assert "node" in answers[3][1]


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    three = ["127.0.0.1:1"] * 3
    with pytest.raises(SordinoError, match="'SEMI2K' is refused"):
        SpuSum(0, 3, three, three, protocol="SEMI2K")
    with pytest.raises(SordinoError, match="at least 3 parties, got 2"):
        SpuSum(0, 2, three, three)
    with pytest.raises(SordinoError, match="exactly 3 nodes"):
        SpuSum(0, 4, [*three, "127.0.0.1:2"], three)
    with pytest.raises(SordinoError, match="index must be between 0 and 2"):
        SpuSum(3, 3, three, three)
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(MissingExtraError, match=r"sordino\.together\.secure create PATH"):
        SpuSum(0, 3, three, three)
    with pytest.raises(MissingExtraError, match="there is no environment"):
        find_environment(tmp_path)


def test_a_node_that_cannot_be_reached_is_named() -> None:
    free = addresses(6)
    with pytest.raises(SordinoError, match=r"node 0 at .* cannot be reached"):
        SpuSum(3, 4, free[:3], free[3:], timeout=0.2)


def test_the_command_needs_a_path(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sordino.together.secure"]
    done = subprocess.run([*command, "make"], capture_output=True, text=True, check=False)
    assert done.returncode
    assert "create PATH" in done.stderr
    (tmp_path / "file").touch()
    done = subprocess.run(
        [*command, "create", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert "not an empty folder" in done.stderr
