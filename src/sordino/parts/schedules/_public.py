"""Public data by type: the only thing from which a schedule may be learned.

A schedule computed from private records would have to be paid for (papers/04, section 1.6 and
erratum j), and retraining on them is never affordable. So whatever estimates influence takes a
`PublicData` and nothing else; wrapping is the caller's statement that these records are public.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, eq=False, init=False)
class PublicData:
    """Arrays of public (or synthetic) records, one row each: ``PublicData(features, labels)``."""

    arrays: tuple[NDArray[Any], ...]

    def __init__(self, *arrays: ArrayLike) -> None:
        views = []
        for array in arrays:
            if isinstance(array, PublicData):
                raise TypeError("PublicData takes arrays, not another PublicData")
            view = np.asarray(array).view()
            if view.ndim == 0 or view.dtype == object:
                raise TypeError("PublicData takes numeric arrays with one row per record")
            view.flags.writeable = False
            views.append(view)
        if not views or any(len(view) != len(views[0]) for view in views):
            raise TypeError("PublicData takes at least one array, all with the same number of rows")
        object.__setattr__(self, "arrays", tuple(views))

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __repr__(self) -> str:
        shapes = ", ".join(str(array.shape) for array in self.arrays)
        return f"PublicData({shapes})"


def require_public(data: object, use: str = "influence estimation") -> PublicData:
    """`data` if it is `PublicData`, else a TypeError before anything is computed from it."""
    if not isinstance(data, PublicData):
        raise TypeError(
            f"{use} takes public data only, wrapped as PublicData(features, labels), because its "
            f"result is released without noise; got {type(data).__name__}"
        )
    return data
