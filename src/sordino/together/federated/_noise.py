"""The noise chain: fresh discrete Gaussian noise for each message, and what a later one takes back.

A message's noise is a function of 32 secret bytes that are its own. They come from a ratchet, one step
for each message, and from the digest of what the message answers; so equal requests get equal noise,
other requests never the same, and whoever finds today's secret cannot compute the noise of messages
whose own keys were forgotten after the next commit (papers/02 5.1 and 5.2, E2).
"""

from __future__ import annotations

import hashlib
import secrets
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sordino.parts.mechanisms import ChaCha20Generator, discrete_gaussian
from sordino.together.federated._account import LEAK_UNITS

SECRET_BYTES = 32

Integers = NDArray[np.int64]


def fresh_secret() -> bytes:
    """The first secret of a ratchet, from the operating system's entropy."""
    return secrets.token_bytes(SECRET_BYTES)


def insecure_secret(seed: int, client: str) -> bytes:
    """A reproducible one, for tests and research: not private against who knows the seed."""
    return hashlib.sha256(f"sordino insecure federated seed {seed} {client}".encode()).digest()


def turned(secret: bytes) -> bytes:
    """The ratchet's next secret; the way back is as hard as inverting the hash."""
    return _keyed(secret, b"ratchet")


def noise_key(secret: bytes, binding: bytes) -> bytes:
    """The key of the message that answers what `binding` is the digest of."""
    return _keyed(secret, b"noise/" + binding)


def order_key(secret: bytes) -> bytes:
    """The key of the order in which a client takes its examples."""
    return _keyed(secret, b"order")


def drawn(key: bytes, variance: int, parameters: int) -> Integers:
    """y: exact discrete Gaussian noise of that variance, int64 (parameters,)."""
    return discrete_gaussian(Fraction(variance), parameters, ChaCha20Generator(key))


def cancelled_draws(noise: Integers, leak: int) -> Integers:
    """``rho(y) = floor(leak y + 1/2)``, `leak` in 65536ths: exact, and monotone in y."""
    if leak == LEAK_UNITS:
        return noise
    return (noise * leak + LEAK_UNITS // 2) >> 16


def permuted(key: bytes, count: int) -> Integers:
    """A random order of ``0 .. count-1``."""
    words = ChaCha20Generator(key).words(count)
    return np.argsort(words, kind="stable").astype(np.int64)


def _keyed(secret: bytes, use: bytes) -> bytes:
    return hashlib.blake2b(use, key=secret, digest_size=SECRET_BYTES).digest()
