"""A fit on a raw table: what is not declared is found inside the budget; people held out score the model.

    plan      a release of what the table holds, training, an evaluation: one guarantee, one charge
    release   noisy numbers about the training persons' cells -> schema, classes, how many they are
    training  the settled plan (learning rate and divisor follow from the release) on the schema's features
    scores    noisy numbers about the held-out persons

Noise sizes, steps and the model's clip are decided before the first record is read; what follows from the
release is post-processing (papers/06, section 3.6). Nothing here raises or warns in view of one person.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError, require_fraction
from sordino._base.keys import RunKey
from sordino._base.types import Json
from sordino.engine import (
    HeldKey,
    LedgerAccount,
    Result,
    Source,
    hold_source,
    query_key,
    train,
)
from sordino.engine.ledger import Ledger
from sordino.models._cells import Cells, RawTable, read_cells
from sordino.models._checks import Features
from sordino.models._evaluation import EvaluationAnswer, held_out, run_evaluation
from sordino.models._found import ColumnFact, found_bounds, found_classes, found_schema, found_task
from sordino.models._inference import TAKE
from sordino.models._release import TableAnswer, run_table_release
from sordino.models._rows import RowPreparation
from sordino.models._schema import Categorical, Numeric, Schema, Value
from sordino.models._weights import bounded_weights, class_weights
from sordino.parts import LeastSquares, LinearLoss, Logistic, Softmax
from sordino.planning import Evaluation, Plan, Query, TableRelease
from sordino.privacy import mu_of_budget_beside, person_ids

PAY, REFUSE = "pay", "refuse"
UNDECLARED = ("auto", PAY, REFUSE, TAKE)
AUTO, CLASSES, REGRESSION = "auto", "classes", "regression"


@dataclass(frozen=True, eq=False, kw_only=True)
class TableFacts:
    """What is public about a table: declared, or a question of the release.

    Attributes:
      names: the feature columns.
      declared: descriptions of some of them.
      target: the target's name.
      classes, bounds: of the target, where declared.
      persons: how many there are, where declared; else their number stays private.
    """

    names: tuple[str, ...]
    declared: Mapping[str, Numeric | Categorical]
    target: str
    classes: tuple[Value, ...] | None = None
    bounds: tuple[float, float] | None = None
    persons: int | None = None
    balanced: bool = False
    task: str = CLASSES

    @property
    def asked(self) -> tuple[str, ...]:
        """The columns that the release is about, the target last.

        Where the task is not known, the target is asked for twice: as values, and as numbers.
        """
        columns = tuple(name for name in self.names if name not in self.declared)
        if not self.asks_target:
            return columns
        twice = (self.numbers,) if self.task == AUTO else ()
        return (*columns, self.target, *twice)

    @property
    def numbers(self) -> str:
        """The target as a column of numbers, where it is also asked for as values."""
        return f"{self.target} (as numbers)"

    @property
    def asks_target(self) -> bool:
        known = self.classes is not None or self.bounds is not None
        return not known or self.persons is None or self.balanced

    @property
    def may_hold_text(self) -> bool:
        """Whether the release may show a text that only one person has."""
        known = self.classes is not None or self.bounds is not None
        return bool(set(self.asked) - {self.target}) or not (known or self.task == REGRESSION)

    def missing(self) -> list[str]:
        """What is not declared, in words."""
        columns = [f"column {name!r}" for name in self.names if name not in self.declared]
        if self.classes is None and self.bounds is None:
            columns.append(f"the classes or bounds of the target {self.target!r}")
        if self.persons is None:
            columns.append("the number of rows, or of persons (examples=...)")
        return columns


@dataclass(frozen=True, eq=False)
class RawRecords:
    """The records of a fit, as they were given; AS SENSITIVE AS THE DATA.

    Attributes:
      features: the columns, read cell by cell.
      target: the cells of the target.
      ids: whose row it is, in one spelling; None where each row is a person.
      weights: of rows, 0 to 1; None where all are 1.
    """

    features: RawTable
    target: Cells
    ids: NDArray[np.object_] | None
    weights: NDArray[np.float64] | None = None

    @property
    def rows(self) -> int:
        return self.features.rows

    def take(self, chosen: NDArray[np.bool_]) -> RawRecords:
        """The rows where `chosen` is true."""
        return RawRecords(
            self.features.take(chosen),
            self.target.take(chosen),
            None if self.ids is None else self.ids[chosen],
            None if self.weights is None else self.weights[chosen],
        )

    @property
    def owners(self) -> NDArray[np.int64] | None:
        """The index of each row's person, -1 for rows of nobody."""
        if self.ids is None:
            return None
        import pandas as pd

        return np.asarray(pd.factorize(self.ids)[0], np.int64)

    def columns(self, facts: TableFacts) -> Mapping[str, Cells]:
        """The features, and the target as it is asked for."""
        known = facts.classes is not None or facts.task == REGRESSION
        target = self.target if known else self.target.as_values()
        return ChainMap({facts.target: target, facts.numbers: self.target}, self.features)  # type: ignore[arg-type]


