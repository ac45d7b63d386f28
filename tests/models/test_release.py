"""The release of a table: what one person moves, and what leaves."""

from __future__ import annotations

import json
import math
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import fftconvolve
from scipy.stats import kstest, norm

from sordino._base.errors import SordinoError
from sordino.engine import RunKey
from sordino.models._cells import RawTable, read_cells
from sordino.models._found import denoised
from sordino.models._prefix import _series, column_norms, prefix_error, prefix_noise
from sordino.models._release import (
    DATE_CELLS,
    NUMBER_CELLS,
    Owners,
    Parts,
    TableAnswer,
    _gaussians,
    date_cells,
    date_edges,
    number_cells,
    number_edges,
    run_table_release,
    total_error,
    weigh,
)
from sordino.models._tables import read_raw
from sordino.planning import TableRelease

ADULT = Path(os.environ.get("SORDINO_DATA", "")) / "adult" / "adult.csv"
KEY = RunKey.from_insecure_seed(0)


# The grid.


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_cells_are_those_of_frexp(number: float) -> None:
    mantissa, exponent = math.frexp(abs(number))
    place = ((exponent + 19) << 5) + math.floor(mantissa * 64) - 32
    side = (NUMBER_CELLS - 1) // 2
    place = min(place, side - 1) + 1 if abs(number) >= 2.0**-20 else 0
    cell = number_cells(np.array([number]))[0]
    assert cell == side + (-place if number < 0 else place)
    edges = number_edges()
    if abs(number) < 2.0**40:
        low, high = edges[cell], edges[cell + 1]
        assert (
            low <= number < high
            if number > 0
            else low < number <= high
            if number < 0
            else cell == side
        )


def test_edges_and_ends() -> None:
    edges = number_edges()
    assert len(edges) == NUMBER_CELLS + 1 == 3842
    assert np.all(np.diff(edges) > 0)
    ends = np.array([-1e300, -0.0, 5e-324, 1e300])
    assert number_cells(ends).tolist() == [0, 1920, 1920, 3840]
    days = date_cells(np.array([-1e6, -25_567.0, 0.99, 1e6]))
    assert days.tolist() == [0, 0, 25_567, DATE_CELLS - 1]
    assert date_edges()[[25_567, 25_568]].tolist() == [0, 1]


# Oracle 2: the noise of running sums, and how far a person moves them.


@pytest.mark.parametrize(
    ("cells", "rms", "most"), [(121, 2.324, 2.410), (1281, 3.062, 3.151), (3841, 3.407, 3.498)]
)
def test_errors_of_running_sums(cells: int, rms: float, most: float) -> None:
    errors = prefix_error(cells)
    assert [round(float(np.sqrt(np.mean(errors**2))), 3), round(errors.max(), 3)] == [rms, most]
    assert total_error(cells) == pytest.approx(errors[-1], rel=1e-9)
    # Columns of C / D have norm 1, and D C^-1 z is what is added.
    _, norms = _series(cells)
    root = np.cumprod(np.append(1.0, (2 * np.arange(1, cells) - 1) / (2 * np.arange(1, cells))))
    lengths = np.sqrt(np.cumsum(root**2))[::-1] / column_norms(cells)
    np.testing.assert_allclose(lengths, 1, atol=2e-12)
    noise = prefix_noise(cells, np.random.default_rng(1)) / norms
    np.testing.assert_allclose(
        fftconvolve(noise, root)[:cells], np.random.default_rng(1).standard_normal(cells), atol=1e-9
    )


def shaped(part: np.ndarray) -> np.ndarray:
    """``C D^-1 w``: what the noise of weights of ordered cells is independent on."""
    if not len(part):
        return part
    root = np.cumprod(
        np.append(1.0, (2 * np.arange(1, len(part)) - 1) / (2 * np.arange(1, len(part))))
    )
    return np.asarray(fftconvolve(part / column_norms(len(part)), root)[: len(part)])


