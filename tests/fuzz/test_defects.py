"""What fuzzing found, one small file each; and files made to fill the memory or to hang."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.contract import attempt
from fuzz.mutate import nested
from fuzz.readers import READERS, WORKSHOP

from fuzz import seeds
from sordino._base.errors import SordinoError, nearest, shown
from sordino.models._saved import load_model
from sordino.models._tables import read_table
from sordino.planning._plans import Plan

PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def published() -> Any:
    return pytest.importorskip("benchmarks.published", reason="the workshop is not here")


def refused(reader: str, path: Path, content: bytes) -> str:
    if reader in WORKSHOP:
        published()
    path.write_bytes(content)
    message = attempt(READERS[reader], path, content)
    assert message is not None
    return message


def test_a_row_with_more_fields_than_the_header_does_not_shift_the_columns(tmp_path: Path) -> None:
    """pandas takes the first column for the rows' names then, and every value moves to the left."""
    message = refused("csv", tmp_path / "t.csv", b"age,work\n31,a,b\n40,c,d\n")
    assert "more fields than its header" in message


@pytest.mark.parametrize("end", PACKED)
@pytest.mark.parametrize("reader", ["csv", "idx", "svmlight"])
def test_packed_files_that_are_cut_or_changed(tmp_path: Path, end: str, reader: str) -> None:
    packed = PACKED[end](b"a,b\n1,2\n" * 1000)
    name = f"t.csv{end}" if reader == "csv" else f"t{end}"
    for content in (packed[:-9], packed[: len(packed) // 2], b"", packed[:20] + b"\xff" * 30):
        if content or reader != "csv":
            refused(reader, tmp_path / name, content)


def test_messages_about_rows_do_not_quote_them(tmp_path: Path) -> None:
    message = refused("svmlight", tmp_path / "rows", b"+1 1:1\n-1 melancholia\n")
    assert "line 2" in message
    assert "melan" not in message


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("x 1:1", "is not a label followed by"),
        ("1 1:1 1:2", "do not increase"),
        ("1 5:1", "an index of more than the 4 features"),
        ("1 0:1", "an index of less than 1"),
        ("1 99999999999999999999:1", "an index of more than the 4 features"),
        ("1 1:nan", "not finite"),
        ("inf 1:1", "not finite"),
        ("1 1:1e39", "not finite"),
    ],
)
def test_svmlight_lines(tmp_path: Path, line: str, reason: str) -> None:
    assert reason in refused("svmlight", tmp_path / "rows", f"1 1:1\n{line}\n".encode())


@pytest.mark.parametrize(
    "shape",
    [(2**32 - 1,) * 3, (2**16, 2**16, 2**16, 2**16), (0, 2**32 - 1), (1,) * 70, (1,) * 255, ()],
    ids=["huge", "a product that is 0 in 64 bits", "none of many", "70", "255", "0"],
)
def test_idx_headers(tmp_path: Path, shape: tuple[int, ...]) -> None:
    header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    refused("idx", tmp_path / "images", header)
    refused("idx", tmp_path / "images", header + b"\0")


@pytest.mark.parametrize(
    "content",
    [
        '{"columns": {"a": {"low": 0, "high": 1e999}}}',
        '{"columns": {"a": {"low": -1e308, "high": 1e308}}}',
        '{"columns": {"a": {"low": 0, "high": 5e-324}}}',
        '{"columns": {"a": {"low": "0", "high": "1"}}}',
        '{"columns": {"a": {"values": {"x": 1}}}}',
        '{"columns": {"a\\ud800": {"low": 0, "high": 1}}}',
        '{"columns": {"a": {"values": ["\\udfff"]}}}',
        '{"columns": {"a": {"low": 0, "high": 1}}, "target": "\\ud800"}',
        f'{{"columns": {{"a": {{"low": 0, "high": {10**400}}}}}}}',
        f'{{"columns": {{"a": {{"low": 0, "high": 1}}}}, "examples": {10**400}}}',
        f'{{"columns": {{"a": {{"low": 0, "high": 1}}}}, "examples": {"9" * 5000}}}',
        f'{{"columns": {{"a": {{"low": 0, "high": 1}}}}, "{"x" * 9000}": 1}}',
        json.dumps({"columns": nested(200, True)}),
        "[" * 100_000,
        '{"columns": ' * 100_000,
    ],
    ids=range(15),
)
def test_schemas(tmp_path: Path, content: str) -> None:
    refused("schema", tmp_path / "schema.json", content.encode())


