"""Three hospitals train one model; none shows a record to another, and nobody knows the noise.

Everything here is in one process: the parties' own computation and the noise are those of a real run, the
network is not (for that: `sordino party`, docs/parties.md). The same budget is spent in three ways, and
once by one hospital alone.

Run: python examples/parties.py
"""

from __future__ import annotations

import numpy as np

import sordino
from sordino import Logistic
from sordino.together.parties import Terms, agree, train_together

SIZES = {"north": 1200, "south": 500, "east": 300}
FEATURES = 8
SEEDS = 12
BUDGET = {"epsilon": 0.1, "delta": 1e-5}

Rows = tuple[np.ndarray, np.ndarray]


def patients(rows: int, rng: np.random.Generator) -> Rows:
    """Records of length 1 at most, so that gradients are bounded."""
    X = rng.normal(size=(rows, FEATURES))
    ill = X @ np.linspace(2, -2, FEATURES) + 0.5 * rng.normal(size=rows) > 0
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True))
    return X.astype(np.float32), ill.astype(np.int32)


def accuracy(w: np.ndarray, rows: Rows) -> float:
    X, y = rows
    return float(np.mean((X @ np.asarray(w) > 0) == y))


def agreed(engine: str, colluders: int | None = None) -> Terms:
    """What all hospitals sign; the number of records of each is public, the records are not."""
    return agree(
        "dp-srm",
        examples=list(SIZES.values()),
        parameters=FEATURES,
        batch_size=200,
        steps=60,
        engine=engine,
        colluders=colluders,
        learning_rate=2.0,
        **BUDGET,
    )


def main() -> float:
    """Print the ways and their accuracy; return that of a real consortium's default."""
    rng = np.random.default_rng(0)
    shares = [patients(rows, rng) for rows in SIZES.values()]
    test = patients(5000, rng)  # public
    start = np.zeros(FEATURES, np.float32)
    found: dict[str, float] = {}
    for name, terms in {
        "noise inside the computation (spu, mpyc)": agreed("mpyc"),
        "noise as shares, one may collude (mask)": agreed("mask", 1),
        "noise as shares, two may collude (mask)": agreed("mask", 2),
    }.items():
        runs = [
            train_together(terms, Logistic(), start, shares, insecure_seed=s) for s in range(SEEDS)
        ]
        found[name] = float(np.mean([accuracy(run.params, test) for run in runs]))
    alone = sordino.plan(
        "dp-srm", examples=1200, batch_size=120, steps=60, learning_rate=2.0, **BUDGET
    )
    runs = [
        sordino.train(alone, Logistic(), start, shares[0], insecure_seed=s) for s in range(SEEDS)
    ]
    found["the largest hospital alone"] = float(np.mean([accuracy(r.params, test) for r in runs]))
    print(agreed("mask", 1).statement())
    for name, value in found.items():
        print(f"{name:42} {value:.1%}")
    return found["noise as shares, one may collude (mask)"]


if __name__ == "__main__":
    main()
