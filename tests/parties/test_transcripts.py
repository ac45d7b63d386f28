"""What parties see of each other: the noised sum, and nothing that depends on more than the sum."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import os
import struct
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import chdtrc

from sordino.parts.mechanisms._discrete import ChaCha20Generator, discrete_gaussian
from sordino.together.parties._learner import _noise, party_key
from sordino.together.parties._terms import agree, assumption_of
from sordino.together.secure import _mask as mask
from sordino.together.secure._base import published_variance, share_variance
from sordino.together.secure._mask import MaskSum, Pads, new_private_key, public_key
from sordino.together.secure._transport import StarTransport
from tests.parties.faults import (
    Study,
    Zygote,
    count_traces,
    planted,
)
from tests.secure.processes import Tap
from tests.secure.test_mask import Party, consortium
from tests.support.sum_noise import SumNoise

needs_spu = pytest.mark.skipif(
    "SORDINO_SPU" not in os.environ, reason="SPU's environment is not made"
)

# A small field. Multiples of 2^61 are a copy of the integers modulo 8 inside those modulo 2^64: with pads,
# vectors and noise among them every line of the engine runs as it is, and all pads can be gone through.


class Ring:
    """Pads and noise out of the integers modulo `size`, each of which the test chooses."""

    def __init__(self, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.size, self.scale = size, 2**64 // size
        self.pads: dict[frozenset[str], int] = {}
        self.noise: dict[str, int] = {}
        ring = self

        def pad_key(own: Pads, other: str, context: bytes, use: bytes = mask._INFO) -> Any:
            if use != mask._INFO:
                return real(own, other, context, use)
            return ring.pads[frozenset((own._name, other))]

        real = Pads._pad_key
        monkeypatch.setattr(Pads, "_pad_key", pad_key)
        monkeypatch.setattr(mask, "ChaCha20Generator", self.generator(ChaCha20Generator))

    def generator(self, of_noise: Callable[[bytes], Any]) -> Callable[[Any], Any]:
        """Of pads where the key is a number; else of noise."""
        return lambda key: _Words(key, self.scale) if isinstance(key, int) else of_noise(key)

    def lifted(self, value: int) -> Any:
        return np.array([value % self.size * self.scale], np.uint64).view(np.int64)


class _Words:
    def __init__(self, value: int, scale: int) -> None:
        self._word = value * scale

    def words(self, count: int) -> Any:
        return np.full(count, self._word, np.uint64)


def pairs(names: list[str]) -> list[frozenset[str]]:
    return [frozenset(pair) for pair in itertools.combinations(names, 2)]


@pytest.mark.parametrize(("m", "t", "size"), [(3, 1, 8), (4, 1, 4), (4, 2, 8), (5, 2, 4)])
def test_padded_vectors_of_honest_parties_tell_their_sum_only(
    m: int, t: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly: over all pads between honest parties, the view has one distribution for each sum.

    The colluders see every honest party's padded vector (one of them is in the middle), and know all
    pads that they have a part in. For any of those and any honest vectors, all views with the right sum
    occur, and each equally often. Nothing but the sum of the honest vectors changes which.
    """
    ring = Ring(size, monkeypatch)
    names = [f"p{place}" for place in range(m)]
    keys = {name: new_private_key() for name in names}
    public = {name: public_key(key) for name, key in keys.items()}
    ends = {name: Pads(name, keys[name], public) for name in names}
    rng = np.random.default_rng(0)
    for colluders in itertools.combinations(names, t):
        honest = [name for name in names if name not in colluders]
        hidden = pairs(honest)
        known = {pair: int(rng.integers(size)) for pair in pairs(names) if not pair <= set(honest)}

        def views(
            values: tuple[int, ...], honest: Any = honest, hidden: Any = hidden, known: Any = known
        ) -> Any:
            found: Counter[tuple[int, ...]] = Counter()
            for drawn in itertools.product(range(size), repeat=len(hidden)):
                ring.pads = {**known, **dict(zip(hidden, drawn, strict=True))}
                sent = [
                    ends[name].padded(ring.lifted(value), names, b"turn")
                    for name, value in zip(honest, values, strict=True)
                ]
                found[tuple(int(one[0]) for one in sent)] += 1
            return found

        first = (0,) * len(honest)
        other = (3, size - 3, *(0,) * (len(honest) - 2))
        third = (1,) * (len(honest) - 1) + (-(len(honest) - 1) % size,)
        seen = views(first)
        assert seen == views(other) == views(third)
        assert len(seen) == size ** (len(honest) - 1)  # all views with that sum
        assert len(set(seen.values())) == 1  # equally often
        assert seen != views(
            (1, *first[1:])
        )  # another sum is another view: the test sees something
        assert not seen & views((1, *first[1:]))