def table_of(
    X: Features,
    y: ArrayLike,
    *,
    groups: ArrayLike | str | None,
    sample_weight: ArrayLike | None,
    weight_bound: float | None,
    decimal: str,
    date_formats: Mapping[str, str] | None,
    values: Mapping[str, Sequence[object]],
    classes: Sequence[object],
) -> RawRecords:
    """The records of a fit; a name in `groups` is a column of X, which is then no feature."""
    if hasattr(X, "toarray"):
        raise SordinoError(
            "sparse features are used as they are declared: give feature_bounds, classes and examples, or "
            "undeclared='take'"
        )
    if isinstance(groups, str):
        columns = getattr(X, "columns", None)
        if columns is None or groups not in columns:
            raise SordinoError(f"X has no column {groups!r} to tell persons by")
        X, groups = X.drop(columns=[groups]), X[groups]  # type: ignore[union-attr]
    features = RawTable(X, decimal=decimal, date_formats=date_formats, values=values)
    target = read_cells(y, decimal=decimal, values=tuple(classes))
    if len(target) != features.rows:
        raise SordinoError("X and y must have as many rows")
    ids = None if groups is None else person_ids(groups)
    if ids is not None and len(ids) != features.rows:
        raise SordinoError("there must be one id of a person for each row of X")
    weights = None
    if sample_weight is not None:
        weights = bounded_weights(sample_weight, weight_bound, features.rows)
    return RawRecords(features, target, ids, weights)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a fit is asked for beside its training."""

    epsilon: float
    delta: float
    adjacency: str
    share: float = 0.1
    evaluate: float = 0.0
    features: str = "auto"
    bins: int = 8

    def queries(
        self, facts: TableFacts, task: str
    ) -> tuple[TableRelease | None, Evaluation | None]:
        """The charged questions beside training."""
        release = evaluation = None
        if facts.asked:
            release = TableRelease.for_budget(
                facts.asked,
                self.epsilon,
                self.delta,
                require_fraction("preprocessing_share", self.share),
                self.adjacency,
                facts.may_hold_text,
            )
        if self.evaluate:
            evaluation = Evaluation.for_budget(
                task,
                self.epsilon,
                self.delta,
                require_fraction("evaluate", self.evaluate),
                self.adjacency,
            )
        return release, evaluation

    def mu_train(self, release: TableRelease | None) -> float:
        """mu that is left for training, if nothing is amplified."""
        lost = 0.0 if release is None else release.text_chance
        whole = mu_of_budget_beside(self.epsilon, self.delta, lost, self.adjacency)
        return whole * math.sqrt(1 - self.share if release is not None else 1.0)


@dataclass(frozen=True, eq=False)
class Found:
    """What a release showed, and what was declared: all that training may know of the table.

    Attributes:
      answer: the release's; None where everything was declared.
      task: "classes" or "regression".
      classes, counts: of the target, and how many persons are in each, where that is known.
      bounds: of a regression's target.
      persons: how many train.
    """

    answer: TableAnswer | None
    schema: Schema
    columns: tuple[ColumnFact, ...]
    task: str
    persons: int
    classes: tuple[Value, ...] | None = None
    counts: NDArray[np.float64] | None = None
    bounds: tuple[float, float] | None = None


def find(
    facts: TableFacts, asked: Asked, release: TableRelease | None, table: RawRecords, key: RunKey
) -> Found:
    """Ask the release, and make a schema of its answer; it settles the task "auto"."""
    trained, task = None, facts.task
    if facts.persons is not None:
        trained = max(1, round(facts.persons * (1 - asked.evaluate)))
    answer = None
    if release is not None:
        declared = {} if facts.classes is None else {facts.target: facts.classes}
        answer = run_table_release(
            release,
            table.columns(facts),
            table.owners,
            query_key(release, key),
            target=facts.target if facts.asks_target else None,
            declared=declared,
            persons=trained,
        )
    if task == AUTO:
        assert answer is not None
        task = found_task(answer[facts.target], answer[facts.numbers])
        if task == REGRESSION:
            answer = replace(answer, target=facts.numbers)
    classes, counts, bounds = facts.classes, None, facts.bounds
    if task == CLASSES:
        if answer is not None and facts.asks_target:
            found, counts = found_classes(answer)
            if classes is None:
                classes = found
            else:  # in their own order
                counts = np.array([weight for _, weight in answer[facts.target].values])
        bounds = None
    else:
        classes = None
        if bounds is None:
            assert answer is not None
            bounds = found_bounds(answer)
    persons = trained if trained is not None else max(1, round(answer.persons if answer else 1))
    public: Json = {"target": facts.target, "classes": classes, "target_bounds": bounds}
    formats = table.features.date_formats
    if answer is None or not set(facts.names) - set(facts.declared):
        schema = Schema(
            tuple(facts.declared[name] for name in facts.names),
            decimal=table.features.decimal,
            date_formats=tuple(sorted(formats.items())),
            by_cell=True,
            **public,
        )
        columns = [declared_fact(facts.declared[name]) for name in facts.names]
        return Found(answer, schema, tuple(columns), task, persons, classes, counts, bounds)
    schema, columns = found_schema(
        answer,
        facts.names,
        features=asked.features,
        bins=asked.bins,
        mu_train=asked.mu_train(release),
        declared=facts.declared,
        target=public,
        decimal=table.features.decimal,
        date_formats=formats,
    )
    return Found(answer, schema, tuple(columns), task, persons, classes, counts, bounds)


def declared_fact(column: Numeric | Categorical) -> ColumnFact:
    """What is said of a column whose description is public."""
    return ColumnFact(column.name, True, "its description is public", "declared", column.to_json())


def apart(table: RawRecords, key: RunKey, share: float) -> tuple[RawRecords, RawRecords | None]:
    """Who trains, and who is held out: whole persons, drawn from the key and their ids alone."""
    if not share:
        return table, None
    ids = None if table.ids is None else table.ids.tolist()
    out = held_out(key, ids, table.rows, share)
    return table.take(~out), table.take(out)


def evaluated(held: HeldOut, scores: NDArray[np.float64], found: Found) -> EvaluationAnswer:
    """The private scores of the released model."""
    target, own = held.table.target, query_key(held.query, held.key)
    if found.task == CLASSES:
        assert found.classes is not None
        return run_evaluation(
            held.query,
            target.positions(found.classes),
            scores,
            held.table.owners,
            own,
            classes=found.classes,
            majority=None if found.counts is None else int(np.argmax(found.counts)),
            unit=held.unit,
        )
    truth = np.full(held.table.rows, np.nan) if target.numbers is None else target.numbers
    return run_evaluation(
        held.query, truth, scores, held.table.owners, own, bounds=found.bounds, unit=held.unit
    )


def settled(
    plan: Plan,
    task: str,
    persons: int,
) -> Plan:
    """The plan once the release said how many train and what is predicted: with the same guarantee."""
    if not plan.population.is_declared:
        plan = plan.settled(persons)
    queries = tuple(
        replace(query, task=task) if isinstance(query, Evaluation) else query
        for query in plan.queries
    )
    built = replace(plan, queries=queries) if queries != plan.queries else plan
    built.verify()
    return built


@dataclass(frozen=True, eq=False)
class Run:
    """A fit on a raw table after its training: what the estimator keeps of it."""

    found: Found
    result: Result
    preparation: RowPreparation
    weights: Mapping[str, float] | None
    person_column: str | None


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Who is held out, for the evaluation of the model; AS SENSITIVE AS THE DATA."""

    table: RawRecords
    query: Evaluation
    key: RunKey
    unit: str


