"""Run keys: the one secret behind all noise and all secret batches of a run.

A run key is 256 bits from the operating system. Every use derives its own key from it by hashing
the use's name, so that two streams, or noise and sampling, can never share a generator state.
(`jax.random.key(seed)` would keep 32 bits of a seed: noise that can be enumerated and subtracted.)

A key belongs to one run. Noise is a function of the run key and the step: the same key with anything else
changed would put the same noise around other sums, and the difference of two releases would be free of
it. So the ledger, a checkpoint and a key that is used again all ask the same question: is every part of the
run's `Identity` equal? `sordino.engine._description` makes one; whoever cannot see all of its inputs has
none, and such a run is never the same run again. A key that a user gives can reach several processes, so
its use is noted in the key folder: the file ``claims/<identity of the key>`` holds a keyed digest of the
run's identity.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino._base.keystore import KeyStore

# Everything that decides a run's release: the keyed digest of each part by its name.
Identity = Mapping[str, str]

# What to say of each part that differs.
MEANINGS = {
    "plan": "the plan",
    "data": "the data or its labels",
    "start": "the initial parameters",
    "settings": "the driver, microbatches, evaluation or callbacks",
    "program": "the loss, the optimizer, the regularizer or the code",
    "environment": "the versions of the software, the processor or the number of its cores",
    "source": "the table, how it is read, or what else is asked of it",
}


def changes(stored: Identity, wanted: Identity) -> list[str]:
    """What differs between two runs, in words; nothing if they are one and the same run."""
    names = dict.fromkeys([*MEANINGS, *stored, *wanted])
    differ = [name for name in names if stored.get(name) != wanted.get(name)]
    return [MEANINGS.get(name, f"the {name}") for name in differ]


KEY_BYTES = 32
CLAIMS = "claims"
# Keys that runs of this process have used, by name, and what those runs were.
_CLAIMED: dict[str, bytes] = {}


@dataclass(frozen=True, repr=False)
class RunKey:
    """The secret of one run. `insecure` marks a key made from a seed that others may know."""

    secret: bytes
    insecure: bool = False

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise SordinoError(f"a run key has {KEY_BYTES} bytes, got {len(self.secret)}")

    @classmethod
    def fresh(cls) -> RunKey:
        """A new key from the operating system's entropy."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_insecure_seed(cls, seed: int) -> RunKey:
        """A reproducible key, for tests and demonstrations: not private against who knows the seed."""
        text = f"sordino insecure seed {int(seed)}"
        return cls(hashlib.sha256(text.encode()).digest(), insecure=True)

    @property
    def identity(self) -> str:
        """A public name of the key: tells keys apart and reveals nothing of them."""
        return self.derive("identity").hex()[:32]

    def claim(self, run: Identity | None = None, store: KeyStore | None = None) -> None:
        """Mark the key as used by a run; another run must have its own.

        Two runs with one key add the same noise to different sums: their difference is free of it.
        The very same run again is the same release. A key made from a seed is for tests and may be
        repeated.

        Args:
          run: everything that decides the release; None where that cannot be said, and then no other
            run is the same.
          store: where other processes see it too; for keys that may have reached them.
        """
        if self.insecure:
            return
        if run is None:
            mark = secrets.token_bytes(KEY_BYTES)
        else:
            text = json.dumps(dict(run), sort_keys=True)
            mark = hmac.digest(self.derive("claim"), text.encode(), "sha256")
        known = _CLAIMED.get(self.identity, mark)
        if known == mark and store is not None:
            try:
                known = store.first(CLAIMS, self.identity, mark)
            except SordinoError as error:
                raise SordinoError(
                    "that this run key is used cannot be noted for other processes, which might use it "
                    f"for another run: {error}"
                ) from None
        if known != mark:
            raise SordinoError(
                "this run key was already used by another run, and shared noise can be subtracted; "
                "leave run_key out, or make a new one with RunKey.fresh()"
            )
        _CLAIMED[self.identity] = mark

    def derive(self, use: str) -> bytes:
        """32 bytes for one named use."""
        return hashlib.blake2b(use.encode(), key=self.secret, digest_size=32).digest()

    def generator(self, use: str) -> np.random.Generator:
        """A host generator for one named use (Philox, 128-bit key)."""
        words = np.frombuffer(self.derive(use)[:16], np.uint64)
        return np.random.Generator(np.random.Philox(key=words))

    def words(self, use: str, names: Iterable[str]) -> NDArray[np.uint64]:
        """A pseudorandom 64-bit number for each name, from the key, the use and that name alone."""
        base = hashlib.blake2b(key=self.derive(use), digest_size=8)
        digests = []
        for name in names:
            one = base.copy()
            one.update(name.encode("utf-8", "surrogatepass"))
            digests.append(one.digest())
        return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)

    def __repr__(self) -> str:
        return f"RunKey(<secret>, insecure={self.insecure})"


def run_key_of(run_key: RunKey | None, insecure_seed: int | None) -> RunKey:
    """The given key, a seeded one, or a fresh one."""
    if run_key is not None and insecure_seed is not None:
        raise SordinoError("give run_key or insecure_seed, not both")
    if insecure_seed is not None:
        return RunKey.from_insecure_seed(insecure_seed)
    return run_key if run_key is not None else RunKey.fresh()
