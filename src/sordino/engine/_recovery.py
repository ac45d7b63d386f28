"""Runs that survive: start a run at a checkpoint file, or go on from it.

    recovery = Recovery.at(path)            # finds the key of the run that the file names
    recovery.begin(run, identity)           # restores, or writes the first checkpoint
    recovery.keep(run, history)             # at the end of each chunk; writes now and then

The first checkpoint is written before the first step, so that a run that dies early goes on under
the same key, and is charged once. The key is kept in the key store before that. Writing is spaced so
that it takes at most `SHARE` of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sordino._base.errors import SordinoError
from sordino._base.identity import Identity
from sordino._base.keys import RunKey, run_key_of
from sordino._base.keystore import KeyStore
from sordino.engine._checkpoint import (
    Checkpoint,
    Metrics,
    read_checkpoint,
    read_identity,
    write_checkpoint,
)
from sordino.engine._description import check_same
from sordino.engine._run import PublicState

# Checkpoints are at least this many seconds apart, and take at most this share of the time.
SECONDS = 10.0
SHARE = 0.01
RUNS = "runs"


class Resumable(Protocol):
    """A run that shows what it has released, and goes on from it."""

    steps: int

    @property
    def done(self) -> int: ...
    @property
    def finished(self) -> bool: ...
    def output(self) -> Any: ...
    def released(self) -> PublicState: ...
    def restore(self, released: PublicState) -> None: ...


@dataclass
class Recovery:
    """A run's checkpoint file.

    Attributes:
      path: the file.
      key: the run's key.
      seconds: least time between two checkpoints.
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
    ) -> Recovery:
        """The file at `path` and the key that goes with it; a new key where there is no file.

        A key of one's own, or a seed, is not kept in the store: it must be given again.
        """
        path = Path(path)
        if path.is_dir():
            raise SordinoError(f"the checkpoint {str(path)!r} is a folder; give the name of a file")
        if not path.parent.is_dir():
            raise SordinoError(f"there is no folder {str(path.parent)!r} for the checkpoint")
        store = KeyStore() if store is None else store
        given = run_key is not None or insecure_seed is not None
        key = run_key_of(run_key, insecure_seed)
        if not path.exists():
            return cls(path, key, seconds, store=None if given else store)
        if not given:
            identity = read_identity(path)
            secret = store.load(RUNS, identity)
            if secret is None:
                raise SordinoError(
                    f"the key of the run in {str(path)!r} is not in {str(store.folder)!r}, so the run "
                    "cannot go on; bring the key back, or remove the checkpoint to start anew at the "
                    "cost of another run"
                )
            key = RunKey(secret)
        return cls(path, key, seconds, found=read_checkpoint(path, key))

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
        wait = max(self.seconds, self._cost / SHARE)
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
