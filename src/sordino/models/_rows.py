"""Rows for linear models: each one prepared by itself, with nothing learned from the data.

A clipped gradient carries most where rows have about one length. So rows are divided by a public
radius, the length that is typical of features spread evenly over their declared bounds, and the few
that are longer are shortened to it: every row has norm at most 1, and the model stays linear in the
features of all but those. Rows of unknown scale are brought to length 1 first, and only their
direction counts.

The constant that an intercept is the weight of takes its part of that length from the features, and so
of what a clipped gradient says about them. Beside a row of length 1 a constant of 1 would take half of
its square; a quarter takes a seventeenth, and the intercept still learns: on held-out training rows of
a9a, ijcnn1, MNIST and small tables, also of rare classes and skewed targets, nothing was worse by more
than 0.03 points, and MNIST at epsilon 0.1 to 1 was better by half a point to a point.

Sparse rows are made dense: the noise is dense, so a private model is dense from its first step on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import eigh

from sordino._base.errors import SordinoError
from sordino.models._checks import Rows
from sordino.models._schema import Numeric, Schema

Array = NDArray[np.float32]
# Directions that vary less than this share of the first one are not stretched any further.
_LEAST_VARIANCE = 0.01
# A dense copy larger than this is refused with advice rather than left to the operating system.
LARGEST_DENSE_BYTES = 4 << 30
# The intercept's constant beside rows of length 1, whose scale is not known.
UNSCALED_CONSTANT = 0.25
# Rows are prepared, and predictions made, in blocks of about this many numbers.
BLOCK_ENTRIES = 1 << 21


@dataclass(frozen=True, eq=False)
class RowPreparation:
    """From checked features to rows of norm at most 1.

    Attributes:
      schema: how a DataFrame is encoded; None for arrays.
      bounds: public bounds of an array's columns, shape (2, features); None where unknown.
      intercept: whether a constant is appended as the last column.
      constant: that constant.
    """

    schema: Schema | None = None
    bounds: NDArray[np.float64] | None = None
    intercept: bool = True
    constant: float = 1.0

    @classmethod
    def for_schema(cls, schema: Schema, intercept: bool = True) -> RowPreparation:
        """Of a table; where a release found its columns, rows are divided by their own norms."""
        constant = UNSCALED_CONSTANT if schema.of_cells else 1.0
        return cls(schema=schema, intercept=intercept, constant=constant)

    @property
    def own_norm(self) -> bool:
        """Whether each row is divided by its own norm before it gets its constant."""
        return self.bounds is None if self.schema is None else self.schema.of_cells

    @classmethod
    def for_array(cls, bounds: NDArray[np.float64] | None, intercept: bool) -> RowPreparation:
        """Of an array whose columns have these public bounds, or are of unknown scale."""
        constant = UNSCALED_CONSTANT if bounds is None else 1.0
        return cls(bounds=bounds, intercept=intercept, constant=constant)

    def radius(self, features: int) -> float:
        """The public length that rows of this many raw features are divided by."""
        if self.own_norm:
            square = 1.0
        elif self.schema is not None:
            # A number spread evenly over [-1, 1] has mean square 1/3; one indicator is 1.
            parts = (1 / 3 if isinstance(c, Numeric) else 1.0 for c in self.schema.columns)
            square = sum(parts)
        else:
            square = features / 3
        return math.sqrt(square + self.intercept * self.constant**2)

    def width(self, X: Rows) -> int:
        """The number of prepared columns."""
        return int(X.shape[1] if self.schema is None else self.schema.width) + self.intercept

    def __call__(self, X: Rows) -> NDArray[np.float32]:
        """``(x, c) / max(radius, |(x, c)|)`` with the constant c, float32 (rows, features [+ 1])."""
        check_dense_size(X)
        take = getattr(X, "iloc", X)
        prepared = np.empty((X.shape[0], self.width(X)), np.float32)
        # In blocks: double precision on the way, without a double-precision copy of everything.
        # Silently: a number so large that its scaled value overflows is clipped to its bound.
        with np.errstate(all="ignore"):
            for block in blocks(X.shape[0], prepared.shape[1]):
                prepared[block] = self._prepare(take[block])
        return prepared

    def to_features(
        self, weights: ArrayLike, features: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Weights of prepared rows as `coef` (outputs, encoded features) and `intercept` (outputs,).

        They are weights of the rows as they were before their division by the radius of so many raw
        features: a row that is not longer than that has the decision ``coef x + intercept``.
        """
        scaled = np.atleast_2d(np.asarray(weights, np.float64)) / self.radius(features)
        if not self.intercept:
            return scaled, np.zeros(len(scaled))
        return scaled[:, :-1], scaled[:, -1] * self.constant

    def to_rows(self, coef: ArrayLike, intercept: ArrayLike, features: int) -> NDArray[np.float64]:
        """The weights of prepared rows (outputs, columns) that `to_features` made these of."""
        scaled = np.atleast_2d(np.asarray(coef, np.float64))
        if self.intercept:
            scaled = np.column_stack([scaled, np.atleast_1d(intercept) / self.constant])
        return np.asarray(scaled * self.radius(features))

    def _prepare(self, X: Rows) -> NDArray[np.float64] | Array:
        if self.schema is not None and self.own_norm:
            return self._prepare_found(self.schema.encode(X))
        if self.schema is not None:
            rows = self.schema.encode(X).astype(np.float64)
        else:
            rows = np.asarray(
                X.toarray() if isinstance(X, sparse.sparray | sparse.spmatrix) else X, np.float64
            )
            if self.bounds is not None:
                low, high = self.bounds
                rows = np.clip((rows - (low / 2 + high / 2)) * (2 / (high - low)), -1.0, 1.0)
            else:
                rows = _normalized(rows)
        if self.intercept:
            rows = np.concatenate([rows, np.full((len(rows), 1), self.constant)], axis=1)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(rows / np.maximum(norms, self.radius(X.shape[1])))

    def _prepare_found(self, encoded: Array) -> Array:
        """The same for features in [-1, 1], of which there may be very many: none is copied in double."""
        radius = self.radius(encoded.shape[1])
        lengths = np.sqrt(np.einsum("ij,ij->i", encoded, encoded, dtype=np.float64)) * radius
        encoded *= (1 / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)[:, None]
        if not self.intercept:
            return encoded
        constant = np.full((len(encoded), 1), self.constant / radius, np.float32)
        return np.concatenate([encoded, constant], axis=1)


