"""An Equinox model, trained privately: any pytree of float arrays is a model.

python examples/equinox_mlp.py
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import sordino


def moons(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two interleaved half circles."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    angle = np.pi * rng.random(n)
    x = np.where(y == 0, np.cos(angle), 1 - np.cos(angle))
    z = np.where(y == 0, np.sin(angle), 0.5 - np.sin(angle))
    points = np.stack([x, z], axis=1) + 0.1 * rng.normal(size=(n, 2))
    return points.astype(np.float32), y.astype(np.float32)


def main() -> float:
    """Train, print the guarantee, return the accuracy on fresh public data."""
    data, public = moons(20_000, seed=0), moons(5_000, seed=1)
    model = eqx.nn.MLP(in_size=2, out_size="scalar", width_size=32, depth=2, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params, x, y):
        logit = eqx.combine(params, static)(x)
        return jnp.logaddexp(0.0, logit) - y * logit

    def accuracy(params):
        logits = jax.vmap(eqx.combine(params, static))(public[0])
        return {"accuracy": jnp.mean((logits > 0) == (public[1] > 0.5))}

    plan = sordino.plan(
        "dp-memf", examples=20_000, batch_size=500, epochs=5, epsilon=2.0, delta=1e-6
    )
    result = sordino.train(plan, loss, params, data, optimizer=optax.adam(3e-3), evaluate=accuracy)
    print(result.statement())
    final = result.history[-1]["accuracy"]
    print(f"accuracy on public data: {final:.3f}")
    return final


if __name__ == "__main__":
    main()
