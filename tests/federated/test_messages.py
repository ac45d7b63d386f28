"""What goes over the network: every value comes back, everything else is refused in one sentence.

The two readers (`message_from_bytes`, `Agreement.load`) are in the table of `fuzz/readers.py` as well,
where the contract of all readers is checked on more inputs.
"""

from __future__ import annotations

import contextlib
import json
import struct
import subprocess
import sys
import tracemalloc
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sordino import SordinoError
from sordino.together._certificates import require_name
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._messages import (
    REFUSALS,
    Refusal,
    Reply,
    RoundRequest,
    message_from_bytes,
)

from .attack import small

QUICK = settings(max_examples=50, deadline=None, derandomize=True, database=None)
MOST = 2**48
FRAME = struct.Struct("<8sBI")

digests = st.text("0123456789abcdef", min_size=64, max_size=64)
counts = st.integers(1, MOST)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


@st.composite
def requests(draw: st.DrawFn) -> RoundRequest:
    size = draw(st.integers(1, 9))
    point, previous = (draw(arrays(np.float32, size, elements=floats)) for _ in range(2))
    cohort = tuple(draw(st.lists(names, max_size=4)))
    return RoundRequest(
        draw(digests), draw(counts), draw(counts), point, previous, draw(counts) - 1, cohort
    )


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    values = draw(arrays(dtype, draw(st.integers(1, 9))))
    block = draw(st.none() | st.integers(-1, MOST))
    return Reply(
        draw(digests), draw(names), draw(counts), draw(counts), draw(digests), values, block
    )


@st.composite
def refusals(draw: st.DrawFn) -> Refusal:
    code = draw(st.sampled_from(sorted(REFUSALS)))
    return Refusal(draw(digests), draw(names), draw(counts) - 1, code)


@QUICK
@given(st.one_of(requests(), replies(), refusals()))
def test_every_message_comes_back(message: Any) -> None:
    raw = message.to_bytes()
    again = message_from_bytes(raw)
    assert type(again) is type(message)
    for entry in fields(message):
        sent, got = getattr(message, entry.name), getattr(again, entry.name)
        if isinstance(sent, np.ndarray):
            assert got.dtype == sent.dtype
            assert got.tobytes() == sent.tobytes()  # NaNs and the sign of zero, too
        else:
            assert got == sent
    assert again.to_bytes() == raw


@QUICK
@given(requests(), st.data())
def test_other_requests_have_other_digests(request: RoundRequest, data: st.DataObject) -> None:
    """The digest is what noise is bound to: any change in any field is another one."""
    other = data.draw(requests())
    changes = {
        "turn": request.turn + 1,
        "round": request.round + 1,
        "committed": request.committed + 1,
        "cohort": (*request.cohort, "z"),
        "point": -request.point,
        "previous": -request.previous,
        "agreement": other.agreement,
    }
    for name, value in changes.items():
        changed = replace(request, **{name: value})
        same = changed.to_bytes() == request.to_bytes()
        assert same == (name == "agreement" and other.agreement == request.agreement)
        assert (changed.digest() == request.digest()) == same
    assert message_from_bytes(request.to_bytes()).digest() == request.digest()  # type: ignore[union-attr]


def test_arrays_are_little_endian_and_native_in_memory() -> None:
    reply = Reply("0" * 64, "a", 1, 1, "0" * 64, np.array([1, -2], np.int32), 0)
    assert reply.to_bytes().endswith(b"\1\0\0\0\xfe\xff\xff\xff")
    big = replace(reply, values=reply.values.astype(">i4"))
    assert big.to_bytes() == reply.to_bytes()
    found = message_from_bytes(reply.to_bytes())
    assert isinstance(found, Reply)
    assert found.values.dtype.isnative
    assert found.values.flags.owndata  # nothing holds on to the network's buffer