def losses_of(task: str, classes: int = 2) -> LinearLoss:
    """The loss of a task."""
    if task == REGRESSION:
        return LeastSquares()
    return Logistic() if classes == 2 else Softmax(classes)


def fit_table(
    table: RawRecords,
    facts: TableFacts,
    asked: Asked,
    *,
    plan_for: Callable[[str, int | None, Sequence[Query]], Plan],
    rate_for: Callable[[Plan, LinearLoss, int], float | None],
    key: HeldKey,
    source: Source,
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    class_weight: object = None,
    intercept: bool = True,
    unit: str,
    person_column: str | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    on_found: Callable[[Found, Plan], None] | None = None,
    **train_options: Any,
) -> tuple[Run, HeldOut | None]:
    """Release, training and what the evaluation needs, under one plan and one charge.

    Args:
      plan_for: the plan of a task, for so many declared persons (None: secret slots), beside these queries.
      rate_for: a settled plan's learning rate for rows of so many columns.
      source: what a ledger, and a run that goes on, know the table by.
      on_plan, on_found: told of the plan before any record is read, and of what was found once it is paid.
    """
    tasks = (CLASSES, REGRESSION) if facts.task == AUTO else (facts.task,)
    release, evaluation = asked.queries(facts, tasks[0])
    beside = [query for query in (release, evaluation) if query is not None]
    # Of a task that the release settles there are two plans. With secret batches their curves could cross,
    # and who sees the release before one is taken could have the worse of both (papers/06, section 3.6).
    persons = None if asked.evaluate or facts.task == AUTO else facts.persons
    plans = {each: plan_for(each, persons, beside) for each in tasks}
    if on_plan is not None:
        on_plan(plans[tasks[0]])
    source = replace(source, questions=_questions(table, facts, asked, class_weight, intercept))
    if beside:
        hold_source(key, source, train_options.get("checkpoint"))
    trained, held = apart(table, key.key, asked.evaluate)
    refusal: Exception | None = None
    try:
        found = find(facts, asked, release, trained, key.key)
        preparation = RowPreparation.for_schema(found.schema, intercept)
        of_classes = _weights_of(found, class_weight, release)
        rows, y, row_weights, total = _prepared(found, trained, preparation, of_classes)
        loss = losses_of(found.task, len(found.classes or (0, 1)))
        plan = settled(plans[found.task], found.task, max(1, round(total)))
        rate = rate_for(plan, loss, rows.shape[1])
        if rate is not None:
            plan = plan.with_update(learning_rate=rate)
        start = np.zeros(loss.parameter_shape(rows.shape[1]), np.float32)
    except Exception as error:
        refusal = error
    if refusal is not None:
        # What it says follows from the release, which is thereby out and has to be paid for. Where the
        # budget does not pay for it, nothing of it is said: no error is raised from another.
        account = None if release is None else LedgerAccount.of(ledger, dataset, source)
        if account is not None:
            dearest = max(plans.values(), key=lambda plan: plan.guarantee.mu)
            account.charge(dearest, key.key.identity, None)
            account.close(key.key.identity)
        raise refusal
    result = train(
        plan,
        loss,
        start,
        (rows, y),
        groups=trained.ids,
        row_weights=row_weights,
        elsewhere=tuple(query.name for query in beside),
        run_key=key,
        ledger=ledger,
        dataset=dataset,
        identified_by=source,
        **train_options,
    )
    if on_found is not None:
        on_found(found, plan)
    named = None
    if of_classes is not None and found.classes is not None:
        pairs = zip(found.classes, of_classes.tolist(), strict=True)
        named = {str(label): float(weight) for label, weight in pairs}
    run = Run(found, result, preparation, named, person_column)
    if held is None:
        return run, None
    # As the plan has it, now that the task is known.
    query = next(query for query in plan.queries if isinstance(query, Evaluation))
    return run, HeldOut(held, query, key.key, unit)


