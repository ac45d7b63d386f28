"""Random bits from ChaCha20: the cryptographic generator behind discrete noise.

A `ChaCha20Generator` is the keystream of RFC 8439 (section 2.4) under one 256-bit key, read in
order. Equal keys give equal bits, so noise whose key is derived from (run key, stream, step) is the
same whenever a step is run again; and nobody who sees a part of the stream can tell the rest from
coin flips without 2^256 work. A key is for one use: derive another one for another step.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from sordino._base.errors import SordinoError

KEY_BYTES = 32
# The block counter of RFC 8439 has 32 bits and a block 64 bytes: beyond, the keystream repeats.
MOST_WORDS = 2**32 * 64 // 8


class ChaCha20Generator:
    """Random words from a 32-byte key, in the order of the keystream.

    >>> hex(ChaCha20Generator(bytes(32)).word())  # RFC 8439, A.1, the first test vector
    '0x903df1a0ade0b876'
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise SordinoError(f"a ChaCha20 key has {KEY_BYTES} bytes, got {len(key)}")
        # Here, because most of the library does without it.
        # The nonce is fixed: no key is used twice, so none has to be told apart from another use.
        self._stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
        self._left = MOST_WORDS

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words of 64 random bits, uint64 (count,)."""
        if count > self._left:
            raise SordinoError("a ChaCha20 key is good for 2^38 bytes; derive another key")
        self._left -= count
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")

    def word(self) -> int:
        """The next 64 random bits as a number."""
        return int(self.words(1)[0])
