"""The doors whose sums meet their noise elsewhere: parties, federated clients, audits."""

from __future__ import annotations

import numpy as np

from sordino.audit._recording import Recording
from sordino.parts._losses import Logistic
from sordino.together.federated._agreeing import agree as agree_on_rounds
from sordino.together.federated._contribution import LocalData
from sordino.together.parties._learner import Learner
from sordino.together.parties._terms import agree
from tests.soundness import doors
from tests.soundness.doors import Case, planned, records


def test_parties() -> None:
    """A party's vector, which goes into the secure sum: whole numbers, so the bound is exact."""
    worst = 0.0
    for i, name in enumerate(doors.CONTAINERS):
        recipe = ("dp-srm", "dp-gd", "dp-mu2")[i % 3]
        sized = {"steps": 3} if recipe == "dp-gd" else {"batch_size": 80, "steps": 3}
        terms = agree(
            recipe, examples=[doors.N, 50], parameters=doors.D, engine="plain", epsilon=2.0,
            delta=1e-5, **sized,
        )  # fmt: skip
        case = Case("", name, "", "logistic")
        data, other = records(case, i)
        start = np.full(doors.D, 0.5, np.float32)
        learners = [
            Learner(terms, 0, Logistic(), start, rows, key=doors.key()) for rows in (data, other)
        ]
        bounds = terms.plan.contribution.bounds(3)[0] / terms.plan.lattice.step
        for step in range(3):
            # Where later noise cancels earlier noise, vectors also hold what came before.
            plain = [learner._sum() for learner in learners]
            worst = max(worst, float(np.linalg.norm(plain[0] - plain[1])) / bounds[step])
            noised = learners[0].vector().clipped
            for learner in learners:
                learner.take(noised)
    assert 0.9 < worst <= 1


def test_federated_clients() -> None:
    """A client's message before its noise, examples and whole clients as units."""
    worst = {"example": 0.0, "client": 0.0}
    for i, name in enumerate(doors.CONTAINERS):
        for unit in worst:
            agreement = agree_on_rounds(
                clients=3, parameters=doors.D, rounds=4, mu=2.0, batch=doors.N, unit=unit
            )
            case = Case("", name, "", "logistic")
            data, other = records(case, i)
            start = np.full(doors.D, 0.5, np.float32)
            rng = np.random.default_rng(i)
            both = [LocalData(agreement, Logistic(), start, rows) for rows in (data, other)]
            for t in range(1, 4):
                points = rng.normal(size=(2, doors.D)).astype(np.float32)
                a, b = (client.total(*points, t, 0).clipped for client in both)
                if unit == "client":  # all of a client's records are one contribution
                    b = np.zeros_like(a)
                apart = float(np.linalg.norm(a - b)) * agreement.step / agreement.clip
                worst[unit] = max(worst[unit], apart)
    assert 0.9 < worst["example"] <= 1
    assert 0.9 < worst["client"] <= 1


def test_audited_runs() -> None:
    """Audits record the real loop: with an integer table, the silenced sums keep the bound."""
    plan = planned("dp-memf, blt")
    X, y = records(Case("", "numpy int64", "", "logistic"), 0)[0]
    recording = Recording(plan, Logistic(), np.full(doors.D, 0.5, np.float32), (X, y)).silenced()
    row = int(np.argmax(np.abs(X.astype(np.float64)).sum(axis=1)))
    one, other = (next(r.releases(0, 1)).sums[0] for r in (recording, recording.without(row)))
    assert np.linalg.norm(one[0] - other[0]) <= plan.clip * (1 + 1e-6)