class Views:
    """Three engines over real connections, and all that each of them receives in a turn."""

    def __init__(self, parties: list[Party]) -> None:
        self.heard: dict[str, list[tuple[str, bytes]]] = {p.name: [] for p in parties}
        self.pool = ThreadPoolExecutor(len(parties))
        self.names = [p.name for p in parties]

        def open_one(party: Party) -> MaskSum:
            own = self.heard[party.name]
            star = StarTransport.join(
                party.roster,
                party.name,
                *party.paths,
                timeout=20.0,
                watch=lambda name, body: own.append((name, body)),
            )
            # The same turn over and over, so that views differ by what is chosen here and nothing else.
            return MaskSum(
                party.name,
                party.private,
                party.roster,
                star,
                colluders=1,
                largest=2**60,
                claim=lambda turn, digest: None,
            )

        self.engines = list(self.pool.map(open_one, parties))

    def turn(self, values: list[Any], variance: int = 2) -> tuple[Any, dict[str, Any]]:
        """The sum, and for each party what it received, in an order that does not depend on timing."""
        for heard in self.heard.values():
            heard.clear()
        done = [
            self.pool.submit(engine.noised_sum, value, variance, 0)
            for engine, value in zip(self.engines, values, strict=True)
        ]
        (total,) = {future.result(30).tobytes() for future in done}
        return total, {name: tuple(sorted(heard)) for name, heard in self.heard.items()}

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        self.pool.shutdown()


def test_everything_that_one_party_receives_is_explained_by_the_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """m = 3, t = 1, the integers modulo 4, and the whole engine over real sockets, noise included.

    For each party as the curious one: of all pads between the other two, all their vectors, and all shares
    they may have drawn, its view (every byte it received) given the released sum has one distribution.
    """
    size = 4
    ring = Ring(size, monkeypatch)
    current: dict[str, int] = {}

    def share(variance: int, count: int, generator: ChaCha20Generator) -> Any:
        return ring.lifted(current[generator.name])  # type: ignore[attr-defined]

    monkeypatch.setattr(mask, "discrete_gaussian", share)
    monkeypatch.setattr(MaskSum, "_checked", lambda *call: 1)  # numbers of all sizes are meant here
    parties = consortium(tmp_path, 3, 1)
    world = Views(parties)
    owners = {engine._secret: engine._name for engine in world.engines}

    class Named:
        """Stands for the noise's generator, and knows whose it is."""

        def __init__(self, key: bytes) -> None:
            self.name = key.decode()

    real_digest = hmac.digest

    def digest(key: bytes, message: bytes, kind: str) -> bytes:
        if key in owners and message.startswith(b"noise"):
            return owners[key].encode()
        return real_digest(key, message, kind)

    monkeypatch.setattr(mask, "ChaCha20Generator", ring.generator(Named))
    monkeypatch.setattr(mask.hmac, "digest", digest)
    try:
        for curious in world.names:
            one, other = (name for name in world.names if name != curious)
            fixed = {frozenset((curious, one)): 3, frozenset((curious, other)): 2}
            views: dict[tuple[int, int], Counter[Any]] = {}
            # Shares are uniform on {0, 1} here; what matters is that they are the honest parties' own.
            for values in ((0, 3), (2, 1), (1, 1)):
                views[values] = Counter()
                for pad, *noise in itertools.product(range(size), (0, 1), (0, 1)):
                    ring.pads = {**fixed, frozenset((one, other)): pad}
                    current.update({one: noise[0], other: noise[1], curious: 0})
                    own = {one: values[0], other: values[1], curious: 1}
                    total, seen = world.turn([ring.lifted(own[name]) for name in world.names])
                    views[values][total, seen[curious]] += 1
            assert views[0, 3] == views[2, 1]  # the same sum: the same views, equally often
            assert views[0, 3] != views[1, 1]
            if curious == world.names[0]:
                assert len(views[0, 3]) == 3 * size  # it sees padded vectors: all of them occur
            else:
                assert len(views[0, 3]) == 3  # it sees the sum, and codes of it
    finally:
        world.close()


