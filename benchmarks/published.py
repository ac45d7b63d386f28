"""Published data sets of the papers, read from the files their publishers offer.

    digits = load_mnist("data")           # or export SORDINO_DATA=data
    X, y = digits.train                   # float32 (60000, 28, 28) in [0, 1], int32 (60000,)

Nothing is downloaded. Each loader looks for its files in the given folder, or in the one that the
environment variable SORDINO_DATA names, and there in a folder of the data set's own, too; files may
be as published or unpacked. A file that is missing is an error that says where it is published, and
one with other contents than the published one is an error unless ``verify=False``.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sordino import SordinoError
from sordino._base.errors import one_line, require_count
from sordino._base.files import UNPACKED_SUFFIXES, read_unpacked

Folder = str | os.PathLike[str] | None
Rows = tuple[NDArray[np.float32], NDArray[np.int32]]

# One record of CIFAR-10: a label, then 32 x 32 pixels of red, of green and of blue.
CIFAR_RECORD = 1 + 3 * 32 * 32
# No published batch has more; what an archive says of its members is not to be trusted.
_LARGEST_BATCH = 10_000 * CIFAR_RECORD
# A dense copy larger than this is refused.
_LARGEST_BYTES = 4 << 30
# An array's dimensions; IDX files have up to four.
_MOST_DIMENSIONS = 8


@dataclass(frozen=True, eq=False)
class TrainTest:
    """A data set with its published division into training and test examples.

    Attributes:
      train: features (float32, one row per example) and labels (int32, an index into `classes`).
      test: the same for the test examples.
    """

    name: str
    classes: tuple[str, ...]
    train: Rows
    test: Rows


@dataclass(frozen=True)
class _Source:
    """Where a data set is published, and the SHA-256 of its unpacked files."""

    name: str
    folders: tuple[str, ...]
    published: str
    digests: Mapping[str, str]


_MNIST = _Source(
    "mnist",
    ("mnist", "MNIST/raw"),
    "yann.lecun.com/exdb/mnist",
    {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
)
# Of svmlight text without the blanks at the ends of its lines, which some copies have lost.
_LIBSVM = "the LIBSVM data sets page, www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"
_A9A = _Source(
    "a9a",
    ("a9a",),
    _LIBSVM,
    {
        "a9a": "76b604b2c3f738783537bd3b32893eae66af54b8a41aee534fac1ecea45c1535",
        "a9a.t": "0c3135eb9b9d83a4fa007d6e1a3b719f029db78884dafd5a46a4d7eeb4c2b018",
    },
)
_IJCNN1 = _Source(
    "ijcnn1",
    ("ijcnn1",),
    _LIBSVM,
    {
        "ijcnn1": "16506cad788cf7c9607454150ed1994788204bac2ff4c9cb3b320036b6950d3f",
        "ijcnn1.t": "e7b0bbd518641980dc322746c6bc59d019d3153934e6258e48f9d8cfae2c4bb8",
    },
)
_CIFAR10 = _Source(
    "cifar10",
    ("cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"),
    "www.cs.toronto.edu/~kriz/cifar.html (binary version)",
    {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
)
_CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"
_CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


def load_mnist(folder: Folder = None, *, verify: bool = True) -> TrainTest:
    """Handwritten digits: 60,000 and 10,000 images (28, 28) with values from 0 to 1.

    Reads the four IDX files, gzipped or not.
    """

    def part(prefix: str) -> Rows:
        names = f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"
        files = [_read(_MNIST, name, folder, verify) for name in names]
        images = _idx(files[0][0], files[0][1], dimensions=3)
        labels = _idx(files[1][0], files[1][1], dimensions=1)
        if len(images) != len(labels):
            raise SordinoError(
                f"{names[0]} has {len(images):,} images but {names[1]} {len(labels):,} labels"
            )
        _check_labels(files[1][0], labels, 10)
        return _unit(images), labels.astype(np.int32)

    classes = tuple(str(digit) for digit in range(10))
    return TrainTest("mnist", classes, part("train"), part("t10k"))


def load_cifar10(folder: Folder = None, *, verify: bool = True) -> TrainTest:
    """Small colour images: 50,000 and 10,000 of shape (32, 32, 3) with values from 0 to 1.

    Reads the binary version: the published archive, or the six files in it.
    """
    archive = _find(_CIFAR10, _CIFAR10_ARCHIVE, folder, suffixes=("",))
    packed = None if archive is None else _members(archive)

    def part(names: list[str]) -> Rows:
        pieces = []
        for name in names:
            if packed is None or archive is None:
                where, raw = _read(_CIFAR10, name, folder, verify)
            elif name not in packed:
                raise SordinoError(f"there is no {name!r} in {str(archive)!r}; get it again")
            else:
                where, raw = archive / name, packed[name]
                _verify(_CIFAR10, name, where, raw, verify)
            pieces.append(_cifar(where, raw))
        images, labels = zip(*pieces, strict=True)
        return _unit(np.concatenate(images)), np.concatenate(labels).astype(np.int32)

    *train, test = _CIFAR10.digests
    return TrainTest("cifar10", _CIFAR10_CLASSES, part(train), part([test]))


def load_a9a(folder: Folder = None, *, verify: bool = True) -> TrainTest:
    """Adult income, binarised: 32,561 and 16,281 rows of 123 features that are 0 or 1.

    Reads `a9a` and `a9a.t`. Class 1 is the published label +1 (more than 50,000 dollars a year).
    """
    return _libsvm(_A9A, 123, folder, verify)


def load_ijcnn1(folder: Folder = None, *, verify: bool = True) -> TrainTest:
    """Engine misfires of the IJCNN 2001 challenge: 49,990 and 91,701 rows of 22 features.

    Reads `ijcnn1` (train and validation) and `ijcnn1.t`. Class 1 is the published label +1, a tenth.
    """
    return _libsvm(_IJCNN1, 22, folder, verify)


def read_idx(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes, packed (.gz, .bz2, .xz) or not, as an array of its shape."""
    where = Path(path)
    return _idx(where, read_unpacked(where))


