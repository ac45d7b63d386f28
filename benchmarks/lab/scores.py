"""Measures of trained models on given rows, for many models at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from benchmarks.lab.data import PreparedData
from sordino import LinearLoss, NonconvexLogistic

# Rows that are scored together.
_TOGETHER = 8192


def score_models(params: NDArray[np.float32], rows: PreparedData) -> list[dict[str, float]]:
    """The measures of each model (one row of `params` each)."""
    shaped = [rows.shaped(one) for one in params]
    loss, wrong = _means(shaped, rows)
    result = []
    for i, model in enumerate(shaped):
        one = {"log_loss": loss[i], "error": 100 * wrong[i], "accuracy": 100 * (1 - wrong[i])}
        if isinstance(rows.loss, NonconvexLogistic):
            one["objective"] = loss[i] + float(rows.loss.penalty(model.astype(np.float64)))
            one["gradient_norm"] = _gradient_norm(rows, rows.loss, model)
        result.append(one)
    return result


def _means(params: list[Any], rows: PreparedData) -> tuple[list[float], list[float]]:
    """Mean loss and share of wrong predictions of each model on the test rows."""
    X: Any
    X, y = rows.test
    losses, wrong = np.zeros(len(params)), np.zeros(len(params))
    for first in range(0, len(y), _TOGETHER):
        now = slice(first, first + _TOGETHER)
        for i, model in enumerate(params):
            logits = rows.loss.logits(model, X[now])
            value = rows.loss.value(jnp.asarray(logits), jnp.asarray(y[now]))
            losses[i] += float(np.sum(np.asarray(value, np.float64)))
            predicted = logits > 0 if logits.ndim == 1 else np.argmax(logits, axis=1)
            wrong[i] += float(np.sum(predicted != y[now]))
    return list(losses / len(y)), list(wrong / len(y))


def _gradient_norm(rows: PreparedData, loss: LinearLoss, model: NDArray[np.float32]) -> float:
    """Of the objective on the training rows, without clipping."""
    X: Any
    X, y = rows.train
    residual = np.asarray(loss.residual(jnp.asarray(loss.logits(model, X)), jnp.asarray(y)))
    gradient = residual.T @ X / len(y)
    penalty = loss.regularizer_gradient(model)
    whole = gradient if penalty is None else gradient + np.asarray(penalty)
    return float(np.linalg.norm(jax.device_get(whole)))
