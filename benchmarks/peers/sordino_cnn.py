"""Sordino on the same images: `sordino.train` called again and again, as a user would.

`--driver` chooses how steps are run, `--microbatch` how many gradients exist at a time; the defaults are
the library's own.
"""

import argparse

import images
import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.networks import Params, mnist_cnn

import sordino


def main() -> None:
    """Time the task and print one JSON line."""
    parser = argparse.ArgumentParser(description="Sordino on images")
    parser.add_argument("--driver", choices=("auto", "scan", "steps"), default="auto")
    parser.add_argument("--microbatch", type=int)
    chosen = parser.parse_args()
    pixels, labels = images.load()
    x, y = jnp.asarray(pixels), jnp.asarray(labels, jnp.int32)
    network = mnist_cnn()
    params = network.init(jax.random.key(0))
    plan = sordino.plan(
        "dp-sgd",
        examples=images.N,
        batch_size=images.BATCH,
        epochs=1,
        noise_multiplier=images.NOISE_MULTIPLIER,
        clip=images.CLIP,
        sampling="fixed",
        order_seed=None,
        learning_rate=images.LEARNING_RATE,
        momentum=0.0,
    )

    def run() -> Params:
        result = sordino.train(
            plan,
            network.loss,
            params,
            (x, y),
            driver=chosen.driver,
            microbatch_size=chosen.microbatch,
        )
        return result.params

    def accuracy(params: Params) -> float:
        return float(np.mean(np.argmax(network.apply(params, x), axis=1) == labels))

    images.report("sordino", run, accuracy)


if __name__ == "__main__":
    main()
