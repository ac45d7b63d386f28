r"""Hyper-parameter search that pays for itself.

    search = PrivateSearch(
        PrivateClassifier(classes=[0, 1], feature_bounds=(0, 1), examples=len(X)),
        {"learning_rate": [0.5, 1, 2, 4], "clip": [0.5, 1.0]},
        epsilon=1.0, delta=1e-6, n_trials=10,
    ).fit(X, y, public=(X_public, y_public))
    print(search.guarantee_); search.best_params_, search.best_estimator_

The best of ten private runs is not as private as one of them. Two ways to pay:

* "random-stopping": the number of trials is secret and random with mean `n_trials`, and only the best one
  is ever seen; the price hardly grows with the number of trials
  (`sordino.privacy.SelectionGuarantee`; Papernot & Steinke 2022).
* "composition": exactly `n_trials` trials, all of which may be looked at; each gets mu / sqrt(n_trials).
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.metrics import check_scoring
from sklearn.model_selection import ParameterSampler
from sklearn.utils import Tags, _safe_indexing, column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _num_samples, check_consistent_length, check_is_fitted

from sordino._base.codec import digest_of
from sordino._base.errors import (
    SordinoError,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
)
from sordino._base.keys import RunKey
from sordino._base.types import Json
from sordino.engine import LedgerAccount, Source
from sordino.engine.ledger import Ledger
from sordino.models._checks import Features, Labels, Rows, discreetly
from sordino.models._defaults import AUTO
from sordino.models._linear import (
    DELTA_TIMES_ROWS,
    PrivateLinear,
    Public,
    RandomState,
    _seed,
    check_lengths,
    note_fit,
    one_release,
    public_pair,
    refuse_folds,
    source_of,
)
from sordino.models._rehearsal import (
    Candidates,
    Distribution,
    Params,
    Rehearsal,
    length,
    members,
    said_once,
    text_of,
    unsaid,
)
from sordino.parts.sampling import FIXED
from sordino.planning import Plan
from sordino.privacy import (
    LOGARITHMIC,
    SEARCH,
    Guarantee,
    SelectionGuarantee,
    StoppingLaw,
    base_mu_for,
    composed_mu,
    epsilon_from_mu,
    mu_from_epsilon_delta,
    require_one_row,
    rounded_up,
)

STOPPING, COMPOSITION = "random-stopping", "composition"
Scorer: TypeAlias = Callable[[BaseEstimator, Features, ArrayLike], float]
_NO_TARGETS = "{what} must hold one target for each row"
# What the search decides itself, or what would change what a trial costs.
_NOT_SEARCHED = (
    "epsilon",
    "delta",
    "adjacency",
    "unit",
    "one_row_per_person",
    "noise",
    "random_state",
    "run_key",
    "checkpoint",
    "ledger",
    "dataset",
    "examples",
)


@dataclass(frozen=True)
class SearchPlan:
    """A whole search, decided before a record is read: what a ledger charges as one run.

    Attributes:
      trial_mu: every trial, its score included, is trial_mu-GDP.
      searched: the candidates, in words.
      best: the plan of the trial that was released, once there is one. It states a trial's share
        of the price, not the price: `guarantee` is what the release costs.
    """

    guarantee: Guarantee | SelectionGuarantee
    method: str
    trial_mu: float
    n_trials: float
    estimator: str
    searched: tuple[tuple[str, str], ...]
    holdout: int = 0
    best: Plan | None = field(default=None, compare=False, repr=False)

    recipe = "search"

    def verify(self) -> None:
        """Refuse a search whose trials cost more than the guarantee that it states."""
        stated = self.guarantee
        if isinstance(stated, SelectionGuarantee):
            kept = self.trial_mu <= stated.base_mu and self.n_trials == stated.law.mean
        else:
            runs = int(self.n_trials)
            kept = runs == self.n_trials and not stated.is_amplified
            kept = kept and self.trial_mu <= composed_mu(stated.gaussian_mu, runs)
        if not kept:
            raise SordinoError(
                "this search states a guarantee that its trials do not give; plan the search again"
            )

    def to_json(self) -> Json:
        return {
            "format": "sordino-search",
            "version": 1,
            "method": self.method,
            "trial_mu": self.trial_mu,
            "n_trials": self.n_trials,
            "estimator": self.estimator,
            "searched": dict(self.searched),
            "holdout": self.holdout,
            "guarantee": self.guarantee.to_json(),
        }

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON."""
        return digest_of(self.to_json())

    def lines(self) -> list[tuple[str, str]]:
        """The page as (heading, text) pairs, as of a `Plan`."""
        secret = self.method == STOPPING
        trials = f"{self.n_trials:.4g}{' on average, how many is secret' if secret else ''}"
        return [
            ("search", f"{self.method}, {self.estimator}"),
            ("guarantee", self.guarantee.sentence()),
            ("trials", f"{trials}; a trial's share is {rounded_up(self.trial_mu)}-GDP"),
            *((name, values) for name, values in self.searched),
            ("plan", self.hash[:16]),
        ]

    def __str__(self) -> str:
        pairs = self.lines()
        width = max(len(heading) for heading, _ in pairs)
        return "\n".join(f"{heading:>{width}}  {text}" for heading, text in pairs)


