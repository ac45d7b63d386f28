"""Every recipe once more, as a plain loop in double precision, from the papers' formulas.

Nothing here is shared with `streams`, `updates` or `engine`: a plan's numbers and names go in, iterates
come out. Steps are counted from 0, x_t is the point at which step t evaluates gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sordino.planning._plans import Plan

Vector = np.ndarray
# Gradients of all examples at one point, (examples, d).
Gradients = Callable[[Vector], np.ndarray]
# Contributions of recipes that are not the library's, by kind: references as `check_recipe` takes them.
OWN: dict[str, Callable[[list[np.ndarray], dict[str, Any], int], np.ndarray]] = {}
Penalty = Callable[[Vector], Vector]


def clip(rows: np.ndarray, norm: float) -> np.ndarray:
    """Each row scaled to at most this norm."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, norm / np.maximum(lengths, 1e-300))


def contributions(plan: Plan, g: Gradients, x: Sequence[Vector]) -> list[np.ndarray]:
    """What each example adds to each channel of step t = len(x) - 1, given the points so far."""
    numbers: dict[str, Any] = plan.contribution.to_json()
    kind, C1 = numbers["kind"], numbers["clip"]
    t = len(x) - 1
    now = g(x[t])
    before = g(x[t - 1]) if t > 0 else np.zeros_like(now)
    if kind == "gradient":
        return [clip(now, C1)]
    if kind == "weighted-gradient":
        return [(t + 1) ** numbers.get("power", 1.0) * clip(now, C1)]
    if kind == "clip-sequence":
        return [clip(now, numbers["clips"][t])]
    if kind == "varying-recursive":
        return [clip(now - numbers["decays"][t] * before, C1)]
    if kind == "recursive":
        return [clip(now - numbers["recursion"] * before, C1)]
    if kind == "weighted-recursive":
        k = numbers.get("power", 1.0)
        return [clip((t + 1.0) ** k * now - float(t) ** k * before, C1)]
    if kind == "two-clip":
        if t == 0:
            return [clip(now, C1)]
        gamma, C2 = numbers["gamma"], numbers["difference_clip"]
        return [(1 - gamma) * clip(now - before, C2) + gamma * clip(now, C1)]
    if kind == "pair":
        before = g(x[max(t - 1, 0)])
        return [clip(now, C1), clip(before, C1)]
    if kind in OWN:
        return [OWN[kind]([g(point) for point in x], numbers, t)]
    B, gamma, C2 = numbers["lag"], numbers["gamma"], numbers["difference_clip"]

    def lagged(a: np.ndarray, a_before: np.ndarray) -> np.ndarray:
        return (1 - gamma) * clip(a - a_before, C2) + gamma * a

    if kind == "lagged":
        a = clip(now, C1)
        return [a if t < B else lagged(a, clip(g(x[t - B]), C1))]
    if kind == "anchored":
        epoch = t // B
        anchor = clip(g(x[epoch * B]), C1)
        change = anchor if epoch == 0 else lagged(anchor, clip(g(x[(epoch - 1) * B]), C1))
        return [change, clip(clip(now, C1) - anchor, numbers["residual_clip"])]
    raise NotImplementedError(f"write down what a {kind!r} contribution is")


