"""The two problems of the comparison of momentum estimates: logistic regression and a small network.

A model gives the engine its loss, and gives the measures what they need of many rows at once: logits, the
gradient of the mean loss, the norm of every row's own gradient, and how far clipped gradients moved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino import Logistic, SordinoError
from sordino._base.errors import require_count

Array = NDArray[np.float64]
# Rows whose gradients are held together.
_TOGETHER = 4096


class BenchModel(ABC):
    """A binary classifier whose parameters are also one flat row of numbers. Labels are 0 and 1."""

    @property
    @abstractmethod
    def loss(self) -> Any:
        """What `sordino.train` takes."""

    @abstractmethod
    def start(self, features: int) -> Any:
        """The first parameters, public and the same in every run."""

    @abstractmethod
    def logits(self, flat: Array, X: Array) -> Array:
        """Of every row, shape (rows,)."""

    @abstractmethod
    def gradient(self, flat: Array, X: Array, y: Array) -> tuple[Array, Array]:
        """The gradient of the mean loss, flat, and the norm of every row's gradient."""

    def moved(self, now: Array, before: Array, X: Array, y: Array, clip: float) -> Array:
        """Of every row, the norm of the difference between its clipped gradients at two points."""
        result = []
        for first in range(0, len(y), _TOGETHER):
            rows = X[first : first + _TOGETHER], y[first : first + _TOGETHER]
            a, b = (self._clipped(flat, *rows, clip) for flat in (now, before))
            result.append(np.linalg.norm(a - b, axis=1))
        return np.concatenate(result)

    def _clipped(self, flat: Array, X: Array, y: Array, clip: float) -> Array:
        gradients = self.row_gradients(flat, X, y)
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        return np.asarray(gradients * np.minimum(1.0, clip / np.maximum(norms, 1e-300)))

    @abstractmethod
    def row_gradients(self, flat: Array, X: Array, y: Array) -> Array:
        """Of every row, its gradient, flat: (rows, d)."""

    def mean_loss(self, flat: Array, X: Array, y: Array) -> float:
        logits = self.logits(flat, X)
        return float(np.mean(np.logaddexp(0.0, logits) - y * logits))


@dataclass(frozen=True)
class LogisticModel(BenchModel):
    """Logistic regression without an intercept, from 0."""

    @property
    def loss(self) -> Logistic:
        return Logistic()

    def start(self, features: int) -> NDArray[np.float32]:
        return np.zeros(features, np.float32)

    def logits(self, flat: Array, X: Array) -> Array:
        return np.asarray(X @ flat)

    def gradient(self, flat: Array, X: Array, y: Array) -> tuple[Array, Array]:
        residual = self._residual(flat, X, y)
        return X.T @ residual / len(y), np.abs(residual) * np.linalg.norm(X, axis=1)

    def row_gradients(self, flat: Array, X: Array, y: Array) -> Array:
        return self._residual(flat, X, y)[:, None] * X

    def _residual(self, flat: Array, X: Array, y: Array) -> Array:
        return _sigmoid(self.logits(flat, X)) - y


@dataclass(frozen=True)
class NetworkModel(BenchModel):
    """One hidden layer of tanh units and a logistic output: not convex.

    Attributes:
      hidden: units of the layer.
      seed: of the first parameters.
    """

    hidden: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        require_count("hidden", self.hidden)

    @property
    def loss(self) -> NetworkModel:
        return self

    def __call__(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        W, b, v, c = params
        logit = jnp.tanh(W @ x + b) @ v + c
        return jnp.logaddexp(0.0, logit) - y * logit

    def start(self, features: int) -> Any:
        rng = np.random.default_rng(self.seed)
        W = rng.normal(size=(self.hidden, features)) / np.sqrt(features)
        v = rng.normal(size=self.hidden) / np.sqrt(self.hidden)
        leaves = (W, np.zeros(self.hidden), v, np.zeros(()))
        return tuple(leaf.astype(np.float32) for leaf in leaves)

    def logits(self, flat: Array, X: Array) -> Array:
        W, b, v, c = self._shaped(flat, X.shape[1])
        return np.asarray(np.tanh(X @ W.T + b) @ v + c)

    def gradient(self, flat: Array, X: Array, y: Array) -> tuple[Array, Array]:
        h, residual, back = self._backwards(flat, X, y)
        parts = (back.T @ X, back.sum(0), residual @ h, residual.sum(keepdims=True))
        mean = np.concatenate([part.ravel() for part in parts]) / len(y)
        inner = np.sum(back**2, axis=1) * (np.sum(X**2, axis=1) + 1)
        return mean, np.sqrt(inner + residual**2 * (np.sum(h**2, axis=1) + 1))

    def row_gradients(self, flat: Array, X: Array, y: Array) -> Array:
        h, residual, back = self._backwards(flat, X, y)
        weights = (back[:, :, None] * X[:, None, :]).reshape(len(y), -1)
        return np.concatenate([weights, back, residual[:, None] * h, residual[:, None]], axis=1)

    def _backwards(self, flat: Array, X: Array, y: Array) -> tuple[Array, Array, Array]:
        """Of every row: hidden units, derivative by the logit, and by the units' sums."""
        W, b, v, c = self._shaped(flat, X.shape[1])
        h = np.tanh(X @ W.T + b)
        residual = _sigmoid(h @ v + c) - y
        return h, residual, residual[:, None] * v * (1 - h**2)

    def _shaped(self, flat: Array, features: int) -> tuple[Array, Array, Array, float]:
        h = self.hidden
        if flat.shape != (h * features + 2 * h + 1,):
            raise SordinoError(f"the network has other parameters than {flat.shape}")
        W, b, v = np.split(flat[:-1], [h * features, h * features + h])
        return W.reshape(h, features), b, v, float(flat[-1])


def _sigmoid(z: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * z)))