RELEASE = {
    "noise_std": 1.0,
    "contribution": 1.0,
    "rate": 0.1,
    "steps": 1,
    "sampling": "poisson",
    "adjacency": "add-remove",
}


def plan_with(**changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(next(iter(seeds.plans())))
    for name, value in changes.items():
        *way, last = name.split("__")
        holder = data
        for step in way:
            holder = holder[step]
        holder[last] = value
    return data


@pytest.mark.parametrize(
    "changes",
    [
        {"population": "abc"},
        {"population__steps": 10**15, "mechanism__steps": 10**15},
        {"population__steps": 10**400},
        {"population__steps": "12"},
        {"mechanism__steps": "twelve"},
        {"mechanism__steps": float("inf")},
        {"mechanism__theta__shape": [2**62, 8]},
        {"mechanism__theta__shape": [-1]},
        {"mechanism__theta__float32": "AAAA"},
        {"guarantee": [["version", 1]]},
        {"guarantee__delta_hint": "small"},
        {"guarantee__participation": None},
        {"guarantee__sampled": [{**RELEASE, "rate": 10**400}]},
        {"contribution": "a"},
        {"schedule": "a"},
        {"epsilon": "2"},
        {"epsilon": [1]},
        {"recipe": ["dp-memf"]},
        {"recipe": "x" * 5000},
        {"workload": 7},
        {"noise": True},
    ],
    ids=str,
)
def test_plans(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert Plan.from_json(plan_with())
    refused("plan", tmp_path / "plan.json", json.dumps(plan_with(**changes)).encode())


def test_every_field_of_a_plan_is_missed(tmp_path: Path) -> None:
    whole = plan_with()
    for name in whole:
        content = {key: value for key, value in whole.items() if key != name}
        message = refused("plan", tmp_path / "plan.json", json.dumps(content).encode())
        assert name in message


def model_with(**members: bytes | None) -> bytes:
    (first, *_) = seeds.models()
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        kept = {name: archive.read(name) for name in archive.namelist()}
    changed = {f"{name}.npy": content for name, content in members.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in {**kept, **changed}.items():
            if content is not None:
                archive.writestr(name, content)
    return buffer.getvalue()


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=True)
    return buffer.getvalue()


def claims(kind: str, shape: str) -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + b"\0" * 16


@pytest.mark.parametrize(
    "members",
    [
        *({name: None} for name in ("format", "coef", "intercept", "target", "schema", "radius")),
        {"classes": None},
        {"classes": npy(3)},
        {"classes": npy(["a", "a"])},
        {"classes": npy(["a", None])},
        {"coef": claims("<f8", f"({10**12},)")},
        {"coef": claims("<f8", "(-1,)")},
        {"coef": claims("<U1000000000", "()")},
        {"coef": npy([["a", "b", "c", "d"]])},
        {"coef": npy([[np.nan] * 4])},
        {"intercept": npy([np.inf])},
        {"radius": npy(1e9)},
        {"target": npy(5)},
        {"target": b"not an array"},
        {"schema": npy("[" * 100_000)},
        {"schema": npy("{}")},
        {"format": npy(["sordino-model 1", "and more"])},
        {"format": claims("<U4", "()")[:-16] + b"\xff" * 16},
    ],
    ids=str,
)
def test_models(tmp_path: Path, members: dict[str, bytes | None]) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(model_with())
    assert load_model(path)[1] == "income"
    refused("model", path, model_with(**members))


LIMITED = """
import sys
from pathlib import Path
from fuzz.limits import limit_memory
from fuzz.readers import READERS
from sordino._base.errors import SordinoError
import pandas, sordino.models, sordino.models._saved, sklearn.datasets
limit_memory(400 << 20)
for name in sys.argv[1:]:
    reader, path = name.split("=", 1)
    try:
        READERS[reader].read(Path(path))
        print("read", path)
    except SordinoError as error:
        print("refused", error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits on memory")
@pytest.mark.slow
def test_bombs_do_not_fill_the_memory(tmp_path: Path) -> None:
    """Files of some kilobytes that unpack to gigabytes, in a process that may have 400 MB more."""
    published()
    times, zeros = 800, bytes(1 << 20)
    bombs = []
    for reader, name, end in (
        ("csv", "t.csv", ".gz"),
        ("csv", "u.csv", ".xz"),
        ("idx", "images", ".gz"),
        ("svmlight", "rows", ".gz"),
        ("cifar", "batch", ".bz2"),
    ):
        path = tmp_path / f"{name}{end}"
        path.write_bytes(
            PACKED[end](zeros) * times
        )  # one packed stream after the other is one file
        bombs.append(f"{reader}={path}")
    path = tmp_path / "images.xz"  # asks for a dictionary of 1.5 GB
    raw = bytearray(lzma.compress(b"x"))
    raw[16] = 37  # 3 << 29, in the header of the block, whose checksum follows
    raw[20:24] = zlib.crc32(raw[12:20]).to_bytes(4, "little")
    path.write_bytes(raw)
    bombs.append(f"idx={path}")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *bombs],
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr[-1000:]
    assert len(lines) == len(bombs)
    assert all(line.startswith("refused") for line in lines), lines
    assert sum("out of proportion" in line for line in lines) == 5
    assert "emory" in lines[-1]


def test_honest_packed_files_are_read(tmp_path: Path) -> None:
    """Far above the ratio, and still small: repetitive tables are no bombs."""
    rows = b"age,work\n" + b"31,a\n" * 200_000
    for end, pack in PACKED.items():
        (tmp_path / f"t.csv{end}").write_bytes(pack(rows))
        assert len(read_table(tmp_path / f"t.csv{end}")) == 200_000


def test_honest_packed_images_are_read(tmp_path: Path) -> None:
    images = np.zeros((50, 28, 28), np.uint8)
    raw = bytes([0, 0, 8, 3]) + struct.pack(">3I", *images.shape) + images.tobytes()
    (tmp_path / "two.gz").write_bytes(gzip.compress(raw[:1000]) + gzip.compress(raw[1000:]))
    (tmp_path / "two.bz2").write_bytes(bz2.compress(raw[:1000]) + bz2.compress(raw[1000:]))
    (tmp_path / "two.xz").write_bytes(
        lzma.compress(raw[:1000]) + b"\0" * 4 + lzma.compress(raw[1000:])
    )
    for end in PACKED:
        np.testing.assert_array_equal(published().read_idx(tmp_path / f"two{end}"), images)


def test_rows_too_wide_for_the_memory_are_refused(tmp_path: Path) -> None:
    read = published().read_svmlight
    (tmp_path / "rows").write_bytes(b"1 1:1\n" * 1000)
    with pytest.raises(SordinoError, match="GB"):
        read(tmp_path / "rows", features=10**9)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for read in (published().read_idx, published().read_cifar10):
        with pytest.raises(SordinoError, match="cannot read"):
            read(tmp_path)
        with pytest.raises(SordinoError, match="cannot read"):
            read(tmp_path / "none.gz")


def test_values_are_shown_in_part() -> None:
    assert shown("a\nb") == "'a\\nb'"
    assert len(shown("x" * 10**6)) <= 80
    assert len(shown(list(range(10**4)))) <= 80
    assert shown(nested(100_000, table=False)).startswith("something too large")
    assert shown(10**5000).startswith("something too large")
    many = nearest("q", [f"column-{i}" for i in range(1000)])
    assert many.endswith("and 980 more")
    assert len(many) < 330