# Every byte that a process receives in a whole run.


def found_in(study: Study, place: int, heard: bytes) -> int:
    """How much of other parties' numbers is in what a party has heard: vectors, and vectors with noise."""
    assert study.terms.plan.lattice is not None
    step = study.terms.plan.lattice.step
    count = 0
    for other in range(len(study.names)):
        if other == place:
            continue
        count += count_traces(
            heard, planted(other, study.terms.parameters, study.terms.largest), step
        )
        private = study.folder / f"{study.names[other]}.private"
        if private.exists():
            count += count_traces(heard, np.frombuffer(private.read_bytes(), "<i8"), step)
    return count


def listened(study: Study, zygote: Zygote, **options: Any) -> list[bytes]:
    """A whole run with planted vectors; what each party has received over the star, decrypted."""
    own = {
        str(place): {
            "heard": str(study.folder / f"{name}.heard"),
            "private": str(study.folder / f"{name}.private"),
        }
        for place, name in enumerate(study.names)
    }
    outcomes = study.finish(zygote, plant=True, **own, **options)
    study.check(outcomes)
    return [(study.folder / f"{name}.heard").read_bytes() for name in study.names]


def test_a_whole_run_shows_sums_with_the_published_noise_and_nothing_else(
    tmp_path: Path, zygote: Zygote
) -> None:
    """Nothing planted is in what parties receive; sums minus planted vectors are the noise (1e-6)."""
    study = Study(tmp_path / "run", steps=60)
    heard = listened(study, zygote)
    journal = study.journal(0)
    sums = [noised for noised in journal.sums() if noised is not None]
    journal.close()
    for place, all_bytes in enumerate(heard):
        assert found_in(study, place, all_bytes) == 0
        if place:  # the search finds what is there
            assert all(noised.astype("<i8").tobytes() in all_bytes for noised in sums)
    # 60 padded vectors from each of the others, and their codes.
    assert len(heard[0]) > 2 * 60 * (8 * 8 + 64)
    whole = sum(planted(place, 8, study.terms.largest) for place in range(3))
    noise = np.stack(sums) - whole
    assert noise.shape == (60, 8)
    planned = study.terms.variances
    published = [published_variance(variance, study.terms.assumption) for variance in planned]
    assert all(p >= 1.5 * s for p, s in zip(published, planned, strict=True))
    statistic = float((noise.astype(float) ** 2 / np.array(published, float)[:, None]).sum())
    assert 5e-7 < chdtrc(noise.size, statistic) < 1 - 5e-7
    assert len({row.tobytes() for row in noise}) == 60


def test_without_pads_it_would_be_found(tmp_path: Path, zygote: Zygote) -> None:
    """The same run with pads switched off: vectors with their noise are seen in the middle."""
    study = Study(tmp_path / "run", steps=3)
    # Recorded before the pads are taken away, so from the vectors and shares themselves.
    heard = listened(study, zygote, without=["pads"])
    assert found_in(study, 0, heard[0]) >= 2 * 3 * 8
    assert not found_in(study, 1, heard[1])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["mpyc", pytest.param("spu", marks=needs_spu)])
def test_nothing_planted_is_in_what_engines_of_others_send(
    tmp_path: Path, zygote: Zygote, engine: str
) -> None:
    """Every connection of the engine goes through a tap, without TLS, and the star is watched too."""
    study = Study(
        tmp_path / "run",
        engine=engine,
        steps=3,
        timeout=60.0,
        noise_multiplier=1.0,
        lattice_steps=2**20,
    )
    taps, ports = [], {}
    for card in study.cards:
        for offset in (1, 2) if engine == "spu" else (1,):
            taps.append(Tap(card.port + offset))
            ports[str(card.port + offset)] = taps[-1].port
    try:
        heard = listened(study, zygote, taps=ports, without=["tls"])
    finally:
        for tap in taps:
            tap.close()
    assert sum(len(tap.seen) for tap in taps) > 3 * 8 * 8 * 100
    assert study.terms.plan.lattice is not None
    step = study.terms.plan.lattice.step
    for place in range(3):
        own = planted(place, study.terms.parameters, study.terms.largest)
        for everything in (*(bytes(tap.seen) for tap in taps), *heard):
            assert not count_traces(everything, own, step)
            assert not count_traces(everything, own % (2**61 - 1), step)


