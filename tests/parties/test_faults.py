"""Whole runs in which processes are killed and the network fails: nobody hangs, nothing leaves twice."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino._base.keys import RunKey
from sordino._base.keystore import KeyStore
from sordino.parts._losses import Logistic
from sordino.privacy._values import ClippedSum
from sordino.together._certificates import RosterEntry, new_certificate
from sordino.together.parties._consortium import PartyCard
from sordino.together.parties._journal import TurnJournal
from sordino.together.parties._learner import Learner, PartyRows
from sordino.together.parties._party import Meeting, run_party
from sordino.together.parties._terms import Terms, agree
from sordino.together.secure import _transport as transport
from sordino.together.secure._mask import MaskSum
from sordino.together.secure._transport import StarTransport
from sordino.together.sites._parties import CARD, CERTIFICATE, CONSORTIUM, KEY, SIGNATURE, PartySite
from tests.parties.faults import (
    Network,
    Study,
    Zygote,
    clear,
    records,
    spoilt_loss,
)
from tests.parties.test_meeting import COMMON, World
from tests.secure.test_mask import Together, consortium, sent_by

needs_spu = pytest.mark.skipif(
    "SORDINO_SPU" not in os.environ, reason="SPU's environment is not made"
)
# What a party may need beyond a time-out on a machine that has other things to do.
SLACK = 20.0


# Processes.


def killed(
    study: Study, zygote: Zygote, kills: int, rng: np.random.Generator, *, early: float, span: float
) -> int:
    """Sessions with one SIGKILL each until the run is over, or so many have hit; how many have.

    Args:
      early: how often the instant is any from the start of the processes on, before they have met too.
      span: seconds over which instants are spread.
    """
    done = 0
    while done < kills:
        session = study.start(zygote)
        victim = int(rng.integers(len(study.names)))
        anywhere = rng.random() < early
        # Engines of other libraries take a while until they are open.
        if anywhere or session.until("met" if study.terms.engine == "mask" else "sent"):
            time.sleep(float(rng.uniform(0, span)))
        hit = session.kill(victim)
        at = time.monotonic()
        # Engines of other libraries give those who come as long again to say who is missing.
        longest = (2 if study.terms.engine == "spu" else 1) * study.timeout
        outcomes = session.wait(longest + SLACK)
        done += hit
        for place, outcome in enumerate(outcomes):
            if hit and place == victim:
                assert outcome is None
                continue
            assert outcome is not None
            if outcome["state"] != "done":  # it had its last word before
                clear(outcome)
            assert outcome["at"] - at < longest + SLACK
        if all(outcome is not None and outcome["state"] == "done" for outcome in outcomes):
            break
    return done


def survives(
    folder: Path,
    zygote: Zygote,
    kills: int,
    seed: int,
    *,
    early: float,
    span: float,
    **options: Any,
) -> tuple[int, int]:
    """So many kills over as many runs as it takes, each of them brought to its end; kills, lost turns."""
    rng, total, losses = np.random.default_rng(seed), 0, 0
    while total < kills:
        study = Study(folder / f"run{total}-{losses}-{len(list(folder.iterdir()))}", **options)
        found = killed(study, zygote, kills - total, rng, early=early, span=span)
        lost = study.check(study.finish(zygote))
        assert len(lost) <= study.sessions  # a session loses one turn at most
        total, losses = total + found, losses + len(lost)
        print(f"{total} kills, {losses} turns lost, {study.sessions} sessions in this run")
        shutil.rmtree(study.folder)
    return total, losses


def test_parties_killed_while_they_sum(tmp_path: Path, zygote: Zygote) -> None:
    total, _ = survives(tmp_path, zygote, 3, 1, early=0.0, span=0.6, steps=150, pause=0.004)
    assert total == 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_parties_killed_at_a_hundred_instants(tmp_path: Path, zygote: Zygote, seed: int) -> None:
    """Four times 25: a third at any instant from the start on, the others while they sum."""
    total, lost = survives(
        tmp_path, zygote, 25, seed, early=0.35, span=2.0, steps=400, pause=0.006, timeout=6.0
    )
    assert total == 25
    assert lost  # some were killed in the middle of a turn


@pytest.mark.slow
def test_five_parties_and_noise_that_is_taken_back(tmp_path: Path, zygote: Zygote) -> None:
    """Here a lost turn is left out of later ones: encoding and decoding have to agree about it."""
    total, lost = survives(
        tmp_path,
        zygote,
        10,
        7,
        early=0.2,
        span=1.5,
        parties=5,
        colluders=2,
        recipe="dp-memf",
        steps=150,
        pause=0.004,
        batch_size=40,
    )
    assert total == 10
    assert lost


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["mpyc", pytest.param("spu", marks=needs_spu)])
def test_parties_of_other_engines_killed(tmp_path: Path, zygote: Zygote, engine: str) -> None:
    kills = 20 if engine == "mpyc" else 12
    total, _ = survives(
        tmp_path,
        zygote,
        kills,
        3,
        early=0.25,
        span=3.0,
        engine=engine,
        steps=40,
        timeout=30.0 if engine == "spu" else 15.0,
        noise_multiplier=1.0,
        lattice_steps=1024,
    )
    assert total == kills


# Every single point at which a process can end, with parties in threads.


class _Killed(BaseException):
    pass


class Bomb:
    """Ends a party at its n-th step: its connections break, and nothing it does afterwards counts."""

    def __init__(self, at: int) -> None:
        self.left, self.star = at, cast(StarTransport | None, None)

    def tick(self) -> None:
        self.left -= 1
        if self.left == -1:
            if self.star is not None:
                for link in self.star._let_go():
                    link.close()
            raise _Killed


class Counting:
    """Stands for a learner: a vector for each turn, and all sums so far as the model."""

    steps = 2

    def __init__(self, place: int) -> None:
        self.place, self.taken = place, cast(list[Any], [])
        self.terms = SimpleNamespace(largest=2**40)
        self.variance, self.params = 100, None

    @property
    def done(self) -> int:
        return len(self.taken)

    @property
    def finished(self) -> bool:
        return self.done == self.steps

    def vector(self) -> ClippedSum:
        return ClippedSum(np.full(4, 1000 * self.place + self.done))

    def take(self, noised: Any) -> None:
        self.taken.append(None if noised is None else noised.tolist())

    def digest(self) -> str:
        return repr(self.taken)[:200]


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> threading.local:
    """Where a thread's bomb lies; it ticks before and after everything that others or the disk see."""
    here = threading.local()

    def around(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def wrapped(*call: Any, **options: Any) -> Any:
            bomb = getattr(here, "bomb", None)
            if bomb is not None:
                bomb.tick()
            found = real(*call, **options)
            if bomb is not None:
                bomb.tick()
            return found

        monkeypatch.setattr(owner, name, wrapped)

    around(transport._Link, "send_frame")
    around(transport._Link, "receive_frame")
    around(KeyStore, "replace")
    for name in ("claim", "settle"):
        around(TurnJournal, name)
    return here


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_at_every_single_point_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ticking: threading.local, stride: int
) -> None:
    """Each of three parties in turn, at each of its steps through a run of two turns, or every seventh."""
    monkeypatch.setattr(transport, "_LAST_WORDS_PATIENCE", 0.1)
    world = World(tmp_path)
    left: dict[tuple[int, int], list[bytes]] = {}
    exchanged = MaskSum._exchanged

    def leaving(self: MaskSum, body: Any, terms: bytes, turn: int, deadline: float) -> Any:
        left.setdefault((world.roster.names.index(self._name), turn), []).append(body.tobytes())
        return exchanged(self, body, terms, turn, deadline)

    monkeypatch.setattr(MaskSum, "_exchanged", leaving)

    def party(place: int, bomb: Bomb | None) -> Any:
        name, learner = world.roster.names[place], Counting(place)
        ticking.bomb = None
        journal = world.journal(place)

        def join() -> StarTransport:
            star = StarTransport.join(
                world.roster,
                name,
                *world.paths[place],
                timeout=10.0,
                listener=world.listener if not place else None,
            )
            if bomb is not None:
                bomb.star = star
            ticking.bomb = bomb
            return star

        def open_engine(star: StarTransport, session: Meeting, claim: Any) -> MaskSum:
            return MaskSum(
                name,
                world.private[place],
                world.roster,
                star,
                colluders=1,
                largest=2**40,
                claim=claim,
                nonce=session.nonce,
            )

        try:
            run_party(
                name,
                learner=cast(Learner, learner),
                journal=journal,
                join=join,
                private_key=world.private[place],
                facts=COMMON,
                open_engine=open_engine,
            )
            return learner.taken
        except (SordinoError, _Killed) as error:
            return error
        finally:
            ticking.bomb = None
            journal.close()

    def session(victim: int, bomb: Bomb | None) -> list[Any]:
        bombs = [bomb if place == victim else None for place in range(3)]
        return list(world.pool.map(party, range(3), bombs))

    points, lost, sums = 0, 0, 0
    for victim in range(3):
        for at in itertools.count(0, stride):
            left.clear()
            for place in range(3):
                for path in (*tmp_path.glob(f"p{place}.db*"), *tmp_path.glob(f"p{place}.keys/*/*")):
                    path.unlink()
            bomb = Bomb(at)
            outcomes = session(victim, bomb)
            if bomb.left >= 0:  # the run was over before
                break
            points += 1
            assert isinstance(outcomes[victim], _Killed)
            for place in {0, 1, 2} - {victim}:
                if not isinstance(outcomes[place], list):
                    assert "\n" not in str(outcomes[place])
            again = session(victim, None)
            assert all(isinstance(taken, list) for taken in again), (victim, at, again)
            assert again[0] == again[1] == again[2], (victim, at)
            assert len({history for _, _, history in world.progress()}) == 1
            assert all(len(bodies) == 1 for bodies in left.values()), (victim, at)
            for turn, noised in enumerate(again[0]):
                lost += noised is None
                if noised is not None:
                    sums += 1
                    assert len([key for key in left if key[1] == turn]) == 3
                    assert np.abs(np.array(noised) - (3000 + 3 * turn)).max() < 12 * 150**0.5
    world.close()
    print(f"{points} points, {lost} turns lost, {sums} sums")
    assert points > 100 // stride
    assert lost
    assert sums


