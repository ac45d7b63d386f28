"""Features seen in the directions in which a public imitation of the records varies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from sordino._base.errors import SordinoError

Array = NDArray[np.float32]
# Directions that vary less than this share of the first one are not stretched any further.
_LEAST = 0.01


@dataclass(frozen=True, eq=False)
class PublicWhitening:
    """``(rows - mean) @ directions``, where both come from public rows and cost no privacy.

    A private linear model pays with noise for features of which a few directions have most of the
    variance. Rows that imitate the records, made from public knowledge alone, show which these are.

    Attributes:
      mean: of the public rows, (features,).
      directions: eigenvectors of the public rows' covariance, each divided by the root of its
        eigenvalue plus a hundredth of the largest one, (features, kept).
    """

    mean: Array
    directions: Array

    @classmethod
    def of(cls, features: Array, kept: int) -> PublicWhitening:
        """By the features of public rows, (rows, features); `kept` directions are kept."""
        count, width = features.shape
        if not 0 < kept <= min(width, count - 1):
            raise SordinoError(
                f"{count:,} rows with {width:,} features have no {kept:,} directions to keep"
            )
        mean = features.mean(axis=0)
        apart = features - mean
        covariance = (apart.T @ apart).astype(np.float64) / count
        values, vectors = eigh(covariance, subset_by_index=[width - kept, width - 1])
        stretched = vectors / np.sqrt(np.maximum(values, 0) + _LEAST * values[-1])
        return cls(mean, stretched[:, ::-1].astype(np.float32))

    def __call__(self, rows: Array) -> Array:
        result: Array = rows @ self.directions  # centred afterwards: no second copy of wide rows
        result -= self.mean @ self.directions
        return result