def read_svmlight(
    path: str | os.PathLike[str], features: int
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """An svmlight file with indices from 1, packed or not: dense rows and labels as they are.

    Args:
      features: the number of columns; a public constant, not read off the rows.
    """
    where = Path(path)
    return _svmlight(where, read_unpacked(where), require_count("features", features))


def read_cifar10(path: str | os.PathLike[str]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """One binary batch of CIFAR-10: images (examples, 32, 32, 3) and labels."""
    where = Path(path)
    return _cifar(where, read_unpacked(where))


def _unit(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    scaled = images.astype(np.float32)
    scaled /= 255
    return scaled


def _idx(where: Path, raw: bytes, dimensions: int | None = None) -> NDArray[np.uint8]:
    if len(raw) < 4 or raw[:2] != b"\0\0":
        raise SordinoError(f"{str(where)!r} is not an IDX file: it does not start with two zeros")
    kind, count = raw[2], raw[3]
    if kind != 0x08:
        raise SordinoError(
            f"{str(where)!r} is an IDX file of type {kind:#04x}; only unsigned bytes (0x08) are read"
        )
    if not 1 <= count <= _MOST_DIMENSIONS:
        raise SordinoError(
            f"{str(where)!r} claims {count} dimensions; an IDX file has from 1 to {_MOST_DIMENSIONS}"
        )
    if dimensions is not None and count != dimensions:
        raise SordinoError(f"{str(where)!r} has {count} dimensions, expected {dimensions}")
    header = 4 + 4 * count
    if len(raw) < header:
        raise SordinoError(f"{str(where)!r} ends within its header of {header} bytes")
    shape = struct.unpack(f">{count}I", raw[4:header])
    # In whole numbers of any size, and compared before anything is allocated.
    expected = header + math.prod(shape)
    if 0 in shape:
        raise SordinoError(f"{str(where)!r} holds nothing: its header {shape} has a length of 0")
    if len(raw) != expected:
        raise SordinoError(
            f"{str(where)!r} has {len(raw):,} bytes, but its header {shape} calls for {expected:,}"
        )
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


def _cifar(where: Path, raw: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    if not raw or len(raw) % CIFAR_RECORD:
        raise SordinoError(
            f"{str(where)!r} has {len(raw):,} bytes, not a multiple of the {CIFAR_RECORD:,} of a "
            "CIFAR-10 record"
        )
    records = np.frombuffer(raw, np.uint8).reshape(-1, CIFAR_RECORD)
    labels = records[:, 0]
    _check_labels(where, labels, len(_CIFAR10_CLASSES))
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def _check_labels(where: Path, labels: NDArray[np.uint8], classes: int) -> None:
    if labels.size and labels.max() >= classes:
        raise SordinoError(
            f"{str(where)!r} has a label {labels.max()}; labels go from 0 to {classes - 1}"
        )


def _svmlight(
    where: Path, raw: bytes, features: int
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    from sklearn.datasets import load_svmlight_file

    size = 4 * features * (raw.count(b"\n") + 1)
    if size > _LARGEST_BYTES:
        raise SordinoError(
            f"the rows of {str(where)!r} take {size / 2**30:.1f} GB with {features:,} features each, "
            f"more than {_LARGEST_BYTES >> 30} GB; give fewer rows or features"
        )
    try:
        with np.errstate(over="ignore"):  # a value too large for float32 becomes inf, refused below
            sparse, labels = load_svmlight_file(
                io.BytesIO(raw), n_features=features, dtype=np.float32, zero_based=False
            )
    except (ValueError, OverflowError):
        # What the parser says quotes the line, and rows may be private.
        raise SordinoError(
            f"{str(where)!r} is not a valid svmlight file: {_first_bad_line(raw, features)}"
        ) from None
    if not len(labels):
        raise SordinoError(f"{str(where)!r} holds no rows")
    rows = sparse.toarray()
    if not (np.isfinite(rows).all() and np.isfinite(labels).all()):
        raise SordinoError(
            f"{str(where)!r} holds labels or values that are not finite numbers of single precision"
        )
    return rows, labels


def _first_bad_line(raw: bytes, features: int) -> str:
    """Where an svmlight text goes wrong, without quoting it."""
    for number, line in enumerate(raw.split(b"\n"), start=1):
        words = line.partition(b"#")[0].split()
        if words[1:] and words[1].startswith(b"qid:"):
            del words[1]
        try:
            if words:
                float(words[0])
            pairs = [word.split(b":") for word in words[1:]]
            indices = [int(index) for index, _ in pairs]
            for _, value in pairs:
                float(value)
        except ValueError:
            return f"line {number:,} is not a label followed by index:value pairs"
        if any(index > features for index in indices):
            return f"line {number:,} has an index of more than the {features:,} features"
        if any(index < 1 for index in indices):
            return f"line {number:,} has an index of less than 1"
        if sorted(set(indices)) != indices:
            return f"the indices of line {number:,} do not increase"
    return "its lines are not labels followed by index:value pairs"


def _libsvm(source: _Source, features: int, folder: Folder, verify: bool) -> TrainTest:
    """Training and test files of the LIBSVM page with labels -1 and +1, which become 0 and 1."""
    parts = []
    for name in source.digests:
        where, raw = _read(source, name, folder, verify, text=True)
        X, labels = _svmlight(where, raw, features)
        if not np.isin(labels, (-1, 1)).all():
            raise SordinoError(f"{str(where)!r} has labels other than -1 and +1")
        parts.append((X, (labels > 0).astype(np.int32)))
    return TrainTest(source.name, ("-1", "+1"), *parts)


def _read(
    source: _Source, name: str, folder: Folder, verify: bool, text: bool = False
) -> tuple[Path, bytes]:
    """The path and the unpacked contents of one of a data set's files."""
    where = _find(source, name, folder)
    if where is None:
        raise SordinoError(
            f"there is no {name!r} (nor {name}.gz, .bz2 or .xz) in {str(_root(source, folder))!r}, "
            f"nor in {' or '.join(source.folders)} there; {source.name} is published at "
            f"{source.published}"
        )
    raw = read_unpacked(where)
    _verify(source, name, where, raw, verify, text)
    return where, raw


def _root(source: _Source, folder: Folder) -> Path:
    given = os.environ.get("SORDINO_DATA") if folder is None else folder
    if not given:
        raise SordinoError(
            f"{source.name} is not part of Sordino: give the folder that holds its files, or set "
            f"SORDINO_DATA to it; they are published at {source.published}"
        )
    root = Path(given)
    if not root.is_dir():
        raise SordinoError(
            f"there is no folder {str(root)!r} to read {source.name} from; its files are published "
            f"at {source.published}"
        )
    return root


def _find(
    source: _Source, name: str, folder: Folder, suffixes: tuple[str, ...] = ("", *UNPACKED_SUFFIXES)
) -> Path | None:
    root = _root(source, folder)
    places = [root / place / f"{name}{end}" for place in (*source.folders, ".") for end in suffixes]
    return next((place for place in places if place.is_file()), None)


def _members(archive: Path) -> dict[str, bytes]:
    """The batches in a tar archive, packed or not, by their names; nothing is written anywhere."""
    raw = read_unpacked(archive)
    result: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                if name not in _CIFAR10.digests or not member.isreg():
                    continue
                if member.size > min(_LARGEST_BATCH, len(raw)):
                    raise SordinoError(
                        f"{name!r} in {str(archive)!r} is larger than a published batch"
                    )
                file = tar.extractfile(member)
                result[name] = b"" if file is None else file.read()
    except SordinoError:
        raise
    # tarfile lets through what its parsers of numbers and names raise on damaged headers.
    except (tarfile.TarError, OSError, EOFError, ArithmeticError, LookupError, ValueError) as error:
        raise SordinoError(
            f"{str(archive)!r} is not a valid tar archive: {one_line(error)}"
        ) from None
    return result


def _verify(
    source: _Source, name: str, where: Path, raw: bytes, verify: bool, text: bool = False
) -> None:
    if not verify:
        return
    if text:
        raw = b"".join(line.rstrip() + b"\n" for line in raw.splitlines())
    result, published = hashlib.sha256(raw).hexdigest(), source.digests[name]
    if result != published:
        raise SordinoError(
            f"{str(where)!r} is not the published {name!r} (SHA-256 {result[:12]} instead of "
            f"{published[:12]}); get it from {source.published}, or pass verify=False to use it as "
            "it is"
        )