# The network.


def spoiled(
    study: Study, zygote: Zygote, network: Network, fault: str, to_hub: bool, wait: float
) -> float:
    """A session in which the network fails once; how long the parties took to stop."""
    session = study.start(zygote, **{"1": {"port": network.port}})
    assert session.until("met")
    time.sleep(wait)
    network.spoil(fault, to_hub=to_hub)
    assert network.done.wait(20), "nothing went over the network"
    at = time.monotonic()
    outcomes = session.wait(study.timeout + SLACK)
    for outcome in outcomes:
        clear(outcome)
    assert any("p1" in clear(outcome) for outcome in (outcomes[0], outcomes[2]))
    return max(float(outcome["at"]) for outcome in outcomes if outcome is not None) - at


def test_a_network_that_fails(tmp_path: Path, zygote: Zygote) -> None:
    study = Study(tmp_path / "run", kind="wide", steps=200, timeout=4.0, pause=0.004)
    network = Network(study.cards[0].port)
    for fault, to_hub in (("swap", True), ("truncate", False)):
        spoiled(study, zygote, network, fault, to_hub, 0.1)
    lost = study.check(study.finish(zygote, pause=0.0))
    assert len(lost) <= 2
    network.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", Network.FAULTS)
def test_every_way_in_which_a_network_fails(tmp_path: Path, zygote: Zygote, fault: str) -> None:
    rng = np.random.default_rng(len(fault))
    study = Study(tmp_path / "run", kind="wide", steps=300, timeout=4.0, pause=0.004)
    network = Network(study.cards[0].port)
    for to_hub in (True, False, True, False):
        took = spoiled(study, zygote, network, fault, to_hub, float(rng.uniform(0, 0.7)))
        assert took < study.timeout + SLACK
        if fault in ("cut", "truncate", "flip"):  # noticed at once, not by a time-out
            assert took < study.timeout + 2.0
    lost = study.check(study.finish(zygote, pause=0.0))
    assert len(lost) <= 4
    network.close()


