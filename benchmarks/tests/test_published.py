"""Loaders of published files: the formats as published, and clear words where something is wrong."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from benchmarks.published import load_a9a, load_mnist, read_cifar10, read_idx, read_svmlight
from sordino._base.errors import SordinoError


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    ) + array.tobytes()


def test_idx(tmp_path: Path) -> None:
    images = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "plain").write_bytes(idx(images))
    (tmp_path / "packed.gz").write_bytes(gzip.compress(idx(images)))
    np.testing.assert_array_equal(read_idx(tmp_path / "plain"), images)
    np.testing.assert_array_equal(read_idx(tmp_path / "packed.gz"), images)
    (tmp_path / "short").write_bytes(idx(images)[:-1])
    with pytest.raises(SordinoError, match="calls for"):
        read_idx(tmp_path / "short")
    (tmp_path / "other").write_bytes(b"PK\3\4")
    with pytest.raises(SordinoError, match="is not an IDX file"):
        read_idx(tmp_path / "other")


def test_svmlight(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("+1 1:0.5 3:2\n-1 2:1\n")
    X, labels = read_svmlight(tmp_path / "rows", features=4)
    np.testing.assert_array_equal(X, [[0.5, 0, 2, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(labels, [1, -1])
    (tmp_path / "bad").write_text("+1 nonsense\n")
    with pytest.raises(SordinoError, match="is not a valid svmlight file"):
        read_svmlight(tmp_path / "bad", features=4)


def test_cifar(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, size=(2, 3, 32, 32), dtype=np.uint8)
    raw = b"".join(
        bytes([label]) + image.tobytes() for label, image in zip((3, 9), pixels, strict=True)
    )
    (tmp_path / "batch.bin").write_bytes(raw)
    images, labels = read_cifar10(tmp_path / "batch.bin")
    np.testing.assert_array_equal(labels, [3, 9])
    np.testing.assert_array_equal(images, pixels.transpose(0, 2, 3, 1))
    (tmp_path / "batch.bin").write_bytes(raw[:-1])
    with pytest.raises(SordinoError, match="not a multiple"):
        read_cifar10(tmp_path / "batch.bin")


def test_missing_and_changed_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SordinoError, match="is published at"):
        load_mnist(tmp_path)
    for name, rows in (("a9a", "+1 1:1\n"), ("a9a.t", "-1 2:1\n")):
        (tmp_path / name).write_text(rows)
    with pytest.raises(SordinoError):
        load_a9a(tmp_path)
    small = load_a9a(tmp_path, verify=False)
    assert small.train[0].shape == small.test[0].shape == (1, 123)
    assert small.train[1].tolist() == [1]
    assert small.test[1].tolist() == [0]
