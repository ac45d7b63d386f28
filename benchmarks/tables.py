"""Raw tables with nothing declared: `PrivateClassifier` beside DP-EBM and models without privacy.

    python -m benchmarks tables adult nasscds --data FOLDER
    python -m benchmarks tables flights --person

Every column goes in as it is; ranges, categories, classes and counts are found inside the budget, which is
(epsilon, 1e-5) for everything released. Four fifths of the rows (or of the persons) are trained on, by a fixed
permutation; the figure is the AUC on the others. No setting was chosen per table. DP-EBM
(`benchmarks/peers/ebm.py`) is given the true ranges and categories of all columns free of charge.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.raw_tables import TABLES, RawTable
from sordino import PrivacyWarning, PrivateClassifier

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 4.0)
SEEDS = 5


def auc(truth: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(truth, scores))


def private(table: RawTable, epsilon: float, seed: int, **settings: Any) -> float:
    """AUC on the other rows of a model that was told nothing."""
    train, test = table.split()
    people = None if table.people is None else table.people.to_numpy()[train]
    model = PrivateClassifier(epsilon=epsilon, delta=DELTA, random_state=seed, **settings)
    model.fit(table.features.iloc[train], table.target[train], groups=people)
    if len(model.classes_) < 2:
        return 0.5
    return auc(table.target[test], model.predict_proba(table.features.iloc[test])[:, 1])


def without_privacy(table: RawTable) -> dict[str, float]:
    """Gradient boosting, and logistic regression on the quantile bins of each column: not private."""
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder

    train, test = table.split()
    X = table.features.copy()
    numeric = [name for name in X if X[name].dtype.kind in "iuf"]
    others = [name for name in X if name not in numeric]
    X[numeric] = X[numeric].fillna(X[numeric].median())
    X[others] = X[others].astype(str)
    bins = KBinsDiscretizer(16, encode="onehot", quantile_method="averaged_inverted_cdf")
    encoder = make_column_transformer(
        (bins, numeric), (OneHotEncoder(handle_unknown="ignore", min_frequency=20), others)
    )
    linear = make_pipeline(encoder, LogisticRegression(max_iter=2000))
    linear.fit(X.iloc[train], table.target[train])
    codes = X.copy()
    for name in others:
        codes[name] = pd.factorize(codes[name])[0]
    boosted = HistGradientBoostingClassifier(random_state=0)
    boosted.fit(codes.iloc[train], table.target[train])
    return {
        "logistic regression on bins": auc(
            table.target[test], linear.predict_proba(X.iloc[test])[:, 1]
        ),
        "gradient boosting": auc(table.target[test], boosted.predict_proba(codes.iloc[test])[:, 1]),
    }


def main(names: list[str], folder: str | None, seeds: int = SEEDS, **settings: Any) -> None:
    """One row for each table, as Markdown."""
    warnings.simplefilter("ignore", PrivacyWarning)
    heads = " | ".join(f"epsilon {epsilon:g}" for epsilon in EPSILONS)
    print(f"| table | rows | {heads} | logistic regression, gradient boosting (not private) |")
    print("| --- | ---: |" + " ---: |" * len(EPSILONS) + " ---: |")
    for name in names:
        table = TABLES[name](folder or os.environ.get("SORDINO_DATA"))
        cells = []
        for epsilon in EPSILONS:
            found = [private(table, epsilon, seed, **settings) for seed in range(seeds)]
            cells.append(f"{np.mean(found):.4f} ± {np.std(found, ddof=1):.4f}")
        plain = ", ".join(f"{value:.4f}" for value in without_privacy(table).values())
        rows = len(table.split()[0])
        print(f"| {name} | {rows:,} | {' | '.join(cells)} | {plain} |", flush=True)