# Parties that are not what they should be.


def test_a_wrong_certificate_is_refused_and_the_right_one_goes_on(
    tmp_path: Path, zygote: Zygote
) -> None:
    study = Study(tmp_path, steps=5, timeout=8.0)
    folder = study.folder / "p2"
    kept = {name: (folder / name).read_bytes() for name in (CARD, CERTIFICATE, KEY, CONSORTIUM)}
    kept[SIGNATURE] = (folder / SIGNATURE).read_bytes()
    # Its own file has its new certificate, so that it is the others who have to notice.
    certificate, key = new_certificate("p2")
    old = study.cards[2]
    card = replace(old, member=RosterEntry("p2", old.member.public_key, certificate))
    card.save(folder / CARD)
    (folder / CERTIFICATE).write_text(certificate)
    (folder / KEY).write_text(key)
    partners: tuple[PartyCard, ...] = (*study.cards[:2], card)
    changed = replace(study.consortium, partners=partners)
    PartySite.load(folder).sign(changed, allow=[changed.model["name"]])
    hub, waiting, stranger = study.start(zygote, join_timeout=6.0).wait(6.0 + SLACK)
    assert "does not accept this party's certificate" in clear(stranger)
    assert "'p2' did not connect before the time was over; one that connected" in clear(hub)
    assert "'p2' did not connect" in clear(waiting)
    for name, raw in kept.items():
        (folder / name).write_bytes(raw)
    shutil.rmtree(study.folder / "p2.keys")
    (folder / "journal.db").unlink()
    assert not study.check(study.finish(zygote))


