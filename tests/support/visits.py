"""A table as newcomers bring it: visits of patients, with everything in it that tables have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

TARGET, PERSON = "outcome", "patient"
CLASSES = ("discharged", "readmitted", "died")
COLUMNS = ("visit_id", PERSON, "age", "pressure", "seen", "ward", "insured", "note")
# What no exception, warning or page may show.
SECRET = "kuru-4711"


def visits(patients: int = 1500, seed: int = 0) -> pd.DataFrame:
    """One row per visit, 1 to 4 per patient; classes 92, 6 and 2 %; native types.

    Rare classes follow from age and ward. Ages are sometimes missing and sometimes words, pressures have
    many digits, notes and visits are unique, one note is a secret.
    """
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(patients), rng.integers(1, 5, patients))
    rows = len(who)
    age = rng.integers(18, 95, patients)[who]
    ward = rng.choice(["surgery", "medicine", "maternity"], rows, p=[0.4, 0.45, 0.15])
    risk = age + 25 * (ward == "surgery") + rng.normal(0, 4, rows)
    cuts = np.quantile(risk, [0.92, 0.98])
    days = pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), "D")
    frame = pd.DataFrame(
        {
            "visit_id": np.arange(rows) + 100_000,
            PERSON: [f"P{i:05}" for i in who],
            "age": pd.Series(age.tolist(), dtype=object),
            "pressure": rng.normal(120, 15, rows),
            "seen": days,
            "ward": ward,
            "insured": rng.random(rows) < 0.8,
            "note": [f"note {i}" for i in range(rows)],
            TARGET: np.array(CLASSES)[np.searchsorted(cuts, risk)],
        }
    )
    frame.loc[frame.index % 17 == 3, "age"] = None
    frame.loc[frame.index % 50 == 7, "age"] = "unknown"
    frame.loc[frame.index % 23 == 5, "pressure"] = np.nan
    frame.loc[frame.index % 29 == 2, "ward"] = None
    frame.loc[11, "note"] = SECRET
    return frame


def as_text(frame: pd.DataFrame) -> pd.DataFrame:
    """Every cell as a file of text has it."""
    text = frame.astype(object).where(frame.notna(), None)
    if "seen" in frame:
        text["seen"] = [day.date().isoformat() for day in frame["seen"]]
    return pd.DataFrame(
        {
            name: pd.Series(
                [None if cell is None else str(cell) for cell in text[name]], dtype=object
            )
            for name in text
        }
    )


def write_csv(frame: pd.DataFrame, path: Path, separator: str = ",") -> Path:
    as_text(frame).to_csv(path, index=False, sep=separator)
    return path


def write_parquet(frame: pd.DataFrame, path: Path) -> Path:
    """Parquet has one type for each column: the mixed one is text."""
    mixed = [None if cell is None else str(cell) for cell in frame["age"]]
    frame.assign(
        age=pd.Series(mixed, dtype="string"), ward=frame["ward"].astype("category")
    ).to_parquet(path)
    return path
