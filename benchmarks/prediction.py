"""Does `Plan.predicted_loss` rank plans as training does? Logistic regression on public training rows.

    python -m benchmarks prediction a9a ijcnn1 mnist

22 plans at three learning rates, several seeds each (`train_many`). For both budgets: the rank
correlation between predicted and trained excess loss, over all plans and rates and over each plan's best
rate, and the trained loss of the plan and rate that the prediction puts first. Test rows are never read.
"usual" is the spectrum of a plan's page (100 parameters, whatever the data), "public" that of
`public_spectrum` on 2,000 training rows taken as public.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

import sordino
from benchmarks.published import load_a9a, load_ijcnn1, load_mnist
from sordino import Logistic, Plan, PublicData
from sordino.engine import train_many
from sordino.engine.influence import public_spectrum
from sordino.planning import Spectrum

RATES = (0.5, 2.0, 8.0)
EPSILONS = (1.0, 0.1)
PUBLIC_ROWS = 2000
Array = NDArray[np.float64]


def training_rows(name: str, folder: str | None) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Rows with a constant, each scaled to norm at most 1, and labels 0 and 1."""
    if name == "breast-cancer":
        from sklearn.datasets import load_breast_cancer

        X, y = load_breast_cancer(return_X_y=True)
        X = (X - X.min(0)) / (X.max(0) - X.min(0))
    elif name == "mnist":
        X, digits = load_mnist(folder).train  # digits from 5 on against those below
        X, y = X[:20_000].reshape(20_000, -1), digits[:20_000] >= 5
    else:
        X, y = {"a9a": load_a9a, "ijcnn1": load_ijcnn1}[name](folder).train
    rows = np.concatenate([X, np.ones((len(X), 1))], axis=1).astype(np.float32)
    rows /= np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))
    return rows, np.asarray(y > 0, np.float32)


def optimum(X: NDArray[np.float32], y: NDArray[np.float32]) -> float:
    """The least mean loss, by Newton's method with halved steps."""
    rows, w = X.astype(float), np.zeros(X.shape[1])

    def value(w: Array) -> float:
        z = rows @ w
        return float(np.mean(np.logaddexp(0, z) - y * z))

    for _ in range(60):
        p = 1 / (1 + np.exp(-(rows @ w)))
        slope = rows.T @ (p - y) / len(y)
        curvature = (rows * (p * (1 - p))[:, None]).T @ rows / len(y)
        way = np.linalg.lstsq(curvature + 1e-9 * np.eye(len(w)), slope, rcond=1e-10)[0]
        size = 1.0
        while value(w - size * way) > value(w) and size > 1e-6:
            size /= 2
        w = w - size * way
        if np.linalg.norm(slope) < 1e-10:
            break
    return value(w)


def plans(examples: int, epsilon: float, sizes: tuple[int, int] = (500, 2000)) -> dict[str, Plan]:
    """Section 6's grid: full batches with few and many steps, amplified, correlated and recursive noise."""
    common: dict[str, Any] = {
        "examples": examples,
        "epsilon": epsilon,
        "delta": 1e-6,
        "adjacency": "zero-out",
    }
    made = {
        f"{name}, {steps} steps": sordino.plan(name, steps=steps, **common)
        for name in ("dp-gd", "dp-gd-momentum")
        for steps in (4, 15, 60)
    }
    for steps in (15, 60):
        made[f"dp-gd, exponential, {steps} steps"] = sordino.plan(
            "dp-gd", steps=steps, schedule="exponential", **common
        )
    for size in sizes:
        for epochs in (2, 10):
            own = {"batch_size": size, "epochs": epochs, **common}
            made[f"dp-sgd, {size}, {epochs} epochs"] = sordino.plan("dp-sgd", **own)
            made[f"dp-memf, {size}, {epochs} epochs"] = sordino.plan(
                "dp-memf", mechanism="blt", **own
            )
    ten = {"epochs": 10, **common}
    small = {"batch_size": sizes[0], **ten}
    made["dp-memf, tree"] = sordino.plan("dp-memf", mechanism="tree", **small)
    made["dp-memf, averaged"] = sordino.plan("dp-memf", mechanism="blt", average=0.5, **small)
    for size in sizes:
        made[f"dp-srg-memf, {size}"] = sordino.plan(
            "dp-srg-memf", mechanism="blt", batch_size=size, **ten
        )
    for schedule in ("uniform", "exponential"):
        made[f"dp-psgd, {schedule}"] = sordino.plan("dp-psgd", schedule=schedule, **small)
    return made


