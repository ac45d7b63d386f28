"""The compiled programs that stay on disk are Sordino's own, and hold no data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# A fit, then a loss of the user's that closes over 60 rows, here and in another thread, while a fit
# runs in this one; prints nothing. What it leaves in the cache folder is looked at from outside.
SCRIPT = """
import sys, threading
import numpy as np, jax, jax.numpy as jnp
import sordino
from sordino import PrivateClassifier

rows = np.load(sys.argv[1])
X = np.random.default_rng(1).uniform(-1, 1, (200, 7)).astype(np.float32)
y = (X[:, 0] > 0).astype(int)

def fit(X=X, y=y):
    PrivateClassifier(
        epsilon=3.0, delta=1e-5, classes=[0, 1], feature_bounds=(-9, 9), examples=len(X), epochs=1
    ).fit(X, y)

def closing(scale):
    def loss(w):
        return jnp.sum(jnp.tanh(scale * (jnp.asarray(rows) @ w)) ** 2)
    jax.block_until_ready(jax.jit(jax.grad(loss))(np.ones(7, np.float32)))

fit()
closing(1.0)
busy = threading.Thread(target=fit, args=(X[:150], y[:150]))
busy.start()
for turn in range(20):
    closing(2.0 + turn)
busy.join()
plan = sordino.plan("dp-gd", examples=200, steps=2, epsilon=3.0, delta=1e-5)
sordino.train(
    plan, lambda w, x, t: (x @ w - t) ** 2 + 0 * jnp.sum(jnp.asarray(rows) @ w),
    np.zeros(7, np.float32), (X, y.astype(np.float32)),
)
fit(rows, np.arange(len(rows)) % 2)  # as data of a fit, too
"""
FIT = """
import numpy as np
from sordino import PrivateClassifier
X = np.random.default_rng(0).uniform(size=(100, 2))
model = PrivateClassifier(classes=[0, 1], feature_bounds=(0, 1), examples=100, epochs=1)
model.fit(X, np.arange(100) % 2)
"""
ROWS = 60


def entries(folder: Path) -> dict[str, bytes]:
    """What the cache holds, unpacked."""
    from jax._src.compilation_cache import decompress_executable

    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            if path.name.endswith("-cache"):
                content += decompress_executable(content)
            found[path.name] = content
    return found


def leaked(rows: Any, found: dict[str, bytes]) -> int:
    """How many of the rows are in the clear in some entry."""
    everything = b"\0".join(found.values())
    return sum(row.tobytes() in everything for row in rows)


def run(tmp_path: Path, *arguments: object, **variables: str) -> dict[str, bytes]:
    cache = tmp_path / "cache"
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), **variables}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return entries(cache)


def test_no_row_of_a_users_loss_stays_on_disk(tmp_path: Path) -> None:
    """g: after fits, a closure over 60 rows leaves none of them; Sordino's own programs are kept."""
    rows = np.random.default_rng(2).normal(size=(ROWS, 7)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    (tmp_path / "script.py").write_text(SCRIPT)
    found = run(tmp_path, "script.py", "rows.npy")
    assert leaked(rows, found) == 0
    assert sum(name.endswith("-cache") for name in found) > 5
    assert any("scan_chunk" in name for name in found)


def test_the_cache_works_for_the_next_process_and_leaves_jax_as_it_was(tmp_path: Path) -> None:
    """g: programs are found again; afterwards a cache of the user's own can still be configured."""
    script = tmp_path / "again.py"
    script.write_text(
        "import sys, json, jax, numpy as np, jax.numpy as jnp\n"
        "from jax import monitoring\n"
        "hits = []\n"
        "monitoring.register_event_listener(lambda name, **_: hits.append(name))\n"
        f"{FIT}\n"
        "assert jax.config.jax_compilation_cache_dir is None\n"
        "assert jax.config.jax_persistent_cache_min_compile_time_secs == 1.0\n"
        "open(sys.argv[1], 'w').write(json.dumps("
        "sum('cache_hits' in name for name in hits)))\n"
        "jax.config.update('jax_compilation_cache_dir', sys.argv[2])\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)\n"
        "jax.jit(lambda x: x * 3)(jnp.ones(3))\n"
    )
    for turn in range(2):
        run(tmp_path, script, "hits.json", "own")
        hits = json.loads((tmp_path / "hits.json").read_text())
        assert (hits > 0) == (turn == 1)
    assert list((tmp_path / "own").glob("*-cache"))


def test_a_configured_cache_is_left_alone(tmp_path: Path) -> None:
    """g: with a cache of the user's own nothing goes to Sordino's folder."""
    own = tmp_path / "own"
    assert not run(tmp_path, "-c", FIT, JAX_COMPILATION_CACHE_DIR=str(own))
    assert own.is_dir()


# A model of the user's own that closes over the rows, trained by the command line.
OWN = """
import numpy as np, jax.numpy as jnp
from sordino.together.sites._models import ModelSpec

rows = np.load("rows.npy")

def loss(w, x, y):
    return (x @ w - y) ** 2 + 1e-6 * jnp.sum(jnp.tanh(jnp.asarray(rows) @ w))

def load(path):
    X = np.random.default_rng(0).normal(size=(60, 7)).astype(np.float32)
    return X, X[:, 0]

model = ModelSpec(loss, np.zeros(7, np.float32), load=load)
"""
COMMANDS = """
import sys
from sordino.app.cli._main import app
new = ["federated", "init", "study", "--model", "own_study:model", "--clients", "3", "--examples", "20"]
for command in (
    [*new, "--rounds", "2", "--epsilon", "8", "--local"],
    ["federated", "simulate", "study", "--data", "any.csv", "--allow-model", "own_study:model"],
):
    try:
        app(command)
    except SystemExit as ended:
        assert not ended.code
"""


def test_the_command_line_keeps_no_program_of_a_users_model(tmp_path: Path) -> None:
    """g: `federated simulate` with a model of one's own leaves none of the rows it closes over."""
    rows = np.random.default_rng(3).normal(size=(ROWS, 7)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    (tmp_path / "own_study.py").write_text(OWN)
    (tmp_path / "any.csv").write_text("a\n1\n")
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(tmp_path), *([before] if before else [])])
    keys = str(tmp_path / "keys")
    found = run(tmp_path, "-c", COMMANDS, PYTHONPATH=path, SORDINO_KEYS=keys)
    assert leaked(rows, found) == 0
    assert (tmp_path / "study" / "simulated" / "guarantee.json").is_file()


def test_only_threads_that_entered_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """g: the gate is by thread, nests, and closes when an error passes through it."""
    import jax
    import jax.numpy as jnp

    from sordino.engine._compilation import compilation_cache

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shift = iter(range(1000, 2000))

    def compiled() -> bool:
        before = len(list(tmp_path.rglob("*-cache")))
        number = float(next(shift))
        jax.block_until_ready(jax.jit(lambda x: x * number)(jnp.ones(3)))
        return len(list(tmp_path.rglob("*-cache"))) > before

    def elsewhere() -> bool:
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(compiled()))
        thread.start()
        thread.join()
        return found[0]

    assert not compiled()
    with compilation_cache():
        with compilation_cache():
            assert compiled()
            assert not elsewhere()
        assert compiled()
    assert not compiled()
    with pytest.raises(ZeroDivisionError), compilation_cache():
        raise ZeroDivisionError
    assert not compiled()
    with compilation_cache(wanted=False):
        assert not compiled()
