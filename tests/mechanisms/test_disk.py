"""Dense optima on disk: found again bit for bit, replaced when damaged, never needed."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino._base import files as _files
from sordino.parts.mechanisms import _dense as disk
from sordino.parts.mechanisms._dense import Dense, remembered_dense
from sordino.parts.mechanisms._maps import AnytimeMap
from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.mechanisms.factorize._dense import DenseResult, optimize_dense
from sordino.privacy._participation import FixedBatches
from sordino.privacy._sensitivity import sensitivity

PREFIX = Workload.prefix()
N = disk.SHORTEST


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SORDINO_CACHE", raising=False)
    return tmp_path / "sordino" / "strategies"


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time limits of the searches that were really made."""
    made: list[float] = []

    def search(*args: Any, **options: Any) -> DenseResult:
        made.append(options["max_seconds"])
        return optimize_dense(*args, **options)

    monkeypatch.setattr(disk, "optimize_dense", search)
    return made


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_found_again_bit_for_bit(folder: Path, searches: list[float]) -> None:
    first = remembered_dense(PREFIX, N, N)
    again = remembered_dense(PREFIX, N, N)
    assert len(searches) == 1
    assert np.array_equal(first.strategy, again.strategy)
    assert (first.gap, first.rmse) == (again.gap, again.rmse)
    if sys.platform != "win32":
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # The name of a workload is no part of the question.
    remembered_dense(Workload("another name", ratios=(1.0,)), N, N)
    assert len(searches) == 1


def test_every_part_of_the_question_counts(folder: Path, searches: list[float]) -> None:
    A = PREFIX.matrix(N)
    questions: list[tuple[Any, ...]] = [
        (PREFIX, N, N, 1e-2),
        (PREFIX, N, N, 1e-1),
        (PREFIX, N, N // 2, 1e-2),
        (PREFIX, N + 1, N, 1e-2),
        (Workload.ema(0.1), N, N, 1e-2),
        (Workload.ema(0.2), N, N, 1e-2),
        (A, N, N, 1e-2),
        (2 * A, N, N, 1e-2),
        (np.concatenate([A, A]), N, N, 1e-2),
    ]
    for _ in range(2):
        for question in questions:
            remembered_dense(*question)
    assert len(searches) == len(questions) == len(list(folder.iterdir()))


def test_another_algorithm_does_not_read_old_results(
    folder: Path, searches: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered_dense(PREFIX, N, N)
    monkeypatch.setattr(disk, "ALGORITHM_VERSION", disk.ALGORITHM_VERSION + 1)
    remembered_dense(PREFIX, N, N)
    assert len(searches) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"not a strategy",
        lambda data: data[:-8],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data + bytes(8),
        lambda data: data.replace(b"sordino-strategy-1", b"sordino-strategy-0", 1),
        lambda data: data.replace(b'"gap": ', b'"gap": "x", "was": ', 1),
        lambda data: b"[]\n" + data.split(b"\n", 1)[1],
        lambda data: disk._written(DenseResult(np.eye(3), 0.0, 1.0), 1.0),
        lambda data: disk._written(DenseResult(np.full((N, N), np.nan), 0.0, 1.0), 1.0),
        lambda data: disk._written(DenseResult(np.zeros((N, N)), 0.0, 1.0), 1.0),
        lambda data: disk._written(DenseResult(np.eye(N), float("nan"), 1.0), 1e9),
    ],
)
def test_damaged_files_are_replaced(folder: Path, searches: list[float], damage: Any) -> None:
    first = remembered_dense(PREFIX, N, N, tolerance=1e-2)
    path = only_file(folder)
    sound = path.read_bytes()
    path.write_bytes(damage(sound))
    again = remembered_dense(PREFIX, N, N, tolerance=1e-2)
    assert len(searches) == 2
    assert np.array_equal(first.strategy, again.strategy)
    assert only_file(folder).read_bytes() == sound


