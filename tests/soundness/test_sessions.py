"""Sessions: a step that fails, is interrupted, tried again or copied never shares noise."""

from __future__ import annotations

import contextlib
import copy
import pickle
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import sordino
from sordino._base.errors import SordinoError
from sordino.engine import _session as session_module
from sordino.parts._losses import Logistic
from sordino.parts.sampling._kinds import poisson_width
from sordino.planning._plans import Plan

N, D = 80, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
START = np.zeros(D, np.float32)


def planned(**options: Any) -> Plan:
    settings = {"examples": N, "batch_size": 4, "epochs": 2, "noise_multiplier": 1.0, **options}
    return sordino.plan(settings.pop("recipe", "dp-memf"), **settings)


def undisturbed(plan: Plan) -> Any:
    session = sordino.Session(plan, Logistic(), START, insecure_seed=5)
    for rows in session:
        session.step((X[rows], Y[rows]))
    return session.result().params


def disturbed(plan: Plan, failing: Callable[[sordino.Session, Any], None]) -> Any:
    session = sordino.Session(plan, Logistic(), START, insecure_seed=5)
    while session.done < session.steps:
        rows = session.next_rows()
        failing(session, rows)
        session.step((X[rows], Y[rows]))
    return session.result().params


def wrong_shape(session: sordino.Session, rows: Any) -> None:
    if session.done % 16 == 0:
        for _ in range(3):
            with pytest.raises((SordinoError, TypeError, ValueError)):
                session.step((X[rows][:, :2], Y[rows]))


@pytest.mark.parametrize("mechanism", ["blt", "banded", "tree", "toeplitz", "dense"])
def test_a_failed_step_tried_again_has_the_same_noise(mechanism: str) -> None:
    """S3: the noise state went on before the step did: BLT, 1.00 claimed, 2.44 true."""
    plan = planned(mechanism=mechanism)
    np.testing.assert_array_equal(disturbed(plan, wrong_shape), undisturbed(plan))


class Interrupted(BaseException):
    pass


def interrupted_at(count: int) -> Callable[..., Any]:
    """A tracer that raises at the `count`-th line of session.py."""
    left = count

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != session_module.__file__:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise Interrupted
        return trace

    return trace


@pytest.mark.parametrize(
    "options",
    [
        {"mechanism": "blt"},
        {"mechanism": "banded"},
        {"recipe": "dp-sgd", "sampling": "poisson", "batch_size": 20},
        {"recipe": "dp-mu2", "epochs": 1, "noise": "discrete"},
    ],
    ids=str,
)
def test_an_interrupt_at_any_line_of_a_step_changes_nothing(options: dict[str, Any]) -> None:
    """S3: thrown at every line of a step in turn, then tried again: the same run, bit for bit."""
    plan = planned(**options)
    session, thrown = sordino.Session(plan, Logistic(), START, insecure_seed=5), 0
    while session.done < session.steps:
        due, rows, line = session.done, session.next_rows(), 0
        while session.done == due:
            line += 1
            sys.settrace(interrupted_at(line) if due in (0, 1, 15, 16, 17) else None)
            try:
                session.step((X[rows], Y[rows]))
            except Interrupted:
                thrown += 1
            finally:
                sys.settrace(None)
    assert thrown > 50
    np.testing.assert_array_equal(session.result().params, undisturbed(plan))


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_session_has_no_copies(make: Callable[[Any], Any]) -> None:
    """c: a deep copy put the same noise around other sums."""
    session = sordino.Session(planned(), Logistic(), START)
    with pytest.raises(SordinoError, match="cannot be copied"):
        make(session)


def test_batches_of_any_size_have_one_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """f: widths were multiples of the planned size, which time told: 46 % of the steps had two."""
    widths = set()
    honest = session_module.compiled_step

    def spied(stepper: Any, state: Any, batch: Any, *others: Any) -> Any:
        widths.add(len(batch.present))
        return honest(stepper, state, batch, *others)

    monkeypatch.setattr(session_module, "compiled_step", spied)
    plan = planned(recipe="dp-sgd", sampling="poisson", batch_size=20, epochs=10)
    undisturbed(plan)
    assert widths == {poisson_width(N, plan.population.rate)}


def test_two_threads_take_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads in one session put one noise around two sums."""
    rows_of: list[np.ndarray] = []
    honest = session_module.compiled_step
    entered = threading.Barrier(2, timeout=0.5)

    def slow(stepper: Any, state: Any, batch: Any, row: Any, *others: Any) -> Any:
        rows_of.append(np.asarray(row))
        with contextlib.suppress(threading.BrokenBarrierError):
            entered.wait()
        return honest(stepper, state, batch, row, *others)

    monkeypatch.setattr(session_module, "compiled_step", slow)
    session = sordino.Session(planned(), Logistic(), START, insecure_seed=5)
    batches = [np.arange(4), np.arange(4, 8)]
    threads = [
        threading.Thread(target=session.step, args=((X[rows], Y[rows]),), kwargs={"rows": rows})
        for rows in batches
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.done == 2
    assert not np.array_equal(rows_of[0], rows_of[1])


def test_steps_taken_cannot_be_set_back() -> None:
    """A step taken again with other data had the same noise."""
    session = sordino.Session(planned(), Logistic(), START, insecure_seed=5)
    with pytest.raises(AttributeError):
        session.done = 0  # type: ignore[misc]


def test_rows_in_another_order_go_to_their_places() -> None:
    """A secret batch in an order of the caller's own is the same batch."""
    plan = planned(recipe="dp-sgd", sampling="poisson", batch_size=20, epochs=1)
    session = sordino.Session(plan, Logistic(), START, insecure_seed=5)
    for rows in session:
        mixed = RNG.permutation(rows)
        session.step((X[mixed], Y[mixed]), rows=mixed)
    np.testing.assert_array_equal(session.result().params, undisturbed(plan))
