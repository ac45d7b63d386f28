"""How valid files are spoilt: in ways that leave the outer form right, so that readers look inside.

Bytes flipped at random seldom get past a parser or a checksum. These mutations keep JSON JSON and a zip
archive a zip archive, and put into them what somebody might: other types, huge and not finite numbers,
missing and doubled fields, deep nesting, odd text, headers that promise more than there is.
"""

from __future__ import annotations

import copy
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

ODD_NUMBERS: tuple[Any, ...] = (
    *(
        0,
        -0.0,
        1,
        -1,
        2,
        0.5,
        255,
        4096,
        2**31,
        2**32 - 1,
        2**53 + 1,
        2**63,
        -(2**63),
        10**30,
        10**400,
    ),
    *(1e-320, 1e-9, 1e9, 1e15, 1e308, -1e308, float("inf"), float("-inf"), float("nan")),
)
ODD_TEXT = (
    *("", " ", "0", "-1", "nan", "a", "\0", "\n", "two\nlines", "\x1b[31mred", "\u2028", "é" * 50),
    *(
        "\ud800",
        "\U0001f600",
        "x" * 5000,
        "../../etc/passwd",
        "%s%n{0}",
        "constructor",
    ),
)
ODD_VALUES: tuple[Any, ...] = (
    *ODD_NUMBERS,
    *ODD_TEXT,
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"": 0},
)


MOST_PLACES = 3000


def odd_value(rng: random.Random) -> Any:
    """Something that was not expected there."""
    if rng.random() < 0.05:
        return nested(rng.choice((30, 300, 900)), rng.random() < 0.5)
    return copy.deepcopy(rng.choice(ODD_VALUES))


def nested(depth: int, table: bool) -> Any:
    """Lists in lists, or tables in tables."""
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if table else [value]
    return value


def spoilt(value: Any, rng: random.Random) -> Any:
    """`value`, plain JSON data, with one thing in it changed."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    if not places or len(places) > MOST_PLACES:  # or copies of copies would fill the memory
        return odd_value(rng)
    holder, key = rng.choice(places)
    what = rng.randrange(9)
    if what <= 3:
        holder[key] = odd_value(rng)
    elif what == 4:
        del holder[key]
    elif what == 5 and isinstance(holder, dict):
        holder[rng.choice(ODD_TEXT) if rng.random() < 0.5 else f"{key}_"] = holder[key]
    elif what == 5:
        holder.extend([holder[key]] * rng.choice((1, 3, 1000)))
    elif what == 6:
        other, its_key = rng.choice(places)
        holder[key] = copy.deepcopy(other[its_key])
    elif isinstance(holder[key], (int, float)):
        holder[key] = _near(holder[key], rng)
    elif isinstance(holder[key], str) and holder[key]:
        at = rng.randrange(len(holder[key]))
        holder[key] = (
            holder[key][:at] + rng.choice(("", "A", "=", "\n", "é")) + holder[key][at + 1 :]
        )
    else:
        holder[key] = odd_value(rng)
    return value


def _near(number: Any, rng: random.Random) -> Any:
    try:
        return rng.choice(
            (number + 1, number - 1, -number, number * 2, number * 1000, number / 3, str(number))
        )
    except (OverflowError, ValueError):  # an int too large for a float, or to be written
        return 0


def _places(value: Any) -> Any:
    """Every (container, key) in `value`; iterative, because values may be nested deeply."""
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        keys = (
            list(holder)
            if isinstance(holder, dict)
            else range(len(holder))
            if isinstance(holder, list)
            else ()
        )
        for key in keys:
            yield holder, key
            if isinstance(holder[key], (dict, list)):
                waiting.append(holder[key])


def spoil_json(content: bytes, rng: random.Random) -> bytes:
    """A JSON text with one to three things changed; other bytes where it is none."""
    try:
        value = json.loads(content)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            value = spoilt(value, rng)
        return json.dumps(value).encode()
    except (ValueError, RecursionError):
        return spoil_bytes(content, rng)


def spoil_bytes(content: bytes, rng: random.Random) -> bytes:
    """Bytes cut short, flipped, doubled, overwritten with extreme numbers, or with text put in."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        what = rng.randrange(7)
        if what == 0:
            del data[at:]
        elif what == 1:
            del data[at : at + rng.choice((1, 2, 8, 64))]
        elif what == 2 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif what == 3:
            data[at : at + 4] = struct.pack(
                ">I", rng.choice((0, 1, 2**31, 2**32 - 1, rng.getrandbits(32)))
            )
        elif what == 4:
            end = rng.randrange(at, len(data) + 1)
            data[at:at] = data[at:end] * rng.choice((1, 1, 20))
        elif what == 5:
            data[at:at] = rng.randbytes(rng.choice((1, 4, 30)))
        else:
            data[at:at] = str(rng.choice(ODD_VALUES)).encode("utf-8", "surrogatepass")
    return bytes(data)