def at_rate(plan: Plan, rate: float) -> Plan:
    """Rates are per step of plain descent: momentum takes each gradient 1/(1-momentum) times."""
    update = plan.update
    scale = 1 - update.momentum if update.optimizer == "sgd" else 1.0
    return plan.with_update(learning_rate=rate * scale)


def trained(
    made: Mapping[str, Plan], X: NDArray[np.float32], y: NDArray[np.float32], seeds: int
) -> dict[tuple[str, float], float]:
    """Mean excess training loss of each plan at each rate."""
    least, rows, labels = optimum(X, y), jnp.asarray(X), jnp.asarray(y)

    @jax.jit
    def loss(w: jax.Array) -> jax.Array:
        z = rows @ w
        return jnp.mean(jnp.logaddexp(0.0, z) - labels * z)

    start = np.zeros(X.shape[1], np.float32)
    found = {}
    for name, plan in made.items():
        for rate in RATES:
            runs = train_many(at_rate(plan, rate), Logistic(), start, (X, y), range(seeds))
            found[name, rate] = float(np.mean([float(loss(w)) for w in runs])) - least
    return found


def agreement(
    found: Mapping[tuple[str, float], float], predict: Callable[[str, float], float]
) -> tuple[float, float, float]:
    """Rank correlations over all and over best rates; trained loss of the first choice over the best."""
    predicted = {key: predict(*key) for key in found}
    names = dict.fromkeys(name for name, _ in found)
    best = [
        [min(table[name, rate] for rate in RATES) for name in names] for table in (found, predicted)
    ]
    first = min(predicted, key=lambda key: predicted[key])
    every = spearmanr(list(found.values()), list(predicted.values()))[0]
    return float(every), float(spearmanr(*best)[0]), found[first] / min(found.values())


def _noise(made: Mapping[str, Plan], name: str, rate: float) -> float:
    """By which 0.6 ranked; it knows of no learning rate."""
    return made[name].relative_error


def _loss(made: Mapping[str, Plan], spectrum: Spectrum | None, name: str, rate: float) -> float:
    loss = at_rate(made[name], rate).predicted_loss(spectrum)
    assert loss is not None
    return loss


def main(names: list[str], folder: str | None = None, seeds: int = 8) -> None:
    """Print the table."""
    print("| data | epsilon | predicted by | all | best rate | first choice / best |")
    print("| --- | ---: | --- | ---: | ---: | ---: |")
    for name in names:
        X, y = training_rows(name, folder)
        order = np.random.default_rng(0).permutation(len(X))[:PUBLIC_ROWS]
        start = np.zeros(X.shape[1], np.float32)
        public = public_spectrum(Logistic(), start, PublicData(X[order], y[order]))
        spectra: dict[str, Spectrum | None] = {"usual": None, "public": public}
        for epsilon in EPSILONS:
            made = plans(len(X), epsilon)
            found = trained(made, X, y, seeds)
            judges: dict[str, Callable[[str, float], float]] = {
                "noise": partial(_noise, made),
                **{kind: partial(_loss, made, spectrum) for kind, spectrum in spectra.items()},
            }
            for kind, judge in judges.items():
                every, best, first = agreement(found, judge)
                print(
                    f"| {name} | {epsilon:g} | {kind} | {every:.3f} | {best:.3f} | {first:.2f} |",
                    flush=True,
                )
