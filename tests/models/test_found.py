"""What noisy weights of a table become: bins, kinds of columns, a schema, classes."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino._base.errors import SordinoError
from sordino.engine import RunKey
from sordino.models import Schema
from sordino.models._cells import RawTable, read_cells
from sordino.models._found import (
    bins_of,
    cut,
    found_bounds,
    found_classes,
    found_schema,
    found_task,
)
from sordino.models._kinds import (
    FoundCategorical,
    FoundDates,
    OneHotBins,
    Scaled,
    Spline,
    found_from_json,
)
from sordino.models._prefix import prefix_noise
from sordino.models._release import (
    NUMBER_CELLS,
    TableAnswer,
    number_cells,
    number_edges,
    run_table_release,
)
from sordino.models._rows import RowPreparation
from sordino.models._schema import Categorical, Numeric
from sordino.planning import TableRelease


def asked(frame: pd.DataFrame, target: str, sigma: float = 3.0, seed: int = 0) -> TableAnswer:
    query = TableRelease(tuple(frame.columns), sigma, 1e-6)
    key = RunKey.from_insecure_seed(seed)
    return run_table_release(query, RawTable(frame), None, key, target=target)


def patients(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    days = pd.to_timedelta(rng.integers(0, 700, rows), "D")
    frame = pd.DataFrame(
        {
            "patient_id": [f"P{i:05}" for i in range(rows)],
            "age": rng.normal(50, 15, rows).round(),
            "gain": np.where(rng.random(rows) < 0.91, 0, rng.integers(100, 50_000, rows)),
            "town": rng.choice(["Aix", "Bern", "Como", "rare"], rows, p=[0.5, 0.3, 0.195, 0.005]),
            "seen": pd.Timestamp("2019-03-01") + days,
            "ill": rng.choice(["no", "yes"], rows),
        },
        dtype=object,
    )
    frame.loc[::7, "age"] = None
    return frame


# Bins.


def test_bins_of_a_smooth_column_have_equal_weight() -> None:
    values = np.random.default_rng(1).lognormal(3, 1, 20_000)
    weights = np.bincount(number_cells(values), minlength=NUMBER_CELLS).astype(float)
    bins = cut(weights, number_edges(), 0.1, 8)
    assert len(bins.cuts) == 7
    held = np.histogram(values, [0, *bins.cuts, np.inf])[0]
    assert held.min() > 2000
    assert held.max() < 3000
    assert bins.low == pytest.approx(np.quantile(values, 1 / 200), rel=0.05)
    assert bins.high == pytest.approx(np.quantile(values, 1 - 1 / 200), rel=0.05)


def test_a_column_of_zeros_still_has_bins_in_its_tail() -> None:
    answer = asked(patients(20_000), "ill")
    bins = bins_of(answer, answer["gain"])
    assert bins.cuts[0] == 2.0**-20
    assert len(bins.cuts) >= 6
    assert bins.knots[0] == -(2.0**-20)
    assert bins.cuts[1] < 20_000 < bins.cuts[-1] < bins.high < 60_000


def test_columns_of_one_value_and_of_nothing() -> None:
    weights = np.zeros(NUMBER_CELLS)
    bins = cut(weights, number_edges(), 1.0, 8)
    assert bins.cuts == ()
    assert bins.knots == (-(2.0**40), 2.0**40)
    weights[number_cells(np.array([5.0]))] = 100.0
    bins = cut(weights, number_edges(), 1.0, 8)
    assert bins.cuts == ()
    assert bins.knots == (5.0, 5.125)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 3.0, 1e4, 1e30]), st.integers(2, 32))
def test_any_noise_makes_bins(seed: int, sigma: float, count: int) -> None:
    weights = np.random.default_rng(seed).normal(0, sigma, 300) + 10
    bins = cut(weights, np.arange(301.0) - 150, sigma, count)
    assert len(bins.cuts) <= 2 * count
    assert all(a < b for a, b in zip(bins.knots, bins.knots[1:], strict=False))
    assert len(Spline("x", bins.knots).feature_names) == len(bins.knots) + 1
    OneHotBins("x", bins.cuts), Scaled("x", bins.cuts)


# Kinds of columns.

COLUMN = [0, 1, -1, 2.5, 1000, -1e12, None, "text", "2024-01-31", np.inf]
NO_NUMBER = 4


def test_hat_functions() -> None:
    spline = Spline("x", (-1, 0, 2, 4))
    assert spline.feature_names == ("x~-1", "x~0", "x~2", "x~4", "x missing")
    encoded = spline.encode(read_cells(COLUMN))
    assert encoded.dtype == np.float32
    wanted = [
        [0, 1, 0, 0],
        [0, 0.5, 0.5, 0],
        [1, 0, 0, 0],
        [0, 0, 0.75, 0.25],
        [0, 0, 0, 1],
        [1, 0, 0, 0],
    ]
    np.testing.assert_array_equal(encoded[:-NO_NUMBER], [[*row, 0] for row in wanted])
    np.testing.assert_array_equal(encoded[-NO_NUMBER:], [[0, 0, 0, 0, 1]] * NO_NUMBER)


def test_bins_belong_to_the_side_of_zero() -> None:
    onehot = OneHotBins("x", (-1, 0.5, 1))
    assert onehot.feature_names == ("x=..-1", "x=-1..0.5", "x=0.5..1", "x=1..", "x missing")
    # -1 is in the cell below its edge, 1 in the one above.
    places = onehot.encode(read_cells([-2, -1, -0.99, 0.5, 1, None])).argmax(axis=1)
    assert places.tolist() == [0, 0, 1, 2, 3, 4]
    assert OneHotBins("x", ()).encode(read_cells([1, None])).tolist() == [[1, 0], [0, 1]]


def test_scaled_bins() -> None:
    scaled = Scaled("x", (-1, 0.5, 1))
    encoded = scaled.encode(read_cells([-2, 0, 1, None]))
    np.testing.assert_allclose(encoded, [[-1, 0], [-1 / 3, 0], [1, 0], [0, 1]], rtol=1e-6)
    assert Scaled("x", ()).encode(read_cells([3, None])).tolist() == [[0, 0], [0, 1]]


def test_dates_have_months_and_weekdays() -> None:
    dates = FoundDates(Spline("when", (0, 100), True))
    encoded = dates.encode(read_cells(["1970-01-01", "2024-02-29 23:59", "0001-01-01", "x"]))
    named = [
        [name for name, on in zip(dates.feature_names, row, strict=True) if on] for row in encoded
    ]
    assert named == [
        ["when~0", "when=Jan", "when=Thu"],
        ["when~100", "when=Feb", "when=Thu"],
        ["when~0", "when=Jan", "when=Mon"],
        ["when missing"],
    ]


def test_texts_that_were_not_found() -> None:
    found = FoundCategorical("town", ("Aix", "other"))
    assert found.feature_names == ("town=Aix", "town=other", "town other", "town missing")
    places = found.encode(read_cells(["Aix ", "other", "Bern", 7, "2024-01-31", None])).argmax(
        axis=1
    )
    assert places.tolist() == [0, 1, 2, 2, 2, 3]


KINDS: list[Any] = [
    Spline("x", (0.1, 2)),
    OneHotBins("x", ()),
    Scaled("x", (1,), True),
    FoundDates(OneHotBins("x", (1, 2), True)),
    FoundCategorical("x", ("a", "b")),
]


@pytest.mark.parametrize("column", KINDS)
def test_kinds_as_json(column: Any) -> None:
    assert found_from_json(json.loads(json.dumps(column.to_json()))) == column


@pytest.mark.parametrize("column", KINDS)
@settings(deadline=None)
@given(st.lists(st.sampled_from(COLUMN), max_size=5))
def test_features_have_one_type_and_width_for_any_cells(column: Any, cells: list[Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoded = column.encode(read_cells(cells))
    assert encoded.dtype == np.float32
    assert encoded.shape == (len(cells), len(column.feature_names))
    assert np.all(np.abs(encoded) <= 1)
    for row, cell in zip(encoded, cells, strict=True):
        np.testing.assert_array_equal(row, column.encode(read_cells([cell]))[0])


@pytest.mark.parametrize(
    "data",
    [
        {"name": "x", "kind": "else"},
        {"name": "x", "kind": "spline", "edges": [1]},
        {"name": "x", "kind": "spline", "edges": [1, 1]},
        {"name": "x", "kind": "bins", "edges": [1, float("nan")]},
        {"name": "x", "kind": "bins", "edges": "ab"},
        {"name": "x", "kind": "bins", "other": 1},
        {"name": "x", "kind": "text", "values": []},
        {"name": "x", "kind": "text", "values": ["a", "a"]},
        {"name": "x", "kind": "text", "values": [1]},
        {"name": "x", "kind": "dates"},
        {"name": "x", "kind": "dates", "days": 3},
        {"name": "x", "kind": "dates", "days": {"name": "x", "kind": "text", "values": ["a"]}},
        {"name": "x", "kind": ["spline"]},
    ],
)
def test_kinds_that_are_wrong(data: Any) -> None:
    with pytest.raises(SordinoError):
        found_from_json(data)


# Schemas.


def test_a_schema_of_what_was_found() -> None:
    frame = patients(6000)
    answer = asked(frame, "ill")
    names = [name for name in frame if name != "ill"]
    schema, facts = found_schema(answer, names, mu_train=0.25, target={"target": "ill"})
    kinds = [type(column) for column in schema.columns]
    assert kinds == [Spline, Spline, FoundCategorical, FoundDates]
    assert schema.columns[2].values[:3] == ("Aix", "Bern", "Como")
    assert [fact.used for fact in facts] == [False, True, True, True, True]
    assert facts[0].hint == "its name looks like that of an id"
    assert facts[0].why.startswith("no text reached the threshold")
    assert facts[1].to_json()["what"]["kind"] == "spline"
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again == schema
    assert schema.to_json()["version"] == 2
    assert schema.target == "ill"
    # A table to predict may lack the target, have other types, and hold anything.
    odd = pd.DataFrame({name: [None, "odd", 7] for name in names})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert schema.encode(odd).shape == (3, schema.width)
    as_text = frame[names].astype(str)
    np.testing.assert_array_equal(schema.encode(as_text), schema.encode(frame))


def test_declared_columns_stay_what_they_are() -> None:
    frame = patients(3000)
    declared = {"age": Numeric("age", 0, 100), "town": Categorical("town", ("Aix", "Bern", "NA"))}
    answer = asked(frame[["gain", "ill"]], "ill")
    schema, facts = found_schema(
        answer, ["age", "gain", "town"], declared=declared, features="onehot"
    )
    assert [fact.source for fact in facts] == ["declared", "found", "declared"]
    assert schema.columns[0] == declared["age"]
    assert schema.width == 1 + len(schema.columns[1].feature_names) + 3
    rows = pd.DataFrame(
        {"age": ["50", "x", True], "gain": [0, 1, None], "town": [" Aix", "NA", None]}, dtype=object
    )
    encoded = schema.encode(rows)
    np.testing.assert_allclose(encoded[:, 0], [0, 0, -0.98], atol=1e-6)
    assert encoded[:, -3:].tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 0]]
    only = Schema(tuple(declared.values()))
    assert only.to_json()["version"] == 1
    assert set(only.to_json()) == {
        *("format", "version", "columns", "target", "classes", "target_bounds", "examples")
    }


def test_few_features_where_there_is_little_signal() -> None:
    """Page 06, 4.4: linear below a signal of 60 for each column."""
    frame = patients(6000)
    answer = asked(frame, "ill")
    names = ["age", "gain", "town", "seen"]
    rich, _ = found_schema(answer, names, features="spline")
    edge = 60 * len(names) / answer.persons
    assert found_schema(answer, names, mu_train=edge * 1.001)[0] == rich
    few, _ = found_schema(answer, names, mu_train=edge * 0.999)
    assert [type(column) for column in few.columns] == [Scaled, Scaled, FoundCategorical, Scaled]
    with pytest.raises(SordinoError, match="needs mu_train"):
        found_schema(answer, names)
    with pytest.raises(SordinoError, match="no column that can be used"):
        found_schema(answer, ["patient_id"], features="spline")
    with pytest.raises(SordinoError, match="the release has no column 'agee'"):
        found_schema(answer, ["agee"], features="spline")


def test_rows_of_found_columns_have_length_1() -> None:
    frame = patients(2000)
    answer = asked(frame, "ill")
    schema, _ = found_schema(answer, ["age", "gain", "town"], features="spline")
    prepare = RowPreparation.for_schema(schema)
    assert (prepare.constant, prepare.own_norm) == (0.25, True)
    rows = prepare(frame)
    np.testing.assert_allclose(np.linalg.norm(rows.astype(float), axis=1), 1, atol=1e-6)
    encoded = schema.encode(frame)
    apart = encoded / np.linalg.norm(encoded, axis=1, keepdims=True)
    whole = np.column_stack([apart, np.full(len(apart), 0.25)])
    np.testing.assert_allclose(rows, whole / np.sqrt(17 / 16), atol=1e-6)
    bare = RowPreparation.for_schema(schema, intercept=False)(frame)
    np.testing.assert_allclose(bare, apart, atol=1e-6)
    declared = Schema((Numeric("age", 0, 100),))
    assert RowPreparation.for_schema(declared).constant == 1.0


def test_how_cells_are_read_is_kept() -> None:
    columns = (Scaled("when", (365.0,), True), Numeric("size", 0, 2))
    schema = Schema(columns, decimal=",", date_formats=(("when", "%d.%m.%Y"),))
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    rows = pd.DataFrame(
        {"when": ["31.12.1970", "1.1.1971", "1971-01-02"], "size": ["1,5", "2", "1.5"]}
    )
    np.testing.assert_allclose(schema.encode(rows), [[-1, 0, 0.5], [1, 0, 1], [0, 1, 0]])
    for damage in ({"decimal": "x"}, {"date_formats": [1]}, {"date_formats": {"a": 1}}):
        with pytest.raises(SordinoError):
            Schema.from_json({**schema.to_json(), **damage})


# The target.


def of_target(y: list[Any], seed: int = 0) -> TableAnswer:
    """The answer about a target whose task is not known: as values, and as numbers."""
    column = read_cells(y)
    table = {"y": column.as_values(), "y as numbers": column}
    query, key = TableRelease(tuple(table), 3.0, 1e-6), RunKey.from_insecure_seed(seed)
    return run_table_release(query, table, None, key, target="y")


def task_of(answer: TableAnswer) -> str:
    return found_task(answer["y"], answer["y as numbers"])


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["no", "yes"], ("no", "yes")),
        ([0, 1], (0, 1)),
        (["-1", "1"], (-1, 1)),
        ([1, 2, 3.0, 4, 5], (1, 2, 3, 4, 5)),
        ([0.5, 10, 2], (0.5, 2, 10)),
        ([1, "2 or more"], (1, "2 or more")),
        ([True, False], ("False", "True")),
    ],
)
def test_classes_of_the_target(values: list[Any], classes: tuple[Any, ...]) -> None:
    rng = np.random.default_rng(2)
    y = [values[i] for i in rng.integers(0, len(values), 3000)]
    for seed in range(5):
        answer = of_target(y, seed)
        assert task_of(answer) == "classes"
        found, counts = found_classes(answer)
        assert found == classes
        np.testing.assert_allclose(counts, 3000 / len(classes), rtol=0.15)


def test_bounds_of_the_target() -> None:
    y = np.random.default_rng(3).normal(100, 10, 5000)
    answer = of_target(y.tolist())
    assert task_of(answer) == "regression"
    low, high = found_bounds(replace(answer, target="y as numbers"))
    np.testing.assert_allclose([low, high], np.quantile(y, [1 / 200, 199 / 200]), rtol=0.25)
    # No value of a continuous target is frequent: as values there is nothing.
    with pytest.raises(SordinoError, match="neither numbers nor a text"):
        found_classes(answer)
    whole = of_target(np.random.default_rng(3).integers(0, 3000, 50_000).tolist())
    assert task_of(whole) == "regression"


@pytest.mark.parametrize(("rows", "sigma"), [(5000, 10.0), (1000, 30.0), (1000, 45.0)])
def test_bounds_of_the_target_are_never_far_off(rows: int, sigma: float) -> None:
    """Where nobody is any more, running sums still wander, and must not look like people."""
    y = np.random.default_rng(4).normal(100, 10, rows)
    weights = np.bincount(number_cells(y), minlength=NUMBER_CELLS)
    for seed in range(60):
        noise = prefix_noise(NUMBER_CELLS, np.random.default_rng(seed))
        bins = cut(weights + sigma * noise, number_edges(), sigma, 8)
        assert 50 < bins.low < 110
        assert 90 < bins.high < 200


def test_targets_that_show_nothing() -> None:
    answer = of_target([f"t{i}" for i in range(100)])
    assert task_of(answer) == "classes"
    for find in (found_classes, found_bounds):
        with pytest.raises(SordinoError, match="neither numbers nor a text"):
            find(answer)
    text = of_target(["a", "b"] * 500)
    with pytest.raises(SordinoError, match="no column of numbers"):
        found_bounds(text)
    with pytest.raises(SordinoError, match="fewer than two classes"):
        found_classes(of_target(["a"] * 500))
