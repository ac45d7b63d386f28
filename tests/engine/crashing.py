"""A training process that tests kill: ``python -m tests.engine.crashing FOLDER RECIPE``.

Everything it depends on is fixed, its key too (a test's key: it keeps nothing secret), so that any two
of its runs that are not interrupted, or are, must end with the same bytes.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

import sordino
from sordino._base.keys import RunKey
from sordino.engine.ledger._ledger import Ledger
from sordino.parts._losses import Logistic
from sordino.planning.recipes import recipe_named

ROWS, FEATURES = 600, 6
KEY = RunKey(hashlib.sha256(b"a key for tests").digest())
CHECKPOINT, LEDGER, RESULT, DATASET = "run.checkpoint", "budget.ledger", "result.npy", "people"


def data() -> tuple[Any, Any]:
    """Rows of unmistakable numbers."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    return X, (X[:, 0] + 0.3 * rng.normal(size=ROWS) > 0).astype(np.int32)


def planned(recipe: str) -> Any:
    """400 steps of the recipe (40 iterations of an adaptive one)."""
    amount: dict[str, Any] = {"batch_size": 6, "epochs": 4}
    if recipe_named(recipe).full_batch:
        amount = {"steps": 40}
    return sordino.plan(recipe, examples=ROWS, epsilon=2.0, delta=1e-5, **amount)


def prepare(folder: Path) -> None:
    """A ledger whose budget pays for one run and no more."""
    ledger = Ledger.create(folder / LEDGER)
    ledger.add_dataset(DATASET, epsilon=2.001, delta=1e-5)
    ledger.close()


def run(folder: Path, recipe: str) -> None:
    """Train, or go on; write the parameters."""
    result = sordino.train(
        planned(recipe),
        Logistic(),
        np.zeros(Logistic().parameter_shape(FEATURES), np.float32),
        data(),
        run_key=KEY,
        checkpoint=folder / CHECKPOINT,
        checkpoint_seconds=0.0,
        ledger=folder / LEDGER,
        dataset=DATASET,
    )
    with (folder / RESULT).open("wb") as file:
        np.save(file, np.asarray(result.params))


if __name__ == "__main__":
    from sordino.engine._compilation import compilation_cache

    with compilation_cache():
        run(Path(sys.argv[1]), sys.argv[2])
