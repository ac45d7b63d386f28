"""A second opinion on sensitivities and BLT algebra, by jax-privacy.

Its solvers are not used: those of ``factorize`` reach the same or a lower error in a hundredth of
the time and for every workload. The imports are lazy, because jax-privacy costs a second, and
everything runs under x64, because its float32 defaults can round a sensitivity down.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt


def fixed_epoch_sensitivity(strategy: npt.ArrayLike, epochs: int) -> float:
    """Sensitivity of a lower-triangular matrix [n, n] when each batch returns once per epoch."""
    from jax_privacy.matrix_factorization import sensitivity

    with jax.enable_x64(True):
        return float(sensitivity.fixed_epoch_sensitivity(jnp.asarray(strategy), epochs))


def minsep_sensitivity_squared(
    coef: npt.ArrayLike, n: int, separation: int, participations: int
) -> float:
    """Squared sensitivity of a non-increasing Toeplitz strategy under a minimum separation."""
    from jax_privacy.matrix_factorization import toeplitz

    with jax.enable_x64(True):
        squared = toeplitz.minsep_sensitivity_squared(
            jnp.asarray(coef), min_sep=separation, max_participations=participations, n=n
        )
        return float(squared)


def blt_coefficients(
    theta: Sequence[float], omega: Sequence[float], n: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Coefficients of a BLT strategy and of its inverse, float64[n] each."""
    from jax_privacy.matrix_factorization.buffered_toeplitz import BufferedToeplitz

    with jax.enable_x64(True):
        blt = BufferedToeplitz.build(theta, omega)
        inverse = blt.inverse()
        return np.asarray(blt.toeplitz_coefs(n)), np.asarray(inverse.toeplitz_coefs(n))
