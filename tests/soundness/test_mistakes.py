"""What the matrix must not miss: casts removed, precision lowered, state advanced early."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from sordino.engine._session import Session
from sordino.parts.contributions import _gradient as gradient
from sordino.parts.contributions import _linear as linear
from tests.soundness.doors import Case
from tests.soundness.meeting import watched
from tests.soundness.test_matrix import MARGIN, measured


def cast_removed(patch: pytest.MonkeyPatch) -> None:
    """S1: norms of rows in the rows' own type."""
    honest = linear.LinearEvaluator.prepare

    def prepare(self: Any, data: Any, valid: Any) -> Any:
        (rows, y, _), good = honest(self, data, valid)
        square = jnp.sum(data[0] * data[0], axis=1).astype(jnp.float32)
        return (rows, y, 1 / jnp.sqrt(jnp.maximum(square, 1e-30))), good

    patch.setattr(linear.LinearEvaluator, "prepare", prepare)


def sums_in_half_precision(patch: pytest.MonkeyPatch) -> None:
    """S2: clipped vectors are added up in the model's own type."""

    def product(left: Any, right: Any) -> Any:
        # A cast there and back would be compiled away.
        return jax.lax.reduce_precision(left @ right, 8, 7), None

    patch.setattr(gradient, "block_product", product)


def precision_lowered(patch: pytest.MonkeyPatch) -> None:
    """p: ten bits of each factor, as some processors have it by default."""
    honest = linear.block_product

    def product(left: Any, right: Any, **how: Any) -> Any:
        return honest(*(jax.lax.reduce_precision(x, 8, 10) for x in (left, right)), **how)

    patch.setattr(linear, "block_product", product)


def state_advanced_early(patch: pytest.MonkeyPatch) -> None:
    """S3: the noise goes on although the step has not been taken."""
    honest = Session._noise_block

    def block(self: Session) -> Any:
        self._block = None
        made = honest(self)
        self._noise_state = made.state_after
        return made

    patch.setattr(Session, "_noise_block", block)


def clip_in_another_unit(patch: pytest.MonkeyPatch) -> None:
    """Clips that are a ten-thousandth too long."""
    honest = gradient.clip_pytree
    patch.setattr(gradient, "clip_pytree", lambda v, c, room: honest(v, c * 1.0005, room))


MISTAKES = {
    cast_removed: Case("train, scan", "numpy int32", "dp-gd", "logistic"),
    sums_in_half_precision: Case("train, scan", "numpy float32", "dp-gd", "vmap, bfloat16"),
    precision_lowered: Case("train, scan", "numpy float32", "dp-gd", "logistic"),
    state_advanced_early: Case(
        "session, every step retried", "numpy float32", "dp-memf, blt", "logistic"
    ),
    clip_in_another_unit: Case("session", "numpy float32", "dp-gd", "vmap"),
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_mistakes_are_found(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with watched() as witness:
        assert measured(witness, MISTAKES[mistake], 0) <= MARGIN
    mistake(monkeypatch)
    with watched() as witness:
        try:
            found = max(measured(witness, MISTAKES[mistake], seed) for seed in range(6))
        except AssertionError:
            return
        assert found > MARGIN
