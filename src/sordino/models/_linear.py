"""What the private classifier and regressor share: rows, plan, training, the decision."""

from __future__ import annotations

import numbers
import secrets
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, column_or_1d
from sklearn.utils.validation import (
    _check_y,
    _num_samples,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from sordino._base.errors import PrivacyWarning, SordinoError, require_count, shown
from sordino._base.keys import RunKey
from sordino._base.types import Json, PyTree
from sordino.engine import Source, compilation_cache, train
from sordino.engine.ledger import REFUSE, Ledger
from sordino.models._cells import raw_frame
from sordino.models._checks import Features, Labels, Rows, checked_numbers, discreetly
from sordino.models._defaults import (
    AUTO,
    AVERAGE,
    STEPS_PER_EPOCH,
    Settings,
    choose_learning_rate,
    choose_settings,
    wants_more_epochs,
)
from sordino.models._inference import Bounds, Categories, is_table, public_bounds, table_schema
from sordino.models._pack import Released, target_name
from sordino.models._rows import RowPreparation, blocks
from sordino.parts import LinearLoss
from sordino.planning import Plan, plan
from sordino.planning.recipes import recipe_named
from sordino.privacy import FIT, person_ids, require_one_row

_NO_ROWS = "{what} must be arrays of as many rows, with one target for each row"
# scikit-learn's tools know a refusal of labels by its first words.
NO_LABELS = (
    "Unknown label type: y must hold one label for each row, all of them text or all of them whole "
    "numbers; convert y, or remove the rows without such a label"
)
Public: TypeAlias = tuple[Features, ArrayLike]
RandomState: TypeAlias = int | np.random.RandomState | None
# Without a delta: one tenth of the chance that publishing one random row in full would take.
DELTA_TIMES_ROWS = 0.1
# Where nobody declared how many there are, delta must not tell it.
DELTA = 1e-5
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

    X: Rows
    y: NDArray[np.int32] | NDArray[np.float32]
    loss: LinearLoss
    prepare: RowPreparation
    undeclared: list[str]
    targets: Labels
    values: Any


@dataclass(eq=False, repr=False)
class PrivateLinear(Released, BaseEstimator):  # type: ignore[misc]
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
    undeclared: str = "auto"
    preprocessing_share: float = 0.1
    features: str = "auto"
    bins: int = 8
    evaluate: float = 0.0
    person_power: float = 0.5
    rows_per_person: int | None = None
    weight_bound: float | None = None
    decimal: str = "."
    date_formats: Mapping[str, str] | None = None
    feature_bounds: Bounds | None = None
    categories: Categories | None = None
    examples: int | None = None
    epochs: float | None = None
    batch_size: int | None = None
    clip: float | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    options: Mapping[str, object] | None = None
    fit_intercept: bool = True
    random_state: RandomState = None
    run_key: RunKey | None = None
    noise: str = "gaussian"
    checkpoint: str | None = None
    ledger: Ledger | str | Path | None = None
    dataset: str | None = None
    parts: str = REFUSE
    verbose: int = 0
    method: str = DEPRECATED

    def _describe(
        self, X: Features, y: ArrayLike, groups: ArrayLike | None = None
    ) -> tuple[Rows, RowPreparation, list[str]]:
        """`X` checked, how its rows are prepared, and what was taken from the data for it."""
        refuse_folds(self.ledger, self.parts)
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
        self.target_ = target_name(y)
        require_one_row(
            self.unit,
            stated=bool(self.one_row_per_person),
            person_ids=groups,
            rows=_num_samples(X),
        )
        if self.examples is None:
            undeclared.append("the number of rows (examples=...)")
        elif require_count("examples", self.examples) != _num_samples(X):
            raise SordinoError(
                f"examples declares {self.examples:,} rows but X has {_num_samples(X):,}; they "
                "must be equal"
            )
        return X, prepare, undeclared

    def _checked(self, X: Features, *, reset: bool) -> Rows:
        return checked_numbers(
            lambda: validate_data(
                self, X, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32]
            ),
            "X",
        )

    def _inspect(self, X: Features, y: ArrayLike, groups: ArrayLike | None = None) -> Inspected:
        """The data of a fit, refused here where it can be refused at all."""
        raise NotImplementedError

    def _plan(self, examples: int, loss: LinearLoss, columns: int | None = None) -> Plan:
        """The private run, from public quantities only; `columns` are those of the prepared rows."""
        asked = self._asked()
        settings = choose_settings(
            loss,
            examples=examples,
            recipe=self._recipe(),
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
            learning_rate=choose_learning_rate(built, loss, columns) if rate is None else rate,
            # Also where it has no effect: plans keep the hash that they had up to 0.5.
            momentum=settings.momentum,
        )

    def _planned(self, examples: int | None, settings: Settings, asked: Json, **about: Any) -> Plan:
        """The run with these settings; its learning rate is not chosen yet, unless it was asked for.

        Without `examples` their number is private: secret slots. `about` is what a plan says besides.
        """
        recipe = recipe_named(settings.recipe)
        wanted: Json = {"clip": settings.clip, "momentum": settings.momentum}
        if recipe.resolve(asked)["output"] == "last":
            wanted["average"] = AVERAGE
        if examples is None:
            if self.batch_size is not None:
                raise SordinoError(
                    "batch_size needs examples, the declared number of rows or persons"
                )
            about["slot_count"] = 1 if recipe.full_batch else STEPS_PER_EPOCH
        else:
            about |= {"examples": examples, "batch_size": settings.batch_size}
            if (self.recipe, self.method) == (AUTO, DEPRECATED):
                # The data is here and batches never leave the engine, so that they may be secret.
                wanted["sampling"] = AUTO
        public: Json = {
            "delta": self._delta(examples),
            "adjacency": self.adjacency,
            "unit": self.unit,
            "noise": self.noise,
            "rows_per_person": self.rows_per_person,
        }
        return plan(
            settings.recipe,
            epochs=settings.epochs,
            epsilon=self.epsilon,
            **(public | about),
            **recipe.useful(wanted, asked),
            **asked,
        )

    def _delta(self, examples: int | None) -> float:
        """delta, from public numbers alone."""
        if self.delta is not None:
            return self.delta
        return DELTA if examples is None else DELTA_TIMES_ROWS / examples

    def _asked(self) -> Json:
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

    def _source(self, X: Rows, y: ArrayLike) -> Source:
        """What a ledger knows the data by."""
        return source_of(X, y, rows=_num_samples(X), parts=self.parts)

    def _train(
        self,
        data: Inspected,
        evaluate: Callable[[PyTree], Mapping[str, float]] | None,
    ) -> None:
        """Train as planned and set the fitted attributes that both estimators have."""
        loss, prepare, y = data.loss, data.prepare, data.y
        seed = seed_of(self.random_state)
        if seed is not None and self.run_key is not None:
            raise SordinoError("give random_state or run_key, not both")
        with compilation_cache():
            built = self._plan(len(y), loss, prepare.width(data.X))
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

    def _public_rows(
        self, public: Public, prepare: RowPreparation
    ) -> tuple[NDArray[np.float32], ArrayLike]:
        """Rows of the public data that a fit is watched on, prepared like the others, and its y."""
        X, y = public_pair(public)
        if prepare.schema is None:
            X = self._checked(X, reset=False)
        else:
            prepare.schema.check_columns(X)
        check_lengths(X, y)
        return prepare(X), y

    def _decision(self, X: Features) -> NDArray[np.float64]:
        """The weights times the prepared rows, float64 (rows, outputs)."""
        check_is_fitted(self, "coef_")
        prepare = self._preparation
        if prepare.schema is not None and prepare.schema.reads_cells:
            X = raw_frame(X)
            prepare.schema.check_columns(X)
        elif prepare.schema is not None:
            validate_data(self, X, reset=False, skip_check_array=True)
            prepare.schema.check_columns(X)
        else:
            X = self._checked(X, reset=False)
        weights = prepare.to_rows(self.coef_, self.intercept_, self.n_features_in_).T
        take: Any = getattr(X, "iloc", X)
        pieces = []
        for piece in blocks(_num_samples(X), len(weights)):
            pieces.append(prepare(take[piece]).astype(np.float64) @ weights)
        return np.concatenate(pieces)

    def __getstate__(self) -> Json:
        # Whoever has a run's key can subtract its noise, so it stays out of files. Also before the
        # fit: what holds a fitted copy (a search, a threshold) may be pickled with the original.
        return dict(super().__getstate__()) | {"run_key": None}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.random_state is None
        return tags


