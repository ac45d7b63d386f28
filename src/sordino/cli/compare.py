"""Which recipe adds the least noise? All of them at one budget and one number of gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sordino.cli.console import err, out
from sordino.errors import SordinoError, require_positive
from sordino.planning import Plan
from sordino.planning import plan as make_plan
from sordino.population import FIXED, Population
from sordino.privacy.amplification import POISSON, WITHOUT_REPLACEMENT

# One adjacency for all rows, so that they can be compared; fixed and Poisson batches both have it.
DEFAULT_ADJACENCY = "zero-out"
# The dense optimum takes seconds here and minutes at a few thousand steps.
MOST_DENSE_STEPS = 512
_FEW_STEPS = 30


@dataclass(frozen=True)
class Candidate:
    """One way to run: a recipe with its noise and batches."""

    recipe: str
    label: str
    options: dict[str, Any]


CANDIDATES = (
    Candidate("dp-gd", "dp-gd", {}),
    Candidate("dp-sgd", "dp-sgd, Poisson batches", {"sampling": POISSON}),
    Candidate("dp-sgd", "dp-sgd, batches without replacement", {"sampling": WITHOUT_REPLACEMENT}),
    Candidate("dp-sgd", "dp-sgd, fixed batches", {"sampling": FIXED}),
    Candidate("dp-memf", "dp-memf, BLT", {"mechanism": "blt"}),
    Candidate("dp-memf", "dp-memf, dense", {"mechanism": "dense"}),
    Candidate("dp-memf", "dp-memf, Toeplitz", {"mechanism": "toeplitz"}),
    Candidate("dp-memf", "dp-memf, banded", {"mechanism": "banded"}),
    Candidate("dp-memf", "dp-memf, tree", {"mechanism": "tree"}),
)


@dataclass(frozen=True)
class Comparison:
    """Plans from the least noise to the most, and what was left out and why."""

    ranked: tuple[tuple[str, Plan], ...]
    left_out: tuple[tuple[str, str], ...]

    @property
    def best(self) -> Plan:
        return self.ranked[0][1]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "ranked": [
                {
                    "name": label,
                    "recipe": plan.recipe,
                    "relative_error": plan.relative_error,
                    "adjacency": plan.guarantee.adjacency,
                    "secret_batches": plan.population.is_secret,
                    "steps": plan.population.steps,
                    "gradient_evaluations": plan.population.gradient_evaluations,
                    "noise_vectors": plan.mechanism.state_vectors() + 1,
                }
                for label, plan in self.ranked
            ],
            "left_out": dict(self.left_out),
            "conclusion": conclusion(self),
        }


def comparison(request: dict[str, Any]) -> Comparison:
    """Plan every candidate for `request` (the arguments of `sordino.plan`) and rank them."""
    request = {**request, "adjacency": request["adjacency"] or DEFAULT_ADJACENCY}
    if request["noise"] is not None:
        raise SordinoError(
            "a comparison needs one budget for all: give epsilon and delta, not noise"
        )
    for name in ("mechanism", "sampling"):
        if name in request:
            raise SordinoError(f"--compare tries every {name}; leave --{name} out")
    # What is wrong for all is an error; what is wrong for one recipe leaves it out.
    size = request["batch_size"]
    Population(request["examples"], request["examples"] if size is None else size, steps=1)
    if request["epochs"] is not None:
        require_positive("epochs", request["epochs"], maximum=1e9)
    made: list[tuple[str, Plan]] = []
    left_out: list[tuple[str, str]] = []
    for candidate in CANDIDATES:
        with err().status(f"planning {candidate.label}"):
            try:
                arguments = _arguments(candidate, request)
                made.append((candidate.label, make_plan(candidate.recipe, **arguments)))
            except SordinoError as error:
                left_out.append((candidate.label, str(error)))
    if not made:
        raise SordinoError(left_out[-1][1])
    made.sort(key=lambda pair: pair[1].relative_error)
    return Comparison(tuple(made), tuple(left_out))


def _arguments(candidate: Candidate, request: dict[str, Any]) -> dict[str, Any]:
    """The request for this candidate, at the same number of gradient evaluations."""
    arguments = {**request, **candidate.options}
    if candidate.recipe == "dp-gd":
        passes = _epochs(request)
        if passes < 1:
            raise SordinoError("one full step takes more gradients than the whole run")
        arguments.update(batch_size=None, epochs=None, steps=max(1, round(passes)))
    elif candidate.label == "dp-memf, dense":
        size = request["batch_size"] or request["examples"]
        steps = request["steps"] or _epochs(request) * -(-request["examples"] // size)
        if steps > MOST_DENSE_STEPS:
            raise SordinoError(
                f"finding the dense optimum takes long beyond {MOST_DENSE_STEPS} steps; BLT is "
                "within a few percent of it for one epoch, about 15 for several"
            )
    return arguments


def _epochs(request: dict[str, Any]) -> float:
    """Passes over the data; 1 where the request is incomplete, which planning then reports."""
    if request["epochs"] is not None:
        return float(request["epochs"])
    if request["steps"] is None or not request["batch_size"]:
        return 1.0
    return float(request["steps"] * request["batch_size"] / request["examples"])


def show_comparison(found: Comparison) -> None:
    """The ranking as a table, what was left out, and the conclusion in words."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    console = out()
    best = found.best
    stated = best.guarantee
    delta = stated.delta_hint
    assert delta is not None
    console.print(
        f"All at epsilon {stated.epsilon(delta):.4g}, delta {delta:g}, {stated.adjacency} "
        f"adjacency and about {best.population.gradient_evaluations:,} gradient evaluations:"
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("recipe and noise", overflow="fold")
    table.add_column("noise", justify="right")
    table.add_column("steps", justify="right")
    table.add_column("memory", justify="right")
    table.add_column("needs secret\nrandom batches")
    for place, (label, plan) in enumerate(found.ranked):
        ratio = plan.relative_error / best.relative_error
        table.add_row(
            "best" if place == 0 else "",
            label,
            f"{ratio:.2f} x",
            f"{plan.population.steps:,}",
            f"{plan.mechanism.state_vectors() + 1:,}",
            "yes" if plan.population.is_secret else "no",
            style="bold green" if place == 0 else "",
        )
    console.print(table)
    console.print(
        "noise: in the accumulated estimate, relative to the way of a gradient of norm clip; "
        "memory: vectors of the model's size.",
        style="dim",
    )
    for label, reason in found.left_out:
        console.print(f"left out: {escape(label)}: {escape(reason)}", style="dim")
    console.print()
    console.print(escape(conclusion(found)), style="bold")


def conclusion(found: Comparison) -> str:
    """What the table says, in words."""
    (label, best), *others = found.ranked
    words = [f"The least noise: {label}."]
    more = [pair for pair in others if pair[1].population.steps > best.population.steps]
    if more and best.population.steps <= min(_FEW_STEPS, more[0][1].population.steps // 4):
        count = best.population.steps
        words.append(
            f"It takes only {count} step{'s' if count > 1 else ''}, so it suits models that need "
            f"no more; next, with {more[0][1].population.steps:,}, is {_times(more[0], best)}."
        )
    if best.population.is_secret:
        words.append(
            "It counts on batches that are drawn at random for every step and stay secret."
        )
        plain = [pair for pair in others if not pair[1].population.is_secret]
        if plain:
            words.append(f"If yours are shuffled files or a stream, take {_times(plain[0], best)}.")
    elif others:
        words.append("It needs no secret about the batches.")
        secret = [pair for pair in others if pair[1].population.is_secret]
        if secret:
            words.append(f"The best that does is {_times(secret[0], best)}.")
    return " ".join(words)


def _times(pair: tuple[str, Plan], best: Plan) -> str:
    label, plan = pair
    return f"{label} ({plan.relative_error / best.relative_error:.2f} times the noise)"
