"""Rows of norm at most 1, and weights of them that speak of the features."""

from __future__ import annotations

import pickle
import warnings

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino import PrivateClassifier
from sordino._base.errors import PrivacyWarning
from sordino.models._rows import UNSCALED_CONSTANT, RowPreparation

UNIT_BOX = np.array([[-1.0] * 3, [1.0] * 3])
PREPARATIONS = [
    RowPreparation.for_array(bounds, intercept)
    for bounds in (None, UNIT_BOX)
    for intercept in (True, False)
]


@pytest.mark.parametrize("prepare", PREPARATIONS)
@given(X=hnp.arrays(np.float64, (4, 3), elements=st.floats(-1e300, 1e300)))
def test_no_row_is_longer_than_1(prepare: RowPreparation, X: np.ndarray) -> None:
    rows = prepare(X)
    assert rows.shape == (4, 3 + prepare.intercept)
    assert np.all(np.linalg.norm(rows.astype(np.float64), axis=1) <= 1 + 1e-6)


@pytest.mark.parametrize("prepare", PREPARATIONS)
@pytest.mark.parametrize("outputs", [1, 4])
def test_weights_of_features_and_of_rows_say_the_same(
    prepare: RowPreparation, outputs: int
) -> None:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(outputs, 3 + prepare.intercept))
    coef, intercept = prepare.to_features(weights, 3)
    assert (coef.shape, intercept.shape) == ((outputs, 3), (outputs,))
    np.testing.assert_allclose(prepare.to_rows(coef, intercept, 3), weights, rtol=1e-12)
    # Rows that are not shortened are decided by the features themselves.
    X = rng.uniform(-0.1, 0.1, size=(5, 3))
    seen = X if prepare.bounds is not None else X / np.linalg.norm(X, axis=1, keepdims=True)
    decided = prepare(X).astype(np.float64) @ weights.T
    np.testing.assert_allclose(decided, seen @ coef.T + intercept, atol=1e-6)


def test_the_constant_leaves_rows_of_unknown_scale_their_length() -> None:
    """Of a clipped gradient's square, the intercept takes 1/17 and not half."""
    rows = RowPreparation.for_array(None, True)(np.array([[3.0, -4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(rows[0, -1] ** 2, 1 / 17, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(rows[0]), 1.0, rtol=1e-6)
    np.testing.assert_allclose(rows[1], [0, 0, UNSCALED_CONSTANT / np.sqrt(17 / 16)], rtol=1e-6)
    assert RowPreparation.for_array(UNIT_BOX, True).constant == 1.0


def test_what_was_pickled_before_there_was_a_choice_keeps_its_constant_of_1() -> None:
    """Weights that were trained on other rows must not be read as weights of these."""
    state = {"schema": None, "bounds": None, "intercept": True}
    old = RowPreparation.__new__(RowPreparation)
    old.__dict__.update(state)
    old = pickle.loads(pickle.dumps(old))
    np.testing.assert_allclose(old(np.array([[3.0, 4.0]]))[0, -1] ** 2, 1 / 2, rtol=1e-6)


def test_the_intercept_learns_a_rare_class() -> None:
    """Where features tell nothing, the intercept does, small as its constant is: 2 % are positive, and
    with residuals clipped to 1/2 descent rests where .02 / 2 = .98 p, at p = 1.02 %."""
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(20_000, 5)), (np.arange(20_000) % 50 == 0).astype(int)
    model = PrivateClassifier(
        epsilon=4.0, delta=1e-6, classes=[0, 1], examples=len(y), random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        model.fit(X, y)
    found = model.predict_proba(rng.normal(size=(1000, 5)))[:, 1]
    assert 0.007 < found.mean() < 0.014
    assert model.intercept_[0] < -4