def spoil_npz(content: bytes, rng: random.Random) -> bytes:
    """An npz file with an array left out, added, or with another header or other contents."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except Exception:  # a mutated archive may break zipfile in any way; then its bytes are mutated
        return spoil_bytes(content, rng)
    if not members or rng.random() < 0.2:
        return spoil_bytes(content, rng)
    name = rng.choice(sorted(members))
    what = rng.randrange(6)
    if what == 0:
        del members[name]
    elif what == 1:
        members[rng.choice(("classes.npy", "target_bounds.npy", "../x.npy", "x", "format.npy"))] = (
            members[name]
        )
    elif what == 2:
        members[name] = members[rng.choice(sorted(members))]
    elif what == 3:
        members[name] = _spoil_header(members[name], rng)
    elif what == 4 and name == "schema.npy":
        members[name] = _text_array(
            spoil_json(json.dumps({"columns": []}).encode(), rng).decode(errors="replace")
        )
    else:
        members[name] = spoil_bytes(members[name], rng)
    buffer = io.BytesIO()
    packing = rng.choice((zipfile.ZIP_STORED,) * 4 + (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(buffer, "w", packing) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return buffer.getvalue()


def spoil_checkpoint(content: bytes, rng: random.Random) -> bytes:
    """A checkpoint with another header or other arrays; often with the tag that belongs to it."""
    from fuzz.seeds import run_key
    from sordino.engine._checkpoint import MAGIC, TAG_BYTES, _tag

    begin = len(MAGIC) + 8
    length = int.from_bytes(content[len(MAGIC) : begin], "little")
    header, arrays = content[begin : begin + length], content[begin + length : -TAG_BYTES]
    if rng.random() < 0.7:
        header = spoil_json(header, rng)
    else:
        arrays = spoil_bytes(arrays, rng)
    body = MAGIC + len(header).to_bytes(8, "little") + header + arrays
    tag = _tag(body, run_key()) if rng.random() < 0.8 else content[-TAG_BYTES:]
    return body + tag


def spoil_message(content: bytes, rng: random.Random) -> bytes:
    """A message of a federated run with another header, other arrays, or another kind or length."""
    frame = struct.Struct("<8sBI")
    if len(content) < frame.size:
        return spoil_bytes(content, rng)
    magic, kind, length = frame.unpack_from(content)
    header = content[frame.size : frame.size + length]
    arrays = content[frame.size + length :]
    what = rng.randrange(10)
    if what <= 6:
        header = spoil_json(header, rng)
    elif what == 7:
        arrays = spoil_bytes(arrays, rng)
    elif what == 8:
        kind = rng.choice((0, 1, 2, 3, 4, 255))
    length = len(header) if rng.random() < 0.9 else rng.choice((0, 1, 2**31, 2**32 - 1))
    return frame.pack(magic, kind, length) + header + arrays


def _text_array(text: str) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.array(text), allow_pickle=False)
    return buffer.getvalue()


def _spoil_header(array: bytes, rng: random.Random) -> bytes:
    """An npy file that claims another shape or type."""
    if len(array) < 10:
        return array
    length = int.from_bytes(array[8:10], "little")
    kind = rng.choice(
        ("<f8", "<f4", "|O", "<U9", "<U100000000", "|V8", "<M8[s]", "|b1", "<c16", "x", "|S0")
    )
    shape = rng.choice(
        ("()", "(2,)", "(1, 4)", f"({10**12},)", "(-1,)", "(0,)", f"({2**62}, 8)", "(1,) * 9")
    )
    header = (
        f"{{'descr': '{kind}', 'fortran_order': {rng.choice((True, False))}, 'shape': {shape}, }}"
    )
    text = header.encode().ljust(117) + b"\n"
    return array[:8] + len(text).to_bytes(2, "little") + text + array[10 + length :]
