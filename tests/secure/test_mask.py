"""The engine `mask`: exact sums and noise in real processes, and nothing left over when it fails."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import chdtrc

from sordino import SordinoError
from sordino.parts.mechanisms._discrete import ChaCha20Generator, discrete_gaussian
from sordino.together._certificates import Roster, RosterEntry
from sordino.together.secure import _transport as transport
from sordino.together.secure._mask import MaskSum, new_private_key, public_key
from sordino.together.secure._transport import StarTransport
from tests.support.certificates import create_certificate
from tests.support.plain_sums import noised_total, plain_sums
from tests.support.sum_noise import SumNoise
from tests.support.turn_file import TurnFile

LARGEST = 2**40


@dataclass(frozen=True)
class Party:
    """What one machine has; picklable."""

    name: str
    private: bytes
    roster: Roster
    paths: tuple[Path, Path]
    turns: Path
    colluders: int

    def engine(self, *, timeout: float = 20.0, **options: Any) -> MaskSum:
        star = StarTransport.join(self.roster, self.name, *self.paths, timeout=timeout, **options)
        claim = TurnFile(self.turns, self.roster.session)
        return MaskSum(
            self.name,
            self.private,
            self.roster,
            star,
            colluders=self.colluders,
            largest=LARGEST,
            claim=claim,
        )


def consortium(folder: Path, count: int, colluders: int, session: str = "s") -> list[Party]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    names = [f"p{i}" for i in range(count)]
    paths = {n: create_certificate(folder / session, n) for n in names}
    private = {n: new_private_key() for n in names}
    members = tuple(RosterEntry(n, public_key(private[n]), paths[n][0].read_text()) for n in names)
    roster = Roster(session, members, "127.0.0.1", port)
    return [
        Party(n, private[n], roster, paths[n], folder / session / f"{n}.turns", colluders)
        for n in names
    ]


def vector(name: str, d: int, turn: int) -> np.ndarray:
    rng = np.random.default_rng([int(name[1:]), d, turn])
    return rng.integers(-(2**30), 2**30, d)


# Real processes. They are forked by a server that has imported this module and nothing else ran in.


@lru_cache(maxsize=1)
def processes() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def work(party: Party, calls: list[tuple[int, int]], answers: Any, timeout: float) -> None:
    """One process: some sums, each (dimension, turn); results, bytes sent and all it received."""
    heard: list[bytes] = []
    try:
        engine = party.engine(timeout=timeout, watch=lambda _, body: heard.append(body))
        answers.put((party.name, "joined", None))
        results = []
        for d, turn in calls:
            before = engine.bytes_sent
            total = engine.noised_sum(vector(party.name, d, turn), 4**12, turn)
            results.append((total, engine.bytes_sent - before))
        answers.put((party.name, "done", (results, b"".join(heard))))
        engine.close()
    except SordinoError as error:
        answers.put((party.name, "failed", str(error)))


def run(
    parties: list[Party],
    calls: list[tuple[int, int]],
    *,
    timeout: float = 20.0,
    during: Callable[[dict[str, Any]], None] = lambda _: None,
    silent: int = 0,
) -> dict[str, tuple[str, Any]]:
    """Every process's last word; `silent` many may say nothing."""
    context = processes()
    answers = context.Queue()
    running = {
        p.name: context.Process(target=work, args=(p, calls, answers, timeout)) for p in parties
    }
    for process in running.values():
        process.start()
    last: dict[str, tuple[str, Any]] = {}
    joined = 0
    deadline = time.monotonic() + 40
    try:
        while len(last) < len(parties) - silent:
            name, state, value = answers.get(timeout=max(0.1, deadline - time.monotonic()))
            if state == "joined":
                joined += 1
                if joined == len(parties):
                    during(running)
            else:
                last[name] = (state, value)
    except queue.Empty:
        pytest.fail(f"no answer in time; so far {last}")
    finally:
        for name, process in running.items():
            process.join(5 if name in last else 0)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        answers.close()
        answers.join_thread()
    return last


