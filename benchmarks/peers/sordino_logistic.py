"""Sordino on the same task: `sordino.train` called again and again, as a user would.

`--batches poisson` samples as the peers do; `fixed` (the library's default) goes through the data in one
public order, reordered in every run; `given` takes the rows as they lie, like the non-private loop.
"""

import sys

import data
import jax.numpy as jnp
import numpy as np
from timing import Fit, report

import sordino
from sordino import Logistic


def main(batches: str) -> None:
    """Time the task and print one JSON line."""
    x, y, name = data.load()
    rows = jnp.asarray(np.concatenate([x, np.ones((data.N, 1), np.float32)], axis=1))
    labels = jnp.asarray(y)
    plan = sordino.plan(
        "dp-sgd",
        examples=data.N,
        batch_size=data.BATCH,
        epochs=data.EPOCHS,
        noise_multiplier=data.NOISE_MULTIPLIER,
        clip=data.CLIP,
        sampling="poisson" if batches == "poisson" else "fixed",
        order_seed=None if batches == "given" else 0,
        learning_rate=data.LEARNING_RATE,
        momentum=0.0,
    )

    def run() -> Fit:
        result = sordino.train(plan, Logistic(), np.zeros(data.D + 1, np.float32), (rows, labels))
        w = np.asarray(result.params)
        return Fit(w[: data.D], float(w[data.D]), plan.population.steps)

    report(f"sordino ({batches})", run, x, y, name)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "fixed")
