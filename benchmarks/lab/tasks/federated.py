"""Federated runs in the simulator: one agreement, one run for each seed, scored on test rows.

A population's options say who takes part and within what set:

    clients, per_round    M, and m of them in each round
    radius                of the ball around 0 that iterates are projected to
    smoothness            L, for the default learning rate
    clip, gradient_clip   S for messages of differences, and G for those of plain gradients

A contender's settings are `algorithm`, `schedule`, `trust`, `batch`, `clip` and `rounds` of
`sordino.together.federated._agreeing.agree`, and ``rate``: its learning rate as a multiple of the default one,
which follows from the noise. Where rounds are not given, all clients together send as many messages as
there are rows (n = m T, papers/02 1.8), so that with a batch of b each row is used b times. What is
not private runs the same rounds without noise; its default rate is 1/(5 L).

Settings are chosen on public rows by `run_trial`: a stand-in population of the same size is made of
public rows (repeated in turn), dealt out to as many clients, and trained under the very agreement of the
real run. All candidates are scored on the first fold; the best few of them on every fold.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.lab.cells import Cell, Trial
from benchmarks.lab.data import PreparedData, public_folds
from benchmarks.lab.experiment import PopulationSpec, TargetBudget, Tuning
from benchmarks.lab.measures import MEASURES
from benchmarks.lab.running import prepared_rows
from benchmarks.lab.scores import score_models
from sordino import SordinoError
from sordino._base.errors import known_fields, require_count
from sordino.together.federated import ALGORITHMS, Agreement, Simulated, agree, simulate, split

# Whom a row belongs to is drawn from this; the noise has seeds of its own.
_DEALT_SEED = 0
# Candidates that are scored on every fold.
_FINALISTS = 2
# Agreements of a table differ in nothing but what the table says.
_NONCE = "bench"


@dataclass(frozen=True)
class FederatedSetting:
    """A population's options."""

    clients: int
    per_round: int
    smoothness: float
    clip: float
    gradient_clip: float
    radius: float | None = None


@dataclass(frozen=True)
class FederatedMethod:
    """A contender's settings; see the module."""

    algorithm: str = "dp-mu2"
    schedule: str | None = None
    trust: str = "untrusted"
    batch: int = 1
    rounds: int | None = None
    clip: float | None = None
    rate: float = 1.0


@dataclass(frozen=True, eq=False)
class Dealt:
    """Rows as clients have them."""

    rows: PreparedData
    parts: list[tuple[NDArray[Any], NDArray[Any]]]

    @classmethod
    def of(cls, rows: PreparedData, clients: int) -> Dealt:
        return cls(rows, split(*rows.train, clients, seed=_DEALT_SEED))


def run_cell(cell: Cell, folder: str | None) -> dict[str, Any]:
    """Simulate and score every seed of a cell."""
    setting, method = _read(cell.population, cell.settings)
    dealt = _dealt(_FederatedKey(cell.population, folder))
    examples = len(dealt.rows.train[1])
    began = time.process_time()
    built = agreement(setting, method, cell.budget, examples, dealt.rows.start.size)
    agreeing = time.process_time() - began
    first, count = cell.seeds
    result, seconds = [], []
    for seed in range(first, first + count):
        began = time.process_time()
        run = _run(built, dealt, seed, private=cell.private)
        seconds.append(time.process_time() - began)
        result.append(np.asarray(run.params).ravel())
    scores = score_models(np.stack(result), dealt.rows)
    passes = _gradients(built) / examples
    return {
        "plan_hash": built.digest if cell.private else "",
        "guarantee": run.guarantee.sentence() if cell.private else "none",
        "steps": built.rounds,
        "runs": [{"seed": first + i, "passes": passes, **score} for i, score in enumerate(scores)],
        "as_published": dealt.rows.as_published,
        # The first run compiles, unless another cell of the same shape has been there before.
        "cpu_seconds_per_run": statistics.median(seconds[1:] or seconds),
        "times": {"agreeing, CPU s": agreeing, "first run, CPU s": seconds[0]},
        "facts": _facts(built, run, private=cell.private),
    }


def run_trial(trial: Trial, folder: str | None) -> dict[str, Any]:
    """Score every candidate on public rows; the best is chosen."""
    examples, folds = _public(_FederatedKey(trial.population, folder), trial.tuning)
    scored: list[dict[str, Any]] = [{"settings": one, "values": []} for one in trial.candidates]

    def score(one: dict[str, Any], at: list[int]) -> None:
        setting, method = _read(trial.population, {**trial.settings, **one["settings"]})
        for i in at:
            rows = folds[i].rows
            built = agreement(setting, method, trial.budget, examples, rows.start.size)
            for seed in range(trial.tuning.seeds):
                run = _run(built, folds[i], seed, private=trial.budget is not None)
                (result,) = score_models(np.asarray(run.params).reshape(1, -1), rows)
                one["values"].append(float(result[trial.measure]))

    for one in scored:
        score(one, [0])
    sign = 1 if MEASURES[trial.measure].lower else -1
    finalists = sorted(scored, key=lambda one: _badness(one, sign))[:_FINALISTS]
    for one in finalists:
        score(one, list(range(1, len(folds))))
    best = min(finalists, key=lambda one: _badness(one, sign))
    return {
        "chosen": {
            "population": trial.population.name,
            "contender": trial.contender,
            "epsilon": None if trial.budget is None else trial.budget.epsilon,
            "settings": best["settings"],
            "score": float(np.mean(best["values"])),
        },
        "scored": scored,
    }


