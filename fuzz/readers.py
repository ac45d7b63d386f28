"""The readers of foreign bytes, one line each: how they are called, and from what mutations start."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fuzz import seeds
from fuzz.mutate import (
    Mutation,
    spoil_bytes,
    spoil_checkpoint,
    spoil_json,
    spoil_message,
    spoil_npz,
)

SVMLIGHT_FEATURES = 4
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda raw: gzip.compress(raw, 1, mtime=0),
    ".bz2": lambda raw: bz2.compress(raw, 1),
    ".xz": lambda raw: lzma.compress(raw, preset=0),
}


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes:
      read: reads a file; returns something usable or raises `SordinoError`.
      check: raises unless what `read` returned is usable.
      seeds: valid files.
      spoil: changes a valid file in ways that bytes flipped at random would not.
      names: what the file is called; a further name is another kind of file to the reader.
      words: pieces of the format, for the fuzzer to put in.
      private: whether the file holds private rows, which no message may quote.
      share: this reader's part of all inputs, relative to the others (slow ones get fewer).
    """

    name: str
    read: Callable[[Path], Any]
    check: Callable[[Any], None]
    seeds: Callable[[], Iterable[bytes]]
    spoil: Mutation = spoil_bytes
    names: tuple[str, ...] = ("input",)
    words: tuple[str, ...] = ()
    private: bool = False
    share: float = 1.0

    def case(self, data: bytes) -> tuple[str, bytes]:
        """The file name and the contents that one input of the fuzzer stands for.

        Where there are several names the first byte chooses: which, and whether the rest is the
        packed file itself or is to be packed (or nothing would get past a checksum).
        """
        if len(self.names) == 1:
            return self.names[0], data
        choice, rest = (data[0], data[1:]) if data else (0, b"")
        name = self.names[choice % len(self.names)]
        pack = PACKERS.get(Path(name).suffix)
        return name, pack(rest) if pack is not None and choice >= 64 else rest

    def inputs(self) -> list[bytes]:
        """The seeds as inputs of the fuzzer: each under each name, packed where the name says so."""
        if len(self.names) == 1:
            return list(self.seeds())
        count = len(self.names)
        packing = 64 + -64 % count
        return [bytes([packing + i]) + seed for seed in self.seeds() for i in range(count)]


def _table(path: Path) -> Any:
    from sordino.models._tables import read_table

    return read_table(path)


def _check_table(frame: Any) -> None:
    import pandas as pd

    assert len(frame) > 0
    assert frame.index.equals(pd.RangeIndex(len(frame))), "a column became the index"
    assert frame.columns.is_unique
    assert all(isinstance(name, str) for name in frame.columns)


def _svmlight(path: Path) -> Any:
    from benchmarks.published import read_svmlight

    return read_svmlight(path, SVMLIGHT_FEATURES)


def _check_svmlight(found: Any) -> None:
    rows, labels = found
    assert rows.dtype == np.float32
    assert rows.shape == (len(labels), SVMLIGHT_FEATURES)
    assert np.isfinite(rows).all()
    assert np.isfinite(labels).all()


def _idx(path: Path) -> Any:
    from benchmarks.published import read_idx

    return read_idx(path)


def _check_bytes(array: Any) -> None:
    assert array.dtype == np.uint8
    assert int(array.sum()) <= 255 * array.size  # every entry is there to be read


def _cifar(path: Path) -> Any:
    from benchmarks.published import read_cifar10

    return read_cifar10(path)


def _check_cifar(found: Any) -> None:
    images, labels = found
    assert images.shape == (len(labels), 32, 32, 3)
    assert labels.max() <= 9


def _cifar_archive(path: Path) -> Any:
    from benchmarks.published import load_cifar10

    return load_cifar10(path.parent, verify=False)


def _check_cifar_archive(found: Any) -> None:
    for images, labels in (found.train, found.test):
        assert images.shape == (len(labels), 32, 32, 3)
        assert labels.max() <= 9


def _plan(path: Path) -> Any:
    from sordino.planning._plans import Plan

    return Plan.load(path)


def _check_plan(plan: Any) -> None:
    from sordino.planning._plans import Plan

    assert Plan.from_json(plan.to_json()) == plan
    assert plan.noise_stds().shape == (plan.population.steps, plan.contribution.channels)
    assert plan.guarantee.mu >= 0


def _schema(path: Path) -> Any:
    from sordino.models._schema import Schema

    return Schema.load(path)


def _check_schema(schema: Any) -> None:
    from sordino.models._schema import Schema

    assert Schema.from_json(schema.to_json()) == schema
    assert len(set(schema.names)) == len(schema.names) > 0
    "".join((*schema.feature_names, schema.target or "")).encode()
    for low, high in schema.bounds.values():
        assert np.isfinite(1 / ((high - low) / 2))


