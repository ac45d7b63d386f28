"""Networks that experiments train, as losses that the rows of a population can be scored with.

    loss = network_loss("mnist-cnn", 10)
    params = loss.start()                       # from a fixed seed, never from data
    loss(params, x, y)                          # of one row; `sordino.train` wants this
    loss.value(loss.logits(params, X), y)       # of many, without gradients

The networks themselves are `benchmarks.networks`; rows are flat here, as for linear models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from benchmarks.networks import CNN, Network, cifar_cnn, mnist_cnn
from sordino import SordinoError
from sordino._base.errors import require_choice, require_count, require_positive

# Rows whose logits are made together: what the layers hold meanwhile stays small.
_TOGETHER = 1000
ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = MappingProxyType(
    {"relu": jax.nn.relu, "tanh": jnp.tanh}
)
NETWORKS: Mapping[str, Callable[[], CNN]] = MappingProxyType(
    {"mnist-cnn": mnist_cnn, "cnn5": cifar_cnn}
)


@dataclass(frozen=True)
class NetworkLoss:
    """Cross-entropy of a network's softmax on flat rows, with the parameters to start from.

    Attributes:
      seed: of the first parameters, which are public and the same in every run.
      scales: the weights of layer i are ``scales[i]`` times its parameters; () for 1. The same
        network and first weights in other units: clipping, noise and steps are in parameters, so a
        layer of a scale above 1 learns faster, takes more of the clip and gets more noise.
    """

    network: Network
    seed: int = 0
    scales: tuple[float, ...] = ()

    def __call__(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return self.network.loss(self.weights(params), x.reshape(self.network.shape), y)

    def weights(self, params: Any) -> Any:
        """The network's weights."""
        if not self.scales:
            return params
        pairs = zip(params, self.scales, strict=True)
        return tuple(jax.tree.map(lambda leaf, s=s: leaf * s, layer) for layer, s in pairs)

    def start(self) -> Any:
        """The first parameters, a pytree: uniform in ``+-1/sqrt(fan_in)``, as `Network.init` has them,
        but drawn by numpy: nothing has to be compiled for them."""
        rng = np.random.default_rng(self.seed)
        layers = []
        shapes = _shapes(self.network)
        for layer, scale in zip(shapes, self.scales or (1.0,) * len(shapes), strict=True):
            limit = 1 / math.sqrt(math.prod(layer["weight"][1:])) / scale
            layers.append({name: rng.uniform(-limit, limit, layer[name]) for name in layer})
        return jax.tree.map(lambda leaf: leaf.astype(np.float32), tuple(layers))

    def shaped(self, flat: NDArray[np.float32]) -> Any:
        """Parameters from all their numbers in the order of the pytree's leaves."""
        if flat.shape != (self.network.parameters,):
            raise SordinoError(
                f"the network has {self.network.parameters:,} parameters, got {flat.shape}"
            )
        leaves, structure = jax.tree.flatten(self.start())
        ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
        parts = np.split(flat, ends)
        shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
        return jax.tree.unflatten(structure, shaped)

    def logits(self, params: Any, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits of many rows, (rows, classes)."""
        result, weights = [], self.weights(params)
        for first in range(0, len(X), _TOGETHER):
            rows = X[first : first + _TOGETHER]
            # Of one shape, so that one program serves all.
            padded = np.zeros((_TOGETHER, *self.network.shape), np.float32)
            padded[: len(rows)] = rows.reshape(-1, *self.network.shape)
            result.append(np.asarray(_apply(self.network, weights, padded))[: len(rows)])
        return np.concatenate(result)

    def value(self, logits: jax.Array, y: jax.Array) -> jax.Array:
        """The loss per row, shape (rows,)."""
        picked = jnp.take_along_axis(logits, y[:, None], axis=-1)[:, 0]
        return jax.nn.logsumexp(logits, axis=-1) - picked


def network_loss(
    name: str,
    classes: int,
    *,
    activation: str = "relu",
    seed: int = 0,
    scales: Sequence[float] = (),
) -> NetworkLoss:
    """The loss of a network of `NETWORKS`, with another activation or other units if given."""
    network = NETWORKS[require_choice("network", name, NETWORKS)]()
    if network.classes != classes:
        raise SordinoError(f"{name} has {network.classes} classes, the data {classes}")
    chosen = ACTIVATIONS[require_choice("activation", activation, ACTIVATIONS)]
    seed = require_count("seed", seed, minimum=0)
    layers = len(_shapes(network))
    if scales and len(scales) != layers:
        raise SordinoError(f"{name} has {layers} layers, scales has {len(scales)} entries")
    factors = tuple(require_positive("scales", scale) for scale in scales)
    return NetworkLoss(replace(network, activation=chosen), seed, factors)


@cache
def _shapes(network: Network) -> tuple[dict[str, tuple[int, ...]], ...]:
    """The shapes of a network's parameters, layer by layer."""
    result = jax.eval_shape(network.init, jax.random.key(0))
    return tuple({name: leaf.shape for name, leaf in layer.items()} for layer in result)


@partial(jax.jit, static_argnames="network")
def _apply(network: Network, params: Any, X: jax.Array) -> jax.Array:
    return network.apply(params, X)
