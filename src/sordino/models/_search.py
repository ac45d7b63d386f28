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
* "folds": the same, each trained and scored in `folds` folds of the private rows, and the best one trained
  once more on all of them; see `sordino.models._scores`.
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.metrics import check_scoring
from sklearn.model_selection import ParameterSampler
from sklearn.utils import Tags, _safe_indexing, column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _num_samples, check_is_fitted

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
from sordino.models._checks import Features, Labels, discreetly
from sordino.models._defaults import AUTO
from sordino.models._inference import TAKE
from sordino.models._linear import (
    DELTA_TIMES_ROWS,
    PrivateLinear,
    Public,
    RandomState,
    check_lengths,
    note_fit,
    one_release,
    refuse_folds,
    seed_of,
    source_of,
)
from sordino.models._private_fit import PAY
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
from sordino.models._scores import (
    EvaluationOf,
    FoldPrices,
    NoisyScore,
    PublicScore,
    Scorer,
    checked_scoring,
    folds_of,
    owners_of,
    predictions_of,
    whole_targets,
)
from sordino.models._search_plan import COMPOSITION, FOLDS, STOPPING, SearchPlan, check_price
from sordino.parts.sampling import FIXED
from sordino.privacy import (
    LOGARITHMIC,
    SEARCH,
    Adjacency,
    Guarantee,
    SelectionGuarantee,
    StoppingLaw,
    base_mu_for,
    composed_mu,
    epsilon_from_mu,
    mu_from_epsilon_delta,
    person_ids,
    require_one_row,
)

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
    "undeclared",
    "evaluate",
    "preprocessing_share",
)
# What only fits on raw tables have; trials use what is declared, or taken from the data.
_RAW = {"evaluate": 0.0, "class_weight": None}


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
        "random-stopping", "composition" or "folds".
    folds : int
        With method "folds": into how many parts the private rows are cut, by persons where there are
        `groups`. Every candidate is trained without each part once and scored on what was left out.
    eta : float
        Shape of the random number of trials: 0 (logarithmic series) is cheaper, 1 (geometric) varies
        less.
    scoring : str or callable, optional
        As in scikit-learn, for public validation data; by default the estimator's own score. On private
        rows, by a noisy evaluation: "accuracy", "balanced_accuracy", "roc_auc" or "neg_log_loss", or
        "neg_root_mean_squared_error", "neg_mean_absolute_error" or "neg_median_absolute_error".
    holdout : float
        Without public data: the share of rows that trials are not trained on but scored on, with
        Gaussian noise. Without `scoring` scores are accuracies, or for regression 1 minus the squared
        error over the squared range.
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
    folds: int = 5
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
        seed = seed_of(self.random_state)
        key = RunKey.fresh() if seed is None else RunKey.from_insecure_seed(seed)
        draw = key.generator("search")
        in_folds = self._checked_folds(public, groups)
        held = 0 if in_folds or public is not None else self._holdout_rows(rows)
        plan = self._plan(rows, held)
        # Everything that is random about the trials is drawn before a record is looked at.
        candidates = list(self._candidates(plan, draw))
        rehearsal = self._rehearsal(plan, public)
        if rehearsal is not None:
            space = members(self.param_distributions)
            targets, said = rehearsal.whole(X, y, space)
            if said.undeclared and own["undeclared"] != TAKE and hasattr(X, "iloc"):
                raise SordinoError(
                    f"a search does not pay for what is not declared: {'; '.join(said.undeclared)}; "
                    "declare it, or have it taken from the data, outside the guarantee, with "
                    "undeclared='take'"
                )
        else:
            targets = discreetly(lambda: column_or_1d(y, warn=True), "y", _NO_TARGETS)
        account = LedgerAccount.of(self.ledger, self.dataset, self._source(X, y, groups))
        score: Callable[[BaseEstimator], float] | None = None
        if public is not None:
            score = PublicScore.of(public, check_scoring(self.estimator, scoring=self.scoring))
        elif not in_folds:
            order = draw.permutation(rows)
            kept, apart = np.sort(order[held:]), np.sort(order[:held])
            score = self._private_score(
                plan, _safe_indexing(X, apart), targets[apart], draw, key, held / rows
            )
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
        best: tuple[float, BaseEstimator | None, Params] | None = None
        trials: list[Json] = []
        quiet = unsaid() if self.method == STOPPING else said_once(privacy=rehearsal is None)
        seeds = draw if seed is not None else None
        with quiet, one_release(noted=rehearsal is not None):
            for params in candidates:
                if score is None:
                    model, value = (
                        None,
                        self._fold_score(plan, len(trials), params, X, targets, groups, key, seeds),
                    )
                else:
                    model = self._fitted(plan, params, X, targets, None, seeds)
                    value = score(model)
                trials.append({"params": dict(params), "score": value})
                if best is None or value > best[0] or math.isnan(best[0]):
                    best = (value, model, params)
            assert best is not None
            value, model, params = best
            if model is None:
                model = self._fitted(plan, params, X, targets, groups, seeds)
        self.best_score_, self.best_estimator_, self.best_params_ = value, model, dict(params)
        self.plan_ = plan = replace(plan, best=getattr(self.best_estimator_, "plan_", None))
        self.guarantee_ = replace(plan.guarantee, insecure=seed is not None)
        # Whatever the released trial states is what the search costs, not a trial's share of it.
        self.best_estimator_.guarantee_, self.best_estimator_.plan_ = self.guarantee_, plan
        if hasattr(self.best_estimator_, "result_"):
            result: Any = self.best_estimator_.result_
            self.best_estimator_.result_ = replace(result, guarantee=self.guarantee_, plan=plan)
        self.__dict__.pop("trials_", None)
        if self.method != STOPPING:
            self.trials_ = trials
        if account is not None:
            account.close(key.identity)
        return self

    def _fitted(
        self,
        plan: SearchPlan,
        params: Params,
        X: Features,
        y: Labels,
        groups: ArrayLike | None,
        seeds: np.random.Generator | None,
        **declared: object,
    ) -> BaseEstimator:
        """A trial's model, at its share of the price."""
        units = _num_samples(X) if groups is None else len({*person_ids(groups)} - {None})
        model = self._trial(plan, params, units, seeds).set_params(**declared)
        model.fit(X, y, **({} if groups is None else {"groups": groups}))
        check_price(model.guarantee_, plan)
        return model

    def _fold_score(
        self,
        plan: SearchPlan,
        number: int,
        params: Params,
        X: Features,
        y: Labels,
        groups: ArrayLike | None,
        key: RunKey,
        seeds: np.random.Generator | None,
    ) -> float:
        """A candidate's score, by models that each left out the rows they predict for."""
        assert plan.folds is not None
        ids, owners = owners_of(groups)
        place = folds_of(key, ids, len(y), plan.folds.folds)
        # What is taken from the data is taken from all of it, and said; a fold need not have it.
        declared = whole_targets({**self.estimator.get_params(), **params}, y)
        predictions: NDArray[np.float64] | None = None
        for fold in range(plan.folds.folds):
            apart = np.flatnonzero(place == fold)
            kept = np.flatnonzero(place != fold)
            own = None if groups is None else _safe_indexing(groups, kept)
            model = self._fitted(
                plan, params, _safe_indexing(X, kept), y[kept], own, seeds, **declared
            )
            if not len(apart):
                continue
            guess = predictions_of(model, _safe_indexing(X, apart))
            if predictions is None:
                predictions = np.full((len(y), *guess.shape[1:]), np.nan)
            predictions[apart] = guess
        assert predictions is not None
        return self._evaluation(plan, plan.folds.score, key, 1 / plan.folds.folds)(
            f"candidate {number}", model, predictions, y, owners
        )

    def _evaluation(self, plan: SearchPlan, mu: float, key: RunKey, share: float) -> EvaluationOf:
        replaced = plan.guarantee.adjacency == Adjacency.REPLACE_ONE
        sigma = (math.sqrt(2) if replaced else 1.0) / mu * (1 + 1e-12)
        return EvaluationOf(checked_scoring(self.scoring, self.estimator), sigma, share, key)

    def _private_score(
        self,
        plan: SearchPlan,
        X: Features,
        y: Labels,
        draw: np.random.Generator,
        key: RunKey,
        share: float,
    ) -> Callable[[BaseEstimator], float]:
        """The score of trials on rows that none is trained on."""
        if self.scoring is None:
            return NoisyScore(X, y, 1 / plan.trial_mu, draw)
        evaluation, count = self._evaluation(plan, plan.trial_mu, key, share), itertools.count()
        return lambda model: evaluation(
            f"trial {next(count)}", model, predictions_of(model, X), y, None
        )

    def _checked_folds(self, public: Public | None, groups: ArrayLike | None) -> bool:
        if self.method != FOLDS:
            return False
        require_count("folds", self.folds, minimum=2)
        checked_scoring(self.scoring, self.estimator)
        if public is not None:
            raise SordinoError(
                "folds score on private rows; with public validation data use method='composition', "
                "which trains each candidate once"
            )
        settings = self.estimator.get_params()
        if not isinstance(self.estimator, PrivateLinear):
            raise SordinoError("folds are for PrivateClassifier and PrivateRegressor")
        if settings["adjacency"] == Adjacency.ADD_REMOVE and groups is None:
            raise SordinoError(
                "folds of rows are cut by their places, and a row that is removed would move others "
                "between folds; use adjacency 'zero-out' or 'replace-one', or give groups"
            )
        return True

    def _rehearsal(self, plan: SearchPlan, public: Public | None) -> Rehearsal | None:
        """What is looked at before anything is charged; None for estimators of another kind."""
        if not isinstance(self.estimator, PrivateLinear):
            return None
        return Rehearsal(
            self.estimator,
            lambda params, rows: self._trial(plan, params, rows, None),
            lambda guarantee: check_price(guarantee, plan),
            public,
        )

    def _seeded(self, seed: int | None) -> bool:
        """Whether the noise of trials is from a seed, the search's or the estimator's own."""
        own = self.estimator.get_params().get("random_state")
        return seed is not None or seed_of(copy.deepcopy(own)) is not None

    def _holdout_rows(self, rows: int) -> int:
        if self.scoring is not None:
            checked_scoring(self.scoring, self.estimator)
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
        require_choice("method", self.method, (STOPPING, COMPOSITION, FOLDS))
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
        for name, usual in _RAW.items():
            if settings.get(name, usual) != usual:
                raise SordinoError(
                    f"{name} is for single fits on raw tables; a search trains on what is declared"
                )
        if settings.get("undeclared") == PAY:
            raise SordinoError(
                "a search does not pay for what is not declared; declare it, and leave undeclared='pay' out"
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
        prices = FoldPrices.of(total, runs, self.folds) if self.method == FOLDS else None
        guarantee = Guarantee.gaussian(
            total,
            participation=prices.describe()
            if prices is not None
            else "in one run"
            if runs == 1
            else f"in all of {runs} runs of a search",
            exact=False,
            **stated,
        )
        guarantee = replace(guarantee, scope=SEARCH)
        mu = composed_mu(total, runs) if prices is None else prices.fit
        return SearchPlan(guarantee, trial_mu=mu, n_trials=runs, folds=prices, **described)

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
            if name in _RAW:
                raise SordinoError(
                    f"{name} is not searched for: a search trains on what is declared"
                )
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
        if self.method != STOPPING:
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

    def _source(self, X: Features, y: ArrayLike, groups: ArrayLike | None) -> Source | None:
        """What a ledger knows the data by: the same as if the estimator were fitted by itself."""
        if self.ledger is None:
            return None
        own = clone(self.estimator)
        if hasattr(own, "_describe"):
            X, _, _ = own._describe(X, y)
        return source_of(X, y, rows=_num_samples(X), groups=groups)

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