def moved(one: Parts, other: Parts) -> float:
    """The distance of two columns' weights in standard deviations of noise at sigma 1."""
    texts = one.texts.keys() | other.texts.keys()
    square = sum((one.texts.get(t, 0.0) - other.texts.get(t, 0.0)) ** 2 for t in texts)
    square += (one.missing - other.missing) ** 2 + float(np.sum((one.values - other.values) ** 2))
    for a, b in ((one.numbers, other.numbers), (one.dates, other.dates)):
        square += float(np.sum(shaped(a - b) ** 2))
    return math.sqrt(square)


def test_weights_of_one_person_have_norm_1_at_most() -> None:
    rng = np.random.default_rng(2)
    columns = [column_norms(40)]
    root = np.cumprod(np.append(1.0, (2 * np.arange(1, 40) - 1) / (2 * np.arange(1, 40))))
    matrix = np.array([np.append(np.zeros(s), root[: 40 - s]) for s in range(40)]).T / columns[0]
    for spread in (0.01, 0.1, 1.0, 10.0):
        w = rng.dirichlet(np.full(80, spread), size=5000)
        # Two ordered parts, and cells with noise of their own that one of which is drawn.
        norms = np.linalg.norm(w[:, :40] @ matrix.T, axis=1) ** 2 + w[:, 40:].sum(axis=1) ** 2
        assert norms.max() <= 1 + 1e-12


CELLS = [7, 3.5, -2, "a", "b", "c", None, "2024-01-31", "2020-06-01"]


@pytest.mark.parametrize("rows", [1, 3, 50])
def test_a_person_moves_the_release_by_mu_at_most(rows: int) -> None:
    """Oracle 3: five columns at sigma 3 give sqrt(5)/3, reached by a person of one row."""
    rng = np.random.default_rng(rows)
    owners = np.repeat(np.arange(30), rng.integers(1, 5, 30))
    owners = np.append(owners, np.full(rows, 30))[rng.permutation(len(owners) + rows)]
    without = np.where(owners == 30, -1, owners)
    square = 0.0
    for column in range(5):
        cells = read_cells([CELLS[i] for i in rng.integers(0, len(CELLS), len(owners))])
        one, other = (
            weigh(cells, Owners(whose, len(cells)), np.random.default_rng(column))
            for whose in (owners, without)
        )
        square += moved(one, other) ** 2 / 3**2
    query = TableRelease(("a", "b", "c", "d", "e"), 3.0)
    mu = query.guarantee(adjacency="zero-out", unit="person", delta_hint=None).gaussian_mu
    assert mu == pytest.approx(0.745356, abs=1e-6)
    assert math.sqrt(square) <= mu
    if rows == 1:
        assert math.sqrt(square) == pytest.approx(mu)


def test_one_text_speaks_for_a_person() -> None:
    """Fifty texts that only one person has are one chance, with the weight of them all."""
    cells = read_cells([*(f"t{i}" for i in range(50)), 1.0, 2.0, None, "u", "u"])
    owners = np.array([0] * 53 + [1] * 2)
    named = set()
    for seed in range(200):
        parts = weigh(cells, Owners(owners, 55), np.random.default_rng(seed))
        (text,) = parts.texts.keys() - {"u"}
        assert parts.texts[text] == pytest.approx(50 / 53)
        assert parts.texts["u"] == 1
        assert [parts.numbers.sum(), parts.missing] == pytest.approx([2 / 53, 1 / 53])
        named.add(text)
    assert len(named) > 40
    # Nobody's rows count nothing, and whoever is first or last draws alike.
    assert weigh(cells, Owners(np.full(55, -1), 55), np.random.default_rng(0)).texts == {}


def test_weights_are_exact_in_any_order() -> None:
    rng = np.random.default_rng(3)
    owners = rng.integers(-1, 500, 3000)
    numbers = rng.choice([1.0, 2.0, 70.0, np.nan], 3000)
    order = rng.permutation(3000)
    one = weigh(read_cells(numbers), Owners(owners, 3000), rng)
    other = weigh(read_cells(numbers[order]), Owners(owners[order], 3000), rng)
    np.testing.assert_array_equal(one.numbers, other.numbers)
    assert one.missing == other.missing
    assert 499.99 < one.numbers.sum() + one.missing <= 500