def agreement(
    setting: FederatedSetting,
    method: FederatedMethod,
    budget: TargetBudget | None,
    examples: int,
    parameters: int,
) -> Agreement:
    """What the clients of a contender agree on, for so many rows in all.

    Without a budget, noise is planned for but will not be added.
    """
    each, left = divmod(examples, setting.clients)
    if left:
        raise SordinoError(
            f"{examples:,} rows cannot be dealt out to {setting.clients:,} clients in equal parts"
        )
    kind = ALGORITHMS[method.algorithm]
    rounds = method.rounds or examples // setting.per_round
    messages = rounds * setting.per_round / setting.clients
    clip = method.clip or (setting.clip if kind.recursive else setting.gradient_clip)
    planned = budget or TargetBudget(epsilon=1.0, delta=1e-5)
    spent = {"epsilon": planned.epsilon} if planned.mu is None else {"mu": planned.mu}
    common: dict[str, Any] = {
        "clients": setting.clients,
        "per_round": setting.per_round,
        "rounds": rounds,
        "parameters": parameters,
        "delta": planned.delta,
        "adjacency": planned.adjacency,
        "algorithm": method.algorithm,
        "schedule": method.schedule,
        "trust": method.trust,
        "batch": method.batch,
        "uses": max(1, round(messages * method.batch / each)),
        "examples": each,
        "clip": clip,
        "radius": setting.radius,
        "smoothness": setting.smoothness,
        "nonce": _NONCE,
        **spent,
    }
    built = agree(**common)
    default = built.learning_rate if budget is not None else 1 / (5 * setting.smoothness)
    return replace(built, learning_rate=method.rate * default)


def _run(made: Agreement, dealt: Dealt, seed: int, *, private: bool) -> Simulated:
    noise = "gaussian" if private else "none"
    rows = dealt.rows
    return simulate(made, rows.loss, rows.start, dealt.parts, insecure_seed=seed, noise=noise)


def _gradients(made: Agreement) -> int:
    """Gradients of single examples, of all rounds: two for each difference."""
    return made.rounds * made.divisor * (2 if made.kind.recursive else 1)


def _facts(made: Agreement, run: Simulated, *, private: bool) -> dict[str, Any]:
    result: dict[str, Any] = {
        "learning rate": float(f"{made.learning_rate:.4g}"),
        "clip": float(f"{made.clip:.5g}"),
        "rounds": made.rounds,
    }
    if private:
        std = float(made.variance) ** 0.5 * made.step
        name = "noise of a client's first message" if made.growing else "noise of a message"
        result[name] = float(f"{std:.4g}")
        if made.trust == "untrusted" and not made.growing and made.uses == 1:
            result["mu against who sees sums only"] = float(f"{run.observers().sums:.3g}")
    return result


def _read(
    population: PopulationSpec, settings: Mapping[str, Any]
) -> tuple[FederatedSetting, FederatedMethod]:
    setting = FederatedSetting(
        **known_fields("options", dict(population.options), FederatedSetting)
    )
    require_count("clients", setting.clients)
    return setting, FederatedMethod(**known_fields("settings", dict(settings), FederatedMethod))


def _badness(one: dict[str, Any], sign: int) -> float:
    value = sign * float(np.mean(one["values"]))
    return value if np.isfinite(value) else np.inf


class _FederatedKey:
    """A population as a key of a cache: equal if all that its dealt rows follow from is."""

    def __init__(self, population: PopulationSpec, folder: str | None) -> None:
        self.population, self.folder = population, folder
        self.clients = int(population.options["clients"])
        self._text = repr((population.data, population.loss, population.rows, self.clients, folder))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _FederatedKey) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@lru_cache(maxsize=1)
def _dealt(key: _FederatedKey) -> Dealt:
    return Dealt.of(prepared_rows(key.population, key.folder), key.clients)


@lru_cache(maxsize=1)
def _public(key: _FederatedKey, tuning: Tuning) -> tuple[int, list[Dealt]]:
    """The number of all training rows, and the stand-ins made of the public ones."""
    whole = prepared_rows(key.population, key.folder)
    examples = len(whole.train[1])
    folds = [fold.with_rows(examples) for fold in public_folds(whole, tuning)]
    return examples, [Dealt.of(fold, key.clients) for fold in folds]