def _model(path: Path) -> Any:
    from sordino.models._saved import load_model

    return load_model(path)


def _check_model(found: Any) -> None:
    import pandas as pd

    model, target = found
    target.encode()
    schema = model.schema_
    row = {name: [low] for name, (low, _) in schema.bounds.items()}
    row |= {name: [values[0]] for name, values in schema.categories.items()}
    frame = pd.DataFrame(row)[list(schema.names)]
    predicted = model.predict(frame)
    assert predicted.shape == (1,)
    if hasattr(model, "classes_"):
        assert np.isfinite(model.predict_proba(frame)).all()
        assert predicted[0] in model.classes_
    else:
        assert np.isfinite(predicted).all()


def _checkpoint(path: Path) -> Any:
    from sordino.engine._checkpoint import read_checkpoint, read_identity, read_progress

    return read_checkpoint(path, seeds.run_key()), read_identity(path), read_progress(path)


def _check_checkpoint(found: Any) -> None:
    checkpoint, identity, progress = found
    assert checkpoint.run == identity == seeds.run_key().identity
    assert (checkpoint.step, checkpoint.steps) == progress
    assert all(isinstance(array, np.ndarray) for array in checkpoint.arrays)


def _ledger(path: Path) -> Any:
    from sordino.engine.ledger._ledger import Ledger

    try:
        ledger = Ledger.open(path, store=seeds.key_store())
        try:
            ledger.verify()
            return ledger.status("people")
        finally:
            ledger.close()
    finally:
        for end in ("-wal", "-shm", "-journal"):  # SQLite's own, beside a file that it cannot use
            path.with_name(path.name + end).unlink(missing_ok=True)


def _check_ledger(status: Any) -> None:
    """Whatever was changed in the file, what was spent stays spent."""
    assert len(status.reservations) == 2
    assert status.epsilon > 2
    assert status.dataset.name == "people"


def _agreement(path: Path) -> Any:
    from sordino.together.federated._agreement import Agreement

    return Agreement.load(path)


