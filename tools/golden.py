"""Values that a change of the house must not change: plans, guarantees and parameters, bit for bit.

    python tools/golden.py write golden.json        before the change, in one environment
    python tools/golden.py check golden.json        after it, in the same one

Every recipe, sampling, mechanism, schedule and kind of noise, through every way to run a plan:
`train` (linear and not), `Session`, parties, the federation's simulator, estimators, searches, and a run
that goes on from a checkpoint. A hash of float32 parameters holds on one kind of processor and one
version of JAX only; that is what the file says about itself first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sordino
from sordino.parts._losses import LeastSquares, Logistic, Softmax
from sordino.parts.contributions._base import Evaluator
from sordino.parts.schedules._base import PublicData
from sordino.parts.schedules._shapes import Exponential, FixedSchedule, Influence
from sordino.planning.recipes import RECIPES
from sordino.privacy._values import ClippedSum
from sordino.together import federated, parties

N, D, BATCH, DELTA = 240, 7, 40, 1e-4
BUDGET = {"epsilon": 4.0, "delta": DELTA}
rng = np.random.default_rng(0)
X = rng.normal(size=(N, D)).astype(np.float32)
Y = np.float32(X[:, 0] > X[:, 1])
CLASSES = (np.int32(X[:, 0] > 0) + np.int32(X[:, 1] > 0)).astype(np.int32)
LINEAR = Logistic()
ZERO = np.zeros(D, np.float32)
WEIGHTS = {
    "a": rng.normal(size=(D, 4)).astype(np.float32),
    "b": rng.normal(size=4).astype(np.float32),
}

Value = str | float | None | list[Any]


def network(params: Any, x: Any, target: Any) -> Any:
    return jnp.square(jnp.tanh(x @ params["a"]) @ params["b"] - target)


def convolution(params: Any, x: Any, target: Any) -> Any:
    line = jax.lax.conv_general_dilated(x[None, None, :], params["a"][None, None, 0], (1,), "SAME")
    return jnp.square(jnp.tanh(line).sum() * params["b"][0] - target)


class Constant(Evaluator):
    """A stream of somebody's own: the mean of clipped features."""

    clip = 1.0

    def total(self, params, memory, batch, terms, step):  # type: ignore[no-untyped-def]
        rows = batch.data[0] * batch.present[:, None]
        short = jnp.minimum(1.0, 1.0 / jnp.maximum(jnp.linalg.norm(rows, axis=1), 1e-9))
        return ClippedSum(jnp.sum(rows * (0.9 * short)[:, None], axis=0))


def digest(tree: Any) -> str:
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        array = np.ascontiguousarray(leaf)
        sha.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return sha.hexdigest()[:16]


def planned(recipe: str, **options: Any) -> Any:
    spec = RECIPES[recipe]
    settings: dict[str, Any] = {} if spec.full_batch else {"batch_size": BATCH}
    if spec.private and "noise_multiplier" not in options:
        settings.update(BUDGET)
    if "steps" not in options:
        settings["epochs"] = 2
    return sordino.plan(recipe, examples=N, **{**settings, **options})


def stated(plan: Any) -> Value:
    """Its hash and what it guarantees, to the last bit."""
    if plan.guarantee is None or not RECIPES[plan.recipe].private:
        return [plan.hash[:16], None]
    return [plan.hash[:16], float(plan.guarantee.epsilon(DELTA)).hex()]


def trained(
    plan: Any, loss: Any = LINEAR, params: Any = ZERO, data: Any = (X, Y), **rest: Any
) -> str:
    return digest(sordino.train(plan, loss, params, data, insecure_seed=3, **rest).params)


def run(plan: Any) -> Value:
    return [stated(plan), trained(plan)]


def stepped(plan: Any, loss: Any = LINEAR, params: Any = ZERO) -> str:
    session = sordino.Session(plan, loss, params, insecure_seed=3)
    for rows in session:
        session.step((X[rows], Y[rows]))
    return digest(session.result().params)


