"""Parallel channels: several vectors released in each step, each with a mechanism of its own.

A stream that releases more than one sum per step (the anchored lag-one-epoch recursion of papers/00
1.3: a difference and a residual) lays them side by side in one row of ``channels * d`` numbers.
Channel p gets its block of columns of the same draws, so all draws are independent; its noise is
multiplied by ``scales[p]``. One example adds to all channels at once, and they are accounted for
jointly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError
from sordino._base.types import Json
from sordino.parts.mechanisms._base import READERS, Draw, Mechanism, State, check_weights
from sordino.parts.mechanisms._maps import Channels
from sordino.parts.mechanisms._phases import checked_scales, parts_from_json
from sordino.parts.mechanisms._workloads import LinearMap
from sordino.privacy import ParallelStrategy


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Parallel(Mechanism):
    """Mechanisms side by side; `scales` are rounded to the float32 numbers in use."""

    parts: tuple[Mechanism, ...]
    scales: tuple[float, ...] = field(metadata={"static": True})
    kind: ClassVar[str] = "parallel"

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", checked_scales(self.parts, self.scales, "channel"))
        if len({part.steps for part in self.parts}) > 1:
            raise SordinoError(
                "all channels must have the same number of steps, got "
                f"{[part.steps for part in self.parts]}"
            )

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.parts[0].steps

    @property
    def channels(self) -> int:
        return len(self.parts)

    @property
    def boundaries(self) -> tuple[int, ...]:
        return tuple(sorted({step for part in self.parts for step in part.boundaries}))

    def strategy(self) -> ParallelStrategy:
        return ParallelStrategy(tuple(part.strategy() for part in self.parts), self.scales)

    def start(self, d: int) -> tuple[State, ...]:
        if d % self.channels:
            raise SordinoError(f"{d} numbers cannot be split into {self.channels} equal channels")
        return tuple(part.start(d // self.channels) for part in self.parts)

    def rows(
        self, state: tuple[State, ...], draw: Draw, first: jax.Array | int, count: int
    ) -> tuple[jax.Array, tuple[State, ...]]:
        blocks, after = [], []
        for p, (part, scale) in enumerate(zip(self.parts, self.scales, strict=True)):
            own = _columns(draw, p, self.channels)
            rows, part_state = part.rows(state[p], own, first, count)
            blocks.append(rows * jnp.float32(scale))
            after.append(part_state)
        return jnp.concatenate(blocks, axis=1), tuple(after)

    def workload_error(
        self, workload: LinearMap, weights: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Of the sum of all channels, each through its own map of `workload`, a `Channels`.

        Any other map is applied to every channel. `weights` are (steps,) for all channels alike, or
        (steps, channels).
        """
        maps = workload.parts if isinstance(workload, Channels) else (workload,) * self.channels
        if len(maps) != self.channels:
            raise SordinoError(
                f"a map of {len(maps)} channels cannot judge a mechanism of {self.channels}"
            )
        sizes: list[ArrayLike | None] = [weights] * self.channels
        if weights is not None and np.ndim(weights) == 2:
            sizes = list(np.transpose(weights))
            check_weights(weights, (self.steps, self.channels))
        variance = np.zeros(self.steps)
        for part, scale, channel_map, own in zip(self.parts, self.scales, maps, sizes, strict=True):
            variance += (scale * part.workload_error(channel_map, own)) ** 2
        return np.sqrt(variance)

    def state_vectors(self) -> int:
        return sum(part.state_vectors() for part in self.parts)

    def describe(self) -> str:
        return " beside ".join(part.describe() for part in self.parts)

    def to_json(self) -> Json:
        return {
            "kind": self.kind,
            "parts": [part.to_json() for part in self.parts],
            "scales": list(self.scales),
        }


def _columns(draw: Draw, p: int, channels: int) -> Draw:
    """Block p of `channels` equal blocks of columns of the draws."""

    def own(first: jax.Array | int, count: int) -> jax.Array:
        rows = draw(first, count)
        width = rows.shape[1] // channels
        return rows[:, p * width : (p + 1) * width]

    return own


READERS.add(Parallel.kind, lambda data: Parallel(*parts_from_json(data, "channels")))
