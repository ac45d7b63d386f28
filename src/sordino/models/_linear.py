"""What the private classifier and regressor share: rows, plan, training, the decision."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import (
    _num_samples,
    check_is_fitted,
    validate_data,
)

from sordino._base.errors import PrivacyWarning, SordinoError, require_count, shown
from sordino._base.keys import RunKey
from sordino.engine import Source, compilation_cache, train
from sordino.models._checks import check_lengths, checked_numbers
from sordino.models._defaults import (
    AUTO,
    AVERAGE,
    Settings,
    choose_learning_rate,
    choose_settings,
    wants_more_epochs,
)
from sordino.models._fits import note_fit, refuse_folds, source_of
from sordino.models._inference import is_table, public_bounds, table_schema
from sordino.models._rows import RowPreparation, blocks
from sordino.parts import LinearLoss
from sordino.planning import Plan, plan
from sordino.planning.recipes import recipe_named
from sordino.privacy import FIT, require_one_row

# Without a delta: one tenth of the chance that publishing one random row in full would take.
DELTA_TIMES_ROWS = 0.1
# The default of a parameter that has another name now.
DEPRECATED = "deprecated"


@dataclass(frozen=True)
class Inspected:
    """The data of a fit once all of it that can be refused was refused.

    Attributes:
      X: the checked features.
      y: what the loss takes: codes of classes, or scaled targets.
      prepare: how rows are made of X.
      undeclared: what was taken from the data, in words.
      targets: y as it was given, checked, of shape (rows,).
      values: the classes, or the smallest and the largest target.
    """

    X: Any
    y: NDArray[Any]
    loss: LinearLoss
    prepare: RowPreparation
    undeclared: list[str]
    targets: NDArray[Any]
    values: Any


@dataclass(eq=False, repr=False)
class PrivateLinear(BaseEstimator):  # type: ignore[misc]
    """The parameters that both estimators have, and what they do with them.

    Their meaning and the attributes are those of `PrivateClassifier`. `dataclass` writes an `__init__`
    that stores each parameter and does nothing else, as scikit-learn wants it. Subclasses add their own
    parameters, `fit` and `_inspect`.
    """

    epsilon: float = 1.0
    delta: float | None = None
    _: KW_ONLY
    recipe: str = AUTO
    adjacency: str | None = None
    unit: str = "example"
    one_row_per_person: bool = False
    feature_bounds: Any = None
    categories: Any = None
    examples: int | None = None
    epochs: float | None = None
    batch_size: int | None = None
    clip: float | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    options: Mapping[str, Any] | None = None
    fit_intercept: bool = True
    random_state: Any = None
    run_key: RunKey | None = None
    noise: str = "gaussian"
    checkpoint: str | None = None
    ledger: Any = None
    dataset: str | None = None
    verbose: int = 0
    method: str = DEPRECATED

    def _describe(
        self, X: Any, y: Any, groups: Any = None
    ) -> tuple[Any, RowPreparation, list[str]]:
        """`X` checked, how its rows are prepared, and what was taken from the data for it."""
        refuse_folds(self.ledger)
        undeclared: list[str] = []
        if y is None:
            raise SordinoError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        if is_table(X, self.feature_bounds, self.categories):
            validate_data(self, X, skip_check_array=True)
            schema, taken = table_schema(X, self.feature_bounds, self.categories)
            undeclared += taken
            prepare = RowPreparation(schema, intercept=bool(self.fit_intercept))
        else:
            X = self._checked(X, reset=True)
            bounds = public_bounds(self.feature_bounds, X.shape[1])
            prepare = RowPreparation.for_array(bounds, bool(self.fit_intercept))
        check_lengths(X, y)
        require_one_row(
            self.unit, stated=bool(self.one_row_per_person), person_ids=groups, rows=_num_samples(X)
        )
        if self.examples is None:
            undeclared.append("the number of rows (examples=...)")
        elif require_count("examples", self.examples) != _num_samples(X):
            raise SordinoError(
                f"examples declares {self.examples:,} rows but X has {_num_samples(X):,}; they "
                "must be equal"
            )
        return X, prepare, undeclared

    def _checked(self, X: Any, *, reset: bool) -> Any:
        return checked_numbers(
            lambda: validate_data(
                self, X, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32]
            ),
            "X",
        )

    def _inspect(self, X: Any, y: Any, groups: Any = None) -> Inspected:
        """The data of a fit, refused here where it can be refused at all."""
        raise NotImplementedError

    def _plan(self, examples: int, loss: LinearLoss) -> Plan:
        """The private run, from public quantities only."""
        asked = self._asked()
        settings = choose_settings(
            loss,
            examples=examples,
            recipe=self._recipe(),
            adjacency=self.adjacency,
            epochs=self.epochs,
            batch_size=self.batch_size,
            clip=asked.get("clip"),
            momentum=asked.get("momentum"),
        )
        built = self._planned(examples, settings, asked)
        if self.epochs is None and wants_more_epochs(built, settings, loss):
            twice = replace(settings, epochs=2 * settings.epochs)
            built = self._planned(examples, twice, asked)
        if "learning_rate" not in recipe_named(settings.recipe).option_names():
            return built
        rate = asked.get("learning_rate")
        return built.with_update(
            learning_rate=choose_learning_rate(built, loss) if rate is None else rate,
            # Also where it has no effect: plans keep the hash that they had up to 0.5.
            momentum=settings.momentum,
        )

    def _planned(self, examples: int, settings: Settings, asked: Mapping[str, Any]) -> Plan:
        """The run with these settings; its learning rate is not chosen yet, unless it was asked for."""
        recipe = recipe_named(settings.recipe)
        wanted: dict[str, Any] = {"clip": settings.clip, "momentum": settings.momentum}
        if recipe.resolve(asked)["output"] == "last":
            wanted["average"] = AVERAGE
        return plan(
            settings.recipe,
            examples=examples,
            batch_size=settings.batch_size,
            epochs=settings.epochs,
            epsilon=self.epsilon,
            delta=DELTA_TIMES_ROWS / examples if self.delta is None else self.delta,
            adjacency=self.adjacency,
            unit=self.unit,
            noise=self.noise,
            **recipe.useful(wanted, asked),
            **asked,
        )

    def _asked(self) -> dict[str, Any]:
        """The recipe's options that were given, as parameters or in `options`."""
        own = {
            "clip": self.clip,
            "learning_rate": self.learning_rate,
            "momentum": self.momentum,
        }
        own = {name: value for name, value in own.items() if value is not None}
        more = {} if self.options is None else self.options
        if not isinstance(more, Mapping):
            raise SordinoError(f"options is a dict of the recipe's options, got {shown(more)}")
        for name in own:
            if name in more:
                raise SordinoError(f"{name} is given twice, as a parameter and in options")
        return {**own, **more}

    def _recipe(self) -> str:
        """The recipe's name; up to 0.5 the parameter was called `method`."""
        if self.method == DEPRECATED:
            return self.recipe
        if self.recipe != AUTO:
            raise SordinoError("give recipe only; method is its old name")
        warnings.warn(
            "method is called recipe since 0.6, and will be gone in 0.7",
            FutureWarning,
            stacklevel=2,
        )
        return self.method

    def _source(self, X: Any, y: Any) -> Source:
        """What a ledger knows the data by."""
        return source_of(X, y, rows=_num_samples(X), stated=self.examples is not None)

    def _train(
        self,
        data: Inspected,
        evaluate: Callable[[Any], Mapping[str, float]] | None,
    ) -> None:
        """Train as planned and set the fitted attributes that both estimators have."""
        loss, prepare, y = data.loss, data.prepare, data.y
        seed = _seed(self.random_state)
        if seed is not None and self.run_key is not None:
            raise SordinoError("give random_state or run_key, not both")
        with compilation_cache():
            built = self._plan(len(y), loss)
        rows = prepare(data.X)
        self._warn(data.undeclared, seeded=seed is not None, stacklevel=4)
        if self.ledger is None:
            note_fit(rows, stacklevel=3)
        with compilation_cache():
            result = train(
                built,
                loss,
                np.zeros(loss.parameter_shape(rows.shape[1]), np.float32),
                (rows, y),
                run_key=self.run_key,
                insecure_seed=seed,
                evaluate=evaluate,
                progress=bool(self.verbose),
                checkpoint=self.checkpoint,
                ledger=self.ledger,
                dataset=self.dataset,
                identified_by=self._source(data.X, y) if self.ledger is not None else None,
                one_row_per_person=bool(self.one_row_per_person),
            )
        self._preparation = prepare
        self.schema_ = prepare.schema
        self.plan_ = built
        self.guarantee_ = replace(result.guarantee, scope=FIT, insecure=result.insecure)
        self.history_ = result.history
        self.result_ = replace(result, guarantee=self.guarantee_)
        self.coef_, self.intercept_ = prepare.to_features(result.params, self.n_features_in_)

    def _warn(self, undeclared: list[str], *, seeded: bool, stacklevel: int) -> None:
        """Say what is outside the guarantee: what was taken from the data, and noise from a seed."""
        if undeclared:
            warnings.warn(
                f"{type(self).__name__} used as if public, outside the guarantee: "
                f"{'; '.join(undeclared)}; declare what is public, or keep the model private",
                PrivacyWarning,
                stacklevel=stacklevel,
            )
        if seeded:
            warnings.warn(
                "random_state makes the noise reproducible: there is no privacy against anyone who "
                "knows or guesses it; leave it out for a model that will be released",
                PrivacyWarning,
                stacklevel=stacklevel,
            )

    def _public_rows(self, public: Any, prepare: RowPreparation) -> tuple[NDArray[Any], Any]:
        """Rows of the public data that a fit is watched on, prepared like the others, and its y."""
        try:
            X, y = public
        except (TypeError, ValueError):
            raise SordinoError("public must be a pair (X, y) of public data") from None
        if prepare.schema is None:
            X = self._checked(X, reset=False)
        else:
            prepare.schema.check_columns(X)
        check_lengths(X, y)
        return prepare(X), y

    def _decision(self, X: Any) -> NDArray[np.float64]:
        """The weights times the prepared rows, float64 (rows, outputs)."""
        check_is_fitted(self, "coef_")
        prepare = self._preparation
        if prepare.schema is not None:
            validate_data(self, X, reset=False, skip_check_array=True)
            prepare.schema.check_columns(X)
        else:
            X = self._checked(X, reset=False)
        weights = prepare.to_rows(self.coef_, self.intercept_, self.n_features_in_).T
        pieces = []
        for piece in blocks(_num_samples(X), len(weights)):
            part = X.iloc[piece] if prepare.schema is not None else X[piece]
            pieces.append(prepare(part).astype(np.float64) @ weights)
        return np.concatenate(pieces)

    def __getstate__(self) -> dict[str, Any]:
        # Whoever has a run's key can subtract its noise, so it stays out of files. Also before the
        # fit: what holds a fitted copy (a search, a threshold) may be pickled with the original.
        return dict(super().__getstate__()) | {"run_key": None}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.random_state is None
        return tags


def _seed(random_state: Any) -> int | None:
    """The insecure seed that `random_state` stands for; None for the operating system's entropy."""
    if random_state is None:
        return None
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, numbers.Integral) and not isinstance(random_state, bool):
        return int(random_state)
    raise SordinoError(
        f"random_state must be None, a whole number or a RandomState, got {random_state!r}"
    )