def refused_entry(study: Study, zygote: Zygote, place: int, value: int) -> None:
    """A session in which a party's vector has such an entry: nothing of it leaves."""
    before = len(study.log(place))
    outcomes = study.start(zygote, **{str(place): {"entry": value}}).wait(study.timeout + SLACK)
    assert "not within what was planned: nothing was sent" in clear(outcomes[place])
    for other in {0, 1, 2} - {place}:
        if study.terms.engine == "mask":
            assert f"'p{place}'" in clear(outcomes[other])
        assert str(abs(value)) not in clear(outcomes[other])
    said = study.log(place)[before:]
    assert not [words for words in said if words[0] in ("claimed", "sent")]


def test_an_entry_that_was_not_planned_for_does_not_leave(tmp_path: Path, zygote: Zygote) -> None:
    """One beyond the terms, and the least of 64 bits; the largest that is allowed goes through exactly."""
    study = Study(tmp_path, steps=5)
    largest = study.terms.largest
    refused_entry(study, zygote, 1, largest + 1)
    refused_entry(study, zygote, 2, -(2**63))
    lost = study.check(study.finish(zygote, entry=largest))
    assert len(lost) <= 2
    journal = study.journal(0)
    for turn, noised in enumerate(journal.sums()):
        if turn not in lost:
            assert noised is not None
            # 12 standard deviations.
            assert abs(int(noised[-1]) - 3 * largest) < 15 * study.terms.variances[turn] ** 0.5
            assert np.abs(noised[:-1]).max() < 15 * study.terms.variances[turn] ** 0.5
    journal.close()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["mask", "mpyc", pytest.param("spu", marks=needs_spu)])
def test_nor_do_others_with_any_engine(tmp_path: Path, zygote: Zygote, engine: str) -> None:
    """Also where the engine itself has room for them: beyond 32 bits, and 62."""
    study = Study(tmp_path, steps=8, engine=engine, noise_multiplier=1.0, timeout=40.0)
    largest = study.terms.largest
    for place, value in ((0, largest + 1), (1, -largest - 1), (2, 2**32 + 1), (1, 2**62)):
        refused_entry(study, zygote, place, value)
    assert len(study.check(study.finish(zygote))) <= 4


def test_records_without_a_gradient_contribute_nothing(tmp_path: Path, zygote: Zygote) -> None:
    """Not a number, or infinite: exactly the sum of the other records, and the run goes on."""
    terms = agree(
        "dp-srm", examples=(60, 70), parameters=8, batch_size=100, steps=3, noise_multiplier=4.0
    )
    X, y = records(0, 60, 8)
    bad = np.abs(X[:, 1]) > 1.0
    assert 5 < bad.sum() < 40
    start = np.linspace(-0.5, 0.5, 8).astype(np.float32)
    key = RunKey.from_insecure_seed(3)
    spoilt = Learner(terms, 0, spoilt_loss, start, (X, y), key=key)
    # The same batches, of which only good records are taken.
    without = Learner(terms, 0, Logistic(), start, (X, y), key=key)
    rows = without._rows.of
    without._rows.of = lambda step: rows(step)[~bad[rows(step)]]  # type: ignore[method-assign]
    noise = np.random.default_rng(0)
    for step in range(3):
        assert bad[rows(step)].any()
        one, other = spoilt.vector().clipped, without.vector().clipped
        # Gradients by differentiation and by formula may differ in their last bits.
        assert np.abs(one - other).max() <= 100 * 4
        noised = other + noise.integers(-(2**20), 2**20, 8)
        spoilt.take(noised)
        without.take(noised)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(spoilt.params))
    # And whole runs; one party takes all its records each time, though that is not what it agreed to.
    study = Study(tmp_path, kind="spoilt", steps=4)
    assert not study.check(study.finish(zygote, **{"2": {"lie": True}}))


