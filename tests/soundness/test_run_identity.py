"""A run is the same run only if everything that decides its release is: for the ledger and for its key."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.model_selection import cross_validate

import sordino
from sordino._base.errors import SordinoError
from sordino._base.keys import RunKey
from sordino.engine.ledger._ledger import Ledger
from sordino.parts._losses import Logistic

N, D = 200, 4
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (N, D))
Y = (X[:, 0] > 0).astype(int)
FLIPPED = np.where(np.arange(N) == 7, 1 - Y, Y)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.create(tmp_path / "team.ledger")
    made.add_dataset("people", epsilon=5.0, delta=1e-6)
    return made


def model(**changes: Any) -> Any:
    settings: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "classes": [0, 1],
        "feature_bounds": (-1, 1),
        "examples": N,
        "epochs": 1,
        **changes,
    }
    return sordino.PrivateClassifier(**settings)


def plan() -> Any:
    return sordino.plan("dp-ftrl", examples=N, batch_size=20, epochs=1, epsilon=1.0, delta=1e-6)


def loss(w: Any, x: Any, y: Any, weight: Any) -> Any:
    return weight * jnp.logaddexp(0.0, -(2 * y - 1) * (x @ w))


def other_loss(w: Any, x: Any, y: Any, weight: Any) -> Any:
    return weight * jnp.logaddexp(0.0, -1.5 * (2 * y - 1) * (x @ w))


DATA = (X.astype(np.float32), Y.astype(np.int32), np.ones(N, np.float32))
RUN: dict[str, Any] = {
    "plan": plan(),
    "loss": loss,
    "params": np.zeros(D, np.float32),
    "data": DATA,
    "identified_by": X,
}


def charged(ledger: Ledger) -> int:
    return len(ledger.status("people").reservations)


@pytest.mark.filterwarnings("ignore::sordino.PrivacyWarning")
def test_other_labels_are_not_the_same_run(ledger: Ledger) -> None:
    """S4: three label vectors, three models, charged once."""
    paying = {"ledger": ledger, "dataset": "people", "random_state": 0}
    first = model(**paying).fit(X, Y)
    with pytest.raises(SordinoError, match=r"other inputs \(the data or its labels\)"):
        model(**paying).fit(X, FLIPPED)
    again = model(**paying).fit(X, Y)
    np.testing.assert_array_equal(first.coef_, again.coef_)
    assert charged(ledger) == 1
    model(**{**paying, "random_state": 1}).fit(X, FLIPPED)
    assert charged(ledger) == 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"params": np.full(D, 0.5, np.float32)}, "the initial parameters"),
        ({"loss": other_loss}, "the loss"),
        ({"optimizer": optax.adam(0.1)}, "the optimizer"),
        ({"data": (DATA[0], FLIPPED.astype(np.int32), DATA[2])}, "labels"),
        ({"data": (*DATA[:2], np.full(N, 0.5, np.float32))}, "the data"),
        ({"data": (DATA[0] * 0.5, *DATA[1:])}, "the data"),
        ({"regularizer": lambda w: jnp.sum(w**2)}, "the regularizer"),
    ],
)
def test_anything_else_is_not_the_same_run(
    ledger: Ledger, changed: dict[str, Any], said: str
) -> None:
    """S4: with another start, the two releases differed by the exact sums, charged once."""
    paying = {"ledger": ledger, "dataset": "people", "insecure_seed": 3}
    first = sordino.train(**RUN, **paying)
    again = sordino.train(**RUN, **paying)
    np.testing.assert_array_equal(first.params, again.params)
    with pytest.raises(SordinoError, match=f"other inputs.*{said}"):
        sordino.train(**{**RUN, **changed}, **paying)
    assert charged(ledger) == 1


SCRIPT = """
import sys
import numpy as np
from sordino._base.keys import RunKey
from tests.soundness import test_run_identity as told
key = RunKey(bytes.fromhex(sys.argv[1]))
y = told.FLIPPED if sys.argv[2] == "flipped" else told.Y
paying = {} if sys.argv[3] == "-" else {"ledger": sys.argv[3], "dataset": "people"}
fitted = told.model(run_key=key, **paying).fit(told.X, y)
print(fitted.coef_.tobytes().hex())
"""


def elsewhere(key: RunKey, labels: str, ledger: str) -> subprocess.CompletedProcess[str]:
    """A fit in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, key.secret.hex(), labels, ledger],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
    )


def test_two_processes_with_one_key(ledger: Ledger) -> None:
    """S4, d: two processes, one key, one label flipped: their difference was that row, charged once."""
    key = RunKey.fresh()
    first = model(run_key=key, ledger=ledger, dataset="people").fit(X, Y)
    other = elsewhere(key, "flipped", str(ledger.path))
    assert other.returncode != 0
    assert "this run key was already used by another run" in other.stderr
    again = elsewhere(key, "as they are", "-")
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == first.coef_.tobytes().hex()
    assert charged(ledger) == 1


