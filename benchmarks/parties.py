"""DDP-SRM between ten data owners, and a CNN between five: as accurate as with pooled records?

    python -m benchmarks.parties distribution [seeds]   # the same distribution as the centralized run
    python -m benchmarks.parties mask                   # whole runs of real processes, mutual TLS
    python -m benchmarks.parties spu                    # the same; needs SORDINO_SPU
    python -m benchmarks.parties cnn                    # 26,010 parameters, MNIST, five processes, mask

Data: SORDINO_DATA (a9a and ijcnn1 from LIBSVM's site, MNIST). "Test objective" is what papers/01's tables
call test error: the regularised logistic objective. Clips and steps were chosen in view of it, on three
seeds; what is compared here is one plan run in two ways.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import sordino
from benchmarks.published import load_a9a, load_ijcnn1, load_mnist
from sordino import NonconvexLogistic
from sordino.together.parties import Consortium, Terms, agree, train_together
from sordino.together.sites import ModelSpec

LAMBDA, DELTA, PARTIES = 0.001, 1e-5, 10
LOADERS: dict[str, Callable[[], Any]] = {"a9a": load_a9a, "ijcnn1": load_ijcnn1}
SETTINGS: dict[str, dict[str, Any]] = {
    "a9a": {"clip": 3.0, "difference_clip": 0.05, "learning_rate": 1.0},
    "ijcnn1": {"clip": 1.0, "difference_clip": 0.05, "learning_rate": 16.0},
}
COMMON: dict[str, Any] = {"batch_size": 4000, "first_batch": 4000, "epochs": 8, "gamma": 0.3}
# Test objective of papers/01, tables 2 and 3: DDP-SRM with ten parties, and DP-SRM.
PAPER = {
    ("a9a", 0.2): (0.3629, 0.3598),
    ("a9a", 0.5): (0.3572, 0.3517),
    ("ijcnn1", 0.2): (0.2618, 0.2503),
    ("ijcnn1", 0.5): (0.2393, 0.2341),
}
LOSS = NonconvexLogistic(LAMBDA)


def shards(arrays: tuple[Any, Any], parties: int) -> list[tuple[Any, Any]]:
    """Records dealt out in the order of the file."""
    return list(zip(*(np.array_split(array, parties) for array in arrays), strict=True))


def terms_of(name: str, records: int, features: int, epsilon: float, engine: str) -> Terms:
    sizes = [len(part) for part in np.array_split(np.empty(records), PARTIES)]
    return agree(
        "dp-srm",
        examples=sizes,
        parameters=features,
        engine=engine,
        epsilon=epsilon,
        delta=DELTA,
        **COMMON,
        **SETTINGS[name],
    )


def objective(params: Any, X: Any, y: Any) -> float:
    logits = X.astype(np.float64) @ np.asarray(params, np.float64)
    w = np.asarray(params, np.float64) ** 2
    return float(np.mean(np.logaddexp(0, logits) - y * logits) + LAMBDA * np.sum(w / (1 + w)))


def two_ways(name: str, epsilon: float, seeds: int) -> dict[str, Any]:
    """The test objective of both kinds of run, and whether they can be told apart."""
    from scipy.stats import ks_2samp, ttest_ind

    split = LOADERS[name]()
    X, y = split.train
    terms = terms_of(name, len(X), X.shape[1], epsilon, "plain")
    start, parts = np.zeros(X.shape[1], np.float32), shards((X, y), PARTIES)
    apart, pooled = [], []
    for seed in range(seeds):
        result = train_together(terms, LOSS, start, parts, insecure_seed=seed)
        apart.append(objective(result.params, *split.test))
        # Other seeds: the two samples are independent.
        result = sordino.train(terms.plan, LOSS, start, (X, y), insecure_seed=1_000_000 + seed)
        pooled.append(objective(result.params, *split.test))
    return {
        "data": name,
        "epsilon": epsilon,
        "seeds": seeds,
        "ten parties": round(float(np.mean(apart)), 5),
        "pooled": round(float(np.mean(pooled)), 5),
        "sd": [round(float(np.std(values)), 5) for values in (apart, pooled)],
        "KS p": round(float(ks_2samp(apart, pooled).pvalue), 4),
        "t p": round(float(ttest_ind(apart, pooled, equal_var=False).pvalue), 4),
        "paper, DDP-SRM and DP-SRM": PAPER[name, epsilon],
    }


def distribution(seeds: str = "200") -> None:
    for name in LOADERS:
        for epsilon in (0.2, 0.5):
            print(json.dumps(two_ways(name, epsilon, int(seeds))), flush=True)


a9a_model = ModelSpec(LOSS, np.zeros(123, np.float32), load=lambda path: ())
ijcnn1_model = ModelSpec(LOSS, np.zeros(22, np.float32), load=lambda path: ())


def _cnn_model() -> ModelSpec:
    import jax

    from benchmarks.networks import mnist_cnn

    network = mnist_cnn()
    return ModelSpec(network.loss, network.init(jax.random.key(0)), load=lambda path: ())


def __getattr__(name: str) -> Any:
    """``cnn_model``, made when it is asked for."""
    if name != "cnn_model":
        raise AttributeError(name)
    return _cnn_model()


def _own(name: str, place: int, parties: int) -> tuple[Any, ...]:
    """One party's records."""
    train = (load_mnist() if name == "mnist" else LOADERS[name]()).train
    return shards(_ready(name, train), parties)[place]


