"""Where the noise of a run comes from: rows shaped like the sums that they are added to.

A `NoiseSource` gives the rows of some steps and the noise state after them; it is a pytree, so compiled
code takes it as an argument. `GaussianNoise` makes its rows there, from a key; `DrawnRows` holds rows
that the host drew (exact discrete noise). Row t is a function of the key and of t alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import jax
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino._base.keys import RunKey
from sordino._base.types import PyTree
from sordino.parts.mechanisms import LatticeNoise, Mechanism, gaussian_key, standard_normal_rows
from sordino.planning import Plan

# Of a mechanism: what its next rows depend on.
NoiseState: TypeAlias = PyTree


def parameter_count(params: PyTree) -> int:
    """Number of scalar parameters."""
    return int(sum(np.size(leaf) for leaf in jax.tree.leaves(params)))


@dataclass(frozen=True)
class Layout:
    """How a flat row of noise is cut into arrays shaped like a sum. Hashable.

    Version 1: channel after channel, leaf after leaf in the order of the pytree, each in C order.
    """

    structure: jax.tree_util.PyTreeDef
    shapes: tuple[tuple[int, ...], ...]
    version: int = 1

    def __post_init__(self) -> None:
        if self.version != 1:
            raise SordinoError(f"noise has layout 1, got {self.version}")

    @classmethod
    def of(cls, params: PyTree, channels: int = 1) -> Layout:
        """The layout of `channels` sums that are shaped like the parameters."""
        value = params if channels == 1 else (params,) * channels
        leaves, structure = jax.tree.flatten(value)
        return cls(structure, tuple(np.shape(leaf) for leaf in leaves))

    @property
    def size(self) -> int:
        """Numbers in a row."""
        return sum(math.prod(shape) for shape in self.shapes)

    def cut(self, rows: jax.Array | NDArray[np.generic]) -> PyTree:
        """Rows (..., size) as a pytree of arrays (..., *shape)."""
        leaves, begin = [], 0
        for shape in self.shapes:
            end = begin + math.prod(shape)
            leaves.append(rows[..., begin:end].reshape(*rows.shape[:-1], *shape))
            begin = end
        return jax.tree.unflatten(self.structure, leaves)


class NoiseSource(Protocol):
    """What compiled code takes a chunk's noise from."""

    def rows(self, state: NoiseState, first: jax.Array, count: int) -> tuple[PyTree, NoiseState]:
        """Rows ``first .. first+count-1``, shaped like the sum with a leading axis, and the state after."""
        ...


@partial(jax.tree_util.register_dataclass, data_fields=["mechanism", "key"], meta_fields=["layout"])
@dataclass(frozen=True)
class GaussianNoise:
    """Unit Gaussian rows of a mechanism, float32, made from a key where they are used."""

    mechanism: Mechanism
    key: jax.Array
    layout: Layout

    def rows(self, state: NoiseState, first: jax.Array, count: int) -> tuple[PyTree, NoiseState]:
        draw = partial(_draw, self.key, self.layout.size)
        rows, state = self.mechanism.rows(state, draw, first, count)
        return self.layout.cut(rows), state


def _draw(key: jax.Array, size: int, first: jax.Array | int, count: int) -> jax.Array:
    return standard_normal_rows(key, first, count, size)


@partial(jax.tree_util.register_dataclass, data_fields=["values"], meta_fields=["layout"])
@dataclass(frozen=True)
class DrawnRows:
    """Rows (count, size) that the host has drawn for the very steps that are asked for."""

    values: jax.Array | NDArray[np.int32]
    layout: Layout

    def rows(self, state: NoiseState, first: jax.Array, count: int) -> tuple[PyTree, NoiseState]:
        return self.layout.cut(self.values), state


@dataclass(frozen=True)
class KeyedNoise:
    """Gaussian noise of a run: every chunk makes its rows from the run's key."""

    source: GaussianNoise

    @property
    def layout(self) -> Layout:
        return self.source.layout

    def init(self) -> NoiseState:
        """The noise state before step 0."""
        return self.source.mechanism.init(self.layout.size)

    def chunk(self, first: int, count: int) -> NoiseSource:
        """What the steps ``first .. first+count-1`` take their rows from."""
        return self.source


@dataclass(frozen=True)
class HostNoise:
    """Exact discrete noise of a run, drawn by the host chunk by chunk."""

    lattice: LatticeNoise
    layout: Layout

    def init(self) -> NoiseState:
        return ()

    def chunk(self, first: int, count: int) -> NoiseSource:
        return DrawnRows(self.lattice.rows(first, count), self.layout)


RunNoise = KeyedNoise | HostNoise


def run_noise(plan: Plan, layout: Layout, key: RunKey) -> RunNoise:
    """The noise that a run of the plan with this key adds."""
    if plan.lattice is None:
        return KeyedNoise(GaussianNoise(plan.mechanism, gaussian_key(key, "gradient"), layout))
    return HostNoise(lattice_noise(plan, layout.size, key), layout)


def lattice_noise(plan: Plan, size: int, key: RunKey) -> LatticeNoise:
    """The discrete noise of a run with rows of `size` numbers."""
    return LatticeNoise(plan.mechanism, plan.noise_variances(), size, key.derive)


@partial(jax.jit, static_argnames=("count",))
def noise_rows(
    source: NoiseSource, state: NoiseState, first: jax.Array, count: int
) -> tuple[PyTree, NoiseState]:
    """`NoiseSource.rows`, compiled on its own."""
    return source.rows(state, first, count)
