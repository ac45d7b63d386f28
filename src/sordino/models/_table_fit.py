"""Estimators on raw tables: what is not declared is found inside the budget (see `_private_fit.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError, nearest, require_choice, require_count
from sordino._base.types import Json
from sordino.engine import HeldKey, Source, compilation_cache
from sordino.engine.ledger import cell_words
from sordino.models._checks import Features
from sordino.models._defaults import STEPS_PER_EPOCH, choose_learning_rate, choose_settings
from sordino.models._found import FEATURES
from sordino.models._inference import TAKE, by_name, declared_columns
from sordino.models._linear import PrivateLinear, note_fit, refuse_folds, seed_of
from sordino.models._private_fit import (
    REFUSE,
    UNDECLARED,
    Asked,
    Found,
    HeldOut,
    Run,
    TableFacts,
    evaluated,
    fit_table,
    losses_of,
    table_of,
)
from sordino.models._schema import Value
from sordino.models._weights import class_weights
from sordino.parts import LinearLoss
from sordino.planning import Plan, Query
from sordino.planning.recipes import recipe_named
from sordino.privacy import ADJACENCIES, FIT, ROW, Adjacency, Unit, require_one_row

if TYPE_CHECKING:
    import pandas as pd

# Fitted attributes that other fits do not have.
_OF_TABLES = ("columns_", "table_run_", "evaluation_")


@dataclass(eq=False, repr=False)
class TableLinear(PrivateLinear):
    """`PrivateLinear` that also fits raw tables; subclasses say what is predicted."""

    def _pays(self, X: Features, *, special: bool = False) -> bool:
        """Whether what is not declared is found inside the budget; else it is taken from the data.

        `special`: whether something is asked for that only raw tables' fits have.
        """
        require_choice("undeclared", self.undeclared, UNDECLARED)
        if self.undeclared != "auto":
            return self.undeclared != TAKE
        return special or (hasattr(X, "columns") and hasattr(X, "iloc"))

    def _fit_table(
        self,
        X: Features,
        y: ArrayLike,
        groups: ArrayLike | str | None,
        sample_weight: ArrayLike | None,
        **about: Any,
    ) -> bool:
        """Fit on a raw table, where that is asked for; False where all is declared, and nobody held out.

        `about` is what `_table_run` takes besides.
        """
        for name in _OF_TABLES:
            self.__dict__.pop(name, None)  # of an earlier fit
        made = self._table_run(X, y, groups, sample_weight, **about)
        if made is not None:
            self._keep_table(*made, y)
        return made is not None

    def _table_run(
        self,
        X: Features,
        y: ArrayLike,
        groups: ArrayLike | str | None,
        sample_weight: ArrayLike | None,
        *,
        task: str,
        classes: tuple[Value, ...] | None = None,
        bounds: tuple[float, float] | None = None,
        class_weight: object = None,
        public: object = None,
    ) -> tuple[Run, HeldOut | None] | None:
        """The run on a raw table; None where none is asked for."""
        personal = groups is not None and not self.one_row_per_person
        special = personal or sample_weight is not None or class_weight is not None
        if not self._pays(X, special=special or bool(self.evaluate)):
            if special:
                raise SordinoError(
                    "groups, sample_weight and class_weight go with undeclared='pay'; what is declared "
                    "costs nothing there"
                )
            if self.evaluate:
                raise SordinoError(
                    "evaluate holds people out inside the budget, which goes with undeclared='pay'"
                )
            return None
        if y is None:
            raise SordinoError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        values = by_name("categories", self.categories)
        table = table_of(
            X,
            y,
            groups=groups,
            sample_weight=sample_weight,
            weight_bound=self.weight_bound,
            decimal=self.decimal,
            date_formats=self.date_formats,
            values=values,
            classes=classes or (),
        )
        names = tuple(str(name) for name in table.features.frame.columns)
        target = str(getattr(y, "name", None) or "target")
        facts = TableFacts(
            names=names,
            declared=declared_columns(names, self.feature_bounds, self.categories),
            target=f"{target} (target)" if target in names else target,
            classes=classes,
            bounds=bounds,
            persons=None if self.examples is None else require_count("examples", self.examples),
            balanced=class_weight == "balanced",
            task=task,
        )
        missing = facts.missing()
        if not (missing or self.evaluate or special):
            return None
        self._check_asked(names, class_weight, classes, public)
        if missing and self.undeclared == REFUSE:
            raise SordinoError(
                f"not declared: {'; '.join(missing)}; declare them, or use undeclared='pay'"
            )
        if self.noise != "gaussian":
            raise SordinoError(
                "discrete noise is for tables with everything declared and evaluate=0; declare what is "
                f"missing ({'; '.join(missing) or 'the evaluation'}), or use noise='gaussian'"
            )
        refuse_folds(self.ledger, self.parts)
        unit = self._unit(groups)
        if table.ids is None or self.one_row_per_person:
            stated = bool(self.one_row_per_person)
            require_one_row(unit, stated=stated, person_ids=table.ids, rows=table.rows)
        open_count = bool(self.evaluate) or facts.persons is None
        adjacency = self.adjacency or (
            Adjacency.ADD_REMOVE.value if open_count else Adjacency.ZERO_OUT.value
        )
        asked = Asked(
            epsilon=self.epsilon,
            delta=self._delta(facts.persons),
            adjacency=str(require_choice("adjacency", adjacency, ADJACENCIES)),
            share=self.preprocessing_share,
            evaluate=self.evaluate,
            features=self.features,
            bins=self.bins,
        )
        seed = seed_of(self.random_state)
        if seed is not None and self.run_key is not None:
            raise SordinoError("give random_state or run_key, not both")
        key = HeldKey.of(self.checkpoint, self.run_key, seed)
        if self.ledger is None:
            note_fit(hashed_rows(table.features.frame), stacklevel=4)
        self._warn([], seeded=seed is not None, stacklevel=4)
        about: Json = {"adjacency": asked.adjacency, "unit": unit, "delta": asked.delta}
        with compilation_cache():
            return fit_table(
                table,
                facts,
                asked,
                plan_for=partial(self._open_plan, **about),
                rate_for=self._rate,
                key=key,
                source=self._table_source(
                    X,
                    y,
                    groups,
                    sample_weight,
                    facts.persons if table.ids is None else None,
                    None if table.ids is None else table.ids.tolist(),
                ),
                class_weight=class_weight,
                intercept=bool(self.fit_intercept),
                unit=unit,
                person_column=_column_of(groups),
                on_plan=self._on_plan,
                on_found=self._on_found,
                person_power=self.person_power,
                progress=bool(self.verbose),
                checkpoint=self.checkpoint,
                ledger=self.ledger,
                dataset=self.dataset,
                one_row_per_person=bool(self.one_row_per_person) or unit == ROW,
            )

    def _check_asked(
        self,
        names: Sequence[str],
        class_weight: object,
        classes: tuple[Value, ...] | None,
        public: object,
    ) -> None:
        """Refuse now what would be refused once the release is paid for."""
        if public is not None:
            raise SordinoError(
                "public= is for fits with everything declared; use evaluate=0.1 to score this model on "
                "people held out, or score it on the public data afterwards"
            )
        require_choice("features", self.features, FEATURES)
        require_count("bins", self.bins, minimum=2)
        for name in by_name("date_formats", self.date_formats):
            if name not in names:
                raise SordinoError(
                    f"date_formats describe {name!r}, which is no column of X{nearest(str(name), names)}"
                )
        if class_weight is not None:
            known = tuple(class_weight) if isinstance(class_weight, Mapping) else ()
            known = known if classes is None else classes
            class_weights(class_weight, known or (0, 1), np.ones(len(known or (0, 1))), 1.0)

    def _keep_table(self, run: Run, held: HeldOut | None, y: ArrayLike) -> None:
        """The fitted attributes that a raw table's fit has."""
        result, prepare = run.result, run.preparation
        assert prepare.schema is not None
        names = [fact.name for fact in run.found.columns]
        self.n_features_in_, self.feature_names_in_ = len(names), np.array(names, dtype=object)
        self._preparation, self.schema_, self.columns_ = prepare, prepare.schema, run.found.columns
        self.table_run_ = run
        self.plan_ = result.plan
        self.guarantee_ = replace(result.guarantee, scope=FIT, insecure=result.insecure)
        self.history_ = result.history
        self.result_ = replace(result, guarantee=self.guarantee_)
        self.coef_, self.intercept_ = prepare.to_features(result.params, len(names))
        self._keep_target(run.found, y)
        if held is not None:
            scores = self._scores(held.table.features.frame)
            self.evaluation_ = evaluated(held, scores, run.found).metrics()

    def _unit(self, groups: object) -> str:
        """Whose data is protected: where there are ids, whole persons."""
        personal = groups is not None and self.unit == ROW
        return Unit.PERSON.value if personal else self.unit

    def _open_plan(
        self, task: str, persons: int | None, beside: Sequence[Query], **about: Any
    ) -> Plan:
        """The plan of a raw table's fit; its learning rate is chosen after the release."""
        asked, loss = self._asked(), losses_of(task)
        settings = choose_settings(
            loss,
            examples=persons or STEPS_PER_EPOCH,
            recipe=self._recipe(),
            epochs=self.epochs,
            batch_size=self.batch_size,
            clip=asked.get("clip"),
            momentum=asked.get("momentum"),
        )
        built = self._planned(persons, settings, asked, beside=beside, **about)
        if "learning_rate" not in recipe_named(settings.recipe).option_names():
            return built
        return built.with_update(momentum=settings.momentum)

    def _rate(self, built: Plan, loss: LinearLoss, columns: int) -> float | None:
        """The learning rate for rows of so many columns; None where the recipe has none."""
        if "learning_rate" not in recipe_named(built.recipe).option_names():
            return None
        rate = self._asked().get("learning_rate")
        return choose_learning_rate(built, loss, columns) if rate is None else float(rate)

    def _table_source(
        self,
        X: Features,
        y: ArrayLike,
        groups: object,
        weights: object,
        rows: int | None,
        persons: Sequence[str | None] | None,
    ) -> Source:
        """What a ledger, and a run that goes on, know a raw table by; `rows` only where they are public."""
        more = tuple(
            part for part in (groups, weights) if part is not None and not isinstance(part, str)
        )
        return Source(
            (X, y, *more),
            also=(X,),
            rows=rows,
            pins=False,
            units=X,
            persons=persons,
            parts=self.parts,
        )

    def _on_plan(self, built: Plan) -> None:
        """Told of a raw table's plan before any record is read."""

    def _on_found(self, found: Found, built: Plan) -> None:
        """Told of what a release found, once it is paid for."""

    def _keep_target(self, found: Found, y: ArrayLike) -> None:
        """The fitted attributes that say what is predicted."""
        raise NotImplementedError

    def _scores(self, X: Features) -> NDArray[np.float64]:
        """What an evaluation compares with the truth."""
        raise NotImplementedError


def hashed_rows(frame: pd.DataFrame) -> NDArray[np.float32]:
    """Numbers that stand for each row, to notice rows that come again; no cell is an error."""
    blocks = [words.view(np.float32) for words in cell_words(frame)]
    return np.concatenate(blocks) if blocks else np.zeros((0, 2), np.float32)


def _column_of(groups: object) -> str | None:
    """The name of the column that persons are told by."""
    if groups is None:
        return None
    return groups if isinstance(groups, str) else str(getattr(groups, "name", None) or "groups")
