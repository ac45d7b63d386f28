"""A recipe between data owners: every party's own learner and noise, in one process.

Settings are those of the recipe, with ``parties`` (how many; rows are dealt out in their order)
and ``engine`` (how sums are made secret, which decides whose noise is added; see docs/secure-sums.md).
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.lab.cells import Cell
from benchmarks.lab.running import in_units, prepared_rows
from benchmarks.lab.scores import score_models
from sordino import SordinoError
from sordino.together.parties import agree, train_together


def run_cell(cell: Cell, folder: str | None) -> dict[str, Any]:
    """Train with every seed, one after the other, and score the models that all parties have."""
    rows = prepared_rows(cell.population, folder)
    options = in_units(cell.recipe, cell.settings, cell.population.unit)
    parties, engine = int(options.pop("parties")), str(options.pop("engine"))
    if cell.budget is None:
        raise SordinoError(f"{cell.name}: parties need a budget")
    X, y = rows.train
    if "batches" in options:
        options["batch_size"] = -(-len(y) // int(options.pop("batches")))
    shards = list(zip(np.array_split(X, parties), np.array_split(y, parties), strict=True))
    terms = agree(
        cell.recipe,
        examples=[len(labels) for _, labels in shards],
        parameters=rows.start.size,
        engine=engine,
        **cell.budget.spent,
        **options,
    )
    first, count = cell.seeds
    cpu, wall = time.process_time(), time.perf_counter()
    result = [
        np.asarray(
            train_together(terms, rows.loss, rows.start, shards, insecure_seed=seed).params
        ).ravel()
        for seed in range(first, first + count)
    ]
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    passes = terms.plan.gradient_evaluations / terms.plan.population.examples
    scores = score_models(np.stack(result), rows)
    return {
        "plan_hash": terms.plan.hash,
        "guarantee": terms.guarantee.sentence(),
        "steps": terms.plan.population.steps,
        "runs": [{"seed": first + i, "passes": passes, **score} for i, score in enumerate(scores)],
        "as_published": rows.as_published,
        "cpu_seconds_per_run": cpu / count,
        "wall_seconds_per_run": wall / count,
        "runs_together": 1,
    }
