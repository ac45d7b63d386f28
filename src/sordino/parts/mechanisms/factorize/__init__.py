"""Strategies: lower-triangular matrices C whose noise ``C^{-1} Z`` suits a workload.

Everything here runs once, at planning time, in float64 numpy and knows nothing of data:

- ``toeplitz``: square roots, inverses, column norms and sensitivity of Toeplitz strategies, and the
  best one with a given number of bands;
- ``blt``: the best strategy that streams through a few buffers, at any length;
- ``dense``: the best strategy of all, with a certificate, for up to about two thousand steps;
- ``error``: the noise a strategy leaves in a workload, and workloads of any kind as matrices.
"""

from __future__ import annotations

from sordino.parts.mechanisms.factorize._blt import BLTParameters as BLTParameters
from sordino.parts.mechanisms.factorize._blt import optimize_blt as optimize_blt
from sordino.parts.mechanisms.factorize._dense import DenseResult as DenseResult
from sordino.parts.mechanisms.factorize._dense import optimize_dense as optimize_dense
from sordino.parts.mechanisms.factorize._error import completed as completed
from sordino.parts.mechanisms.factorize._error import dense_error as dense_error
from sordino.parts.mechanisms.factorize._error import noising_error as noising_error
from sordino.parts.mechanisms.factorize._error import rmse as rmse
from sordino.parts.mechanisms.factorize._error import toeplitz_error as toeplitz_error
from sordino.parts.mechanisms.factorize._error import weighted_rows as weighted_rows
from sordino.parts.mechanisms.factorize._error import workload_matrix as workload_matrix
from sordino.parts.mechanisms.factorize._toeplitz import column_norms as column_norms
from sordino.parts.mechanisms.factorize._toeplitz import (
    fixed_order_sensitivity as fixed_order_sensitivity,
)
from sordino.parts.mechanisms.factorize._toeplitz import (
    inverse_coefficients as inverse_coefficients,
)
from sordino.parts.mechanisms.factorize._toeplitz import optimize_banded as optimize_banded
from sordino.parts.mechanisms.factorize._toeplitz import sqrt_toeplitz as sqrt_toeplitz
