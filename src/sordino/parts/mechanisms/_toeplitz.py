"""What the streaming Toeplitz mechanisms share: their privacy and their error, from coefficients."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import toeplitz as toeplitz_matrix

from sordino.parts.mechanisms._base import Mechanism, check_matrix_size
from sordino.parts.mechanisms._normalize import normalized_error
from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.mechanisms.factorize._toeplitz import inverse_coefficients
from sordino.privacy import ToeplitzStrategy


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
