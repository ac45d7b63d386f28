r"""Algorithm 2 of Tran & Cutkosky 2022 as printed, with its indices corrected: windows of three trees.

    python -m benchmarks.papers.windows

A plain NumPy loop (papers/00 1.2): nodes of gradients at the epoch's first point, of their change since the
last epoch's, and of the rest; every step reads windows of the first two trees and a prefix of the third.
Work and memory grow with the run; `dp-nsgd-sr` is the same idea as one recursion. Here to compare with: its
noise may be the paper's levels or those levels scaled to their exact cost (`algorithm_2_cost`).
Gradients are clipped to C1 and both kinds of differences to C2, where the paper assumes G and L eta N.
Not for private data: its noise is from a seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.support.windows import reconstruct, window_sum

from benchmarks.papers.tran_cutkosky import Algorithm2Noise, algorithm_2, algorithm_2_cost
from sordino.privacy import Node

Array = NDArray[np.float64]
# Gradients (rows, d) of some rows at a point.
Gradients = Callable[[Array, NDArray[np.intp]], Array]


@dataclass(frozen=True)
class Windows:
    """Settings of a run: `steps` steps, `epoch_steps` batches of `batch_size` rows in a fixed order."""

    steps: int
    epoch_steps: int
    batch_size: int
    clip: float
    difference_clip: float
    gamma: float
    alpha: float
    learning_rate: float

    def printed(self, epsilon: float, delta: float) -> Algorithm2Noise:
        """The paper's noise at (epsilon, delta), replace-one, with ``G = C1`` and ``L eta N = C2``."""
        eta = self.learning_rate
        return algorithm_2(
            epsilon=epsilon,
            delta=delta,
            epoch_steps=self.epoch_steps,
            steps=self.steps,
            alpha=self.alpha,
            learning_rate=eta,
            lipschitz=self.clip,
            smoothness=self.difference_clip / (eta * self.epoch_steps),
            batch_size=self.batch_size,
        )

    def exact(self, mu: float) -> Algorithm2Noise:
        """The same proportions at their exact cost: mu-GDP, replace-one, fixed batches."""
        levels = self.printed(1.0, math.exp(-1.0))
        cost = algorithm_2_cost(epoch_steps=self.epoch_steps, steps=self.steps, alpha=self.alpha)
        factor = math.sqrt(cost) / (mu * levels.sigma)
        return Algorithm2Noise(
            levels.gradient_early * factor,
            levels.gradient_late * factor,
            levels.difference * factor,
            levels.sigma * factor,
        )

    def run(
        self, gradients: Gradients, start: Array, noise: Algorithm2Noise | None, seed: int = 0
    ) -> list[Array]:
        """The iterates ``w_1 .. w_{T+1}``; without noise where that is None."""
        B, beta = self.epoch_steps, 1 - self.alpha
        rng = np.random.default_rng(seed)
        early, late, rest = (
            (noise.gradient_early, noise.gradient_late, noise.difference) if noise else (0.0,) * 3
        )
        trees = [
            _Tree(beta, lambda last: early if last <= 2 * B else late, rng),
            _Tree(beta, lambda last: rest, rng),
            _Tree(beta, lambda last: rest, rng),
        ]
        w = [np.array(start, np.float64)]
        anchor = before = w[0]
        for t in range(1, self.steps + 1):
            place = (t - 1) % B
            if place == 0:
                before, anchor = anchor, w[-1]
            rows = np.arange(place * self.batch_size, (place + 1) * self.batch_size)
            now, here, last = (
                _clipped(gradients(x, rows), self.clip) for x in (w[-1], anchor, before)
            )
            parts = (
                here,
                _clipped(here - last, self.difference_clip),
                _clipped(now - here, self.difference_clip),
            )
            for tree, part in zip(trees, parts, strict=True):
                tree.leaves.append(part.sum(axis=0) / self.batch_size)
            momentum = reconstruct(trees[0], trees[1], t, B, beta, self.gamma)
            direction = momentum + window_sum(trees[2], 1, t, beta)
            w.append(
                w[-1]
                - self.learning_rate * direction / max(float(np.linalg.norm(direction)), 1e-30)
            )
        return w


@dataclass
class _Tree(Mapping[Node, Array]):
    """Nodes of a stream, each noised once, when it is first read."""

    beta: float
    std: Callable[[int], float]
    rng: np.random.Generator
    leaves: list[Array] = field(default_factory=list)
    nodes: dict[Node, Array] = field(default_factory=dict)

    def __getitem__(self, node: Node) -> Array:
        first, last = node
        if node not in self.nodes:
            if last > len(self.leaves):
                raise KeyError(node)
            weights = self.beta ** np.arange(last - first, -1, -1.0)
            value = weights @ np.array(self.leaves[first - 1 : last])
            self.nodes[node] = value + self.std(last) * self.rng.normal(size=value.shape)
        return self.nodes[node]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)


def _clipped(rows: Array, norm: float) -> Array:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, norm / np.maximum(lengths, 1e-300))


def logistic(X: Array, y: Array) -> Gradients:
    """Gradients of the logistic loss."""
    return lambda w, rows: (1 / (1 + np.exp(-X[rows] @ w)) - y[rows])[:, None] * X[rows]


def compared(mu: float = 4.0, seeds: int = 5) -> dict[str, float]:
    """Mean logistic loss after 20 epochs of 16 batches of 50: Algorithm 2 against the recipes, one mu."""
    import sordino

    rng = np.random.default_rng(0)
    n, d, B, epochs = 800, 10, 16, 20
    X = rng.normal(size=(n, d)) / math.sqrt(d)
    y = (X @ np.ones(d) + 0.2 * rng.normal(size=n) > 0).astype(float)
    X32, y32 = X.astype(np.float32), y.astype(np.float32)

    def loss(w: Array) -> float:
        return float(np.mean(np.logaddexp(0, X @ w) - y * (X @ w)))

    settings = Windows(epochs * B, B, n // B, 1.0, 0.1, 0.1, 0.1, 0.02)
    levels = {"exact": settings.exact(mu), "no": None}
    found = {
        f"Algorithm 2, {name} noise": float(
            np.mean(
                [
                    loss(settings.run(logistic(X, y), np.zeros(d), level, s)[-1])
                    for s in range(seeds)
                ]
            )
        )
        for name, level in levels.items()
    }
    for name in ("dp-nsgd-sr", "dp-nsgd"):
        own: dict[str, Any] = {"difference_clip": 0.1, "gamma": 0.1} if name == "dp-nsgd-sr" else {}
        plan = sordino.plan(
            name,
            examples=n,
            batch_size=n // B,
            epochs=epochs,
            mu=mu,
            adjacency="replace-one",
            learning_rate=0.02,
            **own,
        )
        runs = [
            sordino.train(
                plan, sordino.Logistic(), np.zeros(d, np.float32), (X32, y32), insecure_seed=s
            )
            for s in range(seeds)
        ]
        found[name] = float(np.mean([loss(np.asarray(run.params, np.float64)) for run in runs]))
    return found


if __name__ == "__main__":
    for contender, value in compared().items():
        print(f"{value:.4f}  {contender}")
