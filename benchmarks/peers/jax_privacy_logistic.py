"""DP-SGD with jax-privacy: its sampler, clipping and Gaussian noise in a loop over one jitted step.

Batches vary in size under Poisson sampling, so each is padded to a multiple of 32 and the step is
compiled once per padded size. Every run draws the same batches: a warm run compiles nothing.

Where the rows of a batch are gathered matters more than anything else here, so `--gather` chooses:
`step` inside the jitted step (the default, and the fastest), `host` by numpy before it, `eager` by
indexing device arrays before it, as jax-privacy's own example does.
"""

import argparse

import data
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import batch_selection, clipped_grad, noise_addition
from timing import Fit, report

PAD_TO = 32

Params = dict[str, jax.Array]
Array = jax.Array | np.ndarray


def loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """Logistic loss of one example."""
    logit = x @ params["weights"] + params["bias"]
    return jnp.logaddexp(0.0, logit) - y * logit


gradient = clipped_grad(
    loss,
    l2_clip_norm=data.CLIP,
    normalize_by=data.RATE * data.N,
    batch_argnums=(1, 2),
    keep_batch_dim=False,
)
optimizer = optax.chain(
    noise_addition.gaussian_privatizer(
        stddev=data.NOISE_MULTIPLIER * gradient.sensitivity(), prng_key=jax.random.key(0)
    ),
    optax.sgd(data.LEARNING_RATE),
)


@jax.jit
def update(
    params: Params, state: optax.OptState, x: Array, y: Array, is_padding: Array
) -> tuple[Params, optax.OptState]:
    """One step on a batch: the clipped sum of its gradients, noise, a step of SGD."""
    updates, state = optimizer.update(gradient(params, x, y, is_padding_example=is_padding), state)
    return optax.apply_updates(params, updates), state


@jax.jit
def gather_and_update(
    params: Params, state: optax.OptState, x: Array, y: Array, rows: Array
) -> tuple[Params, optax.OptState]:
    """One step on the given rows of all the data; row -1 is padding."""
    params, state = update(params, state, x[rows], y[rows], rows == -1)
    return params, state


def train(x: Array, y: Array, gather_in_step: bool) -> Fit:
    """All steps of Poisson-sampled, clipped and noised SGD from zero."""
    sampler = batch_selection.CyclicPoissonSampling(sampling_prob=data.RATE, iterations=data.STEPS)
    params = {"weights": jnp.zeros(data.D), "bias": jnp.zeros(())}
    state = optimizer.init(params)
    steps = 0
    for batch in sampler.batch_iterator(data.N, rng=0):
        rows = batch_selection.pad_to_multiple_of(batch, PAD_TO)
        if gather_in_step:
            params, state = gather_and_update(params, state, x, y, rows)
        else:
            params, state = update(params, state, x[rows], y[rows], rows == -1)
        steps += 1
    return Fit(np.asarray(params["weights"]), float(params["bias"]), steps)


def main() -> None:
    """Time the task and print one JSON line."""
    parser = argparse.ArgumentParser(description="DP-SGD with jax-privacy on a9a")
    parser.add_argument("--gather", choices=("step", "host", "eager"), default="step")
    gather = parser.parse_args().gather
    x, y, source = data.load()
    features, labels = (x, y) if gather == "host" else (jnp.asarray(x), jnp.asarray(y))
    name = "jax-privacy" if gather == "step" else f"jax-privacy ({gather} gather)"
    report(name, lambda: train(features, labels, gather == "step"), x, y, source)


if __name__ == "__main__":
    main()
