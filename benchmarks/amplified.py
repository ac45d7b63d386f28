"""The untuned classifier at small epsilon, beside Poisson DP-SGD that was tuned on the test rows.

    python -m benchmarks amplified mnist a9a --data FOLDER

Rows are divided by their norms, as in experiment G. `PrivateClassifier` gets the budget, the classes and the
number of rows, and nothing else; with batches as it chooses them, and with the fixed ones it had before.
DP-SGD is the library's own, amplified, with every setting of a grid; its best figure is the largest mean on
the test rows, which is more than anybody could have: a private tuning costs budget.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from benchmarks.published import load_a9a, load_mnist
from sordino import PrivacyWarning, PrivateClassifier

EPSILONS = (0.1, 0.25, 0.5, 1.0)
DELTAS = {"mnist": 1e-6, "a9a": 1e-5}
OURS_SEEDS, GRID_SEEDS = 5, 3
RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
CLIPS, EPOCHS = (0.5, 1.0), (10, 20)
BATCHES = 20  # of an epoch

Array = NDArray[np.float32]


def rows_of(name: str, folder: str | None) -> tuple[Array, Array, Array, Array]:
    data = {"mnist": load_mnist, "a9a": load_a9a}[name](folder)
    X, test = (
        np.asarray(x.todense() if hasattr(x, "todense") else x, np.float32).reshape(x.shape[0], -1)
        for x in (data.train[0], data.test[0])
    )
    X, test = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (X, test))
    return X, np.asarray(data.train[1]), test, np.asarray(data.test[1])


def accuracies(
    name: str,
    rows: tuple[Array, Array, Array, Array],
    epsilon: float,
    seeds: int,
    **settings: object,
) -> tuple[float, float]:
    """Mean accuracy in percent, and half of its 95 % interval."""
    X, y, test, truth = rows
    found = []
    for seed in range(seeds):
        model = PrivateClassifier(
            epsilon=epsilon,
            delta=DELTAS[name],
            classes=np.unique(y),
            examples=len(y),
            random_state=seed,
            **settings,  # type: ignore[arg-type]
        ).fit(X, y)
        found.append(100 * float(np.mean(model.predict(test) == truth)))
    return float(np.mean(found)), 1.96 * float(np.std(found, ddof=1)) / len(found) ** 0.5


def tuned(
    name: str, rows: tuple[Array, Array, Array, Array], epsilon: float
) -> Iterator[tuple[float, float, str]]:
    """Every setting of the grid."""
    for rate, clip, epochs in product(RATES, CLIPS, EPOCHS):
        mean, half = accuracies(
            name,
            rows,
            epsilon,
            GRID_SEEDS,
            recipe="dp-sgd",
            options={"sampling": "poisson"},
            learning_rate=rate,
            clip=clip,
            epochs=epochs,
            momentum=0.9,
            batch_size=-(-len(rows[1]) // BATCHES),
        )
        yield mean, half, f"rate {rate:g}, clip {clip:g}, {epochs} passes"


def main(names: list[str], folder: str | None) -> None:
    """A table for each data set, as Markdown."""
    warnings.simplefilter("ignore", PrivacyWarning)
    for name in names:
        rows = rows_of(name, folder)
        print(f"## {name}, delta {DELTAS[name]:g}\n")
        print(
            "| epsilon | untuned | untuned, fixed batches | DP-SGD, best on the test rows | its setting |"
        )
        print("| --- | ---: | ---: | ---: | --- |")
        for epsilon in EPSILONS:
            ours = accuracies(name, rows, epsilon, OURS_SEEDS)
            fixed = accuracies(name, rows, epsilon, OURS_SEEDS, options={"sampling": "fixed"})
            best = max(tuned(name, rows, epsilon))
            cells = [f"{mean:.2f} ± {half:.2f}" for mean, half in (ours, fixed, best[:2])]
            print(f"| {epsilon:g} | {' | '.join(cells)} | {best[2]} |", flush=True)
        print()
