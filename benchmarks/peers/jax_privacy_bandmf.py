"""BandMF with jax-privacy on prepared rows: a linear model, its plan, sampler, clipping and noise.

All of a run's steps are one compiled loop over batches padded to one size; jax-privacy's own loop from
the host gives the same models more slowly. See `accuracy.py` for the jobs; settings are `learning_rate`,
`clip`, `bands`, `epochs`, `batches` (per epoch) and `momentum`. Each row belongs to one of `bands` groups, and
each batch samples one group at such a rate that it has a `batches`-th of the rows on average.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
from accuracy import Job, Model, Rows, answer
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig, DPExecutionPlan
from jax_privacy.matrix_factorization import toeplitz

# Rows whose gradients exist at a time; batches are padded to a multiple of it.
MICROBATCH = 64
# Of the accountant's grid: the noise it finds is within 0.1 % of that of a grid ten times as fine.
INTERVAL = 1e-3

Params = dict[str, jax.Array]


def loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """Logistic or softmax loss of one example."""
    logits = params["weights"] @ x + params["bias"]
    if len(logits) == 1:
        return jnp.logaddexp(0.0, logits[0]) - y * logits[0]
    return jax.nn.logsumexp(logits) - logits[y]


@cache
def strategy(iterations: int, bands: int) -> tuple[float, ...]:
    """The library's own choice of coefficients."""
    result = toeplitz.optimize_banded_toeplitz(n=iterations, bands=bands, max_optimizer_steps=500)
    return tuple(float(value) for value in result)


def plan(settings: dict[str, Any], **budget: float | None) -> DPExecutionPlan:
    """The library's plan, for a budget or for a noise multiplier."""
    iterations = settings["epochs"] * settings["batches"]
    return BandMFExecutionPlanConfig(
        iterations=iterations,
        strategy=np.asarray(strategy(iterations, settings["bands"])),
        sampling_prob=settings["bands"] / settings["batches"],
        l2_clip_norm=settings["clip"],
        rescale_to_unit_norm=False,
        accountant=dp_accounting.pld.PLDAccountant(
            dp_accounting.NeighboringRelation.REPLACE_SPECIAL, INTERVAL
        ),
        noise_seed=0,  # replaced in every run
        **budget,
    ).plan


@cache
def noise_multiplier(epsilon: float, delta: float, bands: int, epochs: int, batches: int) -> float:
    """The library's calibration."""
    settings = {"bands": bands, "epochs": epochs, "batches": batches, "clip": 1.0}
    event = plan(settings, epsilon=epsilon, delta=delta).dp_event
    while not isinstance(event, dp_accounting.GaussianDpEvent):
        event = event.event
    return float(event.noise_multiplier)


@cache
def program(
    clip: float, momentum: float, bands: int, epochs: int, batches: int
) -> Callable[..., Params]:
    """All steps of a run, compiled once for each shape of the rows and batches."""
    settings = {"bands": bands, "epochs": epochs, "batches": batches, "clip": clip}
    unit = plan(settings, epsilon=None, delta=None, noise_multiplier=1.0)
    gradient = unit.clipped_grad(
        loss, batch_argnums=(1, 2), keep_batch_dim=False, microbatch_size=MICROBATCH
    )
    privatizer = unit.noise_addition_transform
    optimizer = optax.trace(momentum)

    @jax.jit
    def run(
        params: Params,
        X: jax.Array,
        y: jax.Array,
        chosen: jax.Array,
        key: jax.Array,
        noise: jax.Array,
        rate: jax.Array,
    ) -> Params:
        """`noise` is the noise multiplier, `rate` the learning rate over the expected batch size."""

        def step(carry: Any, rows: jax.Array) -> tuple[Any, None]:
            params, state, moved = carry
            sums = gradient(params, X[rows], y[rows], is_padding_example=rows == -1)
            # The plan's noise is for a multiplier of 1: this adds `noise` times it.
            scaled, state = privatizer.update(jax.tree.map(lambda leaf: leaf / noise, sums), state)
            updates, moved = optimizer.update(scaled, moved)
            params = jax.tree.map(lambda p, u: p - rate * noise * u, params, updates)
            return (params, state, moved), None

        state = (key, privatizer.init(params)[1])
        return jax.lax.scan(step, (params, state, optimizer.init(params)), chosen)[0][0]

    return run


def train(rows: Rows, job: Job, seed: int) -> Model:
    """One run from zero."""
    settings, count = job.settings, len(rows.y)
    shape = tuple(settings[name] for name in ("bands", "epochs", "batches"))
    noise = noise_multiplier(job.epsilon, job.delta, *shape)
    sampler = plan(
        settings, epsilon=None, delta=None, noise_multiplier=noise
    ).batch_selection_strategy
    drawn = list(sampler.batch_iterator(count, rng=seed))
    # Of one size for all seeds: seven standard deviations above the mean, and more if need be.
    mean = count / settings["batches"]
    size = max(round(mean + 7 * mean**0.5), *(len(batch) for batch in drawn))
    chosen = np.full((len(drawn), -(-size // MICROBATCH) * MICROBATCH), -1, np.int32)
    for i, batch in enumerate(drawn):
        chosen[i, : len(batch)] = batch
    outputs = 1 if rows.classes == 2 else rows.classes
    result = program(settings["clip"], settings["momentum"], *shape)(
        {"weights": jnp.zeros((outputs, rows.X.shape[1])), "bias": jnp.zeros(outputs)},
        jnp.asarray(rows.X),
        jnp.asarray(rows.y),
        chosen,
        jax.random.key(seed),
        noise * count / job.examples,
        settings["learning_rate"] / mean,
    )
    facts = {"noise_multiplier": round(noise, 4), "steps": len(drawn)}
    return np.asarray(result["weights"]), np.asarray(result["bias"]), facts


if __name__ == "__main__":
    answer(train, ("jax-privacy", "jax", "dp-accounting"))
