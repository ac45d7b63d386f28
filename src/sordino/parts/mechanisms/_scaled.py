"""Draws of a size of their own: any mechanism with its fresh draw of step t multiplied by ``s_t``.

The noise is ``C0^-1 diag(s) Z``, so the encoder is ``diag(1/s) C0``: rows of C0 are scaled
(papers/04 2.3, with ``s = y^(-1/2)``), or, with C0 of cancelling noise, every message has a sigma of
its own (papers/02 1.3: ``sigma(N)^2 ~ N``). A schedule that multiplies the whole noise of a step
scales the columns of C instead and needs no mechanism.

    DrawScaled(Cancelling(600), np.sqrt(np.arange(1, 601)))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import jax
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from sordino._base.errors import SordinoError
from sordino._base.types import Json
from sordino.parts.mechanisms._base import (
    LONGEST_MATRIX,
    READERS,
    Draw,
    Mechanism,
    State,
    check_matrix_size,
    mechanism_from_json,
)
from sordino.parts.mechanisms._toeplitz import packed, scale_rows, unpacked
from sordino.privacy import MatrixStrategy


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ScaledDraws(Mechanism):
    """`inner` with its draws multiplied by `scales` (steps,), the float32 numbers in use.

    Its Gram matrix is dense and exact, so there are at most 4096 steps.
    """

    inner: Mechanism
    scales: NDArray[np.float32]
    kind: ClassVar[str] = "draw-scaled"

    def __post_init__(self) -> None:
        if not isinstance(self.scales, np.ndarray):
            return  # traced: what was checked before it was handed to jit
        scales = np.asarray(self.scales, np.float32)
        object.__setattr__(self, "scales", scales)
        if self.inner.channels > 1:
            raise SordinoError("draws are scaled channel by channel, not for several together")
        if self.steps > LONGEST_MATRIX:
            raise SordinoError(
                f"scaled draws are for at most {LONGEST_MATRIX:,} steps, got {self.steps:,}"
            )
        # The smallest normal number: a float32 below it may be flushed to zero, which is no noise.
        usable = np.isfinite(scales) & (scales >= np.finfo(np.float32).tiny)
        if scales.shape != (self.steps,) or not usable.all():
            raise SordinoError(
                f"scales must be {self.steps} positive numbers within float32, one for each step"
            )

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.inner.steps

    @property
    def boundaries(self) -> tuple[int, ...]:
        return self.inner.boundaries

    def strategy(self) -> MatrixStrategy:
        return MatrixStrategy.from_encoder(self._encoder)

    @cached_property
    def _encoder(self) -> NDArray[np.float64]:
        N = self.noising_matrix()
        return np.tril(solve_triangular(N, np.eye(self.steps), lower=True))

    def start(self, d: int) -> State:
        return self.inner.start(d)

    def rows(
        self, state: State, draw: Draw, first: jax.Array | int, count: int
    ) -> tuple[jax.Array, State]:
        def scaled(start: jax.Array | int, number: int) -> jax.Array:
            return scale_rows(draw(start, number), self.scales, start)

        return self.inner.rows(state, scaled, first, count)

    def noising_matrix(self) -> NDArray[np.float64]:
        check_matrix_size(self)
        return self.inner.noising_matrix() * self.scales.astype(np.float64)

    def cancelled_draws(self, step: int) -> tuple[int, ...] | None:
        return self.inner.cancelled_draws(step)

    def draw_scales(self) -> NDArray[np.float64]:
        return self.inner.draw_scales() * self.scales.astype(np.float64)

    def state_vectors(self) -> int:
        return self.inner.state_vectors()

    def describe(self) -> str:
        low, high = float(self.scales.min()), float(self.scales.max())
        return f"{self.inner.describe()}, draws scaled by {low:.4g} to {high:.4g}"

    def to_json(self) -> Json:
        return {"kind": self.kind, "inner": self.inner.to_json(), "scales": packed(self.scales)}


READERS.add(
    ScaledDraws.kind,
    lambda data: ScaledDraws(mechanism_from_json(data["inner"]), unpacked(data["scales"])),
)
