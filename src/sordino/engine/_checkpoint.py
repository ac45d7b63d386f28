"""Runs that survive: what a run has released so far, in one file that is whole, authentic and its own.

    recovery = Recovery.at(path)            # finds the key of the run that the file names
    recovery.begin(run, identity)           # restores, or writes the first checkpoint
    recovery.keep(run, history)             # at the end of each chunk; writes now and then

The first checkpoint is written before the first step, so that a run that dies early goes on under
the same key, and is charged once. The key is kept in the key store before that. Writing is spaced so
that it takes at most `SHARE` of the time. The file is

    magic | length of the header | header (JSON) | arrays | tag

In clear it holds released values only: private parameters, earlier ones that the stream remembers,
the optimizer's state, public metrics. Noise is not in it; `TrainingRun.restore` makes it again from the
run key, which is kept elsewhere (`KeyStore`). The tag is a keyed hash over all bytes under a key
derived from the run key. It has to be: whoever could hand a run other parameters to go on from would
get the same noise around another sum, and subtract.

The header also names, as keyed digests, everything that the releases depend on: plan, data, start,
settings, program and environment. A run goes on only if all of them are the same.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import DAMAGE, SordinoError, shown
from sordino._base.files import write_atomically
from sordino._base.keys import Identity, RunKey, run_key_of
from sordino._base.keystore import KeyStore
from sordino._base.types import Json, PyTree
from sordino._version import __version__
from sordino.engine._description import check_same
from sordino.engine._run import PublicState

MAGIC = b"SORDINO-RUN-1\r\n\x00"
TAG_BYTES = 32
# No header is longer: it has digests, shapes and a history of public metrics.
LONGEST_HEADER = 64 << 20
_TYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "uint32", "uint8", "bool")
_IDENTITY = re.compile(r"[0-9a-f]{32}")
# Checkpoints are at least this many seconds apart, and take at most this share of the time.
SECONDS = 10.0
SHARE = 0.01
RUNS = "runs"

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Checkpoint:
    """What a run had released after `step` of `steps` steps.

    Attributes:
      run: the public identity of the run key.
      identity: keyed digests of everything that decides the releases, by name.
      arrays: the leaves of `Released`, in order.
      history: public metrics so far.
    """

    run: str
    identity: Identity
    step: int
    steps: int
    arrays: tuple[NDArray[np.generic], ...]
    history: tuple[Metrics, ...] = ()


def write_checkpoint(path: Path, checkpoint: Checkpoint, key: RunKey) -> None:
    """Write the file atomically; the old one stays until the new one is whole and synced."""
    header = {
        "sordino": __version__,
        "run": checkpoint.run,
        "description": dict(checkpoint.identity),
        "step": checkpoint.step,
        "steps": checkpoint.steps,
        "arrays": [[str(array.dtype), list(array.shape)] for array in checkpoint.arrays],
        "history": [dict(entry) for entry in checkpoint.history],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    pieces = [MAGIC, len(text).to_bytes(8, "little"), text]
    pieces += [np.ascontiguousarray(array).tobytes() for array in checkpoint.arrays]
    body = b"".join(pieces)
    write_atomically(path, body + _tag(body, key))


def read_identity(path: Path) -> str:
    """The public identity of the run that a file belongs to; nothing in it is believed yet."""
    header, _ = _header(path, _bytes(path))
    return str(header["run"])


def read_progress(path: Path) -> tuple[int, int]:
    """Steps done and steps planned, as the file says: for people, nothing is decided by it."""
    header, _ = _header(path, _bytes(path))
    done, steps = header.get("step"), header.get("steps")
    if not (isinstance(done, int) and isinstance(steps, int) and 0 <= done <= steps):
        raise _damaged(path)
    return done, steps


def read_checkpoint(path: Path, key: RunKey) -> Checkpoint:
    """The checkpoint, once its tag shows that this run wrote it and nobody changed it."""
    raw = _bytes(path)
    header, begin = _header(path, raw)
    body, tag = raw[:-TAG_BYTES], raw[-TAG_BYTES:]
    if header["run"] != key.identity:
        raise SordinoError(
            f"the checkpoint {str(path)!r} belongs to another run key; give the one it was made with"
        )
    if not hmac.compare_digest(tag, _tag(body, key)):
        raise SordinoError(
            f"the checkpoint {str(path)!r} was changed or is damaged and cannot be gone on from; "
            "restore a copy of it, or remove it to start anew at the cost of another run"
        )
    try:
        return _parsed(header, memoryview(body)[begin:])
    except DAMAGE:
        # Authentic, so it is from another version of this format.
        raise SordinoError(
            f"the checkpoint {str(path)!r} was written by sordino {shown(header.get('sordino'))} and "
            "cannot be read by this version"
        ) from None


def _tag(body: bytes, key: RunKey) -> bytes:
    return hashlib.blake2b(body, key=key.derive("checkpoint/tag"), digest_size=TAG_BYTES).digest()


def _bytes(path: Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SordinoError(
            f"the checkpoint {str(path)!r} cannot be read: {error.strerror or error}"
        ) from None


def _header(path: Path, raw: bytes) -> tuple[Json, int]:
    """The header, and where the arrays begin."""
    begin = len(MAGIC) + 8
    if len(raw) < begin + TAG_BYTES or not raw.startswith(MAGIC):
        raise SordinoError(f"{str(path)!r} is not a checkpoint of a sordino run")
    length = int.from_bytes(raw[len(MAGIC) : begin], "little")
    if length > min(LONGEST_HEADER, len(raw) - begin - TAG_BYTES):
        raise _damaged(path)
    try:
        header = json.loads(raw[begin : begin + length])
    except (ValueError, RecursionError):
        raise _damaged(path) from None
    run = header.get("run") if isinstance(header, dict) else None
    if not isinstance(run, str) or not _IDENTITY.fullmatch(run):
        raise _damaged(path)
    return header, begin + length


def _damaged(path: Path) -> SordinoError:
    return SordinoError(f"the checkpoint {str(path)!r} is damaged: its header cannot be read")


def _parsed(header: Json, payload: memoryview) -> Checkpoint:
    arrays, offset = [], 0
    for name, shape in header["arrays"]:
        if name not in _TYPES:
            raise ValueError(name)
        dtype = _dtype(name)
        count = math.prod(int(side) for side in shape)
        size = count * dtype.itemsize
        if min(shape, default=0) < 0 or offset + size > len(payload):
            raise ValueError("array")
        piece = np.frombuffer(payload[offset : offset + size], dtype)
        arrays.append(piece.reshape(shape))
        offset += size
    if offset != len(payload):
        raise ValueError("length")
    return Checkpoint(
        run=header["run"],
        identity={str(name): str(digest) for name, digest in header["description"].items()},
        step=int(header["step"]),
        steps=int(header["steps"]),
        arrays=tuple(arrays),
        history=tuple(dict(entry) for entry in header["history"]),
    )


def _dtype(name: str) -> np.dtype[np.generic]:
    if name == "bfloat16":
        import ml_dtypes  # numpy's bfloat16; a dependency of jax

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


class Resumable(Protocol):
    """A run that shows what it has released, and goes on from it."""

    steps: int

    @property
    def done(self) -> int: ...
    @property
    def finished(self) -> bool: ...
    def output(self) -> PyTree: ...
    def released(self) -> PublicState: ...
    def restore(self, released: PublicState) -> None: ...


@dataclass(frozen=True)
class HeldKey:
    """A run's key before the run: for whoever asks the plan's other queries himself, and then trains.

    Attributes:
      key: what `query_key` and `train` take.
      given: whether its owner keeps it; if not, it is kept beside the checkpoint, or nowhere.
    """

    key: RunKey
    given: bool

    @classmethod
    def of(
        cls,
        checkpoint: str | Path | None = None,
        run_key: RunKey | HeldKey | None = None,
        insecure_seed: int | None = None,
        store: KeyStore | None = None,
    ) -> HeldKey:
        """The key of the run that the file `checkpoint` holds, or will hold; without one, any."""
        if isinstance(run_key, HeldKey):
            if insecure_seed is not None:
                raise SordinoError("give run_key or insecure_seed, not both")
            return run_key
        given = run_key is not None or insecure_seed is not None
        key = run_key_of(run_key, insecure_seed)
        if checkpoint is None:
            return cls(key, given)
        path, store = Path(checkpoint), KeyStore() if store is None else store
        if path.is_dir():
            raise SordinoError(f"the checkpoint {str(path)!r} is a folder; give the name of a file")
        if not path.parent.is_dir():
            raise SordinoError(f"there is no folder {str(path.parent)!r} for the checkpoint")
        if given or not path.exists():
            return cls(key, given)
        identity = read_identity(path)
        secret = store.load(RUNS, identity)
        if secret is None:
            raise SordinoError(
                f"the key of the run in {str(path)!r} is not in {str(store.folder)!r}, so the run "
                "cannot go on; bring the key back, or remove the checkpoint to start anew at the "
                "cost of another run"
            )
        return cls(RunKey(secret), False)

    @property
    def lasts(self) -> bool:
        """Whether its owner may bring it to another process."""
        return self.given and not self.key.insecure


@dataclass
class Recovery:
    """A run's checkpoint file.

    Attributes:
      path: the file.
      key: the run's key.
      seconds: least time between two checkpoints; 0 writes one after every chunk, whatever it costs.
      store: where a new key is to be kept, unless its owner keeps it.
      found: the checkpoint that was there, if any.
    """

    path: Path
    key: RunKey
    seconds: float = SECONDS
    store: KeyStore | None = None
    found: Checkpoint | None = None
    clock: Callable[[], float] = time.monotonic
    _identity: Identity = field(default_factory=dict)
    _written: float = 0.0
    _cost: float = 0.0
    _queued: list[jax.Array] = field(default_factory=list)

    @classmethod
    def at(
        cls,
        path: str | Path,
        *,
        run_key: RunKey | None = None,
        insecure_seed: int | None = None,
        seconds: float = SECONDS,
        store: KeyStore | None = None,
        key: HeldKey | None = None,
    ) -> Recovery:
        """The file at `path` and the key that goes with it; a new key where there is no file.

        A key of one's own, or a seed, is not kept in the store: it must be given again.
        """
        path, store = Path(path), KeyStore() if store is None else store
        if key is None:
            key = HeldKey.of(path, run_key, insecure_seed, store)
        if not path.exists():
            return cls(path, key.key, seconds, store=None if key.given else store)
        return cls(path, key.key, seconds, found=read_checkpoint(path, key.key))

    def check(self, identity: Identity) -> None:
        """Refuse to go on from a file that was made with anything else."""
        if self.found is not None:
            check_same(self.found.identity, identity, f"the checkpoint {str(self.path)!r}")

    def begin(self, run: Resumable, identity: Identity) -> tuple[Metrics, ...]:
        """Bring `run` to where the file is, or make the file; the history until then."""
        self._identity = identity
        if self.found is None:
            if self.store is not None:
                self.store.save(RUNS, self.key.identity, self.key.secret)
            self.write(run, ())
            return ()
        self.check(identity)
        run.restore(self._released(run, self.found))
        self._written = self.clock()
        return self.found.history

    def keep(self, run: Resumable, history: tuple[Metrics, ...]) -> None:
        """Write a checkpoint if it is time, or if the run is finished."""
        # Without waiting, the clock would only see chunks being queued; waiting for this one would stop
        # the host from preparing the next. So wait for the one before.
        self._queued.append(jnp.ravel(jax.tree.leaves(run.output())[0])[:1])
        if len(self._queued) > 1:
            jax.block_until_ready(self._queued.pop(0))
        wait = max(self.seconds, self._cost / SHARE) if self.seconds else 0.0
        if run.finished or self.clock() - self._written >= wait:
            self.write(run, history)

    def write(self, run: Resumable, history: tuple[Metrics, ...]) -> None:
        """Write a checkpoint now."""
        released = jax.block_until_ready(run.released())
        began = self.clock()
        leaves = jax.tree.leaves((released.params, released.memory, released.update_state))
        checkpoint = Checkpoint(
            run=self.key.identity,
            identity=self._identity,
            step=int(released.step),
            steps=run.steps,
            arrays=tuple(np.asarray(leaf) for leaf in leaves),
            history=history,
        )
        try:
            write_checkpoint(self.path, checkpoint, self.key)
        except OSError as error:
            raise SordinoError(
                f"the checkpoint {str(self.path)!r} cannot be written: {error.strerror or error}; "
                "make room and give the same command again, it goes on from the last one"
            ) from None
        self._written = self.clock()
        self._cost = self._written - began

    def _released(self, run: Resumable, found: Checkpoint) -> PublicState:
        """The stored arrays in the shape of the run's own states."""
        fresh = run.released()
        states = (fresh.params, fresh.memory, fresh.update_state)
        leaves, structure = jax.tree.flatten(states)
        same = len(leaves) == len(found.arrays) and all(
            np.shape(leaf) == array.shape and np.asarray(leaf).dtype == array.dtype
            for leaf, array in zip(leaves, found.arrays, strict=True)
        )
        if not same or found.steps != run.steps:
            raise SordinoError(
                f"the checkpoint {str(self.path)!r} holds states of other shapes than this run has"
            )
        params, memory, update_state = jax.tree.unflatten(structure, found.arrays)
        return PublicState(found.step, params, memory, update_state)


def forget(path: str | Path, store: KeyStore | None = None) -> None:
    """Remove a checkpoint and the key of its run: nobody can go on from it, or make its noise again."""
    path = Path(path)
    identity = read_identity(path)
    path.unlink()
    (KeyStore() if store is None else store).remove(RUNS, identity)