def test_the_search_would_find_every_way_of_writing_a_number() -> None:
    values, step = planted(0, 8, 2**28), 2.0**-21
    around = os.urandom(1000)
    for kind in ("<i8", ">i8", "<i4", ">i4", "<f4", ">f4", "<f8", ">f8"):
        assert count_traces(around + values.astype(kind).tobytes() + around, values, step)
        assert count_traces(around + (values * step).astype(kind).tobytes(), values, step) or (
            "i" in kind
        )
    assert count_traces(repr(values.tolist()).encode(), values, step)
    assert not count_traces(around, values, step)


# Sums and noise, exactly.


def exact(variance: int, shares: int) -> tuple[int, Any]:
    """The largest value kept, and probabilities from minus that to that, of a sum of exact draws."""
    most = int(9 * variance**0.5) + 4
    one = np.exp(-(np.arange(-most, most + 1.0) ** 2) / (2 * variance))
    one /= one.sum()
    total = np.ones(1)
    for _ in range(shares):
        total = np.convolve(total, one)
    return shares * most, total


def chi_square(drawn: Any, variance: int, shares: int) -> float:
    """p-value of draws against exact probabilities, in cells of neighbours that hold 30 or more each."""
    most, probabilities = exact(variance, shares)
    expected = probabilities * len(drawn)
    seen = np.bincount(drawn + most, minlength=len(expected)).astype(float)
    # A new cell begins where so many times 30 have been passed; what is left at the end joins the last.
    cell = np.minimum(np.cumsum(expected) // 30, len(drawn) // 30 - 1).astype(int)
    cell = np.unique(cell, return_inverse=True)[1]
    cells, found = np.bincount(cell, expected), np.bincount(cell, seen)
    assert cells.min() > 5
    return float(chdtrc(len(cells) - 1, ((found - cells) ** 2 / cells).sum()))


def own_share(party: Party, values: Any, variance: int, turn: int, t: int, size: int) -> Any:
    """A party's share of the noise, from its private key alone, by the formulas of `mask.py`.

    With secret = HMAC(private key, "sordino mask noise 1"), it is drawn by ChaCha20 under the key
    HMAC(secret, "noise" + HMAC(secret, "call" + context + vector)). (With a nonce, as in whole runs, it is
    drawn from fresh randomness; then nobody can compute it again.)
    """
    terms = struct.pack(">QQI", size, variance, t)
    nonce = hashlib.sha256(b"").digest()
    context = b"sordino mask 2" + party.roster.digest + nonce + turn.to_bytes(8, "big") + terms
    secret = hmac.digest(party.private, b"sordino mask noise 1", "sha256")
    call = hmac.digest(secret, b"call" + context + values.astype("<i8").tobytes(), "sha256")
    key = hmac.digest(secret, b"noise" + call, "sha256")
    share = -(-variance // (len(party.roster.members) - t))
    return discrete_gaussian(share, size, ChaCha20Generator(key))


def test_sums_are_exact_and_their_noise_is_what_was_published(tmp_path: Path) -> None:
    """m = 3, t = 1, S = 7: three shares of variance 4; 60,000 draws in 20 turns, error rate 1e-6 each."""
    parties = consortium(tmp_path, 3, 1)
    world = Views(parties)
    drawn, left = [], []
    try:
        for turn in range(20):
            rng = np.random.default_rng(turn)
            values = [rng.integers(-(2**40), 2**40, 3000) for _ in parties]
            done = [
                world.pool.submit(engine.noised_sum, value, 7, turn)
                for engine, value in zip(world.engines, values, strict=True)
            ]
            total = done[0].result(30)
            assert all(np.array_equal(future.result(30), total) for future in done)
            drawn.append(total - sum(values))
            shares = [
                own_share(party, value, 7, turn, 1, 3000)
                for party, value in zip(parties, values, strict=True)
            ]
            # Nothing else is in it: the sum is the vectors and these shares, exactly.
            assert np.array_equal(drawn[-1], sum(shares))
            left.append(drawn[-1] - shares[turn % 3])
    finally:
        world.close()
    assumption = assumption_of("mask", 3, 1)
    assert (share_variance(7, assumption), published_variance(7, assumption)) == (4, 12)
    assert chi_square(np.concatenate(drawn), 4, 3) > 1e-6
    # What one of them has left when it has subtracted its own: two shares, more than the planned 7.
    assert chi_square(np.concatenate(left), 4, 2) > 1e-6
    assert chi_square(np.concatenate(drawn), 4, 2) < 1e-6  # the test tells them apart
    assert SumNoise(1, 7, 3000, assumption).remaining == 8 >= 7


@pytest.mark.parametrize("m", range(2, 9))
def test_what_colluders_leave_is_never_less_than_planned(m: int) -> None:
    """By arithmetic, for all t and variances up to 2^20 and odd ones near 2^48."""
    for t in range(1, m):
        assumption = assumption_of("mask", m, t)
        for variance in (*range(1, 50), 2**20 - 1, 2**20, 174812531145562, 2**47 + 1):
            share = share_variance(variance, assumption)
            assert (m - t) * share >= variance
            assert (m - t) * (share - 1) < variance  # and not a whole step more than needed
            assert published_variance(variance, assumption) == m * share
            if share <= 2**40:
                assert SumNoise(1, variance, 1, assumption).remaining == (m - t) * share


def test_two_of_four_parties_that_subtract_their_shares(tmp_path: Path) -> None:
    """m = 4, t = 2, S = 1001: without the colluders' shares two of 501 are left (error rate 1e-6)."""
    parties = consortium(tmp_path, 4, 2)
    size, S = 20_000, 1001

    def open_one(party: Party) -> MaskSum:
        star = StarTransport.join(party.roster, party.name, *party.paths, timeout=20.0)
        return MaskSum(
            party.name,
            party.private,
            party.roster,
            star,
            colluders=2,
            largest=2**40,
            claim=lambda turn, digest: None,
        )

    with ThreadPoolExecutor(4) as pool:
        engines = list(pool.map(open_one, parties))
        values = [np.random.default_rng(i).integers(-1000, 1000, size) for i in range(4)]
        done = [
            pool.submit(engine.noised_sum, value, S, 5)
            for engine, value in zip(engines, values, strict=True)
        ]
        total = done[0].result(30)
        for future in done:
            future.result(30)
        for engine in engines:
            engine.close()
    noise = total - sum(values)
    for colluders in itertools.combinations(range(4), 2):
        left = noise - sum(own_share(parties[i], values[i], S, 5, 2, size) for i in colluders)
        statistic = float((left.astype(float) ** 2).sum()) / (2 * 501)
        assert 5e-7 < chdtrc(size, statistic) < 1 - 5e-7
        assert S <= 2 * 501
    # Both honest shares are in there: with one of them gone as well there is less than planned.
    less = noise - sum(own_share(parties[i], values[i], S, 5, 2, size) for i in range(3))
    assert float((less.astype(float) ** 2).sum()) / size < 0.6 * S


@pytest.mark.parametrize("engine", ["plain", "mask"])
def test_noise_of_simulations_is_exact(engine: str) -> None:
    """What `train_together` adds, from a fixed seed: 40,000 draws against exact probabilities."""
    terms = agree(
        "dp-sgd",
        examples=(60, 70, 80),
        parameters=4000,
        batch_size=100,
        steps=10,
        noise_multiplier=1.0,
        lattice_steps=1024,
        engine=engine,
    )
    key = party_key(5, -1)
    drawn = np.concatenate([_noise(terms, turn, key) for turn in range(10)])
    variance = share_variance(terms.variances[0], terms.assumption)
    shares = 1 if engine == "plain" else 3
    assert published_variance(terms.variances[0], terms.assumption) == shares * variance
    assert chi_square(drawn, variance, shares) > 1e-6
