"""Independent noise, ``C = I``: DP-SGD and DP-GD, the one kind that random batches amplify."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import require_count
from sordino._base.types import Json
from sordino.parts.mechanisms._base import READERS, Draw, Mechanism, check_matrix_size
from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.mechanisms.factorize._error import toeplitz_error
from sordino.privacy import ToeplitzStrategy


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Independent(Mechanism):
    """Fresh noise in every step."""

    steps: int = field(metadata={"static": True})
    kind: ClassVar[str] = "independent"

    def strategy(self) -> ToeplitzStrategy:
        return ToeplitzStrategy(np.ones(1), self.steps)

    def start(self, d: int) -> tuple[()]:
        return ()

    def rows(
        self, state: tuple[()], draw: Draw, first: jax.Array | int, count: int
    ) -> tuple[jax.Array, tuple[()]]:
        return draw(first, count), ()

    def cancelled_draws(self, step: int) -> tuple[int, ...]:
        return ()

    def _toeplitz_error(self, workload: Workload) -> NDArray[np.float64]:
        return toeplitz_error(np.ones(1), workload, self.steps)

    def noising_matrix(self) -> NDArray[np.float64]:
        return np.eye(check_matrix_size(self))

    def state_vectors(self) -> int:
        return 0

    def describe(self) -> str:
        return "independent noise in every step"

    def to_json(self) -> Json:
        return {"kind": self.kind, "steps": self.steps}


READERS.add(Independent.kind, lambda data: Independent(steps=require_count("steps", data["steps"])))
