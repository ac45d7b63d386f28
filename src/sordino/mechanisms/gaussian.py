"""Standard normal draws as a pure function of (key, step): counter-based, with long tails.

Row t depends on the key and on t alone, never on how often or in what chunks it was asked for, so a
step that is run again after a crash adds the very same noise.

`jax.random.normal` in float32 inverts a 23-bit uniform and so never leaves [-5.42, 5.22]: over a
training run that truncation is as likely as a typical delta. Here a Box-Muller radius is drawn from
64 random bits, ``u`` in (2^-65, 1], which reaches 9.49 standard deviations at the same cost (what
is left out has probability 2^-65 = 2.7e-20 per pair of draws). Floating-point noise remains a lattice; see
docs/threat-model.md.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32

_HALF_RIGHT_ANGLE = np.float32(np.pi / 2 * 2.0**-30)


def standard_normal_rows(key: jax.Array, first: jax.Array | int, count: int, d: int) -> jax.Array:
    """Rows ``first .. first+count-1`` of the endless iid N(0, 1) matrix of `key`, shape (count, d).

    `key` is used for nothing else: its threefry counters are (row, column) themselves.
    """
    half = (d + 1) // 2
    words = _random_words(key, first, count, 3 * half).reshape(count, 3, half)
    high, low = words[:, 0].astype(jnp.float32), words[:, 1].astype(jnp.float32)
    u = (high + (low + 0.5) * np.float32(2.0**-32)) * np.float32(2.0**-32)
    radius = jnp.sqrt(-2.0 * jnp.log(jnp.minimum(u, 1.0)))
    sine, cosine = _sine_cosine(words[:, 2])
    return jnp.concatenate([radius * sine, radius * cosine], axis=1)[:, :d]


def _random_words(key: jax.Array, first: jax.Array | int, count: int, width: int) -> jax.Array:
    """uint32 (count, width): word pairs ``threefry(key, (row, pair))``."""
    pairs = (width + 1) // 2
    row = (first + jnp.arange(count)).astype(jnp.uint32)[:, None]
    column = jnp.arange(pairs, dtype=jnp.uint32)[None, :]
    shape = (count, pairs)
    counters = jnp.stack([jnp.broadcast_to(row, shape), jnp.broadcast_to(column, shape)])
    words = threefry_2x32(jax.random.key_data(key), counters.ravel()).reshape(2, count, pairs)
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