def framed(kind: int, header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return FRAME.pack(b"SORDFED1", kind, len(text)) + text + body


GOOD: dict[str, Any] = {
    "agreement": "0" * 64,
    "turn": 1,
    "round": 1,
    "committed": 0,
    "cohort": [],
    "parameters": 2,
}
REPLY: dict[str, Any] = {
    "agreement": "0" * 64,
    "client": "a",
    "turn": 1,
    "index": 1,
    "block": 0,
    "asked": "0" * 64,
    "parameters": 2,
    "bytes": 4,
}
REFUSAL: dict[str, Any] = {
    "agreement": "0" * 64,
    "client": "a",
    "turn": 0,
    "code": "budget",
}
ODD: list[Any] = [
    *(None, True, False, -1, -2, 0.5, 1e3, 2**48 + 1, 2**63, 10**30, float("nan"), float("inf")),
    *("", "1", "\x00", "x" * 5000, [], [1], {}, {"a": 1}, [[]]),
]


def refused(raw: bytes) -> str:
    with pytest.raises(SordinoError) as caught:
        message_from_bytes(raw)
    return sentence(caught.value)


def sentence(error: SordinoError) -> str:
    """What an error says, if it says it in one short printable line."""
    message = str(error)
    assert message.isprintable()
    assert 0 < len(message) <= 300
    return message


@pytest.mark.parametrize(
    ("kind", "good", "size"),
    [(1, GOOD, 16), (2, REPLY, 8), (3, REFUSAL, 0), (4, REPLY, 8), (5, REFUSAL, 0)],
    ids=["q", "old-a", "old-n", "a", "n"],
)
def test_odd_fields(kind: int, good: dict[str, Any], size: int) -> None:
    body = bytes(size)
    assert message_from_bytes(framed(kind, good, body))
    for name in good:
        without = {key: value for key, value in good.items() if key != name}
        if name != "block":  # told to few
            assert name in refused(framed(kind, without, body))
        for odd in ODD:
            if isinstance(odd, list) and not odd and name == "cohort":
                continue  # no cohort is a cohort
            raw = framed(kind, {**good, name: odd}, body)
            if name in ("client", "agreement") and odd in ("", "1") and kind in (3, 5):
                message_from_bytes(raw)
            elif (name == "client" and odd in ("", "1")) or (name == "block" and odd == -1):
                message_from_bytes(raw)  # whose name it is, the server finds out
            else:
                refused(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SORDFED1",
        b"SORDFED2" + bytes(5),
        FRAME.pack(b"SORDFED1", 0, 0),
        FRAME.pack(b"SORDFED1", 6, 2) + b"{}",
        FRAME.pack(b"SORDFED1", 1, 2**32 - 1) + b"{}",
        FRAME.pack(b"SORDFED1", 1, 3) + b"{}",
        framed(1, b"\xff\xfe"),
        framed(1, b"[" * 100_000),
        framed(1, b'{"turn":' + b"9" * 5000 + b"}"),
        framed(1, []),
        framed(1, "text"),
        framed(1, GOOD, bytes(15)),
        framed(1, GOOD, bytes(17)),
        framed(1, {**GOOD, "parameters": MOST}, bytes(16)),
        framed(2, {**REPLY, "bytes": 2}, bytes(4)),
        framed(2, {**REPLY, "bytes": 8}, bytes(8)),
        framed(3, REFUSAL, b"x"),
        framed(3, {**REFUSAL, "code": "whim"}),
        framed(5, REFUSAL, b"x"),
        framed(5, {**REFUSAL, "code": "whim"}),
        framed(3, {**REFUSAL, "client": "a" * 257}),
    ],
    ids=range(22),
)
def test_bytes_that_are_no_message(raw: bytes) -> None:
    refused(raw)


@settings(QUICK, max_examples=150)
@given(st.one_of(requests(), replies(), refusals()), st.data())
def test_spoilt_messages(message: Any, data: st.DataObject) -> None:
    """Cut, flipped, lengthened: a message or a refusal to read it, nothing else."""
    raw = bytearray(message.to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(raw) - 1)))
        what = data.draw(st.sampled_from(["flip", "cut", "insert", "number"]))
        if what == "flip" and raw:
            raw[at] ^= 1 << data.draw(st.integers(0, 7))
        elif what == "cut":
            del raw[at : at + data.draw(st.integers(1, 9))]
        elif what == "insert":
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        else:
            raw[at : at + 4] = data.draw(st.sampled_from([b"\0" * 4, b"\xff" * 4, b"9999"]))
    try:
        found = message_from_bytes(bytes(raw))
    except SordinoError as error:
        sentence(error)
    else:
        assert message_from_bytes(found.to_bytes()).to_bytes() == found.to_bytes()


