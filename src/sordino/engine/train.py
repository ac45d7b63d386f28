"""Run a plan: `train(plan, loss, params, data)`.

    loss = lambda params, x, y: ...                       # the loss of ONE example
    result = sordino.train(plan, loss, params, (X, y))    # any pytree of parameters
    result.params, result.guarantee

Everything is checked before the first record is used; then the plan's steps run, no more and no
fewer, in compiled chunks. Callbacks and the history see private values and public metrics only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sordino.engine.batches import batch_indices, is_sliced, public_order
from sordino.engine.keys import RunKey
from sordino.engine.loop import (
    Carry,
    Constants,
    Program,
    chunk_length,
    parameter_count,
    prepare_data,
    run_chunk,
    start_update,
)
from sordino.engine.progress import progress_bar
from sordino.errors import PlanMismatchError, SordinoError, require_count
from sordino.losses import LinearLoss
from sordino.planning import Plan
from sordino.privacy.guarantee import Guarantee
from sordino.streams.base import Stream
from sordino.streams.gradient import GradientStream
from sordino.streams.linear import LinearGradientStream

# With an evaluation or callbacks the run is cut into this many chunks, so that curves have points.
POINTS = 20

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Snapshot:
    """What callbacks see at a chunk's end: private parameters and public metrics."""

    step: int
    steps: int
    params: Any
    metrics: Metrics


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
      params: the released parameters (the update's output: last iterate or average).
      guarantee: what the release satisfies.
      history: one dict per evaluation: "step", and the public metrics.
      insecure: True if the noise came from a seed; then there is no privacy against anyone who
        knows or guesses it.
    """

    params: Any
    plan: Plan
    guarantee: Guarantee
    history: tuple[Mapping[str, float], ...] = ()
    seconds: float = 0.0
    insecure: bool = False

    def statement(self) -> str:
        """The guarantee as a sentence, with a warning where it does not hold against everyone."""
        sentence = self.guarantee.sentence()
        if self.insecure:
            sentence += (
                " It does NOT hold against anyone who knows or guesses the seed of the noise."
            )
        return sentence


def train(
    plan: Plan,
    loss: Callable[..., jax.Array] | LinearLoss | Stream,
    params: Any,
    data: Any,
    *,
    optimizer: Any | None = None,
    regularizer: Callable[[Any], jax.Array] | None = None,
    microbatch_size: int | None = None,
    run_key: RunKey | None = None,
    insecure_seed: int | None = None,
    evaluate: Callable[[Any], Metrics] | None = None,
    callbacks: Sequence[Callable[[Snapshot], None]] = (),
    progress: bool = False,
    console: Any | None = None,
) -> Result:
    """Train privately, as planned.

    Args:
      plan: what to do; see `sordino.plan`.
      loss: ``loss(params, *example) -> scalar`` for one example, or a `LinearLoss` (closed form,
        for data ``(X, y)`` and one weight array), or a `Stream` of your own.
      params: initial parameters, any pytree of float arrays; must not come from the private data.
      data: a tuple of arrays (or pytrees) with one row per example.
      optimizer: an optax optimizer to use instead of the plan's update settings.
      regularizer: a data-free function of the parameters; its gradient is added after the noise.
      microbatch_size: at most this many per-example gradients in memory at a time.
      run_key: the secret behind the noise; by default fresh from the operating system.
      insecure_seed: for tests and demonstrations only: reproducible noise, no privacy against
        anyone who knows the seed.
      evaluate: a function of the private parameters, on PUBLIC data, called about 20 times.
      callbacks: called with a `Snapshot` at the same times.
      progress: show a progress bar.
    """
    population = plan.population
    data = data if isinstance(data, tuple) else (data,)
    _check_rows(plan, data)
    params = _as_floats(params)
    stream = _stream(loss, params, data, microbatch_size)
    key = _run_key(run_key, insecure_seed)
    update = plan.update.build(optimizer)
    steps, d = population.steps, parameter_count(params)
    watched = evaluate is not None or bool(callbacks)
    length = chunk_length(steps, d)
    if watched:
        length = min(length, max(1, -(-steps // POINTS)))

    began = time.perf_counter()
    sliced = is_sliced(population)
    order = public_order(population) if sliced and not population.is_full_batch else None
    prepared, valid = prepare_data(stream, _to_device(data), order)
    program = Program(
        stream=stream,
        update=update,
        sliced=sliced,
        batch_size=population.batch_size,
        regularizer=_regularizer(loss, regularizer),
    )
    constants = Constants(
        clip=np.float32(plan.clip),
        divisor=np.float32(plan.divisor),
        steps=np.int32(steps),
        batches=np.int32(population.steps_per_epoch),
    )
    mechanism, noise_key = plan.mechanism, key.noise_key("gradient")
    learning_rates = plan.update.learning_rates(steps)
    noise_stds = np.full(steps, plan.noise_std, np.float32)
    relative = plan.schedule.relative_noise(steps)
    if relative is not None:
        noise_stds = np.asarray(noise_stds * relative, np.float32)
    # The carry is donated chunk by chunk; the caller's own arrays must survive.
    params = jax.tree.map(lambda leaf: np.array(leaf, copy=True), params)
    carry = Carry(params, start_update(update, params), mechanism.start(d))

    history: list[Mapping[str, float]] = []
    with progress_bar(steps, show=progress, console=console) as advance:
        for first in range(0, steps, length):
            count = min(length, steps - first)
            now = slice(first, first + count)
            picked = None if sliced else batch_indices(population, key, first, count)
            carry = run_chunk(
                program,
                count,
                carry,
                prepared,
                valid,
                mechanism,
                noise_key,
                constants,
                np.int32(first),
                learning_rates[now],
                noise_stds[now],
                picked,
            )
            done = first + count
            metrics: Metrics = {}
            if watched:
                # A copy: the next chunk takes the carry's buffers over, and watchers may keep theirs.
                current = jax.tree.map(jnp.copy, update.output(carry.params, carry.update_state))
                if evaluate is not None:
                    metrics = {name: float(value) for name, value in evaluate(current).items()}
                    history.append({"step": done, **metrics})
                for callback in callbacks:
                    callback(Snapshot(done, steps, current, metrics))
            if progress:
                jax.block_until_ready(carry.params)
                advance(done, _headline(metrics))
    final = jax.block_until_ready(update.output(carry.params, carry.update_state))
    return Result(
        params=final,
        plan=plan,
        guarantee=plan.guarantee,
        history=tuple(history),
        seconds=time.perf_counter() - began,
        insecure=key.insecure,
    )


def _headline(metrics: Metrics) -> str:
    """The first metric, for the end of a progress bar."""
    return next((f"{name} {value:.4g}" for name, value in metrics.items()), "")


def _check_rows(plan: Plan, data: tuple[Any, ...]) -> None:
    leaves = jax.tree.leaves(data)
    if not leaves:
        raise SordinoError("there is no data: give a tuple of arrays with one row per example")
    counts = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in leaves}
    if len(counts) != 1 or None in counts:
        raise SordinoError(f"all data arrays need one row per example, got row counts {counts}")
    (n,) = counts
    if n != plan.population.examples:
        raise PlanMismatchError(
            f"the plan is for {plan.population.examples:,} examples but the data has {n:,} rows; "
            f"plan again with examples={n}"
        )


def _as_floats(params: Any) -> Any:
    def leaf(value: Any) -> Any:
        array = np.asarray(value) if not isinstance(value, jax.Array) else value
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise SordinoError(
                f"all parameters must be float arrays, got {array.dtype}; separate the others first"
            )
        return array.astype(np.float32) if array.dtype == np.float64 else array

    if not jax.tree.leaves(params):
        raise SordinoError("there are no parameters to train")
    return jax.tree.map(leaf, params)


def _to_device(data: Any) -> Any:
    def leaf(value: Any) -> Any:
        if isinstance(value, jax.Array):
            return value
        array = np.asarray(value)
        if array.dtype == np.float64:
            return array.astype(np.float32)
        if array.dtype == np.int64:
            return array.astype(np.int32)
        if array.dtype.kind not in "fiub":
            raise SordinoError(f"data must be numbers, got an array of {array.dtype}")
        return array

    return jax.tree.map(leaf, data)


def _stream(loss: Any, params: Any, data: tuple[Any, ...], microbatch_size: int | None) -> Stream:
    if isinstance(loss, Stream):
        return loss
    if isinstance(loss, LinearLoss):
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(data)]
        if len(shapes) != 2 or len(shapes[0]) != 2:
            raise SordinoError(
                "a linear loss needs data (X, y) with X of shape (examples, features), "
                f"got shapes {shapes}"
            )
        wanted = loss.parameter_shape(shapes[0][1])
        leaves = jax.tree.leaves(params)
        if len(leaves) != 1 or np.shape(leaves[0]) != wanted or leaves[0] is not params:
            raise SordinoError(
                f"{type(loss).__name__} on {shapes[0][1]} features needs one weight array of shape "
                f"{wanted}, got {[np.shape(leaf) for leaf in leaves]}"
            )
        return LinearGradientStream(loss)
    if not callable(loss):
        raise SordinoError(f"loss must be a function of (params, *example), got {type(loss)}")
    if microbatch_size is not None:
        microbatch_size = require_count("microbatch_size", microbatch_size)
    return GradientStream(loss, microbatch_size)


def _regularizer(
    loss: Any, given: Callable[[Any], jax.Array] | None
) -> Callable[[Any], Any] | None:
    if given is not None:
        return jax.grad(given)
    overridden = isinstance(loss, LinearLoss) and (
        type(loss).regularizer_gradient is not LinearLoss.regularizer_gradient
    )
    return loss.regularizer_gradient if overridden else None


def _run_key(run_key: RunKey | None, insecure_seed: int | None) -> RunKey:
    if run_key is not None and insecure_seed is not None:
        raise SordinoError("give run_key or insecure_seed, not both")
    if insecure_seed is not None:
        return RunKey.from_insecure_seed(insecure_seed)
    return run_key if run_key is not None else RunKey.fresh()
