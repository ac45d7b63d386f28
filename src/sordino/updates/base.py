"""Updates: how a private estimate moves the model. Post-processing, so no privacy is at stake here.

An update is `init` and `step` with the state passed in and out, like optax, plus `output`: what of
the trajectory is returned (the last iterate, or an average). Updates are hashable and compose.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import jax

from sordino.privacy.values import PrivateEstimate


class StepInfo(NamedTuple):
    """What an update may know about the step: its index, the number of steps, the learning rate."""

    step: jax.Array
    steps: jax.Array
    learning_rate: jax.Array


class Update(ABC):
    """One way to move. Subclasses are frozen dataclasses."""

    @abstractmethod
    def init(self, params: Any) -> Any:
        """State before the first step."""

    @abstractmethod
    def step(
        self, params: Any, state: Any, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[Any, Any]:
        """Parameters and state after one step."""

    def output(self, params: Any, state: Any) -> Any:
        """What the run returns: by default the last iterate."""
        return params
