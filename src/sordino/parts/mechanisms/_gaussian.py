"""Standard normal draws as a pure function of (key, step): counter-based, with long tails.

Row t depends on the key and on t alone, never on how often or in what chunks it was asked for, so a
step that is run again after a crash adds the very same noise.

`jax.random.normal` in float32 inverts a 23-bit uniform and so never leaves [-5.42, 5.22]: over a
training run that truncation is as likely as a typical delta. Here a Box-Muller radius is drawn from
64 random bits, and both ends of the uniform number are kept to full relative precision: radii reach
9.49 standard deviations (what is left out has probability 2^-65 = 2.7e-20 per pair of draws), and
short ones do not collapse to 0 (a float32 uniform rounds to 1 once in 2^25 times: no noise at all in
two coordinates). Floating-point noise remains a lattice; see docs/threat-model.md.

The generator is threefry2x32 with whitened inputs and outputs, ``T_k(counter ^ a) ^ b`` for three
secret pairs of words (Kilian & Rogaway 2001). Threefry's own key has 64 bits; so used, m blocks and
2^(127 - log2 m) guesses are needed to tell it from random in the ideal-cipher model, at the price of
four exclusive ors.
"""

from __future__ import annotations

from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl, threefry_2x32
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino._base.keys import RunKey

# Words of a noise key: threefry's own two, two for its inputs, two for its outputs.
KEY_WORDS = 6


def _unused(*_: object) -> NoReturn:
    raise SordinoError("noise keys are for noise rows; draw other numbers from other keys")


# A kind of key of its own, so that jax.random cannot take one for an ordinary key.
_WHITENED = define_prng_impl(
    key_shape=(KEY_WORDS,),
    seed=_unused,
    split=_unused,
    random_bits=_unused,
    fold_in=_unused,
    name="sordino_whitened_threefry",
    tag="swt",
)


def threefry_keys(words: NDArray[np.uint32]) -> jax.Array:
    """Noise keys (...) from secret words, uint32 (..., 6)."""
    keys: jax.Array = jax.random.wrap_key_data(words, impl=_WHITENED)  # type: ignore[arg-type]
    return keys


def gaussian_key(key: RunKey, stream: str) -> jax.Array:
    """The generator key of one noise stream of a run (192 bits)."""
    words = np.frombuffer(key.derive(f"noise/{stream}")[: 4 * KEY_WORDS], "<u4")
    return threefry_keys(words)


_HALF_RIGHT_ANGLE = np.float32(np.pi / 2 * 2.0**-30)


def standard_normal_rows(key: jax.Array, first: jax.Array | int, count: int, d: int) -> jax.Array:
    """Rows ``first .. first+count-1`` of the endless iid N(0, 1) matrix of `key`, shape (count, d).

    `key` is used for nothing else: its threefry counters are (row, column) themselves.
    """
    half = (d + 1) // 2
    words = _random_words(key, first, count, 3 * half).reshape(count, 3, half)
    # u in (0, 1) as its distance t from the nearer end, which float32 holds to 24 digits.
    near_one = words[:, 0] >= np.uint32(1 << 31)
    high, low = (
        jnp.where(near_one, ~word, word).astype(jnp.float32) for word in words[:, :2].swapaxes(0, 1)
    )
    t = (high + (low + 0.5) * np.float32(2.0**-32)) * np.float32(2.0**-32)
    radius = jnp.sqrt(-2.0 * jnp.where(near_one, jnp.log1p(-t), jnp.log(t)))
    sine, cosine = _sine_cosine(words[:, 2])
    return jnp.concatenate([radius * sine, radius * cosine], axis=1)[:, :d]


def _random_words(key: jax.Array, first: jax.Array | int, count: int, width: int) -> jax.Array:
    """uint32 (count, width): word pairs ``threefry(key, (row, pair))``, whitened.

    An ordinary threefry key (public simulations have such) is one whose other words are 0.
    """
    pairs = (width + 1) // 2
    given = jax.random.key_data(key)
    data = jnp.pad(given, (0, KEY_WORDS - given.size))
    row = (first + jnp.arange(count)).astype(jnp.uint32)[:, None] ^ data[2]
    column = jnp.arange(pairs, dtype=jnp.uint32)[None, :] ^ data[3]
    shape = (count, pairs)
    counters = jnp.stack([jnp.broadcast_to(row, shape), jnp.broadcast_to(column, shape)])
    words = threefry_2x32(data[:2], counters.ravel()).reshape(2, count, pairs)
    words = words ^ data[4:, None, None]
    return jnp.concatenate([words[0], words[1]], axis=1)[:, :width]


def _sine_cosine(bits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """sin and cos of a uniform angle: a quadrant (2 bits) and an angle in [-pi/4, pi/4] (30 bits).

    Minimax polynomials on that interval (error below 1e-7), several times faster than the
    general functions, which must first reduce any argument.
    """
    quadrant = bits >> 30
    centred = (bits & np.uint32(0x3FFFFFFF)).astype(jnp.int32) - np.int32(1 << 29)
    x = (centred.astype(jnp.float32) + 0.5) * _HALF_RIGHT_ANGLE
    y = x * x
    sine = x * (1 + y * (-1.6666654611e-1 + y * (8.3321608736e-3 + y * -1.9515295891e-4)))
    cosine = 1 + y * (
        -0.5 + y * (4.166664568298827e-2 + y * (-1.388731625493765e-3 + y * 2.443315711809948e-5))
    )
    swapped = (quadrant & 1) == 1
    sign_of_sine = jnp.where((quadrant & 2) == 0, 1.0, -1.0).astype(jnp.float32)
    sign_of_cosine = jnp.where(((quadrant + 1) & 2) == 0, 1.0, -1.0).astype(jnp.float32)
    return (
        jnp.where(swapped, cosine, sine) * sign_of_sine,
        jnp.where(swapped, sine, cosine) * sign_of_cosine,
    )
