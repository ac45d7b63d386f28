"""Dense noise: any lower-triangular factorization, for runs short enough to hold all draws.

Each block of rows is ``N[block, :] @ Z`` with ``N = C^-1`` and all of Z drawn again from the key:
no state to keep or to lose, O(steps x d) memory while a block is made. `MAX_ENTRIES` bounds it;
longer runs use BLT, which comes close.

What is stored and analysed is the float32 ``N`` that is really multiplied; C is its inverse.

**On disk.** Searches take seconds to minutes, reading a result back milliseconds.

Files live in the user's cache folder, under the hash of everything that decides the result: the
workload's numbers, the steps, the separation, the tolerance and the version of the algorithm. They
hold no data and no noise. Delete them at any time, or set SORDINO_CACHE=off.

Privacy never rests on a file. What is read is a matrix like any other: a mechanism rounds it to the
numbers it will multiply, and the sensitivity is computed from those. A file that someone changed
can make the noise worse suited, not smaller than the guarantee needs.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular
from scipy.linalg import toeplitz as toeplitz_matrix

from sordino._base.codec import canonical
from sordino._base.errors import SordinoError, require_count
from sordino._base.files import cache_folder, write_atomically
from sordino._base.types import Json
from sordino.parts._rounding import full_product
from sordino.parts.mechanisms._base import READERS, Draw, Mechanism
from sordino.parts.mechanisms._toeplitz import packed, unpacked, useful_column_norms
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.parts.mechanisms.factorize._dense import ALGORITHM_VERSION, DenseResult, optimize_dense
from sordino.parts.mechanisms.factorize._error import completed, weighted_rows, workload_matrix
from sordino.parts.mechanisms.factorize._toeplitz import sqrt_toeplitz
from sordino.privacy import FixedBatches, MatrixStrategy, Participation, SinglePass

LONGEST = 2048
MAX_ENTRIES = 50_000_000
# Shorter searches take less time than looking for their result.
SHORTEST = 64
_FORMAT = "sordino-strategy-1"


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Dense(Mechanism):
    """Noise ``N Z`` with a given lower-triangular `noising` matrix N (steps, steps), float32."""

    noising: NDArray[np.float32]
    label: str = field(metadata={"static": True})
    kind: ClassVar[str] = "dense"

    def __post_init__(self) -> None:
        # Inside compiled code it is traced, and was checked before.
        N = self.noising
        if isinstance(N, np.ndarray) and (
            N.ndim != 2 or N.shape[0] != N.shape[1] or np.triu(N, 1).any()
        ):
            raise SordinoError("a dense noising matrix must be square and lower triangular")

    @property
    def steps(self) -> int:  # type: ignore[override]
        return int(self.noising.shape[0])

    @classmethod
    def from_encoder(cls, C: NDArray[np.float64], label: str) -> Dense:
        """The mechanism of a lower-triangular encoder C."""
        N = solve_triangular(C, np.eye(len(C)), lower=True)
        return cls(np.asarray(np.tril(N), np.float32), label)

    @classmethod
    def optimized(cls, workload: LinearMap, participation: Participation) -> Dense:
        """The factorization with the least mean squared error of all (certified by duality).

        `workload` is any linear map. Where several noises would leave it the same (a map of low
        rank) the noise of the single steps decides between them.
        """
        steps, separation = _fixed_order(participation)
        iterate_map: LinearMap | NDArray[np.float64] = workload
        if not isinstance(workload, Workload):
            iterate_map = completed(workload_matrix(workload, steps))
        result = remembered_dense(iterate_map, steps, separation)
        return cls.from_encoder(result.strategy, "optimal dense factorization")

    @classmethod
    def weighted(
        cls, workload: LinearMap, weights: ArrayLike, participation: Participation
    ) -> Dense:
        """The factorization with the least ``sum_t q_t Var_t``, q = `weights`, of the outputs.

        Outputs that count more or less than others, as under an influence schedule: factorises
        ``diag(q)^(1/2) W`` (papers/04 2.3). Outputs of weight 0 still count for a millionth of the
        others, so that their noise stays finite.
        """
        steps, separation = _fixed_order(participation)
        iterate_map = completed(weighted_rows(workload_matrix(workload, steps), weights))
        result = remembered_dense(iterate_map, steps, separation)
        return cls.from_encoder(result.strategy, "optimal dense factorization of weighted outputs")

    @classmethod
    def square_root(cls, workload: Workload, participation: Participation) -> Dense:
        """The Toeplitz square root of the workload, columns normalised where that is exact."""
        steps = check_length(participation.steps, "toeplitz")
        coefficients = sqrt_toeplitz(workload, steps)
        C = toeplitz_matrix(coefficients, np.zeros(steps))
        norms = useful_column_norms(coefficients, workload, participation)
        if norms is not None:
            C = C / norms.astype(np.float64)
        return cls.from_encoder(C, "square-root Toeplitz factorization")

    @cached_property
    def _encoder(self) -> NDArray[np.float64]:
        N = self.noising.astype(np.float64)
        return np.tril(solve_triangular(N, np.eye(self.steps), lower=True))

    def strategy(self) -> MatrixStrategy:
        return MatrixStrategy.from_encoder(self._encoder)

    def init(self, d: int) -> tuple[()]:
        if self.steps * d > MAX_ENTRIES:
            raise SordinoError(
                f"dense noise for {self.steps:,} steps of a model with {d:,} parameters would draw "
                f"{self.steps * d:,} numbers at once; use mechanism 'blt'"
            )
        return ()

    def rows(
        self, state: tuple[()], draw: Draw, first: jax.Array | int, count: int
    ) -> tuple[jax.Array, tuple[()]]:
        z = draw(0, self.steps)
        block = jax.lax.dynamic_slice(
            jnp.asarray(self.noising), (first, 0), (count, self.noising.shape[1])
        )
        return full_product(block, z), ()

    def noising_matrix(self) -> NDArray[np.float64]:
        return self.noising.astype(np.float64)

    def state_vectors(self) -> int:
        return self.steps

    def describe(self) -> str:
        return self.label

    def to_json(self) -> Json:
        triangle = self.noising[np.tril_indices(self.steps)]
        return {
            "kind": self.kind,
            "label": self.label,
            "steps": self.steps,
            "lower_triangle": packed(triangle),
        }


def check_length(steps: int, name: str) -> int:
    """`steps`, if the mechanism of that name can hold a matrix of so many."""
    if steps > LONGEST:
        raise SordinoError(
            f"mechanism {name!r} is for at most {LONGEST:,} steps, got {steps:,}; use 'blt'"
        )
    return steps


def _fixed_order(participation: Participation) -> tuple[int, int]:
    """Steps and separation of a rule for which the optimum is known."""
    if not isinstance(participation, SinglePass | FixedBatches):
        raise SordinoError("a dense optimum is known for fixed batches; use mechanism 'blt'")
    steps = check_length(participation.steps, "dense")
    return steps, min(getattr(participation, "separation", steps), steps)


def _read(data: Json) -> Dense:
    steps = check_length(require_count("steps", data["steps"]), "dense")
    triangle = unpacked(data["lower_triangle"])
    if triangle.shape != (steps * (steps + 1) // 2,):
        raise SordinoError("the dense factorization in this plan has the wrong size")
    N = np.zeros((steps, steps), np.float32)
    N[np.tril_indices(steps)] = triangle
    return Dense(N, str(data["label"]))


READERS.add(Dense.kind, _read)


def remembered_dense(
    workload: LinearMap | npt.ArrayLike,
    n: int,
    separation: int,
    tolerance: float = 1e-4,
    max_seconds: float = 120.0,
) -> DenseResult:
    """`optimize_dense`, or what it found when it was last asked the same.

    A search that ran out of time is remembered too, and repeated only if it is given more time; of
    two results the one with the smaller gap is kept.
    """
    folder = cache_folder("strategies") if n >= SHORTEST else None
    if folder is None:
        return optimize_dense(
            workload, n, separation=separation, tolerance=tolerance, max_seconds=max_seconds
        )
    path = folder / f"{_key(workload, n, separation, tolerance)}.strategy"
    stored = _stored(path, n)
    if stored is not None and (stored[0].gap <= tolerance or stored[1] >= max_seconds):
        return stored[0]
    result = optimize_dense(
        workload, n, separation=separation, tolerance=tolerance, max_seconds=max_seconds
    )
    if stored is not None and stored[0].gap < result.gap:
        result = stored[0]
    with suppress(OSError):  # a full disk costs the time of the next search, nothing else
        write_atomically(path, _written(result, max_seconds))
    return result


def _key(workload: LinearMap | npt.ArrayLike, n: int, separation: int, tolerance: float) -> str:
    """SHA-256 of the whole question."""
    head: Json = {
        "algorithm": ALGORITHM_VERSION,
        "steps": n,
        "separation": separation,
        "tolerance": float(tolerance).hex(),
    }
    if isinstance(workload, Workload):
        head["scale"] = float(workload.scale).hex()
        head["ratios"] = [float(ratio).hex() for ratio in workload.ratios]
        numbers = b""
    else:
        matrix = workload_matrix(workload, n)
        head["shape"] = list(matrix.shape)
        numbers = np.ascontiguousarray(matrix, "<f8").tobytes()
    return hashlib.sha256(canonical(head).encode() + b"\n" + numbers).hexdigest()


def _written(result: DenseResult, seconds: float) -> bytes:
    """One line of JSON, then the lower triangle as little-endian float64."""
    n = len(result.strategy)
    triangle = np.ascontiguousarray(result.strategy[np.tril_indices(n)], "<f8").tobytes()
    head = {
        "format": _FORMAT,
        "steps": n,
        "gap": result.gap,
        "rmse": result.rmse,
        "seconds": float(seconds),
        "sha256": hashlib.sha256(triangle).hexdigest(),
    }
    return json.dumps(head).encode() + b"\n" + triangle


def _stored(path: Path, n: int) -> tuple[DenseResult, float] | None:
    """What `_written` wrote and the time it had; None for anything else, which is then replaced."""
    try:
        line, triangle = path.read_bytes().split(b"\n", 1)
        head = json.loads(line)
        if head["format"] != _FORMAT or head["steps"] != n:
            return None
        if head["sha256"] != hashlib.sha256(triangle).hexdigest():
            return None
        strategy = np.zeros((n, n))
        strategy[np.tril_indices(n)] = np.frombuffer(triangle, "<f8")
        result = DenseResult(strategy, float(head["gap"]), float(head["rmse"]))
        seconds = float(head["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sound = np.isfinite(strategy).all() and (np.diag(strategy) > 0).all()
    return (result, seconds) if sound and np.isfinite(result.gap) else None