def test_five_processes_agree_on_sums_of_all_sizes(tmp_path: Path) -> None:
    parties = consortium(tmp_path, 5, 2)
    calls = [(22, 1), (123, 2), (26_010, 3)]
    answers = run(parties, calls)
    assert {state for state, _ in answers.values()} == {"done"}, answers
    for i, (d, turn) in enumerate(calls):
        totals = [value[0][i][0] for _, value in answers.values()]
        assert all((total == totals[0]).all() for total in totals)
        inputs = sum(vector(p.name, d, turn) for p in parties)
        noise = totals[0] - inputs
        # Five shares of variance ceil(4^12 / 3): chi-square, error rate 1e-6.
        share = -(-(4**12) // 3)
        statistic = float((noise.astype(float) ** 2).sum()) / (5 * share)
        assert 5e-7 < chdtrc(d, statistic) < 1 - 5e-7
        sent = sum(value[0][i][1] for _, value in answers.values())
        assert sent < 2 * 4 * 8 * d * 1.005 + 2500

    # Nothing that anybody received holds anybody's numbers: each of them as eight bytes either way, of
    # which some are constant where pads have none.
    for receiver, (_, (results, heard)) in answers.items():
        for i, (d, turn) in enumerate(calls):
            if receiver != "p0":  # the search finds what is there
                assert results[i][0].astype("<i8").tobytes() in heard
            for other in parties:
                if other.name != receiver:
                    for number in vector(other.name, d, turn)[:50].tolist():
                        assert number.to_bytes(8, "little", signed=True) not in heard
                        assert number.to_bytes(8, "big", signed=True) not in heard


def test_two_owners(tmp_path: Path) -> None:
    parties = consortium(tmp_path, 2, 1)
    answers = run(parties, [(123, 7), (123, 8)])
    assert {state for state, _ in answers.values()} == {"done"}, answers
    for i, turn in enumerate((7, 8)):
        noise = answers["p0"][1][0][i][0] - sum(vector(p.name, 123, turn) for p in parties)
        statistic = float((noise.astype(float) ** 2).sum()) / (2 * 4**12)
        assert 5e-7 < chdtrc(123, statistic) < 1 - 5e-7  # error rate 1e-6


@pytest.mark.parametrize("victim", ["p0", "p2"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_party_that_dies_ends_it_for_all(tmp_path: Path, victim: str, how: int) -> None:
    parties = consortium(tmp_path, 3, 1)
    calls = [(3000, turn) for turn in range(1, 5000)]

    def kill(running: dict[str, Any]) -> None:
        for _ in range(500):  # until all have begun
            if all(p.turns.exists() for p in parties):
                break
            time.sleep(0.02)
        time.sleep(0.1)
        os.kill(running[victim].pid, how)

    start = time.monotonic()
    answers = run(parties, calls, timeout=1.0, during=kill, silent=1)
    for name, (state, value) in answers.items():
        assert name != victim
        assert state == "failed"
        assert "counts as released" in value
        assert victim in value
        assert "\n" not in value
    assert time.monotonic() - start < 15
    # What was released is on disk at everybody's, within one turn of each other.
    turns = [json.loads(p.turns.read_text())["turn"] for p in parties if p.turns.exists()]
    assert len(turns) == 3
    assert max(turns) - min(turns) <= 1
    if (victim, how) != ("p2", signal.SIGKILL):
        return
    # And they start again, one turn further on.
    again = run(parties, [(123, max(turns) + 1)])
    assert {state for state, _ in again.values()} == {"done"}, again


@pytest.mark.slow
def test_parties_killed_at_a_hundred_instants(tmp_path: Path) -> None:
    """Each time the others stop cleanly, and all go on with the very turn that was interrupted."""
    parties, rng, first = consortium(tmp_path, 3, 1), np.random.default_rng(0), 1
    for _ in range(100):
        victim, wait = f"p{rng.integers(3)}", float(rng.uniform(0, 0.3))

        def kill(running: dict[str, Any], victim: str = victim, wait: float = wait) -> None:
            time.sleep(wait)
            os.kill(running[victim].pid, signal.SIGKILL)

        calls = [(5000, turn) for turn in range(first, first + 5000)]
        answers = run(parties, calls, timeout=3.0, during=kill, silent=1)
        for name, (state, value) in answers.items():
            assert (name != victim, state) == (True, "failed")
            assert victim in value
        turns = [TurnFile(p.turns, "s").last for p in parties]
        first = max([turn for turn in turns if turn is not None], default=first)
        again = run(parties, [(5000, first)])
        assert {state for state, _ in again.values()} == {"done"}, again


# Threads, where what is sent has to be changed or looked at.


class Together:
    """Engines of one consortium, called at the same time from threads."""

    def __init__(self, parties: list[Party], **options: Any) -> None:
        self.parties = parties
        self.pool = ThreadPoolExecutor(len(parties))
        joining = [self.pool.submit(p.engine, **options) for p in parties]
        self.engines = [future.result(30) for future in joining]

    def call(self, values: list[np.ndarray], variance: int | list[int], turn: int) -> list[Any]:
        """What each party gets: its sum, or its error."""
        variances = variance if isinstance(variance, list) else [variance] * len(values)
        futures = [
            self.pool.submit(engine.noised_sum, x, s, turn)
            for engine, x, s in zip(self.engines, values, variances, strict=True)
        ]
        return [future.exception(60) or future.result() for future in futures]

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        self.pool.shutdown()


@pytest.fixture
def together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Together]]:
    made: list[Together] = []
    # Here some parties neither read on nor close.
    monkeypatch.setattr(transport, "_LAST_WORDS_PATIENCE", 0.2)

    def make(count: int = 3, colluders: int = 1, **options: Any) -> Together:
        parties = options.pop("parties", None) or consortium(tmp_path, count, colluders)
        made.append(Together(parties, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def sent_by(engine: MaskSum) -> list[bytes]:
    """Everything that this party will send from now on, before TLS."""
    seen: list[bytes] = []
    for link in engine._star._links.values():
        original = link.send_frame

        def spy(
            kind: int, turn: int, body: bytes, deadline: float, original: Any = original
        ) -> None:
            seen.append(bytes([kind]) + body)
            original(kind, turn, body, deadline)

        link.send_frame = spy  # type: ignore[method-assign]
    return seen


def test_colluders_that_subtract_their_shares_leave_the_planned_noise(
    together: Callable[..., Together],
) -> None:
    """m = 4, t = 2: shares are what each party's engine draws; the two others' make up S."""
    d, S = 20_000, 1001
    world = together(4, 2)
    shares: dict[str, np.ndarray] = {}
    for engine in world.engines:
        real = engine._pads.padded

        def spy(
            values: np.ndarray, cohort: Any, context: bytes, real: Any = real, e: Any = engine
        ) -> Any:
            if len(values) == d:
                shares[e._name] = values.copy()
            return real(values, cohort, context)

        engine._pads.padded = spy  # type: ignore[method-assign]
    zeros = np.zeros(d, np.int64)
    totals = world.call([zeros] * 4, S, 1)
    assert (totals[0] == sum(shares.values())).all()
    share = 501  # ceil(1001 / 2)
    for count, left in ((4, totals[0]), (2, totals[0] - shares["p0"] - shares["p3"])):
        statistic = float((left.astype(float) ** 2).sum()) / (count * share)
        assert 5e-7 < chdtrc(d, statistic) < 1 - 5e-7  # error rate 1e-6
    noise = SumNoise(1, S, d, world.engines[0].assumption)
    assert noise.remaining == 2 * share >= S
    assert world.engines[0].assumption.variance_factor == 2
    # Shares are independent of each other: correlations within 5 standard errors.
    stacked = np.corrcoef(np.stack([shares[p.name] for p in world.parties]).astype(float))
    assert np.abs(stacked - np.eye(4)).max() < 5 / np.sqrt(d)


def test_what_is_sent_is_uniform_and_the_same_again(together: Callable[..., Together]) -> None:
    world = together(3)
    seen = sent_by(world.engines[1])
    values = [np.full(4000, 12345 + i) for i in range(3)]
    first = world.call(values, 10**6, 5)
    body = next(item[1:] for item in seen if item[0] == 1)
    bits = np.unpackbits(np.frombuffer(body[20:], np.uint8))
    # 256,000 bits: within 5 standard errors of one half (6e-7).
    assert abs(bits.mean() - 0.5) < 2.5 / np.sqrt(len(bits))
    # The same call again, also after a restart: the same bytes and the same sum.
    world.close()
    again = together(parties=world.parties)
    resent = sent_by(again.engines[1])
    second = again.call(values, 10**6, 5)
    assert (first[0] == second[0]).all()
    assert resent == seen
    # Another turn: other pads and other noise.
    third = again.call(values, 10**6, 6)
    assert np.mean(third[0] == first[0]) < 0.05
    other = [item for item in resent if item[0] == 1][-1]
    assert np.mean(np.frombuffer(other[21:], "<u8") == np.frombuffer(body[20:], "<u8")) == 0


def test_a_turn_is_never_used_for_another_vector(together: Callable[..., Together]) -> None:
    world = together(2)
    values = [np.arange(10), np.arange(10)]
    assert isinstance(world.call(values, 100, 5)[0], np.ndarray)
    seen = sent_by(world.engines[1])
    changed = world.call([values[0], values[1] + 1], 100, 5)
    assert "released with another vector" in str(changed[1])
    assert "'p1' gave up: it cannot take part in this turn" in str(changed[0])
    assert [item[0] for item in seen] == [255]  # no vector left
    world.close()
    again = together(parties=world.parties, timeout=3.0)
    earlier = again.call(values, 100, 4)
    assert all("turn 4 is over: turn 5 has been released" in str(e) for e in earlier)
    world = together(parties=world.parties, timeout=3.0)
    with_other_noise = world.call(values, 101, 5)
    assert all("released with another vector" in str(e) for e in with_other_noise)


def test_terms_must_agree(together: Callable[..., Together]) -> None:
    world = together(3)
    answers = world.call([np.arange(5)] * 3, [100, 100, 101], 1)
    words = "'p2' wants 5 numbers with variance 101 against 1 colluders, and 'p0' 5 numbers with"
    assert all(words in str(answer) for answer in answers), answers
    world = together(parties=world.parties)
    answers = world.call([np.arange(5), np.arange(6), np.arange(5)], 100, 2)
    assert all("'p1' wants 6 numbers" in str(answer) for answer in answers), answers


def test_turns_must_agree(together: Callable[..., Together]) -> None:
    world = together(2, timeout=3.0)
    futures = [
        world.pool.submit(engine.noised_sum, np.arange(5), 100, turn)
        for engine, turn in zip(world.engines, (3, 4), strict=True)
    ]
    errors = [str(future.exception(20)) for future in futures]
    assert "for turn 4, where kind 1 of turn 3 was due" in errors[0]
    assert "'p0' gave up" in errors[1]


@pytest.mark.parametrize("lie", ["to one", "to one, with codes"])
def test_the_first_party_cannot_tell_two_parties_different_sums(
    together: Callable[..., Together], lie: str
) -> None:
    world = together(3)
    hub = world.engines[0]
    link = hub._star._links["p2"]
    original = link.send_frame

    def lying(kind: int, turn: int, body: bytes, deadline: float) -> None:
        if kind == 2:
            body = bytes([body[0] ^ 1]) + body[1:]
        if kind == 4 and lie == "to one, with codes":
            # What it can make itself is its own code; p1's it can only guess or repeat.
            body = body[:32] + bytes(32)
        original(kind, turn, body, deadline)

    link.send_frame = lying  # type: ignore[method-assign]
    answers = world.call([np.arange(5)] * 3, 100, 1)
    assert "does not confirm the sum" in str(answers[1])
    assert "does not confirm the sum" in str(answers[2])


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (1, lambda body: [body[:-8]], "'p1' sent a vector of another length than it says"),
        (1, lambda body: [body[:10]], "'p1' wants something that cannot be read"),
        (1, lambda body: [body, body], "'p1' sent a message of 1,620 bytes where 64 are"),
        (1, lambda body: [body * 100], "'p1' sent a message of "),
        (3, lambda body: [body[:-1]], "'p1' sent codes of another length"),
        (3, lambda body: [body[32:] + body[:32]], "'p1' does not confirm the sum"),
        (3, lambda body: [bytes([body[0] ^ 4]) + body[1:]], "'p1' does not confirm the sum"),
    ],
    ids=["truncated", "cut", "doubled", "long", "short codes", "swapped codes", "flipped code"],
)
def test_messages_that_a_party_spoils(
    together: Callable[..., Together], kind: int, change: Callable[[bytes], list[bytes]], words: str
) -> None:
    world = together(3, timeout=5.0)
    link = world.engines[1]._star._links["p0"]
    original = link.send_frame

    def spoiling(found: int, turn: int, body: bytes, deadline: float) -> None:
        for part in change(body) if found == kind else [body]:
            original(found, turn, part, deadline)

    link.send_frame = spoiling  # type: ignore[method-assign]
    answers = world.call([np.arange(200)] * 3, 100, 1)
    assert words in str(answers[0])
    if "codes" not in words and kind == 1:
        assert all(words in str(answer) for answer in answers), answers


def test_overflow_is_refused_before_anything_is_sent(
    together: Callable[..., Together], tmp_path: Path
) -> None:
    least, parties = np.iinfo(np.int64).min, consortium(tmp_path, 2, 1)
    for turn, wrong in enumerate((2**40 + 1, -(2**40) - 1, least, 2**62), start=1):
        world = together(parties=parties)
        seen = sent_by(world.engines[1])
        answers = world.call([np.zeros(3, np.int64), np.array([0, wrong, 1])], 100, turn)
        assert "beyond 1099511627776" in str(answers[1])
        assert str(wrong) not in str(answers[0])  # the reason stays at home
        assert [item[0] for item in seen] == [255]
        assert not parties[1].turns.exists()
        world.close()


def test_arguments_that_make_no_sense(together: Callable[..., Together], tmp_path: Path) -> None:
    good, parties = np.zeros(3, np.int64), consortium(tmp_path, 2, 1)
    for values, variance, words in (
        (good.astype(np.float64), 100, "int64"),
        (good[:0], 100, "empty"),
        (good[None], 100, "int64"),
        (good, 0, "variance"),
        (good, 2**60, r"2\^48"),
    ):
        world = together(parties=parties)
        with pytest.raises(SordinoError, match=words):
            world.engines[0].noised_sum(values, variance, 9)
        world.close()
    party, world = parties[0], together(parties=parties)
    star = world.engines[0]._star
    options = {"largest": 10, "claim": lambda turn, digest: None}
    for t in (0, 2):
        with pytest.raises(SordinoError, match="colluders"):
            MaskSum("p0", party.private, party.roster, star, colluders=t, **options)  # type: ignore[arg-type]
    with pytest.raises(SordinoError, match="another party"):
        MaskSum("p1", party.private, party.roster, star, colluders=1, **options)  # type: ignore[arg-type]
    huge = MaskSum(
        "p0",
        party.private,
        party.roster,
        star,
        colluders=1,
        largest=2**61,
        claim=options["claim"],  # type: ignore[arg-type]
    )
    with pytest.raises(SordinoError, match="coarser grid"):
        huge.noised_sum(good, 100, 1)


def test_the_turn_file(tmp_path: Path) -> None:
    path = tmp_path / "turns"
    first = TurnFile(path, "s")
    assert first.last is None
    first(3, b"a")
    first(3, b"a")
    for claim in (first, TurnFile(path, "s")):
        assert claim.last == 3
        with pytest.raises(SordinoError, match="another vector"):
            claim(3, b"b")
        with pytest.raises(SordinoError, match="over"):
            claim(2, b"a")
    with pytest.raises(SordinoError, match="another session"):
        TurnFile(path, "other")
    path.write_bytes(b"{")
    with pytest.raises(SordinoError, match="damaged"):
        TurnFile(path, "s")
    unwritable = TurnFile(tmp_path / "none" / "turns", "s")
    with pytest.raises(SordinoError, match="nothing is sent"):
        unwritable(1, b"a")
    assert unwritable.last is None


def test_views_of_a_coalition_do_not_tell_two_inputs_apart(tmp_path: Path) -> None:
    """m = 3, t = 1: what p0 receives from p1 and p2 depends on their vectors by their sum only.

    For fixed pads keys every vector is possible: p1's padded vector, seen with p2's, is explained as well
    by (x1 + z, x2 - z) for any z, under a pad between the two that differs by z.
    """
    parties = consortium(tmp_path, 3, 1)
    from sordino.together.secure._mask import Pads

    keys = parties[0].roster.public_keys
    pads = {p.name: Pads(p.name, p.private, keys) for p in parties}
    count, modulus = 20_000, 16
    rng = np.random.default_rng(1)
    tables = []
    for x1, x2 in ((3, 4), (-1000, 1007)):
        seen = np.zeros((modulus, modulus))
        context = rng.bytes(16)
        one = pads["p1"].padded(np.full(count, x1), pads, context)
        two = pads["p2"].padded(np.full(count, x2), pads, context)
        # p0 takes its own pads away, and looks at low bits.
        one = one + pads["p0"].padded(np.zeros(count, np.int64), ("p0", "p1"), context)
        two = two + pads["p0"].padded(np.zeros(count, np.int64), ("p0", "p2"), context)
        np.add.at(seen, (one % modulus, (one + two) % modulus), 1)
        tables.append(seen)
        # Together they are the sum, and the first of them is uniform: chi-square, error rate 1e-6.
        assert (one + two == x1 + x2).all()
        column = seen[:, (x1 + x2) % modulus]
        assert column.sum() == count
        statistic = float(((column - count / modulus) ** 2).sum()) / (count / modulus)
        assert chdtrc(modulus - 1, statistic) > 1e-6


def test_plain_sums_in_threads_are_the_sum_with_the_planned_noise() -> None:
    ends = plain_sums(3, bytes(32), timeout=5.0)
    key = ChaCha20Generator(bytes(32))
    values = [np.arange(50) * (i + 1) for i in range(3)]
    with ThreadPoolExecutor(3) as pool:

        def party(i: int) -> list[np.ndarray]:
            return [ends[i].noised_sum(values[i], 400, turn) for turn in range(20)]

        results = list(pool.map(party, range(3)))
        expected = [noised_total(values, 400, key) for _ in range(20)]
        for got in results:
            assert (np.array(got) == np.array(expected)).all()
        assert ends[0].assumption.variance_factor == 1
        assert ends[0].bytes_sent == 0

        again = list(pool.map(lambda end: pool_error(end, 3), ends))
        assert all("turn 3 is over" in text for text in again)
    noise = expected[0] - sum(values)
    again_noise = discrete_gaussian(400, 50, ChaCha20Generator(bytes(32)))
    assert (noise == again_noise).all()
    late = plain_sums(2, bytes(32), timeout=0.2)
    assert "did not answer" in pool_error(late[0], 1)
    ends = plain_sums(2, bytes(32))
    ends[1].close()
    assert "closed its end" in pool_error(ends[0], 1)


def pool_error(end: Any, turn: int) -> str:
    with pytest.raises(SordinoError) as error:
        end.noised_sum(np.arange(50), 400, turn)
    return str(error.value)
