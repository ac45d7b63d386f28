"""Pads that cancel in a sum: each pair of members shares one, which one adds and the other subtracts.

Whoever sees all padded vectors learns their sum and nothing else, as long as two members keep their keys
to themselves: the vectors are uniform modulo 2^64 but for that sum. Pair secrets come from X25519 between
keys that all members know beforehand (so nobody can be impersonated), pad keys from HKDF-SHA256 over the
pair's secret and a *context*, words from ChaCha20; all from `cryptography`. A pad hides one vector: a
context must never be used for two different ones, and must name everything that may differ.

Passive security. A member who lies about its vector changes the sum; one that does not answer leaves the
others' pads in it, so that a round with a missing member is worthless and has to be given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino.parts.mechanisms import ChaCha20Generator

KEY_BYTES = 32
_INFO = b"sordino pad 1/"
_PAIR = b"sordino pair 1/"


def new_private_key() -> bytes:
    """A private X25519 key from the operating system's entropy."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public key that belongs to a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


class Pads:
    """One member's pads with all others.

    Args:
      name: of this member.
      private: its private key.
      members: every member's public key, this one's too.
    """

    def __init__(self, name: str, private: bytes, members: Mapping[str, bytes]) -> None:
        if name not in members or public_key(private) != members[name]:
            raise SordinoError(f"the private key of {name!r} does not belong to its public key")
        if len(set(members.values())) != len(members):
            raise SordinoError("two members have the same public key")
        self._name = name
        self._members = dict(members)
        self._private = private
        self._secrets: dict[str, bytes] = {}

    def padded(
        self, values: NDArray[np.int64], cohort: Iterable[str], context: bytes
    ) -> NDArray[np.int64]:
        """`values` plus this member's pads with the rest of the cohort, modulo 2^64.

        Args:
          values: int64 (d,).
          cohort: everybody whose vector goes into the sum, this member too.
          context: names the vector; the same for the whole cohort, different for every sum.
        """
        names = sorted(set(cohort))
        if self._name not in names or len(names) < 2:
            raise SordinoError("pads need a cohort of at least two, this member among them")
        if values.dtype != np.int64 or values.ndim != 1:
            raise SordinoError("pads hide vectors of int64 only")
        total = values.view(np.uint64).copy()
        for other in names:
            if other == self._name:
                continue
            words = ChaCha20Generator(self._pad_key(other, context)).words(len(values))
            total = total + words if self._name < other else total - words
        return total.view(np.int64)

    def pair_key(self, other: str, context: bytes) -> bytes:
        """32 bytes that this member and one other have, for codes that prove who wrote something."""
        return self._pad_key(other, context, _PAIR)

    def _pad_key(self, other: str, context: bytes, use: bytes = _INFO) -> bytes:
        pair = "/".join(sorted((self._name, other))).encode()
        info = use + len(pair).to_bytes(4, "little") + pair + context
        return HKDF(SHA256(), KEY_BYTES, None, info).derive(self._secret(other))

    def _secret(self, other: str) -> bytes:
        if other not in self._members:
            raise SordinoError(f"there is no member {other!r}")
        if other not in self._secrets:
            mine = X25519PrivateKey.from_private_bytes(self._private)
            theirs = X25519PublicKey.from_public_bytes(self._members[other])
            try:
                self._secrets[other] = mine.exchange(theirs)
            except ValueError:
                raise SordinoError(f"the public key of {other!r} is not a good one") from None
        return self._secrets[other]
