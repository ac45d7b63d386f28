"""DP-EBM of interpret on the tables of `benchmarks.tables`: AUC on the other rows.

    python -m benchmarks.peers.ebm adult nasscds --data FOLDER        (interpret-core 0.7.8)

Defaults, and the true range of every column and its categories free of charge.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import pandas as pd
from benchmarks.raw_tables import TABLES, RawTable
from interpret.privacy import DPExplainableBoostingClassifier
from sklearn.metrics import roc_auc_score

EPSILONS, DELTA = (0.5, 1.0, 4.0), 1e-5


def score(table: RawTable, epsilon: float, seed: int) -> float:
    train, test = table.split()
    X = table.features.copy()
    ranges: dict[int, tuple[float, float]] = {}
    kinds: list[str] = []
    for at, name in enumerate(X):
        numbers = X[name].dtype.kind in "iuf"
        kinds.append("continuous" if numbers else "nominal")
        if numbers:
            X[name] = X[name].astype(float).fillna(X[name].median())
            ranges[at] = (float(X[name].min()), float(X[name].max()))
        else:
            X[name] = X[name].astype(object).where(X[name].notna(), "missing").astype(str)
    model = DPExplainableBoostingClassifier(
        epsilon=epsilon,
        delta=DELTA,
        feature_types=kinds,
        privacy_bounds=pd.DataFrame(
            [ranges.get(i, (0.0, 1.0)) for i in range(len(kinds))]
        ).to_numpy(),
        random_state=seed,
    )
    model.fit(X.iloc[train], table.target[train])
    return float(roc_auc_score(table.target[test], model.predict_proba(X.iloc[test])[:, 1]))


def main() -> None:
    parser = argparse.ArgumentParser(description="DP-EBM on raw tables.")
    parser.add_argument("names", nargs="*", default=["adult", "nasscds", "tv16", "churn", "loans"])
    parser.add_argument("--data", default=".")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in given.names:
        table = TABLES[name](given.data)
        cells = []
        for epsilon in EPSILONS:
            found = [score(table, epsilon, seed) for seed in range(given.seeds)]
            cells.append(f"{np.mean(found):.4f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
