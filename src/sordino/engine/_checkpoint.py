"""A checkpoint: what a run has released so far, in one file that is whole, authentic and its own.

    magic | length of the header | header (JSON) | arrays | tag

In clear it holds released values only: private parameters, earlier ones that the stream remembers,
the optimizer's state, public metrics. Noise is not in it; `Run.restore` makes it again from the run
key, which is kept elsewhere (`sordino._base.keystore`). The tag is a keyed hash over all bytes under a key
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import DAMAGE, SordinoError, shown
from sordino._base.files import write_atomically
from sordino._base.identity import Identity
from sordino._base.keys import RunKey
from sordino._version import __version__

MAGIC = b"SORDINO-RUN-1\r\n\x00"
TAG_BYTES = 32
# No header is longer: it has digests, shapes and a history of public metrics.
LONGEST_HEADER = 64 << 20
_TYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "uint32", "uint8", "bool")
_IDENTITY = re.compile(r"[0-9a-f]{32}")

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
    arrays: tuple[NDArray[Any], ...]
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


def _header(path: Path, raw: bytes) -> tuple[dict[str, Any], int]:
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


def _parsed(header: dict[str, Any], payload: memoryview) -> Checkpoint:
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


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes  # numpy's bfloat16; a dependency of jax

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