def public_pair(public: Public) -> Public:
    """X and y of public data."""
    try:
        X, y = public
    except (TypeError, ValueError):
        raise SordinoError("public must be a pair (X, y) of public data") from None
    return X, y


def check_lengths(X: Features, y: ArrayLike) -> None:
    """Refuse data and targets that are not of one length."""
    discreetly(lambda: check_consistent_length(X, y), "X and y", _NO_ROWS)


def checked_labels(y: ArrayLike) -> Labels:
    """Labels (rows,): text or whole numbers, or one sentence whatever else they are."""
    labels = discreetly(lambda: column_or_1d(y, warn=True), "y", NO_LABELS)
    kind = labels.dtype.kind
    if kind == "f":
        with np.errstate(all="ignore"):
            finite = bool(np.isfinite(labels).all())
            whole = finite and bool((labels == np.floor(labels)).all())
        if not finite:
            raise SordinoError(
                "y contains NaN or infinity where labels are needed; remove the rows without a label"
            )
        if not whole:
            raise SordinoError(
                "Unknown label type: continuous numbers are no classes; use PrivateRegressor, or give "
                "labels that are text or whole numbers"
            )
    elif kind == "O":
        if not is_text(labels):
            raise SordinoError(NO_LABELS)
    elif kind not in "biuU":
        raise SordinoError(NO_LABELS)
    return labels


