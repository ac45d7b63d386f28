"""Small valid files of every kind, for mutations to start from."""

from __future__ import annotations

import atexit
import io
import json
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

# Values that must never appear in a message; long enough that no message holds them by accident.
SECRETS = ("Zweigelt77", "Quokkasaurus", "91827364554")


def tables() -> Iterator[bytes]:
    """CSV and TSV text."""
    yield f"age,work\n31,{SECRETS[0]}\n,{SECRETS[1]}\n{SECRETS[2]},NA\n".encode()
    yield f'a\tb\n1\t"{SECRETS[0]}\n{SECRETS[1]}"\n'.encode()
    yield "\ufeffnom,été\nMüller,1.5e300\n".encode()
    yield b"x,y,z\n1,true,2020-01-01\n-inf,false,nan\n"
    yield b"".join(b"%d,%d\n" % (i, i * i) for i in range(2, 30))


def parquet() -> Iterator[bytes]:
    """Parquet files, if they can be written."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return
    frames: tuple[dict[str, list[Any]], ...] = (
        {"age": [1, 2, None], "work": [*SECRETS[:2], None]},
        {"x": [1.5, float("nan")], "flag": [True, False]},
    )
    for frame in frames:
        buffer = io.BytesIO()
        pq.write_table(pa.table(frame), buffer)
        yield buffer.getvalue()


def svmlight() -> Iterator[bytes]:
    """svmlight text."""
    yield b"+1 1:0.5 3:2\n-1 2:1\n"
    yield b"# comment\n1 qid:3 1:1e-3 4:-7 # end\n\n2.5 2:1\r\n"
    yield b"".join(b"%d %d:%d\n" % (i % 2, 1 + i % 4, i) for i in range(20))


def idx() -> Iterator[bytes]:
    """IDX files of unsigned bytes."""
    for shape in ((2, 3, 4), (5,), (1, 1)):
        array = np.arange(int(np.prod(shape, dtype=int)), dtype=np.uint8)
        yield (
            bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + array.tobytes()
        )


def cifar() -> Iterator[bytes]:
    """Binary batches of CIFAR-10."""
    for labels in ((3,), (0, 9)):
        yield b"".join(bytes([label]) + bytes(range(256)) * 12 for label in labels)


def cifar_archive() -> Iterator[bytes]:
    """The archive of CIFAR-10, small and not packed (the harness packs it)."""
    for kind in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
            for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
                member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                member.size = 3073
                tar.addfile(member, io.BytesIO(bytes(3073)))
        yield buffer.getvalue()


def schemas() -> Iterator[bytes]:
    """Schemas as JSON."""
    yield json.dumps(_schema().to_json()).encode()
    yield json.dumps(
        {
            "columns": {"age": {"low": 18, "high": 89}, "flag": {"values": [True, False]}},
            "target": "income",
            "target_bounds": [0.0, 1e6],
        }
    ).encode()


def schemas_toml() -> Iterator[bytes]:
    """Schemas as TOML."""
    yield (
        b'target = "income"\nclasses = [0, 1]\nexamples = 100\n'
        b'[columns]\nage = { low = 18, high = 89 }\n[columns.work]\nvalues = ["a", "b"]\n'
    )
    yield b'columns = [{ name = "x", low = -1.5, high = 2e3 }]\ntarget_bounds = [0, 1]\ntarget = "y"'


def models() -> Iterator[bytes]:
    """Released models: of two classes, of three, and of a number."""
    from sordino.models._saved import model_bytes

    schema = _schema()
    common = {"schema_": schema, "n_features_in_": len(schema.names)}
    for labels in (["no", "yes"], [1, 2, 3]):
        rows = 1 if len(labels) == 2 else len(labels)
        yield model_bytes(
            SimpleNamespace(
                coef_=np.linspace(-1, 1, rows * schema.width).reshape(rows, schema.width),
                intercept_=np.linspace(0, 1, rows),
                classes_=np.array(labels),
                **common,
            ),
            "income",
        )
    yield model_bytes(
        SimpleNamespace(
            coef_=np.linspace(-1, 1, schema.width, dtype=np.float32),
            intercept_=np.float32(0.5),
            target_bounds_=(0.0, 9.0),
            **common,
        ),
        "income",
    )


def _schema() -> Any:
    from sordino.models._schema import Categorical, Numeric, Schema

    return Schema(
        columns=(Numeric("age", 18, 89), Categorical("work", ("a", "b", "c"))),
        target="income",
        classes=(0, 1),
        examples=300,
    )


def plans() -> Iterator[bytes]:
    """Plans with every kind of stream, mechanism, schedule and sampling."""
    for plan in _plans():
        yield json.dumps(plan.to_json()).encode()


@cache
def _plans() -> tuple[Any, ...]:
    import sordino

    size: dict[str, Any] = {"examples": 60, "batch_size": 10, "epochs": 2}
    budget: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-3}
    all_rows: dict[str, Any] = {"examples": 60, "steps": 8}
    return (
        sordino.plan("dp-memf", mechanism="blt", **size, **budget),
        sordino.plan("dp-memf", mechanism="dense", momentum=0.9, **size, noise_multiplier=2.0),
        sordino.plan("dp-memf", mechanism="banded", sampling="reshuffled", **size, **budget),
        sordino.plan("dp-ftrl", mechanism="tree", **size, **budget),
        sordino.plan("dp-nsgd", **size, **budget),
        sordino.plan("dp-nsgd-sr", **size, **budget),
        sordino.plan("dp-mu2", **size, **budget),
        sordino.plan("dp-srgd", **size, **budget),
        sordino.plan("dp-srg-memf", **size, **budget),
        sordino.plan("dp-sgd", sampling="poisson", **size, noise_multiplier=3.0),
        sordino.plan("dp-srm", **size, noise_multiplier=3.0),
        sordino.plan("dp-gd", schedule="exponential", **all_rows, **budget),
        sordino.plan("dp-agd", **all_rows, **budget),
        sordino.plan("storm", **size),
    )


def checkpoints() -> Iterator[bytes]:
    """Checkpoints of the run whose key is `run_key`."""
    from sordino.engine._checkpoint import Checkpoint, write_checkpoint

    key = run_key()
    weights = np.linspace(-1, 1, 6, dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        for arrays in ((weights.reshape(2, 3), np.int32(7)), (weights, np.zeros(0, np.float64))):
            path = Path(folder) / "checkpoint"
            released = Checkpoint(
                run=key.identity,
                identity={"plan": "0" * 64, "data": "1" * 64},
                step=3,
                steps=8,
                arrays=tuple(np.asarray(array) for array in arrays),
                history=({"loss": 0.5}, {}),
            )
            write_checkpoint(path, released, key)
            yield path.read_bytes()


@cache
def run_key() -> Any:
    """A run key that everybody knows."""
    from sordino._base.keys import RunKey

    return RunKey.from_insecure_seed(0)


@cache
def _agreements() -> tuple[Any, ...]:
    from sordino.together.federated._agreeing import agree

    common: dict[str, Any] = {"parameters": 3, "rounds": 4, "mu": 1.0, "learning_rate": 0.1}
    return (
        agree(clients=2, nonce="00" * 16, radius=2.0, **common),
        agree(clients=["a", "b.c", "d_e-f"], trust="secure-sum", schedule="fresh", uses=2,
              examples=4, unit="client", nonce="01" * 16, **common),
        agree(clients=5, per_round=2, extra=1, schedule="paper", adjacency="replace-one",
              nonce="02" * 16, **common),
        agree(clients=3, trust="trusted", algorithm="noisy-sgd", nonce="03" * 16, **common),
    )  # fmt: skip


def agreements() -> Iterator[bytes]:
    """Agreements of federated runs, under every kind of trust."""
    for agreement in _agreements():
        yield json.dumps(agreement.to_json()).encode()


def messages() -> Iterator[bytes]:
    """Requests, replies and refusals of a federated run."""
    from sordino.together.federated._messages import Refusal, Reply, RoundRequest

    digest = _agreements()[0].digest
    point, previous = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    values = np.array([-(2**31), 0, 2**31 - 1], np.int32)
    yield RoundRequest(digest, 1, 1, point, previous, 0).to_bytes()
    yield RoundRequest(digest, 9, 4, point, previous, 3, ("a", "b.c", "d_e-f")).to_bytes()
    yield Reply(digest, "client-0", 3, 2, "ab" * 32, values).to_bytes()
    yield Reply(digest, "client-1", 3, 2, "ab" * 32, values.astype(np.int64), 7).to_bytes()
    yield Refusal(digest, "client-0", 3, "budget", "there is nothing left to spend").to_bytes()


@cache
def _consortia() -> tuple[Any, ...]:
    from sordino.together._certificates import RosterEntry, new_certificate
    from sordino.together.parties._consortium import Consortium, PartyCard
    from sordino.together.parties._terms import agree

    made = []
    for engine, sizes, recipe, options in (
        ("mask", (60, 40), "dp-sgd", {"batch_size": 20, "steps": 3, "noise_multiplier": 3.0}),
        ("mpyc", (30, 40, 50), "dp-gd", {"steps": 4, "epsilon": 2.0, "delta": 1e-3}),
        ("spu", (60, 40, 50), "dp-mu2", {"batch_size": 10, "epochs": 1, "noise_multiplier": 2.0}),
    ):
        terms = agree(recipe, examples=sizes, parameters=3, engine=engine, **options)
        cards = tuple(
            PartyCard(
                RosterEntry(f"p{j}", bytes([j + 1]) * 32, new_certificate(f"p{j}")[0]), n, "h", 7000
            )
            for j, n in enumerate(sizes)
        )
        made.append(Consortium("study", cards, terms, {"kind": "own", "name": "a:b"}))
    return tuple(made)


def consortia() -> Iterator[bytes]:
    """Consortium files of data owners, for every engine."""
    for consortium in _consortia():
        yield json.dumps(consortium.to_json()).encode()


def cards() -> Iterator[bytes]:
    """What a data owner gives to the others."""
    for consortium in _consortia():
        yield json.dumps(consortium.partners[0].to_json()).encode()


def ledgers() -> Iterator[bytes]:
    """A ledger with a budget that two runs have spent half of."""
    yield _ledger()[1]


def key_store() -> Any:
    """The folder with the key that `ledgers` are sealed with."""
    return _ledger()[0]


@cache
def _ledger() -> tuple[Any, bytes]:
    from sordino._base.keystore import KeyStore
    from sordino.engine.ledger._ledger import Ledger

    plan = _plans()[0]
    with tempfile.TemporaryDirectory() as folder:
        # The keys stay as long as this process: every ledger that is read is checked against them.
        store = KeyStore(Path(tempfile.mkdtemp(prefix="sordino-fuzz-keys-")))
        atexit.register(shutil.rmtree, store.folder, ignore_errors=True)
        path = Path(folder) / "input.ledger"
        ledger = Ledger.create(path, store=store, who="somebody")
        ledger.add_dataset("people", epsilon=8.0, delta=1e-3)
        for run in ("a" * 32, "b" * 32):
            ledger.reserve("people", plan, run=run, who="somebody")
        ledger.start("a" * 32)
        ledger.close()
        return store, path.read_bytes()
