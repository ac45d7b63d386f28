"""The mpyc engine with real processes on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
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
from sordino.together.secure import _mpyc as mpyc_engine
from sordino.together.secure._mpyc import LARGEST_SUM, MpycSum
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

needs_mpyc = pytest.mark.skipif(
    importlib.util.find_spec("mpyc") is None, reason="MPyC is not installed (extra mpc)"
)
TIMEOUT = 60.0
# The engine's own noise without others: MPyC with one party, and random bits that are given.
GIVEN_BITS = """
import json, sys
given = json.load(sys.stdin)
sys.argv = ["sordino", "--no-log"]
import numpy as np
from mpyc.runtime import mpc
from sordino.together.secure._mpyc import MODULUS, Party, Tables
field = mpc.SecFld(modulus=MODULUS)
party = object.__new__(Party)
party._runtime, party._field = mpc, field
coins = np.array(given["coins"], object)
def bits(kind, count):
    assert kind is field and count == coins.size
    return field.array(coins.reshape(-1))
mpc.np_random_bits = bits
noise = party._noise(given["size"], Tables.asked(given["request"]))
opened = [int(v) for v in mpc.run(mpc.output(noise))]
print(json.dumps([v - MODULUS if v > MODULUS // 2 else v for v in opened]))
"""


@contextmanager
def running(
    count: int, own: list[dict[str, Any]] | None = None, **shared: Any
) -> Iterator[Parties]:
    settings = {"addresses": addresses(count), "timeout": TIMEOUT, **shared}
    parties = Parties(MpycSum, [{**settings, **one} for one in own or [{}] * count])
    try:
        yield parties
    finally:
        parties.end()


@needs_mpyc
def test_sums_are_right_equal_everywhere_and_noised_exactly() -> None:
    variance, count = 4, 3
    chance = np.random.default_rng(0)
    with running(count) as parties:
        opened = parties.answers()
        assert [kind for kind, _ in opened] == ["open"] * count
        assumed = opened[0][1]
        assert (assumed.colluders, assumed.compute_nodes, assumed.noise) == (1, 3, "inside")
        sent = 0
        # More than are drawn at a time, too.
        for turn, size in ((0, 1), (3, 1100)):
            vectors = [chance.integers(-1000, 1000, size) for _ in range(count)]
            answers = parties.ask(vectors, variance, turn)
            assert [kind for kind, *_ in answers] == ["sum"] * count
            assert all((answer[1] == answers[0][1]).all() for answer in answers)
            noise = answers[0][1] - sum(vectors)
            assert np.abs(noise).max() <= table(variance).largest
            assert sum(answer[2] for answer in answers) > sent
            sent = sum(answer[2] for answer in answers)
        # The bits come from the system: a false alarm in a million.
        assert chi_square(noise, variance) > 1e-6
        answers = parties.ask(vectors, variance, 3)
        assert {answer[1] for answer in answers} == {"turn 3 has been used: the last one was 3"}
        largest = np.full(3, LARGEST_SUM // count)
        noise = parties.ask([largest] * count, variance, 4)[0][1] - count * largest
        assert np.abs(noise).max() <= table(variance).largest
        noise = parties.ask([-largest] * count, variance, 5)[0][1] + count * largest
        assert np.abs(noise).max() <= table(variance).largest
        answers = parties.ask([largest + 1] * count, variance, 6)
        assert all("beyond" in answer[1] for answer in answers)
        children = parties.children()
        assert len(children) == count
    assert gone(children)


@needs_mpyc
@pytest.mark.parametrize("variance", [64, 12_300, 2**24 + 77, 2**30 + 1])
def test_given_bits_are_looked_up_in_every_rung(variance: int) -> None:
    made = ladder(variance)
    columns, size = made.columns(), 40
    bits, level_bits = columns[0].bits, columns[0].level_bits
    chance = np.random.default_rng(3)
    coins = chance.integers(0, 2, (len(columns), size, 1 + bits + level_bits))
    expected = np.zeros(size, np.int64)
    for (factor, _), one, rung in zip(made.rungs, columns, coins, strict=True):
        for i, row in enumerate(rung.tolist()):
            column = sum(bit << j for j, bit in enumerate(row[1 : bits + 1]))
            level = int("".join(map(str, row[bits + 1 :])), 2)
            magnitude = column if level < one.cut[column] else one.other[column]
            expected[i] += factor * (-magnitude if row[0] else magnitude)
    request = {
        "bits": bits,
        "level_bits": level_bits,
        "rungs": [
            {"factor": factor, "cut": one.cut, "other": one.other}
            for (factor, _), one in zip(made.rungs, columns, strict=True)
        ],
    }
    given = {"coins": coins.tolist(), "size": size, "request": request}
    done = subprocess.run(
        [sys.executable, "-c", GIVEN_BITS],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected.tolist()


@needs_mpyc
def test_large_noise_comes_from_a_ladder() -> None:
    variance, size = 2**24 + 77, 180
    chance = np.random.default_rng(1)
    with running(3) as parties:
        assert {kind for kind, _ in parties.answers()} == {"open"}
        vectors = [chance.integers(-(2**40), 2**40, size) for _ in range(3)]
        answers = parties.ask(vectors, variance, 0)
        assert all((answer[1] == answers[0][1]).all() for answer in answers)
        require_ladder(answers[0][1] - sum(vectors), variance)
        # The largest noise that there is, with the largest vectors: nothing wraps.
        largest = np.full(3, LARGEST_SUM // 3)
        noise = parties.ask([largest] * 3, 2**48, 1)[0][1] - 3 * largest
        assert 0 < np.abs(noise).max() <= ladder(2**48).largest


@needs_mpyc
def test_five_parties_with_certificates(tmp_path: Path) -> None:
    own = [{"tls": tls} for tls in certificates(tmp_path, 5)]
    with running(5, own) as parties:
        opened = parties.answers()
        assert [kind for kind, _ in opened] == ["open"] * 5
        assert opened[0][1].colluders == 2
        answers = parties.ask([np.arange(4)] * 5, 64, 0)
        assert all((answer[1] == answers[0][1]).all() for answer in answers)
        assert np.abs(answers[0][1] - 5 * np.arange(4)).max() <= table(64).largest


@needs_mpyc
@pytest.mark.slow
def test_another_partys_certificate_is_refused(tmp_path: Path) -> None:
    tls = certificates(tmp_path, 3)
    with running(3, [{"tls": tls[1]}, {"tls": tls[1]}, {"tls": tls[2]}], timeout=5.0) as parties:
        answers = parties.answers()
        assert {kind for kind, *_ in answers} == {"error"}


@needs_mpyc
@pytest.mark.parametrize("dies", [0, 2])
def test_a_party_that_dies_ends_it_for_all_and_leaves_no_process(dies: int) -> None:
    with running(3) as parties:
        assert {kind for kind, _ in parties.answers()} == {"open"}
        children = parties.children()
        left = [i for i in range(3) if i != dies]
        for i in left:
            parties.pipes[i].send((np.arange(50), 64, 0))
        time.sleep(0.2)
        began = time.monotonic()
        os.kill(parties.processes[dies].pid or 0, signal.SIGKILL)
        answers = parties.answers(left, within=TIMEOUT)
        assert time.monotonic() - began < TIMEOUT / 2  # noticed at once, not by waiting
        assert {kind for kind, *_ in answers} == {"error"}
        assert any(f"party {dies} is gone" in answer[1] for answer in answers)
        assert gone(children)


@needs_mpyc
@pytest.mark.slow
def test_a_party_that_says_nothing_is_not_waited_for_for_ever() -> None:
    with running(3, timeout=4.0) as parties:
        assert {kind for kind, _ in parties.answers()} == {"open"}
        for i in (0, 1):
            parties.pipes[i].send((np.arange(5), 64, 0))
        answers = parties.answers([0, 1], within=20.0)
        assert {kind for kind, *_ in answers} == {"error"}
        assert any("did not answer within 4 s" in answer[1] for answer in answers)


@needs_mpyc
def test_a_party_at_another_sum_is_noticed() -> None:
    with running(3) as parties:
        assert {kind for kind, _ in parties.answers()} == {"open"}
        for i in range(3):
            parties.pipes[i].send((np.arange(5), 64 if i else 4, 0))
        answers = parties.answers()
        assert {kind for kind, *_ in answers} == {"error"}
        assert any("another sum" in answer[1] for answer in answers)


@needs_mpyc
def test_parties_with_other_settings_are_refused() -> None:
    with running(3, [{"bits": 63}, {"bits": 63}, {"bits": 64}], timeout=20.0) as parties:
        answers = parties.answers()
        assert {kind for kind, *_ in answers} == {"error"}
        assert any("set up in another way" in answer[1] for answer in answers)


@needs_mpyc
def test_nothing_planted_is_in_what_a_party_receives() -> None:
    """Parties 0 and 1 connect to party 2, and do so through a tap."""
    (port,) = free_ports(1)
    tap = Tap(port)
    others = addresses(2)
    own = [{"addresses": [*others, f"127.0.0.1:{at}"]} for at in (tap.port, tap.port, port)]
    planted = np.full(100, 0x0123456789ABCD)
    try:
        with running(3, own) as parties:
            assert {kind for kind, _ in parties.answers()} == {"open"}
            vectors = [planted, 7 - planted, np.zeros(100, np.int64)]
            answers = parties.ask(vectors, 64, 0)
            assert np.abs(answers[0][1] - 7).max() <= table(64).largest
    finally:
        tap.close()
    # Both directions of both connections; 8 bytes by chance: once in 10^11 such tests.
    assert len(tap.seen) > 4 * 8 * 100 * 60
    for value in (planted[0], 7 - planted[0], (7 - planted[0]) % (2**61 - 1)):
        for order in ("<i8", ">i8"):
            assert np.array(value, order).tobytes() not in tap.seen


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SordinoError, match="at least 3 parties, got 2"):
        MpycSum(0, ["127.0.0.1:1"] * 2)
    with pytest.raises(SordinoError, match="index must be between 0 and 2"):
        MpycSum(3, ["127.0.0.1:1"] * 3)
    for colluders in (0, 2):
        with pytest.raises(SordinoError, match="between 1 and 1"):
            MpycSum(0, ["127.0.0.1:1"] * 3, colluders=colluders)
    with pytest.raises(SordinoError, match="host:port"):
        MpycSum(0, ["127.0.0.1"] * 3)
    monkeypatch.setattr(mpyc_engine, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="mpc"):
        MpycSum(0, ["127.0.0.1:1"] * 3)
