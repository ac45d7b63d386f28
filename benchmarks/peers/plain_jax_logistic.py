"""The non-private floor: minibatch SGD as one compiled `lax.scan` over the data in a fixed order.

No sampling, clipping or noise: a step is one contiguous slice of the data and the gradient of the
mean logistic loss, which is two matrix products, `z = X w` and `X' (sigmoid(z) - y) / B`.
`--shuffle` puts the rows into a new order in every run.
"""

import sys

import data
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from timing import Fit, report

# The features, a column of ones for the bias, and zeros up to whole vectors: 128.
WIDTH = -(-(data.D + 1) // 64) * 64


def padded(x: data.Floats) -> jax.Array:
    """Append the column of ones and the zeros to every row; done once, when the data is loaded."""
    out = np.zeros((len(x), WIDTH), np.float32)
    out[:, : data.D] = x
    out[:, data.D] = 1.0
    return jnp.asarray(out)


def batch_starts() -> jax.Array:
    """First row of every step's batch; an epoch's last is moved back to stay inside the data."""
    epoch = np.minimum(np.arange(data.STEPS_PER_EPOCH) * data.BATCH, data.N - data.BATCH)
    return jnp.asarray(np.tile(epoch, data.EPOCHS), jnp.int32)


@jax.jit
def sgd(x: jax.Array, y: jax.Array, starts: jax.Array) -> jax.Array:
    """All steps of SGD from zero; returns the weights, with the bias at index `data.D`."""

    def step(w: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        rows = lax.dynamic_slice_in_dim(x, start, data.BATCH)
        labels = lax.dynamic_slice_in_dim(y, start, data.BATCH)
        probability = 0.5 + 0.5 * jnp.tanh(0.5 * (rows @ w))  # the sigmoid, faster than by exp
        return w - (data.LEARNING_RATE / data.BATCH) * ((probability - labels) @ rows), None

    return lax.scan(step, jnp.zeros(WIDTH), starts)[0]


@jax.jit
def shuffled_sgd(x: jax.Array, y: jax.Array, starts: jax.Array, order: jax.Array) -> jax.Array:
    """The same after putting the rows into a given order, as SGD on files in any order needs."""
    return sgd(x[order], y[order], starts)


def main(shuffled: bool) -> None:
    """Time the task and print one JSON line."""
    x, y, name = data.load()
    rows, labels, starts = padded(x), jnp.asarray(y), batch_starts()
    rng = np.random.default_rng(0)

    def run() -> Fit:
        if shuffled:
            w = np.asarray(shuffled_sgd(rows, labels, starts, rng.permutation(data.N)))
        else:
            w = np.asarray(sgd(rows, labels, starts))  # waits for the result
        return Fit(w[: data.D], float(w[data.D]), len(starts))

    report("plain-jax, shuffled" if shuffled else "plain-jax", run, x, y, name)


if __name__ == "__main__":
    main("--shuffle" in sys.argv)
