"""Bytes of a peer, a file or a server never become code, nor work without end.

Every way in is walked with unpickling, importing, evaluating and executing booby-trapped: readers of
files (those of the fuzzer's table), messages of all transports, seals, descriptions. What engines' child
processes do with bytes is in `test_engines.py`, what strangers cost in `test_strangers.py`.
"""

from __future__ import annotations

import _pickle
import ast
import builtins
import gzip
import importlib
import io
import json
import os
import pickle
import random
import shutil
import struct
import sys
import tarfile
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.contract import attempt
from fuzz.mutate import spoil_bytes
from fuzz.readers import READERS

import sordino
from sordino._base.errors import SordinoError
from sordino._base.files import UNPACKED_FREELY

SOURCES = sorted(Path(sordino.__file__).parent.rglob("*.py"))
# What runs when it is unpickled, evaluated or imported.
BOMB = pickle.dumps([1]).replace(b"]", b"cos\nabort\n)R]", 1)
SPOILT = 12


class SprungError(BaseException):
    """A trap was sprung; no ``except Exception`` hides it."""


class Traps:
    """Everything that turns bytes into code, replaced while `set` is open."""

    def __init__(self) -> None:
        self.sprung: list[str] = []
        # What the program has of its own; a file may add nothing to it.
        self.known = {name.partition(".")[0] for name in sys.modules} | sys.stdlib_module_names

    def _spring(self, what: str) -> Any:
        self.sprung.append(what)
        raise SprungError(what)

    def _refuse(self, what: str) -> Callable[..., Any]:
        return lambda *_, **__: self._spring(what)

    @contextmanager
    def set(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        real_import, real_module = builtins.__import__, importlib.import_module
        real_compile, real_load = builtins.compile, np.load

        def imported(name: str, *given: Any, **named: Any) -> Any:
            level = given[3] if len(given) > 3 else named.get("level", 0)
            if not level and name.partition(".")[0] not in self.known:
                self._spring(f"import of {name}")
            return real_import(name, *given, **named)

        def module(name: str, *given: Any) -> Any:
            if name.partition(".")[0] not in self.known:
                self._spring(f"import_module of {name}")
            return real_module(name, *given)

        def compiled(*given: Any, **named: Any) -> Any:
            # Literals are parsed, which is no code; anything else is.
            flags = given[3] if len(given) > 3 else named.get("flags", 0)
            if not flags & ast.PyCF_ONLY_AST:
                self._spring("compile")
            return real_compile(*given, **named)

        def loaded(*given: Any, **named: Any) -> Any:
            if named.get("allow_pickle", False):
                self._spring("numpy.load with pickles")
            return real_load(*given, **named)

        with monkeypatch.context() as patch:
            for owner in (pickle, _pickle):
                for name in ("load", "loads", "Unpickler", "_load", "_loads", "_Unpickler"):
                    if hasattr(owner, name):
                        patch.setattr(owner, name, self._refuse(f"pickle.{name}"))
            patch.setattr(np, "load", loaded)
            patch.setattr(importlib, "import_module", module)
            patch.setattr(builtins, "__import__", imported)
            patch.setattr(builtins, "compile", compiled)
            for name in ("eval", "exec"):
                patch.setattr(builtins, name, self._refuse(name))
            yield


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


def feed(name: str, folder: Path, content: bytes) -> None:
    path = folder / READERS[name].names[0]
    if len(READERS[name].names) > 1:
        file, content = READERS[name].case(content)
        path = folder / file
    path.write_bytes(content)
    with warnings.catch_warnings(), suppress(AssertionError):
        warnings.simplefilter("ignore")
        attempt(READERS[name], path, content)
    path.unlink()


@pytest.mark.parametrize("name", READERS)
def test_files_never_become_code(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 7: every reader, with good files, spoilt ones, pickles, and code where text belongs."""
    reader, chance = READERS[name], random.Random(name)
    seeds = reader.inputs()
    for seed in seeds[:4]:  # what is imported when it is needed is imported now
        feed(name, place, seed)
    inputs = [*seeds[:4], BOMB, b"__import__('os').abort()\n", b"import os; os.abort()\n"]
    for _ in range(SPOILT):
        seed = chance.choice(seeds)
        choice, body = (seed[:1], seed[1:]) if len(reader.names) > 1 else (b"", seed)
        spoil = reader.spoil if chance.random() < 0.6 else spoil_bytes
        inputs.append(choice + spoil(body, chance))
    for data in inputs:
        feed(name, place, data)  # once without traps, for lazy imports of rarer branches
    traps = Traps()
    with traps.set(monkeypatch):
        for data in inputs:
            feed(name, place, data)
    assert traps.sprung == []


def messages() -> dict[str, tuple[Callable[[bytes], Any], list[bytes]]]:
    """Everything that parses what came over a network, or a secret's file, and what it is fed."""
    from sordino.together._certificates import (
        Roster,
        RosterEntry,
        read_client_key,
        read_public_keys,
    )
    from sordino.together.federated._durable import MessageSeal
    from sordino.together.parties._journal import TurnSeal, unpacked
    from sordino.together.parties._party import _divided, _facts, _opened
    from sordino.together.secure._spu_side import LENGTHS, Node, read_frame
    from sordino.together.sites._models import model_from_json

    def key_file(read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
        def reading(raw: bytes) -> Any:
            path = Path(os.environ["SORDINO_TEST_PLACE"]) / "key"
            path.write_bytes(raw)
            path.chmod(0o600)
            return read(path)

        return reading

    node: Any = object.__new__(Node)
    node._lib = type("Lib", (), {"Share": type("Share", (), {})})
    head = json.dumps({"ok": True}).encode()
    facts = {"settled": 1, "claimed": 1, "history": "00", "before": "", "clock": 1.0}
    own = {"kind": "own", "name": "foreign_module:model"}
    text = [b"{}", b"[" * 5000, BOMB, b'{"a": NaN}', b"\xff\xfe", b""]
    return {
        "facts": (lambda raw: _facts("b", raw), [json.dumps(facts).encode(), *text]),
        "texts": (lambda raw: _divided(raw, ("a", "b")), [struct.pack(">I", 2**31), *text]),
        "text": (lambda raw: _opened("a", raw, 1, 100), [struct.pack(">I", 2**31), *text]),
        "sum": (unpacked, [b"\x04\0\0\0\0", b"\x08" + BOMB, *text]),
        "seal": (TurnSeal.from_bytes, [TurnSeal(bytes(32), 1, "").to_bytes(), *text]),
        "client seal": (MessageSeal.from_bytes, text),
        "frame": (
            lambda raw: read_frame(io.BytesIO(raw)),
            [LENGTHS.pack(len(head), 2) + head + b"xx", LENGTHS.pack(2**24, 2**40), *text],
        ),
        "share": (node._unpacked, [struct.pack("<Q", 2) + b"ab", struct.pack("<Q", 2**60), *text]),
        "roster": (lambda raw: Roster.from_json(json.loads(raw)), [b"{}", b"[]"]),
        "certificate": (lambda raw: RosterEntry("a", bytes(32), raw.decode("latin-1")), text),
        "model": (
            lambda raw: model_from_json(json.loads(raw)),
            [json.dumps(own).encode(), b"{}", b"[]"],
        ),
        "client key": (key_file(read_client_key), text),
        "public key": (key_file(lambda path: read_public_keys({"a": path})), text),
    }


REFUSALS = (ArithmeticError, EOFError, LookupError, RecursionError, struct.error, ValueError)


def test_messages_never_become_code(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 7: what peers, servers and seals say is refused or read, whatever it is."""
    monkeypatch.setenv("SORDINO_TEST_PLACE", str(place))
    ways, traps = messages(), Traps()

    def walk() -> None:
        chance = random.Random(0)  # the same twice: what is imported when needed is then there
        for read, given in ways.values():
            for raw in (*given, *(spoil_bytes(raw, chance) for raw in given if raw)):
                with suppress(*REFUSALS):
                    read(raw)

    walk()
    with traps.set(monkeypatch):
        walk()
    assert traps.sprung == []


def test_flowers_messages_never_become_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 7: arrays that say they are pickles, in a message of Flower's, are refused as they are."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supercore.task_identity import TaskIdentity

    from sordino.together.federated.flower._app import pack, unpack

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    packed_object = io.BytesIO()
    np.save(packed_object, np.array([{}], object), allow_pickle=True)
    hostile = [
        Array("object", (1,), "numpy.ndarray", packed_object.getvalue()),
        Array("uint8", (len(BOMB),), "cloudpickle", BOMB),
        Array("uint8", (3,), "torch.Tensor", BOMB),
        Array("uint8", (10**12,), "bytes", BOMB),
    ]
    contents = [RecordDict({"message": ArrayRecord({"message": array})}) for array in hostile]
    contents += [RecordDict({}), RecordDict({"message": ConfigRecord({"message": "x"})})]

    def walk() -> None:
        for content in (pack(b"hello"), *contents):
            message = Message(content, 7, "train", ttl=60.0)
            parts = get_all_nested_objects(message)
            raw = {name: part.deflate() for name, part in parts.items()}
            again = inflate_object_from_contents(message.object_id, raw)
            assert isinstance(again, Message)
            if content in contents:
                with pytest.raises(SordinoError, match="one array of bytes"):
                    unpack(again.content)
            else:
                assert unpack(again.content) == b"hello"
            for name in raw:  # and spoilt on the way
                spoilt = {**raw, name: spoil_bytes(raw[name], random.Random(name)) + BOMB}
                with suppress(Exception):
                    inflate_object_from_contents(message.object_id, spoilt)

    walk()
    traps = Traps()
    with traps.set(monkeypatch):
        walk()
    assert traps.sprung == []


def test_traps_do_spring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Item 7: a walk with traps that cannot be sprung would show nothing."""
    traps = Traps()
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([{}], object), allow_pickle=True)
    tried = (
        lambda: pickle.loads(b""),
        lambda: pickle.Unpickler(io.BytesIO()),
        lambda: eval("1"),
        lambda: exec("1"),
        lambda: compile("1", "x", "eval"),
        lambda: importlib.import_module("foreign_module"),
        lambda: __import__("foreign_module.part"),
        lambda: np.load(objects, allow_pickle=True),
    )
    with traps.set(monkeypatch):
        for attempted in tried:
            with pytest.raises(SprungError):
                attempted()
        assert ast.literal_eval("[1]") == [1]
    assert len(traps.sprung) == len(tried)


# Code that makes code: which call, in which file, and why it may.
ALLOWED = {
    ("together/sites/_models.py", "import_module"): "a name that the user has allowed",
    ("_base/lazy.py", "import_module"): "of a table of Sordino's own names",
    ("together/secure/_mpyc.py", "pickle"): "to forbid it",
    ("models/_rehearsal.py", "pickle"): "writes keys of candidates, and reads nothing",
}
MODULES = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "yaml",
    "runpy",
}
CALLS = {"eval", "exec", "compile", "__import__", "read_pickle", "to_pickle", "literal_eval"}


def makers_of_code(path: Path) -> Iterator[str]:
    """Names of whatever in a file could turn bytes into code."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            owner = called.value.id if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) else ""  # fmt: skip  # noqa: E501
            if (isinstance(called, ast.Name) and name in CALLS) or name in (
                "read_pickle",
                "to_pickle",
            ):
                yield name
            elif name == "load" and owner in ("np", "numpy"):
                given = {word.arg: word.value for word in node.keywords}
                safe = given.get("allow_pickle")
                if not (isinstance(safe, ast.Constant) and safe.value is False):
                    yield "numpy.load"
            elif name == "import_module" and not isinstance(node.args[0], ast.Constant):
                yield "import_module"


def test_no_source_turns_bytes_into_code() -> None:
    """Item 7: the next reader has to be put on this list before it can."""
    root = Path(sordino.__file__).parent
    found = {
        (path.relative_to(root).as_posix(), what)
        for path in SOURCES
        for what in makers_of_code(path)
    }
    assert found == set(ALLOWED)


def zip_bomb(size: int) -> bytes:
    """An npz of a model whose first array is packed to a thousandth."""
    raw = io.BytesIO()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (size // 8,)}
    )
    with (
        zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("format.npy", "w") as member,
    ):
        member.write(header.getvalue())
        for _ in range(size >> 20):
            member.write(bytes(1 << 20))
    return raw.getvalue()


def tar_bomb(size: int) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz", compresslevel=9) as archive:
        member = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        member.size = size
        archive.addfile(member, io.BytesIO(bytes(size)))
    return raw.getvalue()


@pytest.mark.parametrize(
    ("name", "file", "made"),
    [
        ("model", "model.npz", zip_bomb),
        ("csv", "input.csv.gz", lambda size: gzip.compress(b"a,b\n" + bytes(size), 9)),
        ("idx", "input.gz", lambda size: gzip.compress(b"\0\0\x08\x01" + bytes(size), 9)),
        ("cifar-archive", "cifar-10-binary.tar.gz", tar_bomb),
    ],
)
def test_a_small_file_does_not_fill_the_memory(
    name: str, file: str, made: Callable[[int], bytes], tmp_path: Path
) -> None:
    """Item 7: packed files are unpacked in proportion to their size."""
    content = made(180 << 20)
    assert len(content) < 1 << 20
    path = tmp_path / file
    path.write_bytes(content)
    del content
    tracemalloc.start()
    try:
        with pytest.raises(SordinoError):
            READERS[name].read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        shutil.rmtree(tmp_path, ignore_errors=True)
    # Twice what may be unpacked freely: its pieces, and all of it.
    assert peak < 2 * UNPACKED_FREELY + (8 << 20)