# A party that lies about its batches.


def test_a_party_that_takes_all_its_records_changes_nothing_of_the_others(tmp_path: Path) -> None:
    """m = 3: what honest parties send, and the noise in it, is bit for bit the same beside a liar."""
    terms = agree(
        "dp-sgd", examples=(60, 70, 80), parameters=8, batch_size=30, steps=3, noise_multiplier=4.0
    )
    start = np.zeros(8, np.float32)

    def vectors(lies: bool) -> list[Any]:
        found = []
        for place in range(3):
            key = RunKey.from_insecure_seed(place)
            data = records(place, terms.examples[place], 8)
            learner = Learner(terms, place, Logistic(), start, data, key=key)
            if lies and place == 2:
                learner._rows.of = lambda step: np.arange(80)  # type: ignore[method-assign]
            found.append(learner.vector().clipped)
        return found

    honest, lying = vectors(False), vectors(True)
    assert not np.array_equal(honest[2], lying[2])
    parties = consortium(tmp_path, 3, 1)
    seen, sums = [], []
    for values in (honest, lying):
        world = Together(parties)
        bodies = [sent_by(engine) for engine in world.engines]
        sums.append(world.call(values, terms.variances[0], 0)[0])
        seen.append([next(b for b in of_one if b[0] == 1) for of_one in bodies[1:]])
        world.close()
        parties[2].turns.unlink()  # the liar's record would refuse it
    assert seen[0][0] == seen[1][0]  # p1's, byte for byte; the pads and the share are in it
    assert seen[0][1] != seen[1][1]
    # The sum moves by what the liar has put in, and by its own share of the noise.
    moved = sums[1] - sums[0] - (lying[2] - honest[2])
    assert np.abs(moved).max() < 12 * (2 * terms.variances[0]) ** 0.5
    # It cannot put in more than was planned for: its own engine and everybody's room for sums say so.
    assert np.abs(lying[2]).max() <= 80 * terms.bound <= terms.largest


@pytest.mark.parametrize("sampling", ["poisson", "without-replacement"])
def test_the_rows_of_a_party_are_what_the_terms_say(sampling: str) -> None:
    terms = agree(
        "dp-sgd",
        examples=(60, 140),
        parameters=8,
        batch_size=40,
        steps=2000,
        noise_multiplier=4.0,
        sampling=sampling,
    )
    for place, n in enumerate((60, 140)):
        rows = PartyRows(terms, place, RunKey.from_insecure_seed(place))
        sizes = np.array([len(rows.of(step)) for step in range(2000)])
        b = terms.batches[place]
        if sampling == "poisson":
            # Mean of 2,000 binomial sizes: within 5 standard errors (6e-7).
            assert abs(sizes.mean() - b) < 5 * (b * (1 - b / n) / 2000) ** 0.5
        else:
            assert set(sizes) == {b}
        assert all(len(set(rows.of(step))) == sizes[step] for step in range(20))


def test_batches_beyond_the_accounted_rate_are_refused() -> None:
    terms = agree(
        "dp-sgd", examples=(60, 140), parameters=8, batch_size=40, steps=50, noise_multiplier=4.0
    )
    said = terms.to_json()
    for batches in ([13.0, 28.0], [12.0, 28.1], [60.0, 28.0], [12.0, 140.0], [12.000001, 28.0]):
        with pytest.raises(SordinoError, match="more often than the 40 of 200"):
            Terms.from_json({**said, "batches": batches})
    for batches in ([61.0, 28.0], [-1.0, 28.0], [float("nan"), 28.0], [float("inf"), 28.0]):
        with pytest.raises(SordinoError):
            Terms.from_json({**said, "batches": batches})
    with pytest.raises(SordinoError, match="one batch size for each party"):
        Terms.from_json({**said, "batches": [12.0]})
    with pytest.raises(SordinoError, match="batch size is a number"):
        Terms.from_json({**said, "batches": ["12", 28.0]})
    # More records than it said: the rate would be another one.
    data = records(0, 61, 8)
    with pytest.raises(SordinoError, match="agreed to bring 60 records"):
        Learner(terms, 0, Logistic(), np.zeros(8), data, key=RunKey.fresh())
    assert Terms.from_json({**said, "batches": [0.0, 28.0]}).batches == (0.0, 28.0)
