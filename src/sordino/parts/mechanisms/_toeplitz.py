"""What Toeplitz-like mechanisms share: column normalisation, and exact float32 numbers in JSON.

Dividing column t of C by its norm makes every column count fully (a truncated Toeplitz matrix
wastes its last columns): exact for one participation, a few percent less noise. The noise of step t
is then multiplied by that norm.
"""

from __future__ import annotations

from abc import abstractmethod

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import toeplitz as toeplitz_matrix

from sordino._base.codec import pack, unpack
from sordino._base.types import Json
from sordino.parts.mechanisms._base import Mechanism, check_matrix_size
from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.mechanisms.factorize._error import dense_error, toeplitz_error
from sordino.parts.mechanisms.factorize._toeplitz import column_norms, inverse_coefficients
from sordino.privacy import FixedBatches, Participation, SinglePass, ToeplitzStrategy

# The error of a normalised strategy needs a dense matrix; the gain shrinks with the steps anyway.
_LONGEST = 2048
# Arrays in a plan unpack to no more than this, whatever they claim: one number for each of many steps.
_LARGEST_PACKED = 64 << 20


def useful_column_norms(
    coefficients: NDArray[np.float64], workload: Workload, participation: Participation
) -> NDArray[np.float32] | None:
    """float32 column norms where normalising is exact and lowers the error, else None.

    Exact: each unit takes part once, or the bands are no longer than the separation, so that the
    columns of one pattern are orthogonal.
    """
    steps = participation.steps
    if steps > _LONGEST or not isinstance(participation, SinglePass | FixedBatches):
        return None
    bands = int(np.flatnonzero(coefficients)[-1]) + 1
    if participation.max_participations > 1 and bands > getattr(participation, "separation", 0):
        return None
    norms = np.asarray(column_norms(coefficients, steps), np.float32)
    plain = toeplitz_error(coefficients, workload, steps) * float(norms[0])
    scaled = normalized_error(coefficients, norms, workload, steps)
    return norms if np.mean(scaled**2) < np.mean(plain**2) else None


def normalized_error(
    coefficients: NDArray[np.float64],
    norms: NDArray[np.float32] | None,
    workload: Workload,
    steps: int,
) -> NDArray[np.float64]:
    """Row norms of ``W diag(norms) C^-1``."""
    if norms is None:
        return toeplitz_error(coefficients, workload, steps)
    first_column = np.pad(coefficients[:steps], (0, max(0, steps - len(coefficients))))
    C = toeplitz_matrix(first_column, np.zeros(steps)) / norms.astype(np.float64)
    return dense_error(C, workload)


def scale_rows(
    rows: jax.Array, norms: NDArray[np.float32] | None, first: jax.Array | int
) -> jax.Array:
    """Row i of a block that starts at step `first`, times ``norms[first + i]``."""
    if norms is None:
        return rows
    block = jax.lax.dynamic_slice(jnp.asarray(norms), (first,), (rows.shape[0],))
    return rows * block[:, None]


def packed(array: NDArray[np.float32] | None) -> Json | None:
    """A float32 array as JSON data, bit for bit."""
    if array is None:
        return None
    data = np.asarray(array, np.float32)
    return {"shape": list(data.shape), "float32": pack(data)}


def unpacked_or_none(data: Json | None) -> NDArray[np.float32] | None:
    """The array that `packed` wrote, if it wrote one."""
    return None if data is None else unpacked(data)


def unpacked(data: Json) -> NDArray[np.float32]:
    """The array that `packed` wrote."""
    what = "a packed array in this plan"
    return unpack(data, "float32", "shape", largest=_LARGEST_PACKED, what=what)


class ToeplitzMechanism(Mechanism):
    """A mechanism whose encoder is lower-triangular Toeplitz, its columns normalised or not."""

    column_norms: NDArray[np.float32] | None

    @abstractmethod
    def strategy_coefficients(self) -> NDArray[np.float64]:
        """The first column of C before normalisation, from the float32 numbers in use (steps,)."""

    def strategy(self) -> ToeplitzStrategy:
        norms = None if self.column_norms is None else self.column_norms.astype(np.float64)
        return ToeplitzStrategy(self.strategy_coefficients(), self.steps, norms)

    def _toeplitz_error(self, workload: Workload) -> NDArray[np.float64]:
        return normalized_error(
            self.strategy_coefficients(), self.column_norms, workload, self.steps
        )

    def noising_matrix(self) -> NDArray[np.float64]:
        n = check_matrix_size(self)
        N: NDArray[np.float64] = toeplitz_matrix(
            inverse_coefficients(self.strategy_coefficients(), n), np.zeros(n)
        )
        return N if self.column_norms is None else self.column_norms[:, None] * N

    def normalisation(self) -> str:
        """A suffix for `describe`."""
        return ", columns normalised" if self.column_norms is not None else ""
