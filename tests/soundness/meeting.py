"""The line where a clipped sum and its noise meet, watched from outside.

`watched()` puts a witness at the function that adds noise to a sum (`add_noise`) and at the noisy
minimum of adaptive runs. A run is recorded, then repeated on a
neighbouring data set with the *released* values of the first one put in place of its own: so both runs
ask the same questions at the same points, and what is left between their sums is one record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import io_callback
from numpy.typing import NDArray

from sordino._base.keys import RunKey
from sordino.engine import _adaptive as adaptive
from sordino.engine import _description as description
from sordino.engine import _stepper as stepper
from sordino.parts.mechanisms._gaussian import gaussian_key, standard_normal_rows
from sordino.planning._plans import Plan
from sordino.privacy._values import ClippedSum, NoisedSum

Array = NDArray[np.float64]


@dataclass
class Met:
    """What met in one run, in the order of the steps."""

    sums: list[Array] = field(default_factory=list)
    noises: list[Array] = field(default_factory=list)
    types: set[str] = field(default_factory=set)
    estimates: dict[bytes, Any] = field(default_factory=dict)
    # Noise that met two different sums: their difference is free of it.
    shared: list[Array] = field(default_factory=list)
    searches: list[tuple[Array, int]] = field(default_factory=list)


class Witness:
    """Records one run, then holds the next ones to what it released."""

    def __init__(self) -> None:
        self.met = Met()
        self.first: Met | None = None

    def recorded(self, run: Callable[[], Any]) -> Met:
        self.met, self.first = Met(), None
        run()
        jax.effects_barrier()
        return self.met

    def repeated(self, first: Met, run: Callable[[], Any]) -> Met:
        self.met, self.first = Met(), first
        try:
            run()
            jax.effects_barrier()
        finally:
            self.first = None
        return self.met

    def see(self, value: Any, rest: Any, noise: Any, estimate: Any) -> Any:
        """One sum, what its rounding left out, its noise, and what is released; the last goes on."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(value)]
        self.met.types |= {str(leaf.dtype) for leaf in leaves}
        self.met.types |= {str(np.asarray(leaf).dtype) for leaf in jax.tree.leaves(noise)}
        total = _flat(value)
        if jax.tree.leaves(rest):
            total = total + _flat(rest)
        noises = _flat(noise)
        name = noises.tobytes()
        kept = jax.tree.map(np.array, estimate)
        if name in self.met.estimates:  # the same step again, after a crash or a failure
            earlier = [
                x
                for x, z in zip(self.met.sums, self.met.noises, strict=True)
                if (z == noises).all()
            ]
            if not np.array_equal(earlier[0], total):
                self.met.shared.append(noises)
        else:
            self.met.sums.append(total)
            self.met.noises.append(noises)
        if self.first is not None:
            kept = self.first.estimates[name]
        self.met.estimates[name] = kept
        return kept

    def choose(self, honest: Callable[..., int], sums: Any, *others: Any) -> int:
        chosen = honest(sums, *others)
        if self.first is not None:
            chosen = self.first.searches[len(self.met.searches)][1]
        self.met.searches.append((np.array(sums, np.float64), chosen))
        return chosen


def _flat(tree: Any) -> Array:
    return np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in jax.tree.leaves(tree)])


def _scaled(rows: Any, scale: Any) -> Any:
    """The noise itself: unit rows times their standard deviation, lattice rows as they are."""

    def one(row: Any, std: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf if leaf.dtype == np.int32 else leaf * std, row)

    if len(scale) == 1:
        return one(rows, scale[0])
    return tuple(one(row, scale[i]) for i, row in enumerate(rows))


@contextmanager
def watched() -> Iterator[Witness]:
    """A witness at every place where sums and noise meet, in programs compiled from now on."""
    witness = Witness()

    def seen(honest: Callable[..., NoisedSum]) -> Callable[..., NoisedSum]:
        def meets(total: ClippedSum, rows: Any, scale: Any) -> NoisedSum:
            released = honest(total, rows, scale)
            noise = _scaled(rows, scale)
            shapes = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), released.noised
            )
            rest = getattr(total, "rest", None)
            rest = () if rest is None else rest
            kept = io_callback(
                lambda *met: witness.see(*met),
                shapes,
                total.clipped,
                rest,
                noise,
                released.noised,
                ordered=True,
            )
            return NoisedSum(kept)

        return meets

    honest_min = adaptive.noisy_min
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(description, "_CALLBACK", re.compile("none"))  # the witness is one
        patch.setattr(stepper, "add_noise", seen(stepper.add_noise))
        patch.setattr(adaptive, "add_noise", seen(adaptive.add_noise))
        patch.setattr(adaptive, "noisy_min", lambda *a: witness.choose(honest_min, *a))
        jax.clear_caches()
        try:
            yield witness
        finally:
            jax.clear_caches()


def moved(a: Met, b: Met, plan: Plan) -> float:
    """The largest distance between two runs' sums, relative to the bound of its step and channel."""
    assert len(a.sums) == len(b.sums)
    channels = plan.contribution.channels
    if plan.schedule.kind == "adaptive":
        bounds = np.full((1, len(a.sums)), plan.clip)
    else:
        assert len(a.sums) == plan.population.steps
        bounds = plan.contribution.bounds(plan.population.steps)
    step = 1.0 if plan.lattice is None else plan.lattice.step
    worst = 0.0
    for t, (x, y) in enumerate(zip(a.sums, b.sums, strict=True)):
        apart = np.linalg.norm((x - y).reshape(channels, -1), axis=1) * step
        worst = max(worst, float((apart / bounds[:, t]).max()))
    for (x, _), (y, _) in zip(a.searches, b.searches, strict=True):
        worst = max(worst, float(np.abs(x - y).max()) / plan.schedule.objective_clip)
    return worst


def planned_noise(plan: Plan, key: RunKey, size: int) -> Array:
    """The Gaussian noise that the plan and the key say, in float64 (steps, channels x size)."""
    steps = plan.population.steps
    if plan.contribution.channels != 1:
        raise ValueError("several channels have a noising matrix each")
    key_words = gaussian_key(key, "gradient")
    draws = np.asarray(standard_normal_rows(key_words, 0, steps, size), np.float64)
    return plan.mechanism.noising_matrix() @ draws * plan.noise_stds().astype(np.float64)
