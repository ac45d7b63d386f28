"""A Flax (linen) convolutional network on small images, trained privately with microbatches.

python examples/flax_cnn.py
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import sordino


class CNN(nn.Module):
    """Two small layers for 8 x 8 images in 10 classes."""

    @nn.compact
    def __call__(self, image):
        x = nn.relu(nn.Conv(8, (3, 3))(image[None, :, :, None]))
        x = nn.avg_pool(x, (2, 2), strides=(2, 2)).reshape(-1)
        return nn.Dense(10)(x)


def main() -> float:
    """Train on the digits (public data, standing in for private), return the test accuracy."""
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8) / 16.0).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1500], order[1500:]
    model = CNN()
    params = model.init(jax.random.key(0), images[0])

    def loss(params, image, label):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, image), label)

    plan = sordino.plan(
        "dp-sgd",
        examples=1500,
        batch_size=150,
        epochs=20,
        epsilon=8.0,
        delta=1e-4,
        learning_rate=0.5,
    )
    result = sordino.train(plan, loss, params, (images[train], labels[train]), microbatch_size=50)
    print(result.statement())
    logits = jax.vmap(lambda image: model.apply(result.params, image))(images[test])
    accuracy = float(jnp.mean(jnp.argmax(logits, axis=1) == labels[test]))
    print(f"test accuracy: {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