class Estimate:
    """Turns the (mean) sums of a step into the vector that the optimizer gets."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sums: list[Vector] = []
        self.whole: list[Vector] = []
        self.residual: Vector | None = None
        self.momentum: Vector | None = None

    def __call__(self, sums: list[Vector]) -> Any:
        numbers: dict[str, Any] = self.plan.contribution.to_json()
        kind, t = numbers["kind"], len(self.whole)
        if kind == "pair":
            return sums
        if kind in ("lagged", "anchored"):
            return self._lagged(sums, numbers)
        keep = {"recursive": numbers.get("recursion", 0.0), "weighted-recursive": 1.0}.get(
            kind, 0.0
        )
        if kind == "two-clip":
            keep = 1 - numbers["gamma"]
        if kind == "varying-recursive":
            keep = numbers["decays"][t]
        value = sums[0] + (keep * self.whole[t - 1] if t > 0 else 0.0)
        self.whole.append(value)
        return value

    def _lagged(self, sums: list[Vector], numbers: dict[str, Any]) -> Vector:
        """The momentum of ``a_t = (1-gamma) a_{t-B} + y_t``, which is what the ring recursion is."""
        t, B, beta = len(self.whole), numbers["lag"], self.plan.update.momentum
        a = sums[0] + ((1 - numbers["gamma"]) * self.whole[t - B] if t >= B else 0.0)
        self.whole.append(a)
        rest = sums[1] if len(sums) > 1 else np.zeros_like(a)
        self.momentum = a + (beta * self.momentum if self.momentum is not None else 0.0)
        self.residual = rest + (beta * self.residual if self.residual is not None else 0.0)
        return (1 - beta) * (self.momentum + self.residual)


@dataclass
class Trajectory:
    """The points at which gradients were evaluated (and the one after the last), and the result."""

    points: list[Vector]
    output: Vector


def project(x: Vector, radius: float | None) -> Vector:
    return x if radius is None else x * min(1.0, radius / max(np.linalg.norm(x), 1e-300))


def run(
    plan: Plan,
    g: Gradients,
    start: Vector,
    batches: Sequence[np.ndarray],
    *,
    chosen: int = 0,
    penalty: Penalty | None = None,
) -> Trajectory:
    """The plan's algorithm without noise; `batches` are the rows of each step."""
    settings = asdict(plan.update)
    T, estimate, move = len(batches), Estimate(plan), mover(plan, start, penalty)
    sizes = [plan.population.batch_size] * T
    if plan.population.first_batch is not None:
        sizes[0] = plan.population.first_batch
    x, outputs = [np.array(start, np.float64)], []
    for t, rows in enumerate(batches):
        sums = [channel[rows].sum(axis=0) / sizes[t] for channel in contributions(plan, g, x)]
        x.append(move(x[t], estimate(sums), t, learning_rate(settings, t, T)))
        outputs.append(getattr(move, "output", x[-1]))
    output = outputs[-1]
    if settings["average"]:
        begin = min(int(np.floor((1 - settings["average"]) * T)), T - 1)
        output = np.mean(outputs[begin:], axis=0)
    if settings["output"] == "random":
        output = x[chosen]
    return Trajectory(x, output)


def learning_rate(settings: dict[str, Any], t: int, T: int) -> float:
    share = {
        "constant": 1.0,
        "linear": (T - t) / T,
        "cosine": (1 + np.cos(np.pi * t / T)) / 2,
    }[settings["lr_schedule"]]
    return settings["learning_rate"] * share


def mover(plan: Plan, start: Vector, penalty: Penalty | None) -> Any:
    """``move(x_t, estimate, t, rate) -> x_{t+1}`` of the plan's optimizer."""
    name = plan.update.optimizer
    cls: Any = {
        "nesterov": Nesterov,
        "srg": RunningMean,
        "anytime": Anytime,
        "storm": Storm,
    }.get(name, Direction)
    return cls(plan, np.array(start, np.float64), penalty or np.zeros_like)