def is_text(labels: Labels) -> bool:
    """Whether all labels are text."""
    if labels.dtype.kind == "O":
        return all(isinstance(label, str) for label in labels.tolist())
    return labels.dtype.kind == "U"


def checked_targets(y: ArrayLike) -> NDArray[np.float64]:
    """Targets (rows,) as float64, all of them finite."""

    def convert() -> NDArray[np.float64]:
        targets = np.asarray(_check_y(column_or_1d(y, warn=True), y_numeric=True), np.float64)
        # Again: text such as "nan" is a number only now.
        return np.asarray(_check_y(targets))

    return checked_numbers(convert, "y")


def seed_of(random_state: RandomState) -> int | None:
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


# What a fit is besides its model: a charge on a ledger, or one of several releases of the same rows. Each
# fitted model states the guarantee of its own fit; cross-validation and grid search make many. A ledger
# adds them up, if it is told which data set a fit is on and that it is all of it. Without one, a process
# can notice that rows come again, and say so: it keeps a few hundred keyed hashes of the rows of a fit.

AGAIN = (
    "rows like these were fitted before in this process, without a ledger: each guarantee_ is of one "
    "fit alone, and what the fits reveal together is not accounted for; use PrivateSearch to choose "
    "settings within one budget, or ledger= and dataset= to keep one budget for all fits"
)
# The smallest hashes of so many rows stand for all: two sets that share a twentieth share some.
_SKETCH = 256
_SHARED = 20
_MOST = 1 << 16
_KEY = secrets.randbits(128)
_LOCK = threading.Lock()
# Hashes of rows that were fitted, and whether that they came again has been said.
_SEEN: OrderedDict[int, bool] = OrderedDict()
_ONE_RELEASE: ContextVar[list[bool] | None] = ContextVar("sordino_fits_together", default=None)


@contextmanager
def one_release(*, noted: bool = False) -> Iterator[None]:
    """Fits inside count as one, and how many there are stays unsaid: a search pays for them together.

    With `noted` they count as none, because the search noted its rows itself or a ledger counts it.
    """
    token = _ONE_RELEASE.set([True] if noted else [])
    try:
        yield
    finally:
        _ONE_RELEASE.reset(token)


