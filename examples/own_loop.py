"""A training loop of one's own, held to the plan; and what happens when it strays.

Run: python examples/own_loop.py
"""

from __future__ import annotations

import numpy as np

import sordino
from sordino import Logistic


def main() -> float:
    """Train, show that the plan cannot be overstepped, and return the accuracy."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 6)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = (X @ rng.normal(size=6) > 0).astype(np.float32)

    # dp-nsgd-sr: after the first epoch an example pays only for what changed in its gradient.
    plan = sordino.plan(
        "dp-nsgd-sr", examples=2000, batch_size=200, epochs=10, epsilon=1.0, delta=1e-6
    )
    print(plan)

    session = sordino.Session(plan, Logistic(), np.zeros(6, np.float32))
    for rows in session:  # the rows that the plan wants next
        session.step((X[rows], y[rows]))
    result = session.result()
    print(result.statement())
    accuracy = float(np.mean((X @ np.asarray(result.params) > 0) == (y > 0)))
    print(f"accuracy {accuracy:.3f}")

    try:
        session.step((X[:200], y[:200]))
    except sordino.PlanMismatchError as error:
        print(f"refused: {error}")
    return accuracy


if __name__ == "__main__":
    main()