class Direction:
    """``x - rate * direction(v + grad r(x))``, projected."""

    def __init__(self, plan: Plan, start: Vector, penalty: Penalty) -> None:
        self.settings, self.penalty = plan.update, penalty
        # A lagged estimate is a momentum already.
        averaged = plan.contribution.kind in ("lagged", "anchored")
        self.beta = 0.0 if averaged else plan.update.momentum
        self.m, self.s = np.zeros_like(start), np.zeros_like(start)

    def __call__(self, x: Vector, v: Vector, t: int, rate: float) -> Vector:
        v = v + self.penalty(x)
        name, beta = self.settings.optimizer, self.beta
        if name == "sgd":
            self.m = beta * self.m + v
            step = rate * self.m
        elif name == "normalized":
            self.m = beta * self.m + (1 - beta) * v
            step = rate * self.m / np.linalg.norm(self.m)
        elif name == "bias-corrected":
            self.m = beta * self.m + (1 - beta) * v
            step = rate * self.m / (1 - beta ** (t + 1))
        elif name == "adaptive":
            assert self.settings.step_length is not None
            step = min(rate, self.settings.step_length / np.linalg.norm(v)) * v
        elif name == "adam":
            self.m, self.s = 0.9 * self.m + 0.1 * v, 0.999 * self.s + 0.001 * v**2
            mean, square = self.m / (1 - 0.9 ** (t + 1)), self.s / (1 - 0.999 ** (t + 1))
            step = rate * mean / (np.sqrt(square) + 1e-8)
        else:
            raise NotImplementedError(f"write down how {name!r} moves")
        return project(x - step, self.settings.radius)


class Nesterov:
    """papers/03 1.5, S the estimate of (t+1) grad f(x_t)."""

    def __init__(self, plan: Plan, start: Vector, penalty: Penalty) -> None:
        self.kappa, self.radius, self.penalty = plan.update.kappa, plan.update.radius, penalty
        self.power = plan.contribution.to_json().get("power", 1.0)
        self.z = self.output = start

    def __call__(self, x: Vector, S: Vector, t: int, rate: float) -> Vector:
        eta = (t + 1.0) ** self.power
        S = S + eta * self.penalty(x)
        self.z = project(self.z - self.kappa * rate * S, self.radius)
        self.output = project(x - rate * S / eta, self.radius)
        # tau_{t+1} = eta_{t+1} / sum_{s <= t+1} eta_s
        tau = (t + 2.0) ** self.power / sum((s + 1.0) ** self.power for s in range(t + 2))
        return (1 - tau) * self.output + tau * self.z


class RunningMean:
    """Section 4.3 of paper 03: ``x - lr S / eta_t``, S the estimate of ``eta_t grad f(x_t)``."""

    def __init__(self, plan: Plan, start: Vector, penalty: Penalty) -> None:
        self.radius, self.penalty = plan.update.radius, penalty
        self.power = plan.contribution.to_json().get("power", 1.0)

    def __call__(self, x: Vector, S: Vector, t: int, rate: float) -> Vector:
        eta = (t + 1.0) ** self.power
        return project(x - rate * (S / eta + self.penalty(x)), self.radius)


class Anytime:
    """papers/02 1.1: x is the average of the w's with weights 1, 2, 3, ..."""

    def __init__(self, plan: Plan, start: Vector, penalty: Penalty) -> None:
        self.radius, self.penalty = plan.update.radius, penalty
        self.w, self.total, self.weight = start, 1.0 * start, 1.0

    def __call__(self, x: Vector, q: Vector, t: int, rate: float) -> Vector:
        self.w = project(self.w - rate * (q + (t + 1) * self.penalty(x)), self.radius)
        self.total, self.weight = self.total + (t + 2) * self.w, self.weight + t + 2
        return self.total / self.weight


class Storm:
    """Cutkosky & Orabona 2019 with c = 100, w = 0.1: the estimate is the pair of gradients."""

    def __init__(self, plan: Plan, start: Vector, penalty: Penalty) -> None:
        self.penalty = penalty
        self.d, self.squares, self.a = np.zeros_like(start), 0.0, 1.0

    def __call__(self, x: Vector, pair: list[Vector], t: int, rate: float) -> Vector:
        now, before = pair
        self.d = now + (1 - self.a) * (self.d - before)
        self.squares += float(now @ now)
        eta = rate / (0.1 + self.squares) ** (1 / 3)
        self.a = min(1.0, 100.0 * eta**2)
        return x - eta * (self.d + self.penalty(x))
