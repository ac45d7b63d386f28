"""The identity of a run of the engine (`sordino._base.keys`): the same run is told from any other.

Before a run goes on from a checkpoint, a key is used again, or a ledger takes a run for one that it was
paid for already, all of this must be equal:

- plan: its hash, and with it recipe, population, noise and schedule;
- data: every array, labels and weights too, byte for byte; start: the initial parameters;
- settings: where chunks end, the driver, microbatches;
- program: the compiled step as the compiler gets it, with loss, optimizer, regulariser and whatever
  numbers they hold;
- environment: versions, processor and its cores, which decide how sums are rounded.

The digests are keyed, so they tell nothing about the data to who does not have the run key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import platform
import re
from importlib.metadata import version
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sordino._base.errors import PlanMismatchError, SordinoError
from sordino._base.keys import Identity, RunKey, changes
from sordino._base.types import PyTree
from sordino._version import __version__, code_digest

_BLOCK = 1 << 24
_CALLBACK = re.compile(r"xla\w*_callback")


class Describable(Protocol):
    """A run that can show what would be compiled, and where its chunks end."""

    def lowered(self) -> str: ...
    def hold(self, text: str) -> None: ...
    def settings(self) -> str: ...
    def released(self) -> tuple[PyTree, ...]: ...


def describe(
    run: Describable, plan_hash: str, params: PyTree, data: PyTree, key: RunKey
) -> Identity:
    """The digests by name; see the module. From here on the run is held to the program described."""
    digest, text = _Digest(key), run.lowered()
    if _CALLBACK.search(text):
        raise SordinoError(
            "the loss or the optimizer calls back into Python, where nobody sees what it does, so that "
            "this run cannot be told from another one; run it without a checkpoint, a run key or a seed"
        )
    run.hold(hashlib.sha256(text.encode()).hexdigest())
    return {
        "plan": digest.text("plan", plan_hash),
        "data": digest.arrays("data", data),
        # Not the parameters alone: an optimizer may hold its learning rate in its first state.
        "start": digest.arrays("start", (params, tuple(run.released())[1:])),
        "settings": digest.text("settings", run.settings()),
        "program": digest.text("program", text),
        "environment": digest.text("environment", environment()),
    }


def check_same(found: Identity, wanted: Identity, where: str) -> None:
    """Refuse to go on where anything that the releases depend on has changed."""
    if changed := changes(found, wanted):
        raise PlanMismatchError(
            f"{where} was made with other inputs ({'; '.join(changed)}), and its noise must not be "
            "used twice: go on with what it was made with, or remove it to start anew at the cost of "
            "another run"
        )


def environment() -> str:
    """What decides how the same program rounds."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = jax.devices()[0]
    parts = (
        __version__,
        code_digest(),
        jax.__version__,
        version("jaxlib"),
        np.__version__,
        platform.machine(),
        device.platform,
        device.device_kind,
        jax.device_count(),
        cores,
    )
    return "/".join(str(part) for part in parts)


class _Digest:
    def __init__(self, key: RunKey) -> None:
        self._key = key

    def _new(self, use: str) -> hmac.HMAC:
        # The hash that processors have instructions for: twice as fast as any other here.
        return hmac.new(self._key.derive(f"description/{use}"), digestmod="sha256")

    def text(self, use: str, text: str) -> str:
        state = self._new(use)
        state.update(text.encode())
        return str(state.hexdigest()[:32])

    def arrays(self, use: str, tree: PyTree) -> str:
        """Of every leaf: where it is, its type, its shape, its bytes; copied a block at a time."""
        state = self._new(use)
        leaves, structure = jax.tree.flatten(tree)
        state.update(str(structure).encode())
        for leaf in leaves:
            if jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key):
                leaf = jax.random.key_data(leaf)
            array = np.asarray(leaf)
            state.update(f"{array.dtype}{array.shape}".encode())
            if array.flags.c_contiguous:
                state.update(array.reshape(-1).view(np.uint8).data)
                continue
            rows = max(1, _BLOCK // max(1, array[:1].nbytes))
            for begin in range(0, len(array), rows):
                state.update(np.ascontiguousarray(array[begin : begin + rows]).data)
        return str(state.hexdigest()[:32])
