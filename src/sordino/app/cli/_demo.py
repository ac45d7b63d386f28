"""``sordino demo``: a real data set, trained privately, beside what it costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino import models, report
from sordino.app.cli._console import out, say, show_guarantee, show_scores, spoken_warnings
from sordino.app.cli._output import REPORT, staged_folder, write_run, write_tables
from sordino.app.cli._train import show_folder, today

if TYPE_CHECKING:
    import pandas as pd

    from sordino.models import Schema
    from sordino.report import Measured

EPSILON, DELTA = 1.0, 1e-6
TEST_SHARE = 0.2
_NOTE = (
    "This is a demonstration on public data: a fifth of the rows plays the role of public test "
    "data, and the model without privacy was trained on the same rows as the private one."
)


def demo(
    out_folder: Annotated[Path, typer.Option("--out", help="Where to write the report.")] = Path(
        "sordino-demo"
    ),
    tables: Annotated[
        Path | None,
        typer.Option("--tables", help="Also write the survey there, to try other commands on."),
    ] = None,
) -> None:
    """Train a private model on public survey data and compare it with one without privacy."""
    with spoken_warnings() as notes, staged_folder(out_folder, force=True) as staging:
        frame, schema = models.load_demo()
        from sordino.app.cli._fitting import CLASSIFICATION, fit, score

        train, test = split(frame)
        schema = replace(schema, examples=len(train))
        if tables is not None:
            for path in write_tables(tables, train, test, schema):
                say(f"wrote {path}")
        out().print(
            f"Predicting {schema.target} for {len(train):,} people; {len(test):,} more play the "
            "role of public test data.",
            markup=False,
        )
        settings = {"epsilon": EPSILON, "delta": DELTA}
        model = fit(CLASSIFICATION, train, schema, settings, test)
        results = score(model, test, schema)
        private, majority = results.rows
        results = replace(results, rows=(private, without_privacy(train, test, schema), majority))
        assert schema.target is not None
        write_run(
            staging,
            model,
            title=f"Demonstration: predicting {schema.target}",
            target=schema.target,
            notes=[_NOTE, *notes],
            results=results,
            date=today(),
        )
    show_scores(results)
    show_guarantee(model.guarantee_.sentence())
    show_folder(out_folder)
    say(f"\nOpen {out_folder / REPORT} in a browser.")


def split(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and test rows, by a fixed public permutation."""
    import numpy as np

    order = np.random.default_rng(0).permutation(len(frame))
    count = round(TEST_SHARE * len(frame))
    return frame.iloc[order[count:]], frame.iloc[order[:count]]


def without_privacy(train: pd.DataFrame, test: pd.DataFrame, schema: Schema) -> Measured:
    """scikit-learn's logistic regression on the same prepared rows: NOT private."""
    from sklearn.linear_model import LogisticRegression

    rows = models.RowPreparation(schema)
    # Hardly any regularisation: the private model is compared with the best of its kind.
    plain = LogisticRegression(C=1e3, fit_intercept=False, max_iter=2000)
    plain.fit(rows(train[list(schema.names)]), train[schema.target])
    value = float(plain.score(rows(test[list(schema.names)]), test[schema.target]))
    return report.Measured(
        "NOT private", value, report.NOT_COVERED, "logistic regression on the same rows"
    )