def check_dense_size(X: Rows) -> None:
    """Refuse a sparse matrix whose dense rows would not fit."""
    rows, columns = X.shape
    size = rows * (columns + 1) * 4
    if sparse.issparse(X) and size > LARGEST_DENSE_BYTES:
        raise SordinoError(
            f"{rows:,} sparse rows of {columns:,} features take {size / 2**30:.1f} GB as the dense "
            f"rows that training needs, more than {LARGEST_DENSE_BYTES >> 30} GB; reduce the "
            "features first, for example by a public random projection or hashing"
        )


def blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices that cover `rows` rows of `width` numbers in pieces of bounded memory."""
    length = max(1, BLOCK_ENTRIES // max(1, width))
    for first in range(0, rows, length):
        yield slice(first, min(first + length, rows))


def _normalized(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows divided by their own norms; empty rows stay empty."""
    # Dividing by the largest entry first keeps squares of huge and tiny numbers finite.
    largest = np.max(np.abs(rows), axis=1, keepdims=True, initial=0.0)
    rows = rows / np.where(largest > 0, largest, 1.0)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1.0))


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
        stretched = vectors / np.sqrt(np.maximum(values, 0) + _LEAST_VARIANCE * values[-1])
        return cls(mean, stretched[:, ::-1].astype(np.float32))

    def __call__(self, rows: Array) -> Array:
        result: Array = rows @ self.directions  # centred afterwards: no second copy of wide rows
        result -= self.mean @ self.directions
        return result