def _questions(
    table: RawRecords, facts: TableFacts, asked: Asked, class_weight: object, intercept: bool
) -> str:
    """All that decides, beside the table and the key, what a release and an evaluation answer."""
    read = (table.features.decimal, sorted(table.features.date_formats.items()))
    return repr((facts, asked, read, class_weight, intercept))


def _weights_of(
    found: Found, class_weight: object, release: TableRelease | None
) -> NDArray[np.float64] | None:
    if found.task != CLASSES or found.classes is None:
        return None
    sigma = 1.0 if release is None else release.sigma
    return class_weights(class_weight, found.classes, found.counts, sigma)


def _prepared(
    found: Found,
    table: RawRecords,
    preparation: RowPreparation,
    of_class: NDArray[np.float64] | None,
) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[np.float32] | None, float]:
    """Rows, targets, weights of rows, and by how much noisy sums of an epoch are divided.

    Rows without a target that can be used are zeros: they contribute nothing.
    """
    rows = preparation(table.features.frame)
    weights = table.weights
    total = float(found.persons)
    if found.task == CLASSES:
        assert found.classes is not None
        y: NDArray[Any] = table.target.positions(found.classes).astype(np.int32)
        usable = y >= 0
        y[~usable] = 0
        if of_class is not None:
            weights = of_class[y] if weights is None else weights * of_class[y]
            if found.counts is not None:
                total = float(of_class @ np.maximum(found.counts, 1.0))
    else:
        assert found.bounds is not None
        low, high = found.bounds
        numbers = table.target.numbers
        numbers = np.full(table.rows, np.nan) if numbers is None else numbers
        usable = ~np.isnan(numbers)
        middle, half = low / 2 + high / 2, high / 2 - low / 2
        with np.errstate(all="ignore"):
            scaled = (np.clip(np.nan_to_num(numbers, nan=middle), low, high) - middle) / half
        y = scaled.astype(np.float32)
    rows[~usable] = 0
    return rows, y, None if weights is None else weights.astype(np.float32), total