def _has(name: str) -> Callable[[PrivateSearch], bool]:
    def check(search: PrivateSearch) -> bool:
        owner = getattr(search, "best_estimator_", search.estimator)
        getattr(owner, name)
        return True

    return check


@dataclass(eq=False, repr=False)
class PrivateSearch(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Find hyper-parameters and a model with them, at one total price.

    Parameters
    ----------
    estimator : PrivateClassifier, PrivateRegressor or the like
        Its epsilon and delta are replaced by a trial's share. It must not rely on secret batches
        (amplification): the price of selection is known for Gaussian runs.
    param_distributions : dict
        Parameter name -> list of values, or a distribution with ``rvs``; every trial draws from it
        independently of the data. What is declared about the data (classes, bounds, categories) is
        listed, so that one warning before the trials says what any of them takes from the data.
    epsilon, delta : float
        The price of everything. Without `delta`, a tenth of 1 over the number of rows is used.
    n_trials : float
        The mean number of trials (random-stopping), or exactly how many (composition; fewer if there are
        fewer candidates).
    method : str
        "random-stopping" or "composition".
    eta : float
        Shape of the random number of trials: 0 (logarithmic series) is cheaper, 1 (geometric) varies
        less.
    scoring : str or callable, optional
        As in scikit-learn, for public validation data; by default the estimator's own score.
    holdout : float
        Without public data: the share of rows that trials are not trained on but scored on, with
        Gaussian noise. Scores are then accuracies, or for regression 1 minus the squared error over the
        squared range.
    ledger, dataset : path or Ledger, and str, optional
        Where the whole search is charged as one run before it starts.
    random_state : int or RandomState, optional
        INSECURE: as in the estimators.

    Attributes
    ----------
    best_estimator_, best_params_, best_score_
        The trial that is released. Its `guarantee_` and `plan_` are the whole search's;
        `plan_.best` is how the trial was trained.
    guarantee_ : SelectionGuarantee or Guarantee
        What the search as a whole satisfies, selection included.
    plan_ : SearchPlan
    trials_ : list of dict
        Parameters and score of every trial; only with "composition". With "random-stopping" nothing but
        the best trial may be seen, not even how many there were: trials show no progress. How long
        `fit` takes tells roughly how many; see "Tuning" in docs/threat-model.md.
    """

    estimator: BaseEstimator
    param_distributions: Mapping[str, Candidates]
    _: KW_ONLY
    epsilon: float = 1.0
    delta: float | None = None
    n_trials: float = 10
    method: str = STOPPING
    eta: float = LOGARITHMIC
    scoring: str | Scorer | None = None
    holdout: float = 0.2
    ledger: Ledger | str | Path | None = None
    dataset: str | None = None
    random_state: RandomState = None

    def fit(
        self,
        X: Features,
        y: ArrayLike,
        *,
        public: Public | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Search on X (rows, features) and y (rows,); `public` is a pair (X, y) of PUBLIC data to
        score trials on, else a private holdout is used. `groups` as in the estimators."""
        if y is None:
            raise SordinoError("PrivateSearch requires y to be passed, but the target y is None")
        refuse_folds(self.ledger)
        check_lengths(X, y)
        rows = _num_samples(X)
        own = self.estimator.get_params()
        require_one_row(
            own.get("unit", "example"),
            stated=bool(own.get("one_row_per_person")),
            person_ids=groups,
            rows=rows,
        )
        seed = _seed(self.random_state)
        key = RunKey.fresh() if seed is None else RunKey.from_insecure_seed(seed)
        draw = key.generator("search")
        held = 0 if public is not None else self._holdout_rows(rows)
        plan = self._plan(rows, held)
        # Everything that is random about the trials is drawn before a record is looked at.
        candidates = list(self._candidates(plan, draw))
        rehearsal = self._rehearsal(plan, public)
        if rehearsal is not None:
            space = members(self.param_distributions)
            targets, said = rehearsal.whole(X, y, space)
        else:
            targets = discreetly(lambda: column_or_1d(y, warn=True), "y", _NO_TARGETS)
        account = LedgerAccount.of(self.ledger, self.dataset, self._source(X, y))
        score: _PublicScore | _NoisyScore
        if public is not None:
            score = _PublicScore.of(public, check_scoring(self.estimator, scoring=self.scoring))
        else:
            order = draw.permutation(rows)
            kept, apart = np.sort(order[held:]), np.sort(order[:held])
            score = _NoisyScore(_safe_indexing(X, apart), targets[apart], 1 / plan.trial_mu, draw)
            X, targets = _safe_indexing(X, kept), targets[kept]
        if rehearsal is not None:
            trained = rehearsal.trials(X, targets, [*space, *candidates])
            for text, category in said.others:
                warnings.warn(text, category, stacklevel=2)
            self.estimator._warn(said.undeclared, seeded=self._seeded(seed), stacklevel=3)
            if self.ledger is None:
                note_fit(trained)
        if account is not None:
            # A ledger's run is named by the key of its noise; this key draws the noise on scores.
            # All that decides a search cannot be said, so no other one is ever taken for the same.
            account.charge(plan, key.identity, None)
        best: tuple[float, BaseEstimator, Params] | None = None
        trials = []
        quiet = unsaid() if self.method == STOPPING else said_once(privacy=rehearsal is None)
        with quiet, one_release(noted=rehearsal is not None):
            for params in candidates:
                model = self._trial(
                    plan, params, _num_samples(X), draw if seed is not None else None
                )
                model.fit(X, targets)
                _check_price(model.guarantee_, plan)
                value = score(model)
                trials.append({"params": dict(params), "score": value})
                if best is None or value > best[0] or math.isnan(best[0]):
                    best = (value, model, params)
        assert best is not None
        self.best_score_, self.best_estimator_, self.best_params_ = best[0], best[1], dict(best[2])
        self.plan_ = plan = replace(plan, best=getattr(self.best_estimator_, "plan_", None))
        self.guarantee_ = replace(plan.guarantee, insecure=seed is not None)
        # Whatever the released trial states is what the search costs, not a trial's share of it.
        self.best_estimator_.guarantee_, self.best_estimator_.plan_ = self.guarantee_, plan
        if hasattr(self.best_estimator_, "result_"):
            result: Any = self.best_estimator_.result_
            self.best_estimator_.result_ = replace(result, guarantee=self.guarantee_, plan=plan)
        self.__dict__.pop("trials_", None)
        if self.method == COMPOSITION:
            self.trials_ = trials
        if account is not None:
            account.close(key.identity)
        return self

    def _rehearsal(self, plan: SearchPlan, public: Public | None) -> Rehearsal | None:
        """What is looked at before anything is charged; None for estimators of another kind."""
        if not isinstance(self.estimator, PrivateLinear):
            return None
        return Rehearsal(
            self.estimator,
            lambda params, rows: self._trial(plan, params, rows, None),
            lambda guarantee: _check_price(guarantee, plan),
            public,
        )

    def _seeded(self, seed: int | None) -> bool:
        """Whether the noise of trials is from a seed, the search's or the estimator's own."""
        own = self.estimator.get_params().get("random_state")
        return seed is not None or _seed(copy.deepcopy(own)) is not None

    def _holdout_rows(self, rows: int) -> int:
        if self.scoring is not None:
            raise SordinoError(
                "scoring is for public validation data, fit(..., public=(X, y)); a private holdout "
                "is scored by accuracy or bounded squared error, with noise"
            )
        held = round(require_fraction("holdout", self.holdout) * rows)
        if not 0 < held < rows:
            raise SordinoError(
                f"a holdout of {self.holdout:g} leaves nothing of {rows} rows to train or to score on"
            )
        if self.estimator.get_params().get("adjacency") == "add-remove":
            raise SordinoError(
                "with a private holdout a row that is removed would move others between training and "
                "scoring; use adjacency 'zero-out' or 'replace-one', or public validation data"
            )
        return held

    def _plan(self, rows: int, held: int) -> SearchPlan:
        """What the search costs, from public quantities only."""
        require_choice("method", self.method, (STOPPING, COMPOSITION))
        epsilon = require_positive("epsilon", self.epsilon)
        delta = require_fraction(
            "delta", DELTA_TIMES_ROWS / rows if self.delta is None else self.delta
        )
        settings = self.estimator.get_params()
        if not {"epsilon", "delta"} <= set(settings):
            raise SordinoError(
                f"{type(self.estimator).__name__} takes no epsilon and delta; search with a private "
                "estimator"
            )
        if settings.get("noise", "gaussian") != "gaussian":
            raise SordinoError(
                "the price of a search is known for gaussian noise; use noise='gaussian'"
            )
        if settings.get("ledger") is not None or settings.get("checkpoint") is not None:
            raise SordinoError(
                "give the ledger to the search, not to its estimator, and no checkpoint: a trial is "
                "not a run of its own"
            )
        if settings.get("run_key") is not None:
            raise SordinoError(
                "a run key is for one run, and every trial is one; leave run_key out of the estimator"
            )
        searched = self._searched(settings)
        stated: Json = {
            "adjacency": settings.get("adjacency") or "zero-out",
            "unit": settings.get("unit", "example"),
            "delta_hint": delta,
        }
        described: Json = {
            "method": self.method,
            "estimator": type(self.estimator).__name__,
            "searched": searched,
            "holdout": held,
        }
        if self.method == STOPPING:
            law = StoppingLaw.with_mean(self.n_trials, self.eta)
            mu = base_mu_for(epsilon, delta, law)
            return SearchPlan(
                SelectionGuarantee(mu, law, **stated),
                trial_mu=mu,
                n_trials=law.mean,
                **described,
            )
        runs = self._number_of_trials()
        total = mu_from_epsilon_delta(epsilon, delta)
        guarantee = Guarantee.gaussian(
            total,
            participation="in one run" if runs == 1 else f"in all of {runs} runs of a search",
            exact=False,
            **stated,
        )
        guarantee = replace(guarantee, scope=SEARCH)
        return SearchPlan(guarantee, trial_mu=composed_mu(total, runs), n_trials=runs, **described)

    def _searched(self, settings: Params) -> tuple[tuple[str, str], ...]:
        space = self.param_distributions
        if not isinstance(space, Mapping) or not space:
            raise SordinoError(
                "param_distributions must be a dict of parameter names and their candidates"
            )
        for name, values in space.items():
            if name in _NOT_SEARCHED:
                raise SordinoError(f"{name} is not searched for: it changes what a trial costs")
            if name not in settings:
                raise SordinoError(f"{type(self.estimator).__name__} has no parameter {name!r}")
            if not isinstance(values, Distribution) and (
                isinstance(values, str) or not length(values)
            ):
                raise SordinoError(f"the candidates for {name} must be a list of values")
        return tuple((name, text_of(values)) for name, values in sorted(space.items()))

    def _number_of_trials(self) -> int:
        wanted = require_count("n_trials", self.n_trials)  # type: ignore[arg-type]
        lists = [v for v in self.param_distributions.values() if not isinstance(v, Distribution)]
        if len(lists) < len(self.param_distributions):
            return wanted
        return min(wanted, math.prod(len(values) for values in lists))

    def _candidates(self, plan: SearchPlan, draw: np.random.Generator) -> Iterator[Params]:
        """Parameters of each trial; of a secret number of trials, each drawn by itself."""
        words = draw.integers(0, 2**32, 8, dtype=np.uint64).astype(np.uint32)
        random = np.random.RandomState(words)
        if self.method == COMPOSITION:
            return iter(
                ParameterSampler(self.param_distributions, int(plan.n_trials), random_state=random)
            )
        assert isinstance(plan.guarantee, SelectionGuarantee)
        runs = plan.guarantee.law.draw(float(draw.random()))
        return (
            next(iter(ParameterSampler(self.param_distributions, 1, random_state=random)))
            for _ in range(runs)
        )

    def _trial(
        self,
        plan: SearchPlan,
        params: Params,
        rows: int,
        seeds: np.random.Generator | None,
    ) -> BaseEstimator:
        """An estimator whose run costs `trial_mu`."""
        delta = plan.guarantee.delta_hint
        assert delta is not None
        # A plan for this epsilon comes out at no more than `trial_mu`, which is checked.
        epsilon = epsilon_from_mu(plan.trial_mu, delta) * (1 - 1e-9)
        if epsilon <= 0:
            raise SordinoError(
                f"a trial of mu {plan.trial_mu:.3g} has no epsilon at delta {delta:g}; ask for a "
                "smaller delta, a larger epsilon or fewer trials"
            )
        model = clone(self.estimator).set_params(**params, epsilon=epsilon, delta=delta)
        known = model.get_params()
        if known.get("recipe") == AUTO:
            # The price of a search is known for public batches.
            model.set_params(options={"sampling": FIXED, **(known.get("options") or {})})
        if known.get("examples") is not None:
            model.set_params(examples=rows)
        if seeds is not None and "random_state" in known:
            model.set_params(random_state=int(seeds.integers(2**31)))
        if self.method == STOPPING and "verbose" in known:
            model.set_params(verbose=0)  # a bar for each trial would show how many there are
        return model

    def _source(self, X: Features, y: ArrayLike) -> Source | None:
        """What a ledger knows the data by: the same as if the estimator were fitted by itself."""
        if self.ledger is None:
            return None
        own = clone(self.estimator)
        stated = own.get_params().get("examples") is not None
        if hasattr(own, "_describe"):
            X, _, _ = own._describe(X, y)
        return source_of(X, y, rows=_num_samples(X), stated=stated)

    def _best(self) -> BaseEstimator:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    @property
    def classes_(self) -> Labels:
        return np.asarray(self._best().classes_)

    @property
    def n_features_in_(self) -> int:
        if not hasattr(self, "best_estimator_"):
            raise AttributeError("PrivateSearch is not fitted yet")
        return int(self.best_estimator_.n_features_in_)

    @available_if(_has("predict"))  # type: ignore[untyped-decorator]
    def predict(self, X: Features) -> Labels:
        """Predictions of the best trial."""
        return np.asarray(self._best().predict(X))

    @available_if(_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Features) -> NDArray[np.float64]:
        """Class probabilities of the best trial."""
        return np.asarray(self._best().predict_proba(X))

    @available_if(_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Features) -> NDArray[np.float64]:
        """Logits of the best trial."""
        return np.asarray(self._best().decision_function(X))

    def score(self, X: Features, y: ArrayLike) -> float:
        """The best trial's score on other (PUBLIC) data."""
        best = self._best()
        return float(check_scoring(best, scoring=self.scoring)(best, X, y))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        inner = self.estimator.__sklearn_tags__()
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        tags.input_tags, tags.target_tags = inner.input_tags, inner.target_tags
        tags.non_deterministic = self.random_state is None
        return tags


@dataclass(frozen=True)
class _PublicScore:
    """A trial's score on public data: costs nothing."""

    X: Features
    y: ArrayLike
    scorer: Scorer

    @classmethod
    def of(cls, public: Public, scorer: Scorer) -> _PublicScore:
        X, y = public_pair(public)
        check_consistent_length(X, y)
        return cls(X, y, scorer)

    def __call__(self, model: BaseEstimator) -> float:
        return float(self.scorer(model, self.X, self.y))


@dataclass(frozen=True)
class _NoisyScore:
    """A trial's mean score on private rows of their own, each row's in [0, 1], with Gaussian noise.

    One row moves the sum by at most 1, under zero-out as under replace-one, so noise of standard
    deviation 1 / mu makes it mu-GDP. Rows are either trained on or scored on, so that a trial as a
    whole is mu-GDP where each of the two is.
    """

    X: Rows
    y: Labels
    std: float
    draw: np.random.Generator

    def __call__(self, model: BaseEstimator) -> float:
        # Silently, and with 0 for what has no score: one row must not show in any other way.
        with np.errstate(all="ignore"):
            predicted = np.asarray(model.predict(self.X))
            if predicted.shape != self.y.shape:
                raise SordinoError("a trial must predict one value for each row")
            if is_classifier(model):
                values = np.asarray(predicted == self.y, np.float64)
            else:
                low, high = model.target_bounds_
                error = (np.clip(predicted, low, high) - np.clip(self.y, low, high)) / (high - low)
                values = 1 - np.clip(error, -1.0, 1.0) ** 2
            values = np.where(np.isfinite(values), values, 0.0)
        noisy = float(values.sum()) + self.std * float(self.draw.standard_normal())
        return noisy / len(self.y)


def _check_price(price: object, plan: SearchPlan) -> None:
    """A trial that costs more than its share is refused; whether it does is known from its plan."""
    whole = plan.guarantee
    if not isinstance(price, Guarantee) or not price.is_gaussian:
        raise SordinoError(
            "a trial of this search relies on secret batches, on discrete noise or on values that are kept "
            "from a threshold on, for which the price of a search is not known; use a method with public "
            "batches, and declare the table"
        )
    if (price.adjacency, price.unit) != (whole.adjacency, whole.unit):
        raise SordinoError(
            f"a trial's guarantee is for {price.adjacency} adjacency, the search's for "
            f"{whole.adjacency}; give the estimator its adjacency"
        )
    if not price.mu <= plan.trial_mu:
        raise SordinoError(
            f"a trial costs mu {price.mu:.6g} where the search has {plan.trial_mu:.6g} for it"
        )