# What leaves.


def table_of(rows: int, rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "town": rng.choice(["Aix", "Bern", "Como"], rows),
            "seen": pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), "D"),
            "note": [f"note {i}" for i in range(rows)],
            "ill": rng.choice(["no", "yes"], rows, p=[0.8, 0.2]),
        }
    )


def asked(table: Any, sigma: float, chance: float = 1e-6, **options: Any) -> TableAnswer:
    raw = RawTable(table)
    query = TableRelease(tuple(raw), sigma, chance)
    return run_table_release(
        query, raw, options.pop("owners", None), options.pop("key", KEY), **options
    )


def test_what_is_found() -> None:
    answer = asked(table_of(4000, np.random.default_rng(4)), 5.0, target="ill")
    assert [column.kind for column in answer.columns] == [
        "numbers",
        "text",
        "dates",
        "unknown",
        "text",
    ]
    assert [value for value, _ in answer["town"].values] == ["Aix", "Bern", "Como"]
    assert answer.persons == pytest.approx(4000, abs=30)
    assert answer["ill"].values[1][1] == pytest.approx(800, abs=80)
    again = TableAnswer.from_json(json.loads(json.dumps(answer.to_json())))
    assert again.to_json() == answer.to_json()
    np.testing.assert_array_equal(again["age"].counts, answer["age"].counts)
    for damage in ({"columns": 1}, {"columns": [{"name": "a", "kind": "b"}]}, {"sigma": None}):
        with pytest.raises(SordinoError):
            TableAnswer.from_json({**answer.to_json(), **damage})


def test_declared_values_need_no_threshold() -> None:
    frame = pd.DataFrame({"y": [0, 1, "1", True, None, 2], "x": 1.0})
    answer = asked(frame, 1e-9, 0.0, target="y", declared={"y": (0, 1, "rare")})
    assert [(v, round(w)) for v, w in answer["y"].values] == [(0, 1), (1, 3), ("rare", 0)]
    assert round(answer["y"].missing) == 1
    assert round(answer.persons) == 4
    assert asked(frame, 1e-9, 0.0, persons=6).persons == 6


def test_persons_and_not_rows_are_counted() -> None:
    rng = np.random.default_rng(5)
    frame = table_of(6000, rng)
    owners = rng.integers(-1, 700, 6000)
    answer = asked(frame, 2.0, target="ill", owners=owners)
    assert answer.persons == pytest.approx(700, abs=20)
    assert answer["age"].numbers == pytest.approx(700, abs=30)


def test_what_cannot_be_asked() -> None:
    frame = pd.DataFrame({"age": [1, 2]})
    with pytest.raises(SordinoError, match="no column 'agee'; did you mean 'age'"):
        run_table_release(TableRelease(("agee",), 1.0), RawTable(frame), None, KEY)
    with pytest.raises(SordinoError, match="target 'ill' is not among"):
        asked(frame, 1.0, target="ill")
    with pytest.raises(SordinoError, match="one owner for each row"):
        asked(frame, 1.0, owners=np.zeros(3, np.int64))
    with pytest.raises(SordinoError, match="nobody was counted"):
        asked(frame, 1.0).persons  # noqa: B018


def test_a_column_of_texts_nobody_shares_is_no_column_of_numbers() -> None:
    """Correction 15: nine tenths of noisy totals alone would call a quarter of them numeric."""
    frame = pd.DataFrame({"id": [f"p{i}" for i in range(2000)], "y": ["a"] * 2000})
    for seed in range(60):
        answer = asked(frame, 40.0, target="y", key=RunKey.from_insecure_seed(seed))
        assert answer["id"].kind == "unknown"


def test_types_are_decided_by_most_cells() -> None:
    """One odd cell turns no column into text; a third of them does."""
    ages: list[Any] = list(range(20, 70)) * 60
    frame = pd.DataFrame({"a": ages, "b": ages, "c": ages, "y": ["a"] * 3000}, dtype=object)
    frame.loc[0, "a"] = "?"
    frame.loc[:1000, "b"] = "?"
    frame.loc[:2600, "c"] = None
    answer = asked(frame, 8.0, target="y")
    assert [column.kind for column in answer.columns] == ["numbers", "text", "numbers", "text"]


