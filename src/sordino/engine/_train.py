"""Run a plan: `train(plan, loss, params, data)`.

    loss = lambda params, x, y: ...                       # the loss of ONE example
    result = sordino.train(plan, loss, params, (X, y))    # any pytree of parameters
    result.params, result.guarantee

Everything is checked before the first record is used; then the plan's steps run, no more and no
fewer, in compiled chunks. Callbacks and the history see private values and public metrics only; the
progress bar sees step counts.

Queries of the plan beside its training run are asked once, before the first step. An answer is a function
of the data, the query and the run's key, so a run that goes on after a crash asks again and gets the same
answer: nothing more is released, and nothing has to be kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from sordino._base.errors import SordinoError
from sordino._base.keys import Identity, RunKey
from sordino._base.keystore import KeyStore
from sordino._base.registry import Registry
from sordino._base.types import PyTree
from sordino.engine._adaptive import AdaptiveRun, FilteredRun, NoiseRule
from sordino.engine._charging import LedgerAccount, Source
from sordino.engine._checkpoint import (
    SECONDS,
    HeldKey,
    Metrics,
    Recovery,
    forget,
    read_checkpoint,
)
from sordino.engine._description import check_same, describe
from sordino.engine._people import PERSON_POWER
from sordino.engine._run import TrainingRun
from sordino.engine._stepper import Loss, Optimizer, Penalty
from sordino.engine.ledger._ledger import Ledger
from sordino.parts.schedules import AdaptiveBudget
from sordino.planning import Plan, Query
from sordino.privacy import INSECURE, Guarantee, person_ids, require_one_row

if TYPE_CHECKING:
    from rich.console import Console

# How a query of each kind is answered: (query, data, its own key, earlier answers) -> answer.
Runner = Callable[[Query, PyTree, RunKey, Mapping[str, PyTree]], PyTree]
RUNNERS: Registry[Runner] = Registry("runner of queries", group="sordino.runners")


@dataclass(frozen=True)
class Snapshot:
    """What callbacks see at a chunk's end: private parameters and public metrics."""

    step: int
    steps: int
    params: PyTree
    metrics: Metrics


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
      params: the released parameters (the update's output: last iterate or average).
      guarantee: what the release satisfies.
      history: one dict per evaluation: "step", and the public metrics. Of a run that decides its noise
        as it goes and was not evaluated: one per step, with that decision and the mu^2 spent.
      insecure: True if the noise came from a seed; then there is no privacy against anyone who
        knows or guesses it.
      run: the public identity of the run, as in the ledger.
      resumed_at: the step of the checkpoint that the run went on from, if it did.
      answers: to the plan's other queries, by name.
      stopped_at: the step after which a callback ended the run, if one did.
    """

    params: PyTree
    plan: Plan
    guarantee: Guarantee
    history: tuple[Mapping[str, float], ...] = ()
    seconds: float = 0.0
    insecure: bool = False
    run: str = ""
    resumed_at: int | None = None
    answers: Mapping[str, PyTree] = field(default_factory=dict)
    stopped_at: int | None = None

    def statement(self) -> str:
        """The guarantee as a sentence, with a warning where it does not hold against everyone."""
        sentence = self.guarantee.sentence()
        return f"{sentence} {INSECURE}" if self.insecure and INSECURE not in sentence else sentence


def train(
    plan: Plan,
    loss: Loss,
    params: PyTree,
    data: PyTree,
    *,
    optimizer: Optimizer | None = None,
    regularizer: Penalty | None = None,
    microbatch_size: int | None = None,
    noise_rule: NoiseRule | None = None,
    run_key: RunKey | HeldKey | None = None,
    insecure_seed: int | None = None,
    evaluate: Callable[[PyTree], Metrics] | None = None,
    callbacks: Sequence[Callable[[Snapshot], bool | None]] = (),
    progress: bool = False,
    console: Console | None = None,
    driver: str = "auto",
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = SECONDS,
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    identified_by: PyTree | None = None,
    one_row_per_person: bool = False,
    groups: ArrayLike | None = None,
    row_weights: ArrayLike | None = None,
    person_power: float = PERSON_POWER,
    elsewhere: Sequence[str] = (),
) -> Result:
    """Train privately, as planned.

    Args:
      plan: what to do; see `sordino.plan`.
      loss: ``loss(params, *example) -> scalar`` for one example, or a `LinearLoss` (closed form,
        for data ``(X, y)`` and one weight array), or a `Evaluator` of your own.
      params: initial parameters, any pytree of float arrays; must not come from the private data.
      data: a tuple of arrays (or pytrees) with one row per example.
      optimizer: an optax optimizer to use instead of the plan's update settings.
      regularizer: a data-free function of the parameters; its gradient is added after the noise.
      microbatch_size: at most this many per-example gradients in memory at a time.
      noise_rule: ``rule(past) -> relative noise`` of the next step, for plans with schedule "filter". It
        must use nothing but the `sordino.engine.Past` it is given and public facts. A step that costs
        more than is left ends the run. Such a run cannot be resumed.
      run_key: the secret behind the noise; by default fresh from the operating system. Or a `HeldKey`.
      insecure_seed: for tests and demonstrations only: reproducible noise, no privacy against
        anyone who knows the seed.
      evaluate: a function of the private parameters, on PUBLIC data, called about 20 times.
      callbacks: called with a `Snapshot` at the same times; one that returns True ends the run there.
        What was planned is charged all the same, and the guarantee is the plan's.
      progress: show a progress bar.
      driver: "scan" compiles whole chunks of steps, "steps" one step that the host calls; "auto"
        takes the second for models with convolutions, which a scan slows down on CPUs.
      checkpoint: a file to keep what is released in, so that the same call goes on from it after a
        crash, bit for bit. The run's key is kept in the user's data folder (or give `run_key`).
      checkpoint_seconds: least time between two checkpoints; 0 writes one after every chunk.
      ledger, dataset: the ledger (or its file) that keeps the data set's budget, and the data set's
        name in it. The plan is charged before the first step, and refused if it does not fit.
      identified_by: what the ledger knows the data set by, where `data` was made from it: the data, or
        a `sordino.engine._charging.Source` that says more about it.
      one_row_per_person: your statement that every person (user, client) has one row of the data; a plan
        for persons is refused without it, unless there are groups.
      groups: the id of each row's person: the plan then protects persons with all of their rows, and its
        examples are persons. Ids are compared as text (`sordino.privacy.person_ids`); rows without one
        count nothing.
      row_weights: of each row, 0 to 1; the clip is the same for all, so that weights cost no privacy.
      person_power: a person of n rows adds n^-power times the sum of their gradients, clipped once: 0 fits
        the average row, 1 the average person.
      elsewhere: names of the plan's other queries that the caller asks itself, with `query_key` of the same
        key. A run that may be repeated needs `identified_by` then: all that these were asked of.
    """
    plan.verify()
    check_runners(plan, elsewhere)
    asked_here = [query for query in plan.others if query.name not in elsewhere]
    if groups is not None and asked_here:
        raise SordinoError(
            "other queries are told nothing of groups; ask them yourself, and name them in elsewhere"
        )
    personal = groups is not None or row_weights is not None
    if personal and (noise_rule is not None or plan.schedule.kind == AdaptiveBudget.kind):
        raise SordinoError("groups and row_weights are for runs that plan their noise beforehand")
    if checkpoint is not None:
        refuse_others(plan, "a checkpoint", elsewhere)
        if noise_rule is not None:
            raise SordinoError(
                "a run with a noise rule cannot go on from a checkpoint: another answer of the rule, with "
                "the same noise, would reveal a sum; leave the checkpoint out"
            )
    if groups is None:
        require_one_row(plan.guarantee.unit, stated=one_row_per_person)
    source: Source | None = None
    if isinstance(identified_by, Source):
        source = identified_by
    elif identified_by is not None or ledger is not None:
        source = _source(plan, data, identified_by, groups, row_weights)
    account = LedgerAccount.of(ledger, dataset, source)
    held = HeldKey.of(checkpoint, run_key, insecure_seed)
    key, recovery = held.key, None
    named = held.lasts or isinstance(run_key, RunKey)
    if checkpoint is not None:
        recovery = Recovery.at(checkpoint, key=held, seconds=checkpoint_seconds)
    watched = evaluate is not None or bool(callbacks)
    began = time.perf_counter()
    start: Callable[..., AdaptiveRun | TrainingRun] = TrainingRun
    if plan.schedule.kind == AdaptiveBudget.kind:
        start = AdaptiveRun
    if noise_rule is not None:
        start = partial(FilteredRun, noise_rule=noise_rule)
    run = start(
        plan,
        loss,
        params,
        data,
        key=key,
        optimizer=optimizer,
        regularizer=regularizer,
        microbatch_size=microbatch_size,
        watched=watched,
        checkpointed=recovery is not None,
        driver=driver,
        **(
            {"groups": groups, "row_weights": row_weights, "person_power": person_power}
            if start is TrainingRun
            else {}
        ),
    )
    history: list[Mapping[str, float]] = []
    # A fresh key that is not kept never comes again, and neither does its run.
    identity: Identity | None = None
    described = recovery is not None or named or (account is not None and key.insecure)
    # Who answers other queries is not part of a run's description: such a run is never another one again.
    # Nor is what a rule does.
    if described and not asked_here and noise_rule is None:
        identity = describe(run, plan.hash, params, _all_of(run, data), key)
        if plan.others:
            identity = {**identity, "source": _source_digest(source, key)}
    if recovery is not None and identity is not None:
        recovery.check(identity)
    key.claim(identity, store=KeyStore() if named else None)
    if recovery is not None and identity is not None:
        past = recovery.begin(run, identity)
        if watched:
            history += past
        else:
            run.trace = past
    if account is not None:
        try:
            account.charge(plan, key.identity, identity)
        except SordinoError:
            if recovery is not None and recovery.found is None:
                forget(recovery.path)  # nothing was run: leave nothing behind
            raise
    answered = answers(asked_here, data, key)
    with progress_bar(run.steps, show=progress, console=console) as advance:
        if run.done:
            advance(run.done, "")
        stopped = False
        while not (stopped or run.finished):
            done = run.advance()
            metrics: Metrics = {}
            if watched:
                # A copy: the next chunk takes the buffers over, and watchers may keep theirs.
                current = jax.tree.map(jnp.copy, run.output())
                if evaluate is not None:
                    metrics = {name: float(value) for name, value in evaluate(current).items()}
                    history.append({"step": done, **metrics})
                for callback in callbacks:
                    stopped |= callback(Snapshot(done, run.steps, current, metrics)) is True
            if recovery is not None:
                recovery.keep(run, tuple(history) or run.trace)
            if progress:
                jax.block_until_ready(run.output())
                advance(done, _headline(metrics))
    final = jax.block_until_ready(run.output())
    if account is not None:
        account.close(key.identity)
    return Result(
        params=final,
        plan=plan,
        guarantee=plan.guarantee,
        history=tuple(history) or run.trace,
        seconds=time.perf_counter() - began,
        insecure=key.insecure,
        run=key.identity,
        resumed_at=None if recovery is None or recovery.found is None else recovery.found.step,
        answers=answered,
        stopped_at=run.done if stopped else None,
    )


def _source(
    plan: Plan,
    data: PyTree,
    identified_by: PyTree | None,
    groups: ArrayLike | None,
    row_weights: ArrayLike | None,
) -> Source:
    """What a ledger is to know the data by. The number of persons tells no number of rows."""
    if groups is None and row_weights is None and plan.population.is_declared:
        return Source(
            data if identified_by is None else identified_by, rows=plan.population.examples
        )
    whole: PyTree = identified_by
    people = None if groups is None else person_ids(groups)
    if identified_by is None:
        ids = () if people is None else (people,)
        weights = () if row_weights is None else (np.asarray(row_weights),)
        whole = (*(data if isinstance(data, tuple) else (data,)), *ids, *weights)
    rows = None
    if groups is None and plan.population.is_declared:
        rows = plan.population.examples
    return Source(whole, rows=rows, pins=plan.population.is_declared, persons=people)


def _all_of(run: AdaptiveRun | TrainingRun, data: PyTree) -> PyTree:
    """The data, and whose contributions are made of it in a way that it does not say itself."""
    besides = run.besides if isinstance(run, TrainingRun) else ()
    return (data, besides) if jax.tree.leaves(besides) else data


def _source_digest(source: Source | None, key: RunKey) -> str:
    """Of all that the queries were asked of that somebody else asks."""
    if source is None:
        raise SordinoError(
            "a run that may be repeated must know what its other queries were asked of; give it as "
            "identified_by"
        )
    return source.digest(key)


def hold_source(held: HeldKey, source: Source, checkpoint: str | Path | None = None) -> None:
    """Before other queries are asked with a key: refuse to ask anything else than was asked with it before.

    Their noise is a function of the key, so that even a word about another answer would tell too much.
    """
    if held.key.insecure or not (held.given or checkpoint is not None):
        return
    asked = {"source": source.digest(held.key)}
    if checkpoint is not None and Path(checkpoint).exists():
        known = read_checkpoint(Path(checkpoint), held.key).identity
        found = {"source": known.get("source", "")}
        check_same(found, asked, f"the checkpoint {str(checkpoint)!r}")
    own = RunKey(held.key.derive("source"))
    own.claim(asked, store=KeyStore() if held.lasts else None)


def check_runners(plan: Plan, elsewhere: Sequence[str] = ()) -> None:
    """Refuse a plan with a query that nobody here can answer."""
    names = [query.name for query in plan.others]
    if unknown := [name for name in elsewhere if name not in names]:
        raise SordinoError(f"this plan asks nothing called {', '.join(map(repr, unknown))} besides")
    for query in plan.others:
        if query.name not in elsewhere and query.kind not in RUNNERS:
            raise SordinoError(
                f"this plan also asks {query.name!r} of the data, and no runner for {query.kind!r} "
                "queries is known here; add one to sordino.engine.RUNNERS"
            )


def refuse_others(plan: Plan, what: str, elsewhere: Sequence[str] = ()) -> None:
    """Refuse a plan that asks more than training, where only that can be done."""
    others = [query.name for query in plan.others if query.name not in elsewhere]
    if others:
        names = ", ".join(map(repr, others))
        raise SordinoError(
            f"{what} is for a plan of training alone, and this one also asks {names}"
        )


def answers(queries: Sequence[Query], data: PyTree, key: RunKey) -> dict[str, PyTree]:
    """The answers to queries of a plan, by name, in their order."""
    known: dict[str, PyTree] = {}
    for query in queries:
        known[query.name] = RUNNERS[query.kind](query, data, query_key(query, key), dict(known))
    return known


def query_key(query: Query, key: RunKey) -> RunKey:
    """The secret behind one query's noise: no two queries of a run share any."""
    return RunKey(key.derive(f"query/{query.name}"), insecure=key.insecure)


def _headline(metrics: Metrics) -> str:
    """The first metric, for the end of a progress bar."""
    return next((f"{name} {value:.4g}" for name, value in metrics.items()), "")


class Advance(Protocol):
    """Called with the number of steps done so far and, if there are any, public metrics."""

    def __call__(self, done: int, note: str = "") -> None: ...


@contextmanager
def progress_bar(
    steps: int, *, show: bool = True, console: Console | None = None
) -> Iterator[Advance]:
    """A bar over `steps` steps (a no-op unless `show`)."""
    if not show:
        yield lambda done, note="": None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Speed(ProgressColumn):
        """Steps per second since the start."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f}/s", no_wrap=True)

    bar = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("steps,"),
        Speed(),
        TimeRemainingColumn(compact=True),
        TextColumn("left {task.fields[note]}"),
        console=console,
        speed_estimate_period=600,
    )
    with bar:
        task = bar.add_task("training", total=steps, note="")
        yield lambda done, note="": bar.update(task, completed=done, note=note)