@settings(QUICK, max_examples=300)
@given(st.binary(max_size=200), st.booleans(), st.sampled_from([1, 2, 3, 4, 5]))
def test_random_bytes(content: bytes, framed_: bool, kind: int) -> None:
    raw = framed(kind, content) if framed_ else content
    with pytest.raises(SordinoError):
        message_from_bytes(raw)


def test_memory_is_bounded_by_the_message() -> None:
    """A megabyte of header, or a claim of 2^48 numbers, allocates a few times what came."""
    bombs = [
        framed(1, {**GOOD, "parameters": MOST}, bytes(1000)),
        framed(2, {**REPLY, "parameters": 2**40}, bytes(1000)),
        framed(1, b"[" * 900_000 + b"]" * 900_000),
        framed(1, json.dumps({**GOOD, "cohort": ["x"] * 200_000}).encode(), bytes(16)),
        framed(1, json.dumps({**GOOD, "cohort": [[]] * 200_000}).encode(), bytes(16)),
        framed(2, b" " * (1 << 20)),
        framed(2, b" " * ((1 << 20) + 1)),
    ]
    for raw in bombs:
        tracemalloc.start()
        with contextlib.suppress(SordinoError):
            message_from_bytes(raw)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 30 * len(raw) + 1_000_000


class TestAgreements:
    def test_they_come_back(self, tmp_path: Path) -> None:
        made = [
            small(),
            small(clients=["a", "B.c", "d_e-9"], radius=0.1, extra=1, per_round=2),
            small(clients=4, trust="secure-sum", colluders=1, schedule="paper"),
            small(clients=4, trust="trusted", unit="client", adjacency="replace-one"),
        ]
        for agreement in made:
            agreement.save(tmp_path / "agreement.json")
            again = Agreement.load(tmp_path / "agreement.json")
            assert again == agreement
            assert again.digest == agreement.digest
            assert Agreement.from_json(json.loads(json.dumps(agreement.to_json()))) == agreement

    def test_every_field_counts(self) -> None:
        """Whatever two parties hold different copies of, they find out: the digest is of all fields."""
        base = small(clients=4, per_round=2)
        changes: dict[str, Any] = {
            "name": "other",
            "clients": ("w", "x", "y", "z"),
            "parameters": 5,
            "algorithm": "noisy-sgd",
            "trust": "secure-sum",
            "per_round": 3,
            "rounds": 13,
            "batch": 2,
            "uses": 2,
            "clip": np.nextafter(base.clip, 2),
            "adjacency": "replace-one",
            "unit": "client",
            "mu": np.nextafter(base.mu, 2),
            "delta": 1e-6,
            "cap": 99,
            "leak": base.leak - 1,
            "variance": base.variance + 1,
            "growing": True,
            "exponent": base.exponent + 1,
            "learning_rate": 0.2,
            "radius": 1.0,
            "extra": 1,
            "colluders": 1,
            "keys": ("0" * 64,),
            "nonce": "11" * 16,
        }
        assert set(changes) == {entry.name for entry in fields(Agreement)}
        found = {replace(base, **{name: value}).digest for name, value in changes.items()}
        assert len(found | {base.digest}) == len(changes) + 1

    def test_two_agreements_are_never_the_same(self) -> None:
        one, two = (replace(small(), nonce="") for _ in range(2))
        assert one.digest == two.digest
        fresh = {small(nonce=None).digest for _ in range(3)}
        assert len(fresh) == 3

    @pytest.mark.parametrize("name", [entry.name for entry in fields(Agreement)])
    def test_odd_fields(self, name: str) -> None:
        """Each is refused in one sentence, or makes an agreement that works."""
        data = small().to_json()
        for odd in [*ODD, 10**400, -(10**400), 1e308, 1e-320, "\ud800", "../..", ["a", "a"], 0]:
            try:
                found = Agreement.from_json({**data, name: odd})
            except SordinoError as error:
                sentence(error)
            else:
                usable(found)

    def test_refusals_name_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "agreement.json"
        for changes in ({"mu": None}, {"mu": -1}, {"noise": 0}, {"version": 2}, {"leak": 10**6}):
            path.write_text(json.dumps({**small().to_json(), **changes}))
            with pytest.raises(SordinoError, match=r"agreement\.json"):
                Agreement.load(path)

    @pytest.mark.parametrize(
        "changes",
        [
            {"variance": 10**400},
            {"variance": 2**60},
            {"mu": 1e200},
            {"clip": 1e-320, "exponent": 60},
            {"clip": 1e308, "exponent": -60},
            {"cap": 2**62, "growing": True},
            {"name": "\x1b[31mred"},
        ],
        ids=["variance", "large-variance", "mu", "no-reach", "reach", "growing", "name"],
    )
    def test_numbers_that_no_client_could_work_with(self, changes: dict[str, Any]) -> None:
        with pytest.raises(SordinoError):
            Agreement.from_json({**small().to_json(), **changes})

    def test_missing_and_further_fields(self) -> None:
        data = small().to_json()
        optional = {"radius", "extra", "colluders", "keys", "nonce"}
        for name in set(data) - optional:
            with pytest.raises(SordinoError, match=name):
                Agreement.from_json({key: value for key, value in data.items() if key != name})
        with pytest.raises(SordinoError, match="noise"):
            Agreement.from_json({**data, "noise": 0})

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", "1", '"a"', "[" * 100_000, "\x00"])
    def test_files_that_are_none(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "agreement.json"
        path.write_text(text)
        with pytest.raises(SordinoError, match=r"agreement\.json"):
            Agreement.load(path)
        path.write_bytes(b"\xff\xfe\x00")
        with pytest.raises(SordinoError, match=r"agreement\.json"):
            Agreement.load(path)
        with pytest.raises(SordinoError, match=r"agreement\.json"):
            Agreement.load(tmp_path / "none" / "agreement.json")

    @pytest.mark.parametrize(
        "name", ["", "a b", "../x", "/", ".a", "-a", "é", "a\n", "a" * 65, "a\0", None, 3]
    )
    def test_names(self, name: Any) -> None:
        with pytest.raises(SordinoError, match="name"):
            require_name("a client", name)

    @settings(QUICK, max_examples=60)
    @given(
        st.dictionaries(
            st.sampled_from([entry.name for entry in fields(Agreement)]),
            st.recursive(
                st.one_of(
                    st.none(),
                    st.booleans(),
                    st.integers(-3, 2**70),
                    st.floats(),
                    st.text(max_size=9),
                ),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(max_size=3), inner, max_size=3)
                ),
            ),
            min_size=1,
            max_size=4,
        )
    )
    def test_any_json(self, changes: dict[str, Any]) -> None:
        try:
            found = Agreement.from_json({**small().to_json(), **changes})
        except SordinoError as error:
            sentence(error)
        else:
            usable(found)

    @pytest.mark.slow
    def test_deep_nesting_and_long_lists(self) -> None:
        """In a process of its own: whatever happens there, this one goes on."""
        code = (
            "import json, sys\n"
            "from fuzz.mutate import nested\n"
            "from sordino import SordinoError\n"
            "from sordino.together.federated._agreement import Agreement\n"
            "base = json.loads(sys.stdin.read())\n"
            "for odd in (nested(900, True), nested(900, False), ['a'] * 10**6, ['x'] * 10**6):\n"
            "    for name in ('clients', 'name', 'mu', 'keys'):\n"
            "        try:\n"
            "            Agreement.from_json({**base, name: odd})\n"
            "        except SordinoError as error:\n"
            "            assert len(str(error)) < 400, str(error)\n"
            "        else:\n"
            "            assert name == 'keys', name\n"
            "print('done')\n"
        )
        root = Path(__file__).parent.parent.parent
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps(small().to_json()),
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "done\n", done.stderr[-2000:]


def usable(agreement: Agreement) -> None:
    """What was read can be named, accounted for, stated and drawn for."""
    from fuzz.readers import READERS

    READERS["agreement"].check(agreement)


def test_a_reply_does_not_show_what_it_holds() -> None:
    values = np.array([123456789, -987654321], np.int32)
    shown = repr(Reply("0" * 64, "a", 1, 1, "0" * 64, values, 0))
    assert "123456789" not in shown
    assert "987654321" not in shown
