"""Losses of linear models, as functions of the logits: what the closed-form stream needs.

Each is also callable as ``loss(params, x, y)`` on one example, so that it can be used with `vmap`,
compared with the closed form in tests, or evaluated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass

import jax
import jax.numpy as jnp

from sordino._base.errors import SordinoError, require_count, require_positive
from sordino._base.types import PyTree


@dataclass(frozen=True)
class LinearLoss(ABC):
    """A loss ``l(W x, y)``, plus an optional data-free regulariser.

    A loss of your own is a frozen dataclass with `residual` and `value`. They are called on one example at
    a time, in compiled code, so that what an example adds depends on no other one.
    """

    @abstractmethod
    def residual(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        """``dl/dlogits`` per example, the shape of `logits`."""

    @abstractmethod
    def value(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        """The loss per example, shape (B,)."""

    def residuals(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        """`residual` of each example by itself: no example's can depend on another's."""
        return _one_by_one(self.residual, logits, y)

    def values(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        """`value` of each example by itself."""
        return _one_by_one(self.value, logits, y)

    def logits(self, params: PyTree, X: jax.Array) -> jax.Array:
        """``X W^T``: shape (B,) or (B, K)."""
        return X @ params.T

    def __call__(self, params: PyTree, x: jax.Array, y: jax.Array) -> jax.Array:
        return self.value(self.logits(params, x[None]), jnp.asarray(y)[None])[0]

    def regularizer_gradient(self, params: PyTree) -> PyTree | None:
        """Gradient of the data-free part: added after the noise, outside clipping; None if absent."""
        return None

    def parameter_shape(self, features: int) -> tuple[int, ...]:
        """Shape of the weights for rows of `features` numbers."""
        return (features,)


def require_plain(loss: object) -> None:
    """Refuse a loss whose logits or sums are its own, or that cannot be told from another one."""
    name = type(loss).__name__
    if not isinstance(loss, LinearLoss):
        raise SordinoError(f"a linear loss is a LinearLoss, got {name}")
    for part in ("logits", "residuals", "values"):
        if getattr(type(loss), part) is not getattr(LinearLoss, part) or part in vars(loss):
            raise SordinoError(
                f"{name} must not replace {part}: the clip counts on what it does; write `residual` and "
                "`value`"
            )
    require_fields(loss)


def require_fields(part: object) -> None:
    """Refuse a dataclass with numbers outside its fields: two that differ would pass for one."""
    if not is_dataclass(part):
        return
    others = set(vars(part)) - {field.name for field in fields(part)}
    if others:
        raise SordinoError(
            f"{type(part).__name__} keeps {', '.join(sorted(others))} outside the fields of its "
            "dataclass, so that it cannot be told from another one; make it a frozen dataclass with "
            "these as fields"
        )


def _one_by_one(
    function: Callable[[jax.Array, jax.Array], jax.Array], logits: jax.Array, y: jax.Array
) -> jax.Array:
    return jax.vmap(lambda one, label: function(one[None], label[None])[0])(logits, y)


@dataclass(frozen=True)
class Logistic(LinearLoss):
    """Binary logistic loss, labels 0 or 1: ``log(1 + e^z) - y z``."""

    def residual(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(logits) - y

    def value(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.logaddexp(0.0, logits) - y * logits


@dataclass(frozen=True)
class NonconvexLogistic(Logistic):
    """Logistic loss with the non-convex regulariser ``lam * sum theta^2 / (1 + theta^2)``.

    The regulariser depends on no data, so it has no sensitivity and stays outside the clipping.
    """

    lam: float = 1e-3

    def __post_init__(self) -> None:
        require_positive("lam", self.lam)

    def regularizer_gradient(self, params: PyTree) -> PyTree:
        return self.lam * 2 * params / (1 + params**2) ** 2

    def penalty(self, params: PyTree) -> jax.Array:
        """``lam * sum theta^2 / (1 + theta^2)``."""
        return self.lam * jnp.sum(params**2 / (1 + params**2))


@dataclass(frozen=True)
class Softmax(LinearLoss):
    """Multinomial logistic loss, labels 0 .. classes-1."""

    classes: int = 2

    def __post_init__(self) -> None:
        require_count("classes", self.classes, minimum=2)

    def residual(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        target = (jnp.arange(self.classes) == y[:, None]).astype(logits.dtype)
        return jax.nn.softmax(logits, axis=-1) - target

    def value(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        picked = jnp.take_along_axis(logits, y[:, None], axis=-1)[:, 0]
        return jax.nn.logsumexp(logits, axis=-1) - picked

    def parameter_shape(self, features: int) -> tuple[int, ...]:
        return (self.classes, features)


@dataclass(frozen=True)
class LeastSquares(LinearLoss):
    """``(z - y)^2 / 2``."""

    def residual(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        return logits - y

    def value(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        return 0.5 * (logits - y) ** 2
