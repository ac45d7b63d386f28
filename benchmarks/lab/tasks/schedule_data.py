"""The data on which papers/04, sections 4 and 5, compares noise schedules, and public stand-ins for some of them.

    mc          scikit-learn's make_classification with the arguments of section 4: 1,000 rows, 100 features, separable
    hard        two unit Gaussians at distance 2: 1,000 rows, 100 features
    digits35    scikit-learn's small digits, 3 against 5: 365 rows, 54 principal components
    mnist35     MNIST, the first 1,000 threes and fives of the training rows: 60 principal components

Rows are centred, every feature is scaled to standard deviation 1, and all of them to a largest norm of 10.
That, and the principal components, is computed from the rows as if it were public; it is not paid for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from benchmarks.published import load_mnist
from sordino import LeastSquares, LinearLoss, Logistic, SordinoError
from sordino._base.errors import require_choice

Array = NDArray[np.float64]
SCALE = 10.0
ROWS, FEATURES, DISTANCE = 1000, 100, 2.0
COMPONENTS = 60
# papers/04 section 5 has no seed for "hard", but the least training loss of its draw, 0.32950. Of the seeds 0 to 9,
# this one is nearest to it (0.32904); the mean over seeds is 0.30, the standard deviation 0.02.
HARD_SEED = 7
# Components of less than this share of the largest are rounding errors.
_LEAST_COMPONENT = 1e-6


@dataclass(frozen=True, eq=False)
class ScheduleProblem:
    """Rows and a loss.

    Attributes:
      y: what the loss takes: 0 and 1 for logistic loss, -1 and 1 for squared loss.
      public: other rows from the same source; None where there are none.
    """

    X: NDArray[np.float32]
    y: NDArray[np.float32]
    loss: LinearLoss
    public: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None


def read_problem(source: str, loss: str, folder: str | None) -> ScheduleProblem:
    """The rows of the named source with the named loss."""
    rows = SOURCES[require_choice("source", source, SOURCES)]
    chosen = LOSSES[require_choice("loss", loss, LOSSES)]
    X, y = _labelled(*rows(folder, 0), loss)
    try:
        public = _labelled(*rows(folder, 1), loss)
    except _NoMoreRowsError:
        public = None
    return ScheduleProblem(X, y, chosen, public)


def scaled(X: Array) -> Array:
    """Centred, features of standard deviation 1, rows of norm at most `SCALE`."""
    rows = X - X.mean(axis=0)
    rows = rows / rows.std(axis=0)
    return np.asarray(rows * (SCALE / np.linalg.norm(rows, axis=1).max()))


def components(X: Array) -> Array:
    """The first `COMPONENTS` principal components, without those that are rounding errors."""
    rows = X - X.mean(axis=0)
    _, sizes, directions = np.linalg.svd(rows, full_matrices=False)
    count = min(COMPONENTS, int(np.sum(sizes > _LEAST_COMPONENT * sizes[0])))
    return np.asarray(rows @ directions[:count].T)


class _NoMoreRowsError(Exception):
    """There is no second draw of this data."""


def _mc(folder: str | None, draw: int) -> tuple[Array, Array]:
    from sklearn.datasets import make_classification

    X, y = make_classification(
        ROWS,
        FEATURES,
        n_informative=FEATURES,
        n_redundant=0,
        n_clusters_per_class=1,
        class_sep=5,
        flip_y=0,
        random_state=draw,
    )
    return scaled(X), y


def _hard(folder: str | None, draw: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(HARD_SEED + 1000 * draw)
    y = rng.integers(0, 2, ROWS)
    middle = DISTANCE / 2 * (2 * y - 1)[:, None] / np.sqrt(FEATURES)
    return scaled(rng.normal(size=(ROWS, FEATURES)) + middle), y.astype(np.float64)


def _digits(folder: str | None, draw: int) -> tuple[Array, Array]:
    from sklearn.datasets import load_digits

    if draw:
        raise _NoMoreRowsError
    X, y = load_digits(return_X_y=True)
    chosen = (y == 3) | (y == 5)
    return scaled(components(X[chosen])), (y[chosen] == 5).astype(np.float64)


def _mnist(folder: str | None, draw: int) -> tuple[Array, Array]:
    try:
        split = load_mnist(folder)
    except SordinoError:
        split = load_mnist(folder, verify=False)
    X, y = split.train
    chosen = np.flatnonzero((y == 3) | (y == 5))[draw * ROWS : (draw + 1) * ROWS]
    pixels = X[chosen].reshape(len(chosen), -1).astype(np.float64)
    return scaled(components(pixels)), (y[chosen] == 5).astype(np.float64)


SOURCES: Mapping[str, Callable[[str | None, int], tuple[Array, Array]]] = MappingProxyType(
    {"mc": _mc, "hard": _hard, "digits35": _digits, "mnist35": _mnist}
)
LOSSES: Mapping[str, LinearLoss] = MappingProxyType(
    {"logistic": Logistic(), "squared": LeastSquares()}
)


def _labelled(X: Array, y: Array, loss: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    labels = 2 * y - 1 if loss == "squared" else y
    return X.astype(np.float32), labels.astype(np.float32)