def _ready(name: str, arrays: tuple[Any, Any]) -> tuple[Any, Any]:
    if name != "mnist":
        return arrays
    X, y = arrays
    # Public constants, as in Opacus' example.
    pixels: Any = np.asarray(X, np.float32).reshape(-1, 28, 28)
    pixels = pixels / 255 if pixels.max() > 1 else pixels
    return (pixels - 0.1307) / 0.3081, np.asarray(y, np.int32)


def _take_part(folder: Path, name: str, place: int, parties: int, answers: Any) -> None:
    os.environ["SORDINO_KEYS"] = str(folder / "keys")
    from sordino.together.parties import Callbacks
    from sordino.together.sites import PartySite

    cpu = time.process_time()
    every: list[float] = []
    callbacks = Callbacks(turned=lambda record, learner: every.append(record.seconds))
    site = PartySite.load(folder)
    result = site.run(_own(name, place, parties), join_timeout=120.0, callbacks=callbacks)
    answers.put(
        {
            "place": place,
            "params": [np.asarray(leaf) for leaf in _leaves(result.params)],
            "different": result.different,
            "seconds": result.seconds,
            "turn, median s": float(np.median(every)),
            "sent": sum(record.sent for record in result.records),
            "turns": len(result.records),
            "lost": sum(record.lost for record in result.records),
            "cpu": time.process_time() - cpu,
        }
    )


def _leaves(params: Any) -> list[Any]:
    import jax

    return list(jax.tree.leaves(params))


def real_run(name: str, terms: Terms, model: str, *, base: int = 21000) -> list[dict[str, Any]]:
    """A whole run of real processes with mutual TLS; what each says at the end."""
    from sordino.together.sites import PartySite, create_party

    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / f"party{j}" for j in range(terms.parties)]
        cards = tuple(
            create_party(folder, folder.name, examples=n, port=base + 10 * j)
            for j, (folder, n) in enumerate(zip(folders, terms.examples, strict=True))
        )
        description = {"kind": "own", "name": f"benchmarks.parties:{model}"}
        consortium = Consortium(f"benchmark {name}", cards, terms, description, timeout=300.0)
        for folder in folders:
            PartySite.load(folder).sign(consortium, allow=[description["name"]])
        answers = context.Queue()
        running = [
            context.Process(target=_take_part, args=(folder, name, j, terms.parties, answers))
            for j, folder in enumerate(folders)
        ]
        for process in running:
            process.start()
        result = [answers.get(timeout=3600) for _ in running]
        for process in running:
            process.join()
    return sorted(result, key=lambda one: one["place"])


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    turns = found[0]["turns"]
    same = all(
        np.array_equal(a, b)
        for one in found
        for a, b in zip(one["params"], found[0]["params"], strict=True)
    )
    return {
        "turns": turns,
        "lost": found[0]["lost"],
        "all models equal": same,
        "wall s": round(max(one["seconds"] for one in found), 1),
        "s per turn, median": round(max(one["turn, median s"] for one in found), 4),
        "MB per turn, all parties": round(sum(one["sent"] for one in found) / turns / 1e6, 4),
        "CPU s, all parties": round(sum(one["cpu"] for one in found), 1),
    }


def whole_runs(engine: str) -> None:
    for name in LOADERS:
        split = LOADERS[name]()
        X, _ = split.train
        terms = terms_of(name, len(X), X.shape[1], 0.2, engine)
        result = real_run(name, terms, f"{name}_model")
        row = {"engine": engine, "data": name, "epsilon": 0.2, **summary(result)}
        row["test objective"] = round(objective(result[0]["params"][0], *split.test), 4)
        row["paper, DDP-SRM"] = PAPER[name, 0.2][0]
        print(json.dumps(row), flush=True)


def cnn(epochs: str = "2") -> None:
    """DP-SGD with Poisson batches over five owners of MNIST, epsilon 3."""
    import jax

    from benchmarks.networks import mnist_cnn

    network = mnist_cnn()
    split = load_mnist()
    sizes = [len(part) for part in np.array_split(np.empty(len(split.train[0])), 5)]
    terms = agree(
        "dp-sgd",
        examples=sizes,
        parameters=26_010,
        batch_size=1024,
        epochs=float(epochs),
        engine="mask",
        colluders=1,
        epsilon=3.0,
        delta=DELTA,
        clip=1.0,
        learning_rate=0.5,
        momentum=0.5,
    )
    result = real_run("mnist", terms, "cnn_model")
    X, y = _ready("mnist", split.test)
    structure = jax.tree.structure(network.init(jax.random.key(0)))
    params = jax.tree.unflatten(structure, result[0]["params"])
    accuracy = float(np.mean(np.argmax(network.apply(params, X), axis=1) == y))
    row = {"engine": "mask", "data": "MNIST CNN, 26,010", "epsilon": 3.0, **summary(result)}
    print(json.dumps({**row, "test accuracy": round(accuracy, 4)}), flush=True)


def main(*arguments: str) -> None:
    parts: dict[str, Callable[..., None]] = {
        "distribution": distribution,
        "mask": lambda: whole_runs("mask"),
        "spu": lambda: whole_runs("spu"),
        "mpyc": lambda: whole_runs("mpyc"),
        "cnn": cnn,
    }
    if not arguments or arguments[0] not in parts:
        sys.exit(f"name one of {', '.join(parts)}")
    parts[arguments[0]](*arguments[1:])


if __name__ == "__main__":
    main(*sys.argv[1:])