def test_a_search_out_of_time_is_kept_until_there_is_more(
    folder: Path, searches: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gaps by time limit: only more time makes a new search, and only a better result replaces."""
    gaps = {1.0: 0.3, 5.0: 0.4, 9.0: 0.2, 20.0: 1e-5}

    def search(*args: Any, **options: Any) -> DenseResult:
        searches.append(options["max_seconds"])
        gap = gaps[options["max_seconds"]]
        return DenseResult(np.eye(N) * (1 + gap), gap, 1.0)

    monkeypatch.setattr(disk, "optimize_dense", search)
    found = [
        remembered_dense(PREFIX, N, N, max_seconds=seconds).gap
        for seconds in (1.0, 1.0, 0.5, 5.0, 5.0, 9.0, 1.0, 20.0, 100.0)
    ]
    assert found == [0.3, 0.3, 0.3, 0.3, 0.3, 0.2, 0.2, 1e-5, 1e-5]
    assert searches == [1.0, 5.0, 9.0, 20.0]


def test_a_real_search_out_of_time(folder: Path, searches: list[float]) -> None:
    rule = (Workload.recursive(0.9, 0.1), 90, 15)
    rough = remembered_dense(*rule, tolerance=1e-9, max_seconds=1e-3)
    assert rough.gap > 1e-9
    assert remembered_dense(*rule, tolerance=1e-9, max_seconds=1e-3).gap == rough.gap
    assert len(searches) == 1


@pytest.mark.parametrize("value", ["off", "OFF", " off "])
def test_the_cache_can_be_switched_off(
    folder: Path, searches: list[float], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SORDINO_CACHE", value)
    remembered_dense(PREFIX, N, N, tolerance=1e-2)
    remembered_dense(PREFIX, N, N, tolerance=1e-2)
    assert len(searches) == 2
    assert not folder.exists()
    assert _files.cache_folder("compiled") is None


def test_short_searches_leave_no_files(folder: Path) -> None:
    remembered_dense(PREFIX, N - 1, N - 1)
    assert not folder.exists()


def test_nothing_depends_on_a_place_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert _files.cache_folder("strategies") is None
    assert remembered_dense(PREFIX, N, N, tolerance=1e-2).gap <= 1e-2
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def full(path: Path, content: bytes) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(disk, "write_atomically", full)
    assert remembered_dense(PREFIX, N, N, tolerance=1e-2).gap <= 1e-2


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [
        ("linux", None, ".cache/sordino/compiled"),
        ("darwin", None, "Library/Caches/sordino/compiled"),
        ("win32", "LOCALAPPDATA", "local/sordino/compiled"),
        ("linux", "XDG_CACHE_HOME", "local/sordino/compiled"),
    ],
)
def test_where_caches_are_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    variable: str | None,
    expected: str,
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "SORDINO_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_files.sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    if variable is not None:
        monkeypatch.setenv(variable, str(tmp_path / "local"))
    assert _files.cache_folder("compiled") == tmp_path / expected
    assert (tmp_path / expected).is_dir()


def test_a_forged_file_cannot_cost_privacy(folder: Path) -> None:
    """Whatever is read, the sensitivity is that of the numbers that will be multiplied."""
    rule = FixedBatches(N, 16)
    Dense.optimized(AnytimeMap(), rule)
    forged = np.tril(np.random.default_rng(0).normal(size=(N, N))) + 9 * np.eye(N)
    path = only_file(folder)
    path.write_bytes(disk._written(DenseResult(forged, 0.0, 1e-9), 1e9))
    read = Dense.optimized(AnytimeMap(), rule)
    C = np.linalg.inv(read.noising.astype(np.float64))
    np.testing.assert_allclose(C, forged, rtol=0, atol=1e-4)
    X = np.abs(C.T @ C)
    worst = max(X[j::16, j::16].sum() for j in range(16))
    assert sensitivity(read.strategy(), rule).value == pytest.approx(np.sqrt(worst), rel=1e-9)


def test_files_are_whole_or_absent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that dies before the rename leaves the folder as it was."""

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        remembered_dense(PREFIX, N, N, tolerance=1e-2)
    assert list(folder.iterdir()) == []