def note_fit(rows: NDArray[np.float32], *, stacklevel: int = 2) -> None:
    """Remember a fit that no ledger counts; warn, once, where most likely its rows came before."""
    counted = _ONE_RELEASE.get()
    if counted is not None:
        if counted:
            return
        counted.append(True)
    own = _sketch(rows)
    with _LOCK:
        known = [row for row in own if row in _SEEN]
        again = bool(own) and len(known) >= max(1, len(own) // _SHARED)
        said = again and any(_SEEN[row] for row in known)
        for row in own:
            _SEEN[row] = again or _SEEN.get(row, False)
            _SEEN.move_to_end(row)
        while len(_SEEN) > _MOST:
            _SEEN.popitem(last=False)
    if again and not said:
        warnings.warn(AGAIN, PrivacyWarning, stacklevel=stacklevel + 1)


def forget_fits() -> None:
    """Forget all fits of this process: for tests."""
    with _LOCK:
        _SEEN.clear()


def _sketch(rows: NDArray[np.float32]) -> list[int]:
    """The smallest of the rows' keyed hashes, which depend on a row's values only."""
    width = rows.shape[1]
    random = np.random.Generator(np.random.Philox(key=_KEY))
    factors = random.integers(0, 1 << 64, width, np.uint64) | np.uint64(1)
    words = np.ascontiguousarray(rows).view(np.uint32)
    smallest = np.zeros(0, np.uint64)
    for block in blocks(len(rows), width):
        hashes = words[block].astype(np.uint64) @ factors
        hashes ^= hashes >> np.uint64(29)
        hashes *= np.uint64(0xBF58476D1CE4E5B9)
        hashes ^= hashes >> np.uint64(32)
        smallest = np.unique(np.concatenate([smallest, hashes]))[:_SKETCH]
    return [int(value) for value in smallest]


# What functions of scikit-learn that split data call the two parts of it, and the splitter.
_PARTS = ({"train", "test"}, {"train_idx", "val_idx"})
_SPLITTERS = ("cv", "cv_orig")


def source_of(
    X: Features,
    y: ArrayLike,
    *,
    rows: int | None,
    parts: str = REFUSE,
    groups: ArrayLike | None = None,
) -> Source:
    """The data set of a fit on (X, y).

    A ledger knows it by its rows with their labels, or by its rows alone: what else is predicted from
    the same rows is charged to the same budget, and so ledgers of sordino 0.5.0, which knew the rows
    alone, still know them. A fit decides nothing about which rows that are: it may be one of a fold.
    Of persons with several rows, whose ids are `groups`, no number of rows is told.
    """
    persons = None if groups is None else person_ids(groups)
    return Source((X, y), also=(X,), rows=rows, pins=False, units=X, persons=persons, parts=parts)


def refuse_folds(ledger: object, parts: str = REFUSE) -> None:
    """Refuse a fit that a cross-validation makes, where a ledger would be charged for it.

    Every fold is a run of its own, on a part of the data set, and each would be charged like one on all
    of it. Where the ledger does not know which rows it has, only who calls the fit shows that.
    """
    if ledger is None or parts != REFUSE:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _splits(frame):
            raise SordinoError(
                "a cross-validation fits parts of the data, and a ledger keeps the budget of all of it: "
                "give the ledger to sordino.PrivateSearch, which is charged once for the whole search, "
                "cross-validate on public data without a ledger, or have every fit charged in full with "
                "parts='charge'"
            )
        frame = frame.f_back


def _splits(frame: FrameType) -> bool:
    """Whether this is a function of scikit-learn that fits on parts of the data it was given."""
    if not str(frame.f_globals.get("__name__", "")).startswith("sklearn."):
        return False
    known = frame.f_locals
    return any(parts <= known.keys() for parts in _PARTS) or any(
        hasattr(known.get(name), "split") and not isinstance(known[name], str)
        for name in _SPLITTERS
    )