def test_a_run_of_an_older_version_is_never_free(ledger: Ledger) -> None:
    """S4: a reservation that does not say all that decided it cannot be told from another run."""
    key = RunKey.from_insecure_seed(3)
    known = ledger.fingerprint(X)
    ledger.reserve("people", plan(), run=key.identity, fingerprint=known)
    facts = next(entry.facts for entry in ledger.history() if entry.what == "reserved")
    # What sordino 0.5.0 wrote, and what it must be able to read.
    assert set(facts) == {"run", "dataset", "recipe", "plan", "guarantee", "fingerprint"}
    with pytest.raises(SordinoError, match="with the version that began it, or take a new key"):
        sordino.train(**RUN, ledger=ledger, dataset="people", insecure_seed=3)
    Ledger.open(ledger.path).verify()
    assert charged(ledger) == 1


@pytest.mark.filterwarnings("ignore::sordino.PrivacyWarning")
def test_data_sets_that_were_known_by_their_rows_alone(ledger: Ledger) -> None:
    """S4: a ledger of 0.5.0 knows X; the same rows are still that data set, whatever is predicted."""
    ledger.reserve("people", plan(), run="of 0.5.0", fingerprint=ledger.fingerprint(X))
    paying = {"ledger": ledger, "dataset": "people"}
    model(**paying).fit(X, Y)
    model(**paying).fit(X, 1 - Y)
    assert charged(ledger) == 3
    with pytest.raises(SordinoError, match="other data"):
        model(**paying).fit(X + 0.001, Y)
    # A new one knows the rows with their labels, and the rows.
    ledger.add_dataset("more", epsilon=5.0, delta=1e-6)
    model(ledger=ledger, dataset="more").fit(X, Y)
    held = ledger.reservations("more")[0]
    assert held.prints == {ledger.fingerprint((X, Y.astype(np.int32))), ledger.fingerprint(X)}


def test_the_ledger_keeps_digests_that_only_it_can_make(ledger: Ledger) -> None:
    """S4: the identity of a run with a seed that others know tells them nothing about the data."""
    sordino.train(**RUN, ledger=ledger, dataset="people", insecure_seed=3)
    (held,) = ledger.reservations()
    elsewhere_ = Ledger.create(ledger.path.with_name("other.ledger"))
    elsewhere_.add_dataset("people", epsilon=5.0, delta=1e-6)
    sordino.train(**RUN, ledger=elsewhere_, dataset="people", insecure_seed=3)
    (other,) = elsewhere_.reservations()
    assert held.run == other.run
    assert held.identity is not None
    assert other.identity is not None
    assert set(held.identity) == {"plan", "data", "start", "settings", "program", "environment"}
    assert not set(held.identity.values()) & set(other.identity.values())


def test_a_session_is_never_the_same_run(ledger: Ledger) -> None:
    """S4: a session cannot know that it gets the same batches again."""
    paying = {"ledger": ledger, "dataset": "people", "insecure_seed": 3}
    sordino.Session(plan(), Logistic(), np.zeros(D, np.float32), **paying)
    with pytest.raises(SordinoError, match="take a new key"):
        sordino.Session(plan(), Logistic(), np.zeros(D, np.float32), **paying)
    assert charged(ledger) == 1


