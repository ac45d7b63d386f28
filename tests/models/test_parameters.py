"""Parameters of the estimators: one table, and what it makes for scikit-learn, `help` and old callers."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from sordino import LeastSquares, Logistic, PrivateClassifier, PrivateRegressor, SordinoError
from sordino.models._linear import PrivateLinear
from sordino.parts.schedules import Exponential

ESTIMATORS = [PrivateClassifier, PrivateRegressor]
OWN = {PrivateClassifier: {"classes", "class_weight"}, PrivateRegressor: {"target_bounds"}}
# Of raw tables, with their defaults.
RAW: dict[str, Any] = {
    "undeclared": "auto",
    "preprocessing_share": 0.1,
    "features": "auto",
    "bins": 8,
    "evaluate": 0.0,
    "person_power": 0.5,
    "rows_per_person": None,
    "weight_bound": None,
    "decimal": ".",
    "date_formats": None,
}
# Of 0.5.1, with their defaults: calls by name, and the first two by place.
BEFORE: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": None,
    "adjacency": None,
    "unit": "example",
    "one_row_per_person": False,
    "feature_bounds": None,
    "categories": None,
    "examples": None,
    "epochs": None,
    "batch_size": None,
    "clip": None,
    "learning_rate": None,
    "momentum": None,
    "fit_intercept": True,
    "random_state": None,
    "run_key": None,
    "noise": "gaussian",
    "checkpoint": None,
    "ledger": None,
    "dataset": None,
    "verbose": 0,
}

rng = np.random.default_rng(5)
X = rng.uniform(-1, 1, size=(200, 2))
Y = (X[:, 0] > 0).astype(int)


def planned(loss: Any = None, **settings: Any) -> Any:
    given = {"epsilon": 2.0, "delta": 1e-4, **settings}
    return PrivateClassifier(**given)._plan(1000, Logistic() if loss is None else loss)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_the_signature_has_every_parameter(cls: Any) -> None:
    parameters = dict(inspect.signature(cls).parameters)
    for name, default in {**BEFORE, **RAW}.items():
        assert parameters[name].default == default
    shared = set(inspect.signature(PrivateLinear).parameters)
    assert set(parameters) - shared == OWN[cls]
    new = {"recipe", "options", "parts", "method"}
    assert set(parameters) - set(BEFORE) - set(RAW) == OWN[cls] | new
    by_place = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert by_place == ["epsilon", "delta"]
    assert parameters["epochs"].annotation == "float | None"


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_every_parameter_is_stored_as_given_and_cloned(cls: Any) -> None:
    given = {name: object() for name in inspect.signature(cls).parameters}
    model = cls(**given)
    assert model.get_params(deep=False) == given
    plain = cls(3.0, 1e-6, recipe="dp-gd", options={"schedule": "exponential"})
    other = clone(plain)
    assert other.get_params() == plain.get_params()
    assert other is not plain
    assert repr(plain).startswith(f"{cls.__name__}(delta=1e-06, epsilon=3.0, options=")
    with pytest.raises(TypeError):
        cls(1.0, 1e-5, "dp-gd")
    with pytest.raises(TypeError):
        cls(epsilom=1.0)


def test_every_parameter_is_explained() -> None:
    assert PrivateClassifier.__doc__ is not None
    assert PrivateRegressor.__doc__ is not None
    described = PrivateClassifier.__doc__.partition("Parameters")[2]
    for name in inspect.signature(PrivateClassifier).parameters:
        assert re.search(rf"\b{name}\b", described)
    for name in ("evaluation_", "columns_", "table_run_"):
        assert re.search(rf"\b{name}\b", described)
    assert "target_bounds" in PrivateRegressor.__doc__


def test_estimators_are_no_values() -> None:
    """As everywhere in scikit-learn: equal parameters do not make two estimators one."""
    one, two = PrivateClassifier(), PrivateClassifier()
    assert one != two
    assert len({one, two}) == 2


# ---- options


def test_options_reach_the_plan() -> None:
    plan = planned(
        recipe="dp-gd",
        epochs=6,
        options={"schedule": "exponential", "schedule.ratio": 1.8, "lr_schedule": "linear"},
    )
    assert plan.schedule == Exponential(1.8)
    assert plan.update.lr_schedule == "linear"
    ready = planned(recipe="dp-gd", epochs=6, options={"schedule": Exponential(1.8)})
    assert ready.schedule == plan.schedule


def test_options_are_the_same_as_parameters() -> None:
    by_name = planned(clip=0.3, momentum=0.5, learning_rate=0.2)
    in_table = planned(options={"clip": 0.3, "momentum": 0.5, "learning_rate": 0.2})
    assert by_name.hash == in_table.hash
    assert in_table.update.learning_rate == 0.2


def test_a_random_iterate_is_not_averaged() -> None:
    plan = planned(recipe="dp-sgd", options={"output": "random"})
    assert (plan.update.output, plan.update.average) == ("random", 0.0)


def test_an_average_of_ones_own() -> None:
    assert planned(options={"average": 0.5}).update.average == 0.5
    assert planned().update.average == 0.25


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"options": {"nonsens": 1}}, "dp-memf has no option 'nonsens'"),
        ({"options": {"momentun": 1}}, "did you mean 'momentum'"),
        ({"options": {"epochs": 3}}, "dp-memf has no option 'epochs'"),
        ({"options": ["clip"]}, "options is a dict"),
        ({"options": {"clip": 1.0}, "clip": 1.0}, "clip is given twice"),
        ({"options": {"bands": 4}}, "bands has no effect with mechanism 'auto'"),
        ({"recipe": "dp-srm", "momentum": 0.5}, "momentum has no effect with optimizer 'adaptive'"),
        ({"recipe": "dp-agd", "learning_rate": 0.5}, "dp-agd has no option 'learning_rate'"),
        ({"recipe": "dp-sgdd"}, "did you mean 'dp-sgd'"),
    ],
)
def test_options_that_do_not_fit_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SordinoError, match=words):
        planned(**settings)


def test_defaults_without_effect_are_left_out() -> None:
    """The estimator's momentum means nothing to dp-srm, and is no error there."""
    assert planned(recipe="dp-srm").update.optimizer == "adaptive"
    assert planned(LeastSquares(), recipe="dp-srgd").update.optimizer == "nesterov"


# ---- the old name


def test_the_old_name_of_recipe_works_for_one_release() -> None:
    with pytest.warns(FutureWarning, match="method is called recipe"):
        plan = planned(method="dp-gd", epochs=5)
    assert plan.hash == planned(recipe="dp-gd", epochs=5).hash
    with pytest.raises(SordinoError, match="give recipe only"):
        planned(method="dp-gd", recipe="dp-sgd")
    model = PrivateClassifier().set_params(method="dp-gd")
    assert clone(model).method == "dp-gd"


def test_a_pickle_of_the_last_release_can_be_fitted() -> None:
    """It knows `method`, and nothing of parameters that are new."""
    model = PrivateClassifier(epsilon=2.0, delta=1e-4, epochs=3, random_state=0)
    state = model.__getstate__()
    state = {k: v for k, v in state.items() if k not in ("recipe", "options")}
    old = PrivateClassifier.__new__(PrivateClassifier)
    old.__dict__.update(state | {"method": "dp-gd"})
    read = pickle.loads(pickle.dumps(old))
    with pytest.warns(FutureWarning, match="method is called recipe"):
        read.fit(X, Y)
    assert read.plan_.recipe == "dp-gd"
    assert copy.copy(read).plan_ is read.plan_
