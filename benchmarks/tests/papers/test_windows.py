"""Algorithm 2 with windows: without noise it is momentum, and its noise is at the exact cost."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.papers.tran_cutkosky import algorithm_2_cost
from benchmarks.papers.windows import Windows, logistic

N, D, B, EPOCHS = 32, 4, 8, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)) / 2
Y = (X[:, 0] > 0).astype(float)


def settings(gamma: float = 0.3, difference_clip: float = 10.0) -> Windows:
    return Windows(EPOCHS * B, B, N // B, 10.0, difference_clip, gamma, 0.2, 0.05)


@pytest.mark.parametrize("gamma", [0.1, 0.7, 1.0])
def test_without_noise_and_binding_clips_it_is_normalized_momentum(gamma: float) -> None:
    found = settings(gamma).run(logistic(X, Y), np.zeros(D), None)
    w, m = np.zeros(D), np.zeros(D)
    for t in range(EPOCHS * B):
        rows = np.arange(N // B) + t % B * (N // B)
        m = 0.8 * m + logistic(X, Y)(w, rows).mean(axis=0)
        w = w - 0.05 * m / np.linalg.norm(m)
        np.testing.assert_allclose(found[t + 1], w, rtol=1e-9, atol=1e-12)


def test_clips_of_differences_bind_and_steps_keep_their_length() -> None:
    free = settings().run(logistic(X, Y), np.zeros(D), None)
    bound = settings(difference_clip=1e-3).run(logistic(X, Y), np.zeros(D), None)
    assert np.abs(free[-1] - bound[-1]).max() > 1e-3
    np.testing.assert_allclose(np.linalg.norm(np.diff(bound, axis=0), axis=1), 0.05)


def test_exact_noise_has_the_asked_mu() -> None:
    """mu^2 sigma^2 is `algorithm_2_cost`, whose own tests enumerate what one example moves."""
    made = settings()
    cost = algorithm_2_cost(epoch_steps=B, steps=EPOCHS * B, alpha=0.2)
    levels = made.exact(0.7)
    assert cost / levels.sigma**2 == pytest.approx(0.49)
    printed = made.printed(0.5, 1e-3)
    assert levels.gradient_early / printed.gradient_early == pytest.approx(
        levels.sigma / printed.sigma
    )
    # The same seed, another size of noise: each node's draw is added once, and in proportion.
    one, two = (
        made.run(logistic(X, Y), np.zeros(D), made.exact(mu), seed=3)[1] for mu in (1e-6, 1e-7)
    )
    np.testing.assert_allclose(one, two, rtol=1e-3)  # all noise: the direction is that of the draw
