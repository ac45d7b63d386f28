"""Cancelling noise: each step takes back (a fraction of) the noise of the step before.

Step t adds ``y_t - leak * y_{t-1}`` with fresh draws y (papers/02 1.3 and 1.7), so ``C_k = leak^k``.
With leak 1 the prefix sums carry only the newest draw (Reshef & Levy 2025), with leak 0 all noise is
fresh. A leak slightly below 1 forgets what one example has added: at a fixed guarantee that lowers
the variance of sums of prefix sums by a quarter, over several epochs by more. In one epoch this one
scalar gets within 3 % of the best variance of all mechanisms (papers/02 2.4); over several epochs
the dense optimum is well below it.

    mechanism = Cancelling.leaky(AnytimeMap(), FixedBatches(1200, 600))

There is no state: the draw to be taken back is drawn again from its counter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, require_count, require_fraction
from sordino._base.types import Json
from sordino.parts.mechanisms._base import (
    LONGEST_MATRIX,
    READERS,
    Draw,
    check_matrix_size,
    only_channel,
)
from sordino.parts.mechanisms._maps import Channels
from sordino.parts.mechanisms._toeplitz import ToeplitzMechanism
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.parts.mechanisms.factorize._error import noising_error
from sordino.privacy import Participation, sensitivity

# Columns of a map that are written out at once when its energies are added up.
_COLUMNS = 512
# Leaks tried before the best of them is refined; the error need not have a single minimum.
_TRIALS = 24


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cancelling(ToeplitzMechanism):
    """Noise ``y_t - leak * y_{t-1}``; `leak` is rounded to the float32 number in use."""

    steps: int = field(metadata={"static": True})
    leak: float = field(default=1.0, metadata={"static": True})
    kind: ClassVar[str] = "cancelling"
    column_norms = None

    def __post_init__(self) -> None:
        leak = require_fraction("leak", self.leak, closed=True)
        object.__setattr__(self, "leak", float(np.float32(leak)))

    @classmethod
    def leaky(cls, workload: LinearMap, participation: Participation) -> Cancelling:
        """The leak with the least ``sensitivity x rms error`` of `workload` under `participation`.

        Any linear map will do up to 4096 steps; longer ones are judged by their nearest Toeplitz
        workload.
        """
        steps = participation.steps
        iterate_map = only_channel(workload) if isinstance(workload, Channels) else workload
        energies = _energies(iterate_map, steps)

        def loss(log_gap: float) -> float:
            built = cls(steps, 1.0 - math.exp(log_gap))
            gap = 1.0 - built.leak
            squared_error = float(energies @ [1.0, gap, gap * gap])
            shift = sensitivity(built.strategy(), participation).value
            return 2.0 * math.log(shift) + math.log(squared_error)

        # A gap far below 1 / steps is as good as none: the run ends before it is felt.
        grid = [*np.linspace(0.0, -math.log(100.0 * steps), _TRIALS), -math.inf]
        losses = [loss(log_gap) for log_gap in grid]
        best = int(np.argmin(losses))
        if grid[best] == -math.inf:
            return cls(steps, 1.0)
        from scipy.optimize import minimize_scalar  # here, because it takes long to import

        lowest = grid[min(best + 1, _TRIALS - 1)]
        result = minimize_scalar(
            loss, bounds=(lowest, grid[max(best - 1, 0)]), method="bounded", options={"xatol": 1e-5}
        )
        return cls(steps, 1.0 - math.exp(result.x if result.fun < losses[best] else grid[best]))

    def strategy_coefficients(self) -> NDArray[np.float64]:
        return np.power(self.leak, np.arange(self.steps, dtype=np.float64))

    def init(self, d: int) -> tuple[()]:
        return ()

    def rows(
        self, state: tuple[()], draw: Draw, first: jax.Array | int, count: int
    ) -> tuple[jax.Array, tuple[()]]:
        fresh = draw(first, count)
        # Step 0 takes nothing back. Its own draw stands in for the missing one, times zero.
        before = draw(jnp.maximum(first - 1, 0), 1) * jnp.where(jnp.asarray(first) > 0, 1.0, 0.0)
        earlier = jnp.concatenate([before, fresh[:-1]])
        return fresh - jnp.float32(self.leak) * earlier, ()

    def cancelled_draws(self, step: int) -> tuple[int, ...] | None:
        if self.leak != 1:
            return None
        return (step - 1,) if step else ()

    def _toeplitz_error(self, workload: Workload) -> NDArray[np.float64]:
        return noising_error(np.pad([1.0, -self.leak], (0, self.steps))[: self.steps], workload)

    def noising_matrix(self) -> NDArray[np.float64]:
        n = check_matrix_size(self)
        return np.eye(n) - self.leak * np.eye(n, k=-1)

    def state_vectors(self) -> int:
        return 0

    def describe(self) -> str:
        if self.leak == 1:
            return "noise that the next step takes back"
        return f"noise of which the next step takes back {self.leak:.5g}"

    def to_json(self) -> Json:
        return {"kind": self.kind, "steps": self.steps, "leak": self.leak}


def _energies(workload: LinearMap, n: int) -> NDArray[np.float64]:
    """Coefficients of the squared error ``|W (I - leak S)|^2`` in powers of the gap 1 - leak.

    S is the shift by one step. ``I - leak S = (I - S) + gap S``; taken this way, nothing large
    cancels where the leak is close to 1.
    """
    if n > LONGEST_MATRIX and not isinstance(workload, Workload):
        nearest = getattr(workload, "nearest_toeplitz", None)
        if nearest is None:
            raise SordinoError(
                f"a leak for a map that is not Toeplitz is sought for at most {LONGEST_MATRIX:,} "
                f"steps, got {n:,}"
            )
        workload = nearest()
    if isinstance(workload, Workload):
        impulse = np.eye(n + 1, 2, dtype=np.float64)[:n]  # of steps 0 and 1
        cancelled, shifted = workload.apply(impulse @ [[1.0, 0.0], [-1.0, 1.0]]).T
        # Coefficient k of a Toeplitz matrix stands in n - k places.
        places = np.arange(n, 0, -1.0)
        return np.array(
            [places @ cancelled**2, 2.0 * (places @ (cancelled * shifted)), places @ shifted**2]
        )
    total = np.zeros(3)
    for start in range(0, n, _COLUMNS):
        width = min(_COLUMNS, n - start)
        identity, shift = np.eye(n, width, -start), np.eye(n, width, -start - 1)
        cancelled, shifted = workload.apply(identity - shift), workload.apply(shift)
        total += [np.sum(cancelled**2), 2.0 * np.sum(cancelled * shifted), np.sum(shifted**2)]
    return total


READERS.add(
    Cancelling.kind,
    lambda data: Cancelling(require_count("steps", data["steps"]), float(data["leak"])),
)
