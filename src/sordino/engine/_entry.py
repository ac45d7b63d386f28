"""The one door through which records and parameters enter the engine.

`train`, `Session`, adaptive runs, audits, parties, federated clients and influence estimates all come
through here, and here it is decided once what kinds of numbers there are:

- records: float32, or the half-precision floats of a model that wants them; whole numbers of at most
  32 bits; bool. 64-bit floats are rounded; 64-bit whole numbers beyond 32 bits become the largest
  there are. Anything else (text, objects, complex numbers, masks, sparse matrices) is refused by its
  type, which is a property of the table.
- parameters: float32, float16 or bfloat16, all of them finite. They are public.

No message and no warning depends on a record's value: a record that is no number (NaN, infinite,
beyond float32) goes through, and contributes nothing. Norms, clips, sums and noise are float32 or
whole numbers in any case: see `streams` and `rounding`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sordino._base.errors import PlanMismatchError, SordinoError
from sordino.planning import Plan

# What records may be, by the name of the type they come in.
_RECORDS = {
    "float16": np.float16,
    "bfloat16": jnp.bfloat16,
    "float32": np.float32,
    "float64": np.float32,
    "longdouble": np.float32,
    "bool": np.bool_,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int32,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint32,
}
_PARAMETERS = ("float16", "bfloat16", "float32", "float64", "longdouble")


def as_records(data: Any) -> Any:
    """Arrays of records (any pytree) in the types that the engine computes with; see the module."""
    return jax.tree.map(_record, data)


def _record(value: Any) -> Any:
    if isinstance(value, np.ma.MaskedArray):
        raise SordinoError(
            "data must be plain arrays, got a masked one; fill what is masked with a public value"
        )
    if hasattr(value, "tocsr"):
        raise SordinoError(
            "data must be dense arrays, got a sparse matrix; use its toarray(), or an estimator"
        )
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    name = _name(array.dtype)
    if name not in _RECORDS:
        raise SordinoError(
            f"data must be numbers, got an array of {name}; convert it first (float32, int32, bool)"
        )
    wanted = np.dtype(_RECORDS[name])
    if array.dtype == wanted:
        return array
    if wanted.kind in "iu" and array.dtype != wanted.newbyteorder():
        limits = np.iinfo(wanted)
        array = array.clip(limits.min, limits.max)
    # Too large for float32 is infinite, and says nothing about it.
    with np.errstate(all="ignore"):
        return array.astype(wanted)


def as_parameters(params: Any) -> Any:
    """Parameters (any pytree) as finite float arrays; 64 bits become 32."""
    if not jax.tree.leaves(params):
        raise SordinoError("there are no parameters to train")
    return jax.tree.map(_parameter, params)


def _parameter(value: Any) -> Any:
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    name = _name(array.dtype)
    if name not in _PARAMETERS:
        raise SordinoError(
            f"all parameters must be float arrays (float32, float16, bfloat16), got {name}; separate "
            "the others first"
        )
    wanted = np.dtype(_RECORDS[name])
    with np.errstate(all="ignore"):
        array = array if array.dtype == wanted else array.astype(wanted)
    if not np.isfinite(np.asarray(array, np.float32)).all():
        raise SordinoError("all parameters must be finite in float32 before the first step")
    return array


def _name(dtype: Any) -> str:
    """The type's name, whatever the order of its bytes; long floats by one name."""
    if dtype == np.longdouble and dtype != np.float64:
        return "longdouble"
    return str(np.dtype(dtype).newbyteorder("=").name)


def check_rows(plan: Plan, data: tuple[Any, ...]) -> None:
    """Refuse data that is not one row per planned example."""
    n = row_count(data)
    if n != plan.population.examples:
        raise PlanMismatchError(
            f"the plan is for {plan.population.examples:,} examples but the data has {n:,} rows; "
            f"plan again with examples={n}"
        )


def row_count(data: Any) -> int:
    """The rows that all arrays have in common."""
    leaves = jax.tree.leaves(data)
    if not leaves:
        raise SordinoError("there is no data: give a tuple of arrays with one row per example")
    counts = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in leaves}
    if len(counts) != 1 or None in counts:
        raise SordinoError(f"all data arrays need one row per example, got row counts {counts}")
    (n,) = counts
    assert n is not None
    return int(n)