def test_a_given_key_in_two_worker_processes() -> None:
    """d: two folds under one key, in two processes, unnoticed. Keys no longer go into other processes."""
    given = RunKey.fresh()
    half = model(run_key=given, examples=N // 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = cross_validate(half, X, Y, cv=2, n_jobs=2, return_estimator=True)["estimator"]
        runs = {one.result_.run for one in found}
        assert len(runs) == 2
        assert given.identity not in runs
        with pytest.raises((SordinoError, ValueError), match="already used by another run"):
            cross_validate(half, X, Y, cv=2, error_score="raise")  # in this process


def test_a_key_whose_use_cannot_be_noted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """d: no folder for claims, no run with a key that others may have."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SORDINO_KEYS", str(tmp_path / "file" / "keys"))
    with pytest.raises(SordinoError, match=r"cannot be noted.*SORDINO_KEYS") as refused:
        sordino.train(**RUN, run_key=RunKey.fresh())
    assert "\n" not in str(refused.value)
    sordino.train(**RUN)  # a key of its own is nobody else's


def test_claims_hold_nothing_but_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """d: the note is written once, by whoever comes first, and does not tell the key."""
    monkeypatch.setenv("SORDINO_KEYS", str(tmp_path / "keys"))
    key = RunKey.fresh()
    sordino.train(**RUN, run_key=key)
    sordino.train(**RUN, run_key=key)
    (note,) = (tmp_path / "keys" / "claims").iterdir()
    assert note.name == key.identity
    assert len(note.read_bytes()) == 32
    assert key.secret not in note.read_bytes()
    with pytest.raises(SordinoError, match="already used"):
        sordino.train(**{**RUN, "params": np.ones(D, np.float32)}, run_key=key)
    with pytest.raises(SordinoError, match="already used"):
        sordino.Session(plan(), Logistic(), np.zeros(D, np.float32), run_key=key)


def test_an_identity_of_another_version_has_other_parts(ledger: Ledger) -> None:
    """S4: a part that only one of two identities has is a difference."""
    whole = {"plan": "1", "data": "2"}
    ledger.reserve("people", plan(), run="r", identity=whole)
    assert ledger.reserve("people", plan(), run="r", identity=dict(whole)).run == "r"
    for other in ({"plan": "1"}, {**whole, "weights": "3"}, {}):
        with pytest.raises(SordinoError, match="other inputs"):
            ledger.reserve("people", plan(), run="r", identity=other)


LIMIT = 1.0


def _limited(params: Any, x: Any, y: Any) -> Any:
    return jnp.clip(x @ params - y, -LIMIT, LIMIT) ** 2


def test_the_program_that_was_described_is_the_one_that_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4: a loss that reads a number was compiled before, with another one, and described anew."""
    key, data = RunKey.fresh(), (np.ones((20, 2), np.float32), np.full(20, 5, np.float32))
    plan = sordino.plan("dp-gd", examples=20, steps=2, noise_multiplier=1.0)
    start = np.zeros(2, np.float32)
    sordino.train(plan, _limited, start, data)  # compiled with 1
    monkeypatch.setattr(sys.modules[__name__], "LIMIT", 100.0)
    held = sordino.train(plan, _limited, start, data, run_key=key).params
    jax.clear_caches()
    fresh = sordino.train(plan, _limited, start, data, run_key=key).params
    np.testing.assert_array_equal(held, fresh)


def test_what_calls_back_into_python_has_no_identity() -> None:
    """S4: what a callback does is not in the program's text, so two of them would pass for one."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        shape = jax.ShapeDtypeStruct((2,), np.float32)
        return jax.pure_callback(lambda g: -0.1 * g, shape, updates), state

    optimizer = optax.GradientTransformation(lambda params: (), update)
    plan = sordino.plan("dp-gd", examples=20, steps=2, noise_multiplier=1.0)
    data = (np.ones((20, 2), np.float32), np.ones(20, np.float32))
    run = {"plan": plan, "loss": _limited, "params": np.zeros(2, np.float32), "data": data}
    sordino.train(**run, optimizer=optimizer)
    with pytest.raises(SordinoError, match="calls back into Python"):
        sordino.train(**run, optimizer=optimizer, run_key=RunKey.fresh())


def _first_state(rate: float) -> Any:
    return optax.inject_hyperparams(optax.sgd)(learning_rate=rate)


@dataclass(frozen=True)
class Scaled(sordino.parts.contributions.Evaluator):
    """Rows of norm at most 1, multiplied by a number before the first step."""

    factor: float = 1.0
    clip: float = 1.0

    def prepare(self, data: Any, valid: Any) -> tuple[Any, Any]:
        return jax.tree.map(lambda leaf: leaf * self.factor, data), valid

    def total(self, params: Any, memory: Any, batch: Any, terms: Any, step: Any) -> Any:
        rows = batch.data[0]
        norms = jnp.maximum(jnp.linalg.norm(rows, axis=1, keepdims=True), 1.0)
        return sordino.privacy.ClippedSum(batch.present @ (rows / norms))


def test_numbers_in_the_first_state_of_an_optimizer_are_part_of_a_run(ledger: Ledger) -> None:
    """Two learning rates under one key and one charge: the difference of two releases had no noise."""
    key, asked = RunKey.fresh(), {"ledger": ledger, "dataset": "people"}
    gd = sordino.plan("dp-gd", examples=N, steps=2, epsilon=1.0, delta=1e-6)
    given: tuple[Any, ...] = (gd, Logistic(), np.zeros(D, np.float32), (X, Y))
    sordino.train(*given, run_key=key, optimizer=_first_state(2.0**-20), **asked)
    sordino.train(*given, run_key=key, optimizer=_first_state(2.0**-20), **asked)  # the same: free
    with pytest.raises(SordinoError, match="already used by another run"):
        sordino.train(*given, run_key=key, optimizer=_first_state(64.0), **asked)
    assert len(ledger.reservations()) == 1


def test_what_prepares_the_records_is_part_of_a_run() -> None:
    key = RunKey.fresh()
    gd = sordino.plan("dp-gd", examples=N, steps=2, epsilon=1.0, delta=1e-6)
    sordino.train(gd, Scaled(), np.zeros(D, np.float32), (X,), run_key=key)
    with pytest.raises(SordinoError, match="already used by another run"):
        sordino.train(gd, Scaled(0.5), np.zeros(D, np.float32), (X,), run_key=key)


def test_the_gradient_of_a_regularizer_is_part_of_an_adaptive_run() -> None:
    key = RunKey.fresh()
    agd = sordino.plan("dp-agd", examples=N, steps=4, epsilon=2.0, delta=1e-6)
    given: tuple[Any, ...] = (agd, Logistic(), np.ones(D, np.float32), (X, Y))
    sordino.train(*given, run_key=key, regularizer=lambda w: 0.5 * jnp.sum(w**2))
    with pytest.raises(SordinoError):
        sordino.train(
            *given,
            run_key=key,
            regularizer=lambda w: 0.5 * jnp.sum(jax.lax.stop_gradient(w) ** 2),
        )