def test_one_table_in_every_form_is_one_release(tmp_path: Path) -> None:
    """Oracle 12."""
    pytest.importorskip("pyarrow")
    frame = table_of(500, np.random.default_rng(6))
    frame["count"] = pd.array([None, *range(499)], "Int64")
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "b.csv", index=False, sep=";")
    frame.to_parquet(tmp_path / "c.parquet")
    frame.astype({"town": "category", "ill": "category"}).to_parquet(tmp_path / "d.parquet")
    forms = [read_raw(path) for path in sorted(tmp_path.iterdir())]
    forms += [
        frame,
        frame.astype("category"),
        frame.astype(object),
        frame.astype(object).to_numpy(),
    ]
    for form in forms:
        if isinstance(form, np.ndarray):
            form = pd.DataFrame(form, columns=frame.columns)
        answer = asked(form, 3.0, target="ill").to_json()
        assert answer == asked(frame, 3.0, target="ill").to_json()


WILD = st.sampled_from(
    [1, 2.5, "a", "b", None, np.nan, np.inf, 10**400, True, "2024-01-31", [1], "\ud800"]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(WILD, WILD), min_size=1, max_size=6), st.integers(0, 5))
def test_under_much_noise_a_table_is_as_good_as_empty(rows: list[Any], seed: int) -> None:
    """No error, warning, type or width speaks of a cell, and noise is that of its column and part."""
    key = RunKey.from_insecure_seed(seed)
    frame = pd.DataFrame({"x": [r[0] for r in rows], "y": [r[1] for r in rows]}, dtype=object)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = asked(frame, 1e30, target="y", key=key)
        empty = asked(frame.iloc[:0], 1e30, target="y", key=key)
    assert answer.to_json() == empty.to_json()


def test_noise_belongs_to_a_column_its_part_and_its_text() -> None:
    frame = table_of(300, np.random.default_rng(7))
    answer = asked(frame, 2.0, 0.01, target="ill")
    fewer = asked(frame[["town", "ill"]], 2.0, 0.01, target="ill")
    assert fewer["ill"].to_json() == answer["ill"].to_json()
    without = asked(frame[frame["town"] != "Aix"], 2.0, 0.01, target="ill")
    assert without["town"].values == answer["town"].values[1:]


def test_noise_of_texts_is_normal() -> None:
    drawn = _gaussians(KEY.derive("test"), [f"text {i}" for i in range(100_000)])
    assert kstest(drawn, "norm").pvalue > 0.01
    assert np.abs(drawn).max() < 6
    assert np.mean(drawn > 3) == pytest.approx(norm.sf(3), rel=0.2)
    assert len(_gaussians(KEY.derive("test"), [])) == 0


@pytest.mark.skipif(not ADULT.exists(), reason="needs the Adult table")
@pytest.mark.parametrize(
    ("column", "errors"), [("age", (0.027, 0.003)), ("hr_per_week", (0.021, 0.002))]
)
def test_rank_errors_of_running_sums(column: str, errors: tuple[float, float]) -> None:
    """Page 06, 3.2: the worst octile's rank, after isotonic regression, at mu .005 and .02 a column."""
    weights = np.bincount(
        number_cells(pd.read_csv(ADULT)[column].to_numpy(float)), minlength=NUMBER_CELLS
    )
    ranks = np.append(0, np.cumsum(weights)) / weights.sum()
    for mu, wanted in zip((0.005, 0.02), errors, strict=True):
        worst = []
        for seed in range(20):
            noise = prefix_noise(NUMBER_CELLS, np.random.default_rng(seed)) / mu
            sums = denoised(weights + noise)
            octiles = np.arange(1, 8) / 8
            cell = np.searchsorted(sums / sums[-1], octiles)
            beyond = np.maximum(ranks[cell - 1] - octiles, octiles - ranks[cell])
            worst.append(max(0.0, beyond.max()))
        assert np.mean(worst) == pytest.approx(wanted, abs=0.002)
