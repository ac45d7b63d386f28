"""The papers' small networks: their sizes, their function, and that they train privately."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sordino
from benchmarks.networks import MLP, cifar_cnn, mnist_cnn
from sordino._base.errors import SordinoError


def test_sizes_of_the_papers() -> None:
    """papers/01, tables 5 and 6."""
    for network, size in ((mnist_cnn(), 26_010), (cifar_cnn(), 62_006)):
        params = network.init(jax.random.key(0))
        assert network.parameters == size
        assert sum(np.size(leaf) for leaf in jax.tree.leaves(params)) == size
        batch = jnp.ones((3, *network.shape))
        logits = network.apply(params, batch)
        assert logits.shape == (3, 10)
        np.testing.assert_allclose(network.apply(params, batch[0]), logits[0], rtol=1e-5, atol=1e-6)
        assert network == type(network)(**vars(network))
        assert hash(network) == hash(type(network)(**vars(network)))


def test_the_loss_is_of_one_example() -> None:
    network = MLP((5, 7, 3))
    params = network.init(jax.random.key(1))
    x = jnp.arange(5.0)
    expected = -jax.nn.log_softmax(network.apply(params, x))[2]
    assert float(network.loss(params, x, 2)) == pytest.approx(float(expected), rel=1e-6)
    with pytest.raises(SordinoError, match="one example of shape"):
        network.loss(params, x[None], 2)
    with pytest.raises(SordinoError, match="an example has shape"):
        network.apply(params, jnp.ones((2, 3, 5)))


@pytest.mark.parametrize("driver", ["scan", "steps"])
def test_a_network_learns_privately(driver: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] > 0).astype(np.int32)
    network = MLP((4, 16, 2))
    plan = sordino.plan("dp-memf", examples=600, batch_size=60, epochs=12, epsilon=8.0, delta=1e-4)
    start = network.init(jax.random.key(0))
    result = sordino.train(
        plan, network.loss, start, (X, y), insecure_seed=0, microbatch_size=32, driver=driver
    )
    guess = np.argmax(network.apply(result.params, X), axis=1)
    assert np.mean(guess == y) > 0.8