def resumed(plan: Any) -> str:
    """A run that is interrupted in its middle and goes on."""

    class StopError(Exception):
        pass

    seen = 0

    def stop(_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == 2:
            raise StopError

    with tempfile.TemporaryDirectory() as folder:
        arguments: dict[str, Any] = {"checkpoint": Path(folder) / "run", "checkpoint_seconds": 0.0}
        arguments["insecure_seed"] = 5
        with suppress(StopError):
            sordino.train(plan, Logistic(), ZERO, (X, Y), callbacks=[stop], **arguments)
        return digest(sordino.train(plan, Logistic(), ZERO, (X, Y), **arguments).params)


def cases() -> Iterator[tuple[str, Callable[[], Value]]]:
    for name, spec in RECIPES.items():
        more = {"step_length": 0.5} if name == "dp-srm" else {}
        plan = planned(name, **more)
        yield f"plan/{name}", lambda plan=plan: stated(plan)
        yield f"train/{name}/linear", lambda plan=plan: trained(plan)
        yield f"train/{name}/network", lambda plan=plan: trained(plan, network, WEIGHTS)
        if name != "dp-agd":
            yield f"session/{name}", lambda plan=plan: stepped(plan, network, WEIGHTS)
        for sampling in spec.samplings:
            given = {**more, "sampling": sampling}
            yield f"sampling/{name}/{sampling}", lambda n=name, g=given: run(planned(n, **g))
        for mechanism in spec.mechanisms[1:]:
            given = {**more, "mechanism": mechanism}
            yield f"mechanism/{name}/{mechanism}", lambda n=name, g=given: run(planned(n, **g))
        if spec.private and name not in ("dp-nsgd-sr", "dp-agd"):
            p = planned(name, noise="discrete", **more)
            yield f"discrete/{name}", lambda p=p: run(p)
            yield f"discrete/{name}/session", lambda p=p: stepped(p)
    yield "form/anchored", lambda: trained(planned("dp-nsgd-sr", form="anchored"))
    for adjacency in ("zero-out", "add-remove", "replace-one"):
        for name in ("dp-sgd", "dp-memf", "dp-srm"):
            more = {"sampling": "fixed"} if adjacency == "zero-out" and name != "dp-memf" else {}
            given = {"adjacency": adjacency, **more}
            yield f"adjacency/{name}/{adjacency}", lambda n=name, g=given: run(planned(n, **g))
    for schedule in (
        Exponential(1.8),
        Influence(tuple(1.0 + 0.1 * t for t in range(12))),
        FixedSchedule(tuple(1.0 + 0.05 * t for t in range(12)), "rising"),
    ):
        p = planned("dp-gd", schedule=schedule, epochs=12)
        yield f"schedule/{schedule.kind}", lambda p=p: run(p)
    named = {
        "gd-pl": {"gamma": 0.9},
        "quadratic": {"eigenvalues": (1.0, 0.5), "eta": 0.1},
        "exp-influence": {"k": 0.1},
        "uniform": {},
    }
    for kind, parameters in named.items():
        yield f"schedule/{kind}", lambda k=kind, q=parameters: _scheduled(k, q)
    for name in ("sgd", "adam", "bias-corrected", "normalized"):
        yield f"optimizer/{name}", lambda n=name: _optimizer(n)
    for output in ("last", "random"):
        yield f"output/{output}", lambda o=output: trained(planned("dp-sgd", output=o))
    yield "average", lambda: trained(planned("dp-memf", average=0.9))
    yield "radius", lambda: trained(planned("dp-memf", radius=0.3))
    yield "lr-schedule", lambda: trained(planned("dp-memf", lr_schedule="cosine"))
    yield "first-batch", lambda: trained(planned("dp-srm", first_batch=120))
    yield "noise-multiplier", lambda: _multiplied()
    yield (
        "softmax",
        lambda: trained(planned("dp-memf"), Softmax(3), np.zeros((3, D), np.float32), (X, CLASSES)),
    )
    yield "least-squares", lambda: trained(planned("dp-memf"), LeastSquares())
    yield "microbatch", lambda: trained(planned("dp-memf"), network, WEIGHTS, microbatch_size=16)
    yield "driver/steps", lambda: trained(planned("dp-memf"), network, WEIGHTS, driver="steps")
    yield "convolution", lambda: trained(planned("dp-memf"), convolution, WEIGHTS)
    yield "own-stream", lambda: trained(planned("dp-memf"), Constant(), ZERO)
    yield "half", lambda: trained(planned("dp-memf"), network, jax.tree.map(jnp.bfloat16, WEIGHTS))
    blt = planned("dp-memf", mechanism="blt", epochs=40)
    yield "blt/session", lambda: [stated(blt), stepped(blt)]
    yield (
        "regularizer",
        lambda: trained(planned("dp-memf"), regularizer=lambda p: 0.01 * jnp.sum(p**2)),
    )
    yield "resumed/train", lambda: resumed(planned("dp-memf", epochs=20))
    yield "resumed/dp-agd", lambda: resumed(planned("dp-agd", epochs=12))
    yield "units", lambda: stated(planned("dp-memf", unit="user"))
    yield "compare", lambda: _compared()
    yield "parties", lambda: _parties("dp-sgd")
    yield "parties/dp-srm", lambda: _parties("dp-srm")
    yield "parties/dp-memf", lambda: _parties("dp-memf")
    yield "federated/exact", lambda: _federated("exact")
    yield "federated/gaussian", lambda: _federated("gaussian")
    yield "federated/secure-sum", lambda: _federated("exact", trust="secure-sum", per_round=4)
    yield "classifier", lambda: _classifier(Y)
    yield "classifier/multiclass", lambda: _classifier(CLASSES)
    yield "regressor", lambda: _regressor()
    yield "search", lambda: _search()
    yield "influence", lambda: _influence()


def _scheduled(kind: str, parameters: dict[str, Any]) -> Value:
    from sordino.parts.schedules._shapes import schedule_named

    plan = planned("dp-gd", schedule=schedule_named(kind, 12, **parameters), epochs=12)
    return run(plan)


def _optimizer(name: str) -> Value:
    import optax

    if name == "adam":
        return trained(planned("dp-memf"), optimizer=optax.adam(0.05))
    return trained(planned("dp-gd", optimizer=name, momentum=0.5))


def _multiplied() -> Value:
    plan = planned("dp-memf", noise_multiplier=1.5)
    return [stated(plan), trained(plan)]


def _compared() -> Value:
    found = sordino.compare_recipes(examples=N, batch_size=BATCH, epochs=2, **BUDGET)
    by_noise = sorted(found.ranked, key=lambda row: row.relative_error)  # as 0.5.1 ranked them
    return [[row.label, row.relative_error.hex(), row.gain.hex()] for row in by_noise]


def _parties(recipe: str) -> Value:
    terms = parties.agree(
        recipe,
        examples=[120, 120],
        parameters=D,
        batch_size=BATCH,
        epochs=2,
        engine="mask",
        colluders=1,
        **BUDGET,
    )
    halves = [(X[:120], Y[:120]), (X[120:], Y[120:])]
    return [
        terms.hash[:16],
        digest(parties.train_together(terms, Logistic(), ZERO, halves, insecure_seed=3).params),
    ]


def _federated(noise: str, **options: Any) -> Value:
    if "trust" in options:
        options["keys"] = tuple(f"{i:064x}" for i in range(1, 5))
    settings: dict[str, Any] = {"rounds": 12, "per_round": 3, "mu": 2.0, "nonce": "00" * 16}
    agreement = federated.agree(clients=4, parameters=D, **{**settings, **options})
    data = [(X[i::4], Y[i::4].astype(np.int32)) for i in range(4)]
    found = federated.simulate(agreement, Logistic(), ZERO, data, insecure_seed=3, noise=noise)
    return [agreement.digest[:16], digest(found.params)]


def _classifier(y: Any) -> Value:
    model = sordino.PrivateClassifier(
        epsilon=2.0,
        delta=DELTA,
        classes=sorted(set(y.tolist())),
        feature_bounds=(-4, 4),
        examples=N,
        random_state=0,
    ).fit(X, y)
    return [digest((model.coef_, model.intercept_)), digest(model.predict_proba(X[:9]))]


def _regressor() -> Value:
    model = sordino.PrivateRegressor(
        epsilon=2.0,
        delta=DELTA,
        target_bounds=(-4, 4),
        feature_bounds=(-4, 4),
        examples=N,
        random_state=0,
    ).fit(X, X[:, 0] - X[:, 1])
    return digest((model.coef_, model.intercept_, model.predict(X[:9])))


def _search() -> Value:
    model = sordino.PrivateClassifier(
        epsilon=2.0, delta=DELTA, classes=[0, 1], feature_bounds=(-4, 4), random_state=0
    )
    search = sordino.PrivateSearch(
        model, {"learning_rate": [0.1, 0.5]}, epsilon=4.0, delta=1e-3, random_state=0
    ).fit(X, Y)
    return [repr(search.best_params_), digest((search.best_estimator_.coef_,))]


def _influence() -> Value:
    from sordino.engine.influence._estimate import influence_by_retraining

    plan = planned("dp-gd", epochs=10)
    found = influence_by_retraining(plan, Logistic(), ZERO, PublicData(X, Y), at=(1, 9), runs=3)
    return digest(np.asarray(found.q))


def measured(only: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, value in cases():
        if only in name:
            try:
                values[name] = value()
            except Exception as error:  # a refusal is a value too
                values[name] = f"{type(error).__name__}: {error}"
    return values


def environment() -> dict[str, str]:
    return {"jax": jax.__version__, "numpy": np.__version__, "machine": platform.machine()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("write", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    values = measured(arguments.only)
    seconds = round(time.perf_counter() - began)
    if arguments.action == "write":
        document = {"environment": environment(), "values": values}
        arguments.file.write_text(json.dumps(document, indent=1) + "\n")
        print(f"wrote {len(values)} values in {seconds} s")
        return 0
    before = json.loads(arguments.file.read_text())
    if before["environment"] != environment():
        print(f"note: written under {before['environment']}, this is {environment()}")
    wanted = {k: v for k, v in before["values"].items() if arguments.only in k}
    values = json.loads(json.dumps(values))
    differing = sorted(k for k in wanted.keys() | values.keys() if wanted.get(k) != values.get(k))
    for name in differing:
        print(f"{name}: was {wanted.get(name)}, is {values.get(name)}")
    print(f"{len(wanted) - len(differing)} of {len(wanted)} values equal, in {seconds} s")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
