r"""The noise chain: fresh noise for each message, what a later one cancels, and what all have revealed.

A message's noise is a function of 32 secret bytes that are its own. They come from a ratchet, one step
for each message, and from the digest of what the message answers; so equal requests get equal noise,
other requests never the same, and whoever finds today's secret cannot compute the noise of messages
whose own keys were forgotten after the next commit (papers/02 5.1 and 5.2, E2).

**What it costs**, for one example of one client, message by message.

Message l is ``s_l + y_l - rho(y_p)``: fresh noise y_l of variance V_l, less (a part of) the noise of its
*parent* p, ``rho(y) = round(leak * y)``, all in whole lattice steps. If one example's vectors change by at
most `reach`,

    mu^2 = sum_l (a_l reach)^2 / (V_l - 1/12)                                  (papers/02 2.1 and 2.3)
    a_l  = [example is in message l] + min(a_p, leak a_p + r),        r = sqrt(d) / reach,

r for 0 < leak < 1 only, 1/12 because noise is discrete (`privacy/_discrete.py`). It holds for any tree of
parents, so a server that lies about what it has committed is paid for like any other. The proof is in
docs/federated.md, "One client's messages".
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino.parts.mechanisms import ChaCha20Generator, discrete_gaussian

# The leak is this many 65536ths, so that a leaking multiple of whole noise is computed exactly.
LEAK_UNITS = 1 << 16
# Discrete noise of parameter V is as good as rounded Gaussian noise of this much less variance.
ROUNDED = 1 / 12
# Sums of squares in float64 are rounded against the user by this factor.
_UP = 1 + 1e-12


@dataclass(frozen=True)
class ChainAccountant:
    """mu^2 of groups of examples that are always used together.

    Attributes:
      reach: how far one example (or client) can move one message, in lattice steps.
      leak: in 65536ths.
      rounding: r above.
      spent: mu^2 of each group so far.
      tips: for each message that may still become a parent, a_l of each group that it knows.
    """

    reach: float
    leak: int
    rounding: float
    spent: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    tips: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)

    @classmethod
    def opened(cls, *, reach: float, leak: int, parameters: int) -> ChainAccountant:
        """An account of which nothing is spent."""
        if not 0 <= leak <= LEAK_UNITS:
            raise SordinoError(f"a leak is between 0 and {LEAK_UNITS} 65536ths, got {leak}")
        rounds = 0 < leak < LEAK_UNITS
        return cls(reach, leak, math.sqrt(parameters) / reach * _UP if rounds else 0.0)

    @property
    def mu_squared(self) -> float:
        """The worst group's."""
        return float(self.spent.max(initial=0.0)) * _UP

    @property
    def mu(self) -> float:
        return math.sqrt(self.mu_squared)

    def after(
        self,
        index: int,
        parent: int,
        groups: Iterable[int],
        variance: int,
        keep: Container[int] | None = None,
    ) -> ChainAccountant:
        """The account after message `index`, whose noise has `variance` and takes back `parent`'s.

        Args:
          index: of the new message, from 1.
          parent: index of the message whose noise it cancels; 0 for none.
          groups: numbers of the groups whose examples are in it.
          variance: V, in squared lattice steps.
          keep: which earlier messages may still become parents; all of them unless given.
        """
        if parent and parent not in self.tips:
            raise SordinoError(f"message {parent} can no longer be a parent")
        used = [int(group) for group in groups]
        size = max([len(self.spent), *(group + 1 for group in used)])
        moved = np.zeros(size)
        if parent and self.leak:
            before = self.tips[parent]
            left = moved[: len(before)]
            np.multiply(before, self.leak / LEAK_UNITS, out=left)
            if self.rounding:
                # What never came into a message is not there to be rounded, and stays 0.
                np.minimum(left + self.rounding, before, out=left)
        for group in used:
            moved[group] += 1.0
        spent = np.zeros(size)
        spent[: len(self.spent)] = self.spent
        spent += moved * moved * (self.reach**2 / (variance - ROUNDED))
        kept = self.tips if keep is None else {i: a for i, a in self.tips.items() if i in keep}
        return ChainAccountant(self.reach, self.leak, self.rounding, spent, {**kept, index: moved})

    def keeping(self, parents: Iterable[int]) -> ChainAccountant:
        """The same, without the messages that can no longer be parents."""
        kept = set(parents)
        return replace(self, tips={index: a for index, a in self.tips.items() if index in kept})


def chain_cost(
    *, messages: int, leak: int, uses: int, apart: int, rounding: float, weights: str = "constant"
) -> float:
    """``sum_l a_l^2 / v_l`` of the first group in an undisturbed chain: mu^2 over reach^2 / variance.

    The first group's is the largest: its noise is cancelled most often, and none is used more.

    Args:
      messages: length of the chain.
      leak: in 65536ths.
      uses: how often an example is used.
      apart: messages between two of its uses.
      rounding: r, see the module.
      weights: "constant" (v_l = 1) or "linear" (v_l = l, the paper's schedule).
    """
    if weights == "linear":
        relative = 1.0 / np.arange(1, messages + 1)
    else:
        relative = np.ones(messages)
    share = leak / LEAK_UNITS
    a = np.zeros(messages)
    if apart >= messages and rounding == 0:
        a = share ** np.arange(messages, dtype=np.float64)
    else:
        now = 0.0
        for index in range(messages):
            now = min(now, share * now + rounding) if leak and now else 0.0
            now += index % apart == 0 and index // apart < uses
            a[index] = now
    return float(np.sum(a * a * relative)) * _UP


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
