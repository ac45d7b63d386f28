"""Small networks in plain JAX, written so that a private step on a CPU is fast.

    network = mnist_cnn()
    params = network.init(jax.random.key(0))
    result = sordino.train(plan, network.loss, params, (images, labels))
    network.apply(result.params, test_images)            # logits, (examples, classes)

A network is a frozen, hashable description; its parameters are a separate pytree of arrays. `apply`
takes one example or a batch, `loss` the one example that a private step wants.

Per-example gradients decide how the layers are written. The gradient of a convolution for one
example, taken by `vmap` through `lax.conv`, becomes a convolution with a group per example, which a
CPU runs slowly and which is slower still inside `lax.scan`. Here a convolution is a matrix product
with the image's patches: per-example gradients are then batched matrix products. `convolve` and
`max_pool` are public for networks of your own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino import SordinoError
from sordino._base.errors import require_count

# From this many channels on, patches are gathered pixel by pixel; below, concatenated from slices.
GATHER_CHANNELS = 8

Params = tuple[dict[str, jax.Array], ...]


class Network(ABC):
    """A classifier: what is common to all networks. Implementations are frozen dataclasses."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""

    @property
    @abstractmethod
    def classes(self) -> int:
        """The number of logits."""

    @abstractmethod
    def _layers(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """For each layer the shape of its weights, outputs first, and its fan-in."""

    @abstractmethod
    def _logits(self, params: Params, x: jax.Array) -> jax.Array:
        """Logits of one example."""

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(math.prod(weights) + weights[0] for weights, _ in self._layers())

    def init(self, key: jax.Array) -> Params:
        """Weights and biases, uniform in ``+-1/sqrt(fan_in)`` (PyTorch's default)."""

        def uniform(key: jax.Array, shape: tuple[int, ...], fan_in: int) -> jax.Array:
            limit = 1 / math.sqrt(fan_in)
            return jax.random.uniform(key, shape, jnp.float32, -limit, limit)

        layers = self._layers()
        keys = jax.random.split(key, (len(layers), 2))
        return tuple(
            {
                "weight": uniform(pair[0], weights, fan_in),
                "bias": uniform(pair[1], weights[:1], fan_in),
            }
            for pair, (weights, fan_in) in zip(keys, layers, strict=True)
        )

    def apply(self, params: Params, x: Any) -> jax.Array:
        """Logits of one example, (classes,), or of a batch of them, (examples, classes)."""
        x = jnp.asarray(x, jnp.float32)
        if x.shape == self.shape:
            return self._logits(params, x)
        if x.shape[1:] == self.shape:
            return jax.vmap(self._logits, (None, 0))(params, x)
        raise SordinoError(
            f"an example has shape {self.shape} and a batch {('examples', *self.shape)}, "
            f"got {x.shape}"
        )

    def loss(self, params: Params, x: Any, y: Any) -> jax.Array:
        """Cross-entropy of the softmax for one example `x` of class `y` (a whole number)."""
        x = jnp.asarray(x, jnp.float32)
        if x.shape != self.shape:
            raise SordinoError(f"the loss is of one example of shape {self.shape}, got {x.shape}")
        logits = self._logits(params, x)
        return jax.nn.logsumexp(logits) - jnp.sum(jax.nn.one_hot(y, self.classes) * logits)


@dataclass(frozen=True)
class MLP(Network):
    """Dense layers of the given sizes, from the input to the logits, an activation between them.

    Weights have the shape (outputs, inputs).
    """

    sizes: tuple[int, ...]
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu

    def __post_init__(self) -> None:
        sizes = tuple(require_count("a layer's size", size) for size in self.sizes)
        if len(sizes) < 2:
            raise SordinoError(f"an MLP needs at least an input and an output size, got {sizes}")
        object.__setattr__(self, "sizes", sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sizes[:1]

    @property
    def classes(self) -> int:
        return self.sizes[-1]

    def _layers(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        pairs = zip(self.sizes[:-1], self.sizes[1:], strict=True)
        return tuple(((outputs, inputs), inputs) for inputs, outputs in pairs)

    def _logits(self, params: Params, x: jax.Array) -> jax.Array:
        return _dense(params, x, self.activation)


@dataclass(frozen=True)
class Convolution:
    """A convolution with square windows, then the activation, then max-pooling if `pool` > 1."""

    channels: int
    window: int
    stride: int = 1
    padding: int = 0
    pool: int = 1
    pool_stride: int | None = None

    def __post_init__(self) -> None:
        for name in ("channels", "window", "stride", "pool"):
            require_count(name, getattr(self, name))
        require_count("padding", self.padding, minimum=0)
        if self.pool_stride is not None:
            require_count("pool_stride", self.pool_stride)

    def output(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """The shape of what comes out, for an image (height, width, channels)."""
        sides = []
        for side in shape[:2]:
            side = (side + 2 * self.padding - self.window) // self.stride + 1
            sides.append((side - self.pool) // (self.pool_stride or self.pool) + 1)
        if min(sides) < 1:
            raise SordinoError(f"the image {shape} is too small for {self}")
        return sides[0], sides[1], self.channels


@dataclass(frozen=True)
class CNN(Network):
    """Convolutions, then dense layers with `dense` outputs each, the last of them the logits.

    Images are (height, width) or (height, width, channels). Weights of a convolution have the shape
    (outputs, window, window, inputs); those of a dense layer (outputs, inputs), where the first one's
    inputs run over (row, column, channel).
    """

    image: tuple[int, ...]
    convolutions: tuple[Convolution, ...]
    dense: tuple[int, ...]
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu

    def __post_init__(self) -> None:
        image = tuple(require_count("an image's side", side) for side in self.image)
        if len(image) not in (2, 3):
            raise SordinoError(
                f"an image is (height, width) or (height, width, channels), got {image}"
            )
        object.__setattr__(self, "image", image)
        object.__setattr__(self, "convolutions", tuple(self.convolutions))
        dense = tuple(require_count("a layer's size", size) for size in self.dense)
        if not dense:
            raise SordinoError("a CNN needs at least one dense layer, for its logits")
        object.__setattr__(self, "dense", dense)
        self._layers()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.image

    @property
    def classes(self) -> int:
        return self.dense[-1]

    def _layers(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        shape = self.image if len(self.image) == 3 else (*self.image, 1)
        layers: list[tuple[tuple[int, ...], int]] = []
        for convolution in self.convolutions:
            window, inputs = convolution.window, shape[2]
            weights = (convolution.channels, window, window, inputs)
            layers.append((weights, window * window * inputs))
            shape = convolution.output(shape)
        inputs = math.prod(shape)
        for outputs in self.dense:
            layers.append(((outputs, inputs), inputs))
            inputs = outputs
        return tuple(layers)

    def _logits(self, params: Params, x: jax.Array) -> jax.Array:
        x = x if x.ndim == 3 else x[:, :, None]
        count = len(self.convolutions)
        for convolution, layer in zip(self.convolutions, params[:count], strict=True):
            x = convolve(
                x,
                layer["weight"],
                layer["bias"],
                stride=convolution.stride,
                padding=convolution.padding,
            )
            x = self.activation(x)
            if convolution.pool > 1:
                x = max_pool(x, convolution.pool, convolution.pool_stride)
        return _dense(params[count:], x.reshape(-1), self.activation)


def mnist_cnn() -> CNN:
    """The network of Opacus' MNIST example: 26,010 parameters, images (28, 28)."""
    return CNN(
        image=(28, 28),
        convolutions=(
            Convolution(16, 8, stride=2, padding=3, pool=2, pool_stride=1),
            Convolution(32, 4, stride=2, pool=2, pool_stride=1),
        ),
        dense=(32, 10),
    )


def cifar_cnn() -> CNN:
    """The network of PyTorch's CIFAR-10 tutorial: 62,006 parameters, images (32, 32, 3)."""
    return CNN(
        image=(32, 32, 3),
        convolutions=(Convolution(6, 5, pool=2), Convolution(16, 5, pool=2)),
        dense=(120, 84, 10),
    )


def convolve(
    x: jax.Array, weight: jax.Array, bias: jax.Array, *, stride: int = 1, padding: int = 0
) -> jax.Array:
    """A convolution (cross-correlation) of one image, as one matrix product with its patches.

    Args:
      x: (height, width, inputs).
      weight: (outputs, window, window, inputs).
      bias: (outputs,).
    """
    outputs, window, _, channels = weight.shape
    if padding:
        x = jnp.pad(x, ((padding, padding), (padding, padding), (0, 0)))
    if channels >= GATHER_CHANNELS or window % stride:
        patches, columns = _gathered(x, window, stride), weight
    else:
        patches = _concatenated(x, window, stride)
        # (a, p, b, q) to (a, b, p, q), where a tap's row is ``a stride + p``, its column ``b stride + q``.
        blocks = window // stride
        columns = weight.reshape(outputs, blocks, stride, blocks, stride, channels)
        columns = columns.transpose(0, 1, 3, 2, 4, 5)
    height, width = patches.shape[:2]
    flat = patches.reshape(height * width, -1) @ columns.reshape(outputs, -1).T
    return (flat + bias).reshape(height, width, outputs)


def max_pool(x: jax.Array, window: int, stride: int | None = None) -> jax.Array:
    """The largest value in each square window of one image (height, width, channels)."""
    step = window if stride is None else stride

    def along(x: jax.Array, axis: int) -> jax.Array:
        last = ((x.shape[axis] - window) // step) * step
        taps = [
            jax.lax.slice_in_dim(x, start, start + last + 1, step, axis) for start in range(window)
        ]
        largest = taps[0]
        for tap in taps[1:]:
            largest = jnp.maximum(largest, tap)
        return largest

    return along(along(x, 1), 0)


def _gathered(x: jax.Array, window: int, stride: int) -> jax.Array:
    """(height, width, window, window, channels): every window of the image."""

    def taps(side: int) -> NDArray[np.int64]:
        starts = np.arange(0, side - window + 1, stride)
        return starts[:, None] + np.arange(window)

    rows, columns = taps(x.shape[0]), taps(x.shape[1])
    index = rows[:, None, :, None], columns[None, :, None, :]
    return x.at[index].get(mode="promise_in_bounds")


def _concatenated(x: jax.Array, window: int, stride: int) -> jax.Array:
    """The same windows from blocks of stride x stride pixels; their taps run over (a, b, p, q)."""
    channels, blocks = x.shape[2], window // stride
    height, width = ((side - window) // stride + 1 for side in x.shape[:2])
    tall, wide = height + blocks - 1, width + blocks - 1
    x = x[: tall * stride, : wide * stride].reshape(tall, stride, wide, stride, channels)
    x = x.transpose(0, 2, 1, 3, 4).reshape(tall, wide, stride * stride * channels)
    x = jnp.concatenate([x[:, b : b + width] for b in range(blocks)], axis=2)
    return jnp.concatenate([x[a : a + height] for a in range(blocks)], axis=2)


def _dense(params: Params, x: jax.Array, activation: Callable[[jax.Array], jax.Array]) -> jax.Array:
    for layer in params[:-1]:
        x = activation(layer["weight"] @ x + layer["bias"])
    return params[-1]["weight"] @ x + params[-1]["bias"]
