"""``sordino train`` on a raw table: what nobody declared is found inside the budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from sordino._base.errors import SordinoError
from sordino._base.types import Json
from sordino.app.cli._console import new_table, out, say, show_plan
from sordino.app.cli._raw_options import check_column
from sordino.engine import Source
from sordino.models import (
    CLASSES,
    REGRESSION,
    Found,
    PrivateClassifier,
    PrivateRegressor,
    Schema,
    read_cells,
)
from sordino.planning import Plan
from sordino.privacy import person_ids
from sordino.report import COVERED, NO_PRIVATE_DATA, Measured, ScoreTable

if TYPE_CHECKING:
    import pandas as pd

TASKS = {"auto": "auto", "classification": CLASSES, "regression": REGRESSION}
# Columns that are shown one by one.
_MOST_SHOWN = 40


class _Shown:
    """Shows the plan before a record is read, and what was found once it is paid for."""

    source: Source | None = None

    def _on_plan(self, built: Plan) -> None:
        show_plan(built)

    def _table_source(self, *_: object) -> Source:
        # All of a file is the data set, whatever is left out of it here.
        assert self.source is not None
        return self.source

    def _on_found(self, found: Found, built: Plan) -> None:
        show_found(found, built)


class _RawClassifier(_Shown, PrivateClassifier):
    pass


class _RawRegressor(_Shown, PrivateRegressor):
    pass


def fit_raw(
    task: str,
    frame: pd.DataFrame,
    target: str,
    schema: Schema | None,
    settings: Json,
    *,
    class_weight: str | None = None,
    person_column: str | None = None,
    file: pd.DataFrame | None = None,
) -> PrivateClassifier | PrivateRegressor:
    """A fitted estimator; for the task "auto" the release says which.

    `file` is the whole table, which a ledger knows the data set by, where `frame` is without some columns.
    """
    X, y = frame.drop(columns=[target]), frame[target]
    classes = None if schema is None else schema.classes
    bounds = None if schema is None else schema.target_bounds
    kind = TASKS[task]
    if kind == "auto" and (classes is not None or bounds is not None):
        kind = CLASSES if classes is not None else REGRESSION
    if kind == "auto" and class_weight is not None:
        kind = CLASSES
    weights = class_weight if kind == CLASSES else None
    classifier = _RawClassifier(classes=classes, class_weight=weights, verbose=1, **settings)
    regressor = _RawRegressor(target_bounds=bounds, verbose=1, **settings)
    asker = regressor if kind == REGRESSION else classifier
    whole = frame if file is None else file
    asker.source = Source(
        whole,
        rows=None if person_column is not None or schema is None else schema.examples,
        units=whole.drop(columns=[target]),
        persons=None if person_column is None else person_ids(whole[person_column]),
    )
    made = asker._table_run(
        X,
        y,
        person_column,
        None,
        task=kind,
        classes=classes if kind != REGRESSION else None,
        bounds=bounds if kind != CLASSES else None,
        class_weight=weights,
    )
    if made is None:
        raise SordinoError("this table is fully declared; leave --undeclared out")
    model = classifier if made[0].found.task == CLASSES else regressor
    asker.source = None  # it is the data
    model._keep_table(*made, y)
    model.target_ = target
    return model


def show_found(found: Found, built: Plan) -> None:
    """What the release found, what it cost, and what declaring it would save."""
    table = new_table()
    table.add_column("column", overflow="fold")
    table.add_column("used as", overflow="fold")
    for fact in found.columns[:_MOST_SHOWN]:
        table.add_row(fact.name, fact.text)
    if found.classes is not None:
        say(f"predicting: {', '.join(str(label) for label in found.classes[:20])}")
    out().print(table)
    if len(found.columns) > _MOST_SHOWN:
        say(
            f"... and {len(found.columns) - _MOST_SHOWN:,} more columns; guarantee.json has all of them"
        )
    hints = [f"{fact.name}: {fact.hint}" for fact in found.columns if fact.hint and fact.used]
    for hint in hints:
        say(f"hint: {hint}; leave it out with --drop")
    asked = [query for query in built.others if query.kind == "table-release"]
    if asked:
        stated = built.guarantee
        own = asked[0].guarantee(adjacency=stated.adjacency, unit=stated.unit, delta_hint=None).mu
        whole = math.hypot(
            own,
            built.training.guarantee(
                adjacency=stated.adjacency, unit=stated.unit, delta_hint=None
            ).mu,
        )
        share = (own / whole) ** 2
        say(
            f"Finding this took {share:.0%} of the budget. With everything declared (--schema) training "
            f"would have {1 - math.sqrt(1 - share):.0%} less noise."
        )


def score_raw(
    model: PrivateClassifier | PrivateRegressor, test: pd.DataFrame, target: str, decimal: str
) -> ScoreTable:
    """The private model beside a constant answer, on a test table that is public."""
    check_column(test, target)
    at = model.guarantee_.delta_hint
    assert at is not None
    name = f"private, epsilon {model.guarantee_.epsilon(at):.4g}"
    truth, made = read_cells(test[target], decimal=decimal), model.predict(test)
    if isinstance(model, PrivateClassifier):
        classes = model.table_run_.found.classes or ()
        codes = truth.positions(classes)
        place = {label: at for at, label in enumerate(model.classes_.tolist())}
        guessed = np.array([place[label] for label in made.tolist()], np.int64)
        known = codes >= 0
        if not known.any():
            raise SordinoError("the test file has no row whose class is known")
        right = float(np.mean(guessed[known] == codes[known]))
        most = float(np.bincount(codes[known]).max() / known.sum())
        rows = (
            Measured(name, right, COVERED, model.plan_.recipe),
            Measured(
                "majority class", most, NO_PRIVATE_DATA, "always the test rows' most frequent class"
            ),
        )
        return ScoreTable("accuracy", rows, int(known.sum()))
    numbers = truth.numbers
    there = np.zeros(len(truth), bool) if numbers is None else ~np.isnan(numbers)
    if numbers is None or not there.any():
        raise SordinoError("the test file has no row whose target is a number")
    error = float(np.sqrt(np.mean((made[there] - numbers[there]) ** 2)))
    spread = float(np.std(numbers[there]))
    rows = (
        Measured(name, error, COVERED, model.plan_.recipe),
        Measured("constant", spread, NO_PRIVATE_DATA, "always the test rows' mean"),
    )
    return ScoreTable("root mean squared error", rows, int(there.sum()))


def people_note(person_column: str | None, power: float) -> list[str]:
    """What the report says about persons."""
    if person_column is None:
        return []
    return [
        f"The guarantee protects a person with all of their rows (column {person_column!r}). The rows of a "
        f"person are added up, times their number to the power of -{power:g}, and clipped once."
    ]