def _check_agreement(agreement: Any) -> None:
    """What was read can be named, accounted for, stated and drawn for, up to the last message."""
    from sordino.parts.mechanisms._discrete import MOST_VARIANCE
    from sordino.together.federated._agreement import Agreement
    from sordino.together.federated._chain import drawn

    again = Agreement.from_json(agreement.to_json())
    assert again == agreement
    assert again.digest == agreement.digest
    assert 0 < agreement.limit < float("inf")
    assert 0 < agreement.reach < float("inf")
    assert agreement.account().after(1, 0, [0], agreement.variance).mu_squared > 0
    assert agreement.guarantee.sentence().isprintable()
    # (Growing noise may become too large to draw before the cap; the client then refuses.)
    last = min(agreement.cap, MOST_VARIANCE // agreement.variance)
    assert len(drawn(bytes(32), agreement.variance_of(last), 2)) == 2
    assert agreement.name.isprintable()


def _message(path: Path) -> Any:
    """Messages come over the network, not from files: the file is named here."""
    from sordino._base.errors import SordinoError
    from sordino.together.federated._messages import message_from_bytes

    try:
        return message_from_bytes(path.read_bytes())
    except SordinoError as error:
        raise SordinoError(f"{path.name}: {error}") from None


def _check_message(message: Any) -> None:
    from sordino.together.federated._messages import message_from_bytes

    raw = message.to_bytes()
    again = message_from_bytes(raw)
    assert type(again) is type(message)
    assert again.to_bytes() == raw
    for name in ("point", "previous", "values"):
        array = getattr(message, name, None)
        assert array is None or (array.ndim == 1 and array.nbytes < len(raw))
    if hasattr(message, "reason"):
        assert message.reason.isprintable()
        assert isinstance(message.is_final, bool)


def _consortium(path: Path) -> Any:
    from sordino.together.parties._consortium import Consortium

    return Consortium.load(path)


def _check_consortium(consortium: Any) -> None:
    """What was read can be named, stated and summed, and no party is used more often than paid for."""
    from sordino.together.parties._consortium import Consortium

    again = Consortium.from_json(consortium.to_json())
    assert again.digest == consortium.digest
    terms = consortium.terms
    assert terms.statement().isprintable()
    assert len(terms.variances) == terms.plan.population.steps
    assert terms.guarantee.distance >= terms.plan.guarantee.distance
    people = terms.plan.population
    for n, b in zip(terms.examples, terms.batches, strict=bool(terms.batches)):
        assert b / n <= people.rate * (1 + 1e-9)
    assert len(consortium.addresses(2)) == terms.parties == len(set(consortium.names))


def _card(path: Path) -> Any:
    from sordino.together.parties._consortium import PartyCard

    return PartyCard.load(path)


def _check_card(card: Any) -> None:
    from sordino.together.parties._consortium import PartyCard

    assert PartyCard.from_json(card.to_json()) == card
    assert len(card.member.fingerprint) == 64


_JSON = (
    '"format"',
    '"version"',
    '"kind"',
    "null",
    "true",
    "NaN",
    "Infinity",
    "1e999",
    "[[[[",
    "\\ud800",
)
_TABLE_NAMES = ("input.csv", "input.tsv", "input.csv.gz", "input.csv.bz2", "input.csv.xz")
_PACKED_NAMES = ("input", "input.gz", "input.bz2", "input.xz")

# Readers of published data belong to the workshop, which is in the repository only.
WORKSHOP = ("svmlight", "idx", "cifar", "cifar-archive")
HAS_WORKSHOP = find_spec("benchmarks") is not None

READERS: dict[str, Reader] = {
    reader.name: reader
    for reader in (
        Reader(
            "csv",
            _table,
            _check_table,
            seeds.tables,
            names=_TABLE_NAMES,
            private=True,
            words=('"', '""', ",,", "\t", "\r\n", "NA", "1e999", "\0", "\ufeff"),
            share=1.0,
        ),
        Reader(
            "parquet",
            _table,
            _check_table,
            seeds.parquet,
            names=("input.parquet",),
            private=True,
            words=("PAR1",),
            share=0.5,
        ),
        Reader(
            "svmlight",
            _svmlight,
            _check_svmlight,
            seeds.svmlight,
            names=_PACKED_NAMES,
            private=True,
            words=(
                "qid:",
                "1:",
                "0:1",
                "-1:1",
                "4:nan",
                "4:inf",
                "1:1e39",
                "#",
                "99999999999999999999:1",
            ),
            share=1.5,
        ),
        Reader(
            "idx",
            _idx,
            _check_bytes,
            seeds.idx,
            names=_PACKED_NAMES,
            words=("\0\0\x08\x01", "\0\0\x08\x03", "\xff\xff\xff\xff", "\0\0\0\0"),
            share=2.5,
        ),
        Reader("cifar", _cifar, _check_cifar, seeds.cifar, names=_PACKED_NAMES),
        Reader(
            "cifar-archive",
            _cifar_archive,
            _check_cifar_archive,
            seeds.cifar_archive,
            names=("cifar-10-binary.tar.gz",) * 2,
            words=("ustar", "././@LongLink", "path=", "size="),
            share=0.5,
        ),
        Reader(
            "plan",
            _plan,
            _check_plan,
            seeds.plans,
            spoil_json,
            names=("plan.json",),
            words=_JSON,
            share=0.5,
        ),
        Reader(
            "schema",
            _schema,
            _check_schema,
            seeds.schemas,
            spoil_json,
            names=("schema.json",),
            words=_JSON,
            share=1.0,
        ),
        Reader(
            "schema-toml",
            _schema,
            _check_schema,
            seeds.schemas_toml,
            names=("schema.toml",),
            words=("[[", "]]", "'''", '"""', "= inf", "= nan", "{", "1979-05-27", "a.b.c"),
            share=1.5,
        ),
        Reader(
            "model",
            _model,
            _check_model,
            seeds.models,
            spoil_npz,
            names=("model.npz",),
            words=("PK\1\2", "PK\3\4", "PK\5\6", "\x93NUMPY", "'descr': ", "'shape': "),
            share=0.2,
        ),
        Reader(
            "checkpoint",
            _checkpoint,
            _check_checkpoint,
            seeds.checkpoints,
            spoil_checkpoint,
            names=("input.checkpoint",),
            words=("SORDINO-RUN-1", "float32"),
            share=0.6,
        ),
        Reader(
            "agreement",
            _agreement,
            _check_agreement,
            seeds.agreements,
            spoil_json,
            names=("agreement.json",),
            words=_JSON,
            share=0.5,
        ),
        Reader(
            "message",
            _message,
            _check_message,
            seeds.messages,
            spoil_message,
            names=("message",),
            words=("SORDFED1", '"turn":', '"cohort":', '"bytes":8', '"block":-1', *_JSON),
            share=2.0,
        ),
        Reader(
            "consortium",
            _consortium,
            _check_consortium,
            seeds.consortia,
            spoil_json,
            names=("consortium.json",),
            words=_JSON,
            share=0.3,
        ),
        Reader(
            "card",
            _card,
            _check_card,
            seeds.cards,
            spoil_json,
            names=("party.json",),
            words=_JSON,
            share=0.5,
        ),
        Reader(
            "ledger",
            _ledger,
            _check_ledger,
            seeds.ledgers,
            names=("input.ledger",),
            words=("SQLite format 3\0", "people"),
            share=0.08,
        ),
    )
    if HAS_WORKSHOP or reader.name not in WORKSHOP
}
