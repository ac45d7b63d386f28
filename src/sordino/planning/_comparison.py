"""Which recipe adds the least noise? Any set of them at one guarantee and one number of gradients.

What is ranked is the predicted noise in the iterates, relative to the way that a constant gradient of
norm `clip` would take them in the same run. That counts what the optimizer sees: noise that later
noise cancels, noise that a recursion carries along (its gain at low frequencies), amplification,
and that a recipe with two gradients per example has half the steps. Nothing about data enters, so a
comparison costs no privacy; it knows nothing of bias either: what a clip cuts off, and how far a
gradient moves between two steps, only training shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sordino._base.errors import SordinoError, require_positive
from sordino._base.files import cache_folder, write_atomically
from sordino._base.types import Json
from sordino._version import code_digest
from sordino.parts import Population
from sordino.parts.sampling import FIXED, checked_budget, warn_of_weak_budget
from sordino.planning import recipes
from sordino.planning._options import Options
from sordino.planning.recipes import recipe_named
from sordino.privacy import POISSON, WITHOUT_REPLACEMENT, plural

# One adjacency for all rows, so that they can be compared; fixed and Poisson batches both have it.
DEFAULT_ADJACENCY = "zero-out"
# The dense optimum takes seconds here and minutes at a few thousand steps.
MOST_DENSE_STEPS = 512
_FEW_STEPS = 30
# What is remembered between processes is about the library's own recipes: others may change.
_OURS = frozenset(recipe.name for recipe in recipes.OURS)

# Recipes that are worth trying in several variants, with what each is called.
_VARIANTS: Mapping[str, tuple[tuple[str, Mapping[str, str]], ...]] = {
    "dp-sgd": (
        ("Poisson batches", {"sampling": POISSON}),
        ("batches without replacement", {"sampling": WITHOUT_REPLACEMENT}),
        ("fixed batches", {"sampling": FIXED}),
    ),
    "dp-srm": (
        ("Poisson batches", {"sampling": POISSON}),
        ("batches without replacement", {"sampling": WITHOUT_REPLACEMENT}),
        ("fixed batches", {"sampling": FIXED}),
    ),
    "dp-memf": (
        ("BLT", {"mechanism": "blt"}),
        ("dense", {"mechanism": "dense"}),
        ("Toeplitz", {"mechanism": "toeplitz"}),
        ("banded", {"mechanism": "banded"}),
        ("tree", {"mechanism": "tree"}),
    ),
    "dp-srg-memf": (("BLT", {"mechanism": "blt"}), ("dense", {"mechanism": "dense"})),
    "dp-nsgd": (("BLT", {"mechanism": "blt"}), ("tree", {"mechanism": "tree"})),
    "dp-nsgd-sr": (
        ("BLT", {"mechanism": "blt"}),
        ("tree", {"mechanism": "tree"}),
        ("anchored, BLT", {"mechanism": "blt", "form": "anchored"}),
    ),
    "dp-mu2": (
        ("leaky cancellation", {"mechanism": "leaky"}),
        ("cancelling", {"mechanism": "cancelling"}),
    ),
}


@dataclass(frozen=True)
class PlanCandidate:
    """One way to run: a recipe with its noise and batches."""

    recipe: str
    label: str
    options: Mapping[str, str] = field(default_factory=dict)


def candidates(names: Iterable[str] | None = None) -> list[PlanCandidate]:
    """Every way to run the named private recipes (all of them by default)."""
    if names is None:
        chosen = [name for name, recipe in recipes.RECIPES.items() if recipe.private]
    else:
        chosen = [recipe_named(name).name for name in names]
    for name in chosen:
        if not recipe_named(name).private:
            raise SordinoError(f"{name} is not private: it has no noise to compare")
    return [
        PlanCandidate(name, f"{name}, {variant}" if variant else name, options)
        for name in chosen
        for variant, options in _VARIANTS.get(name, (("", {}),))
    ]


@dataclass(frozen=True)
class RankedPlan:
    """One ranked way to run; plain numbers, so that a comparison can be kept on disk."""

    label: str
    recipe: str
    options: Mapping[str, str]
    relative_error: float
    gain: float
    steps: int
    gradients: int
    gradient_evaluations: int
    noise_vectors: int
    secret_batches: bool


@dataclass(frozen=True)
class RecipeRanking:
    """Ways to run from the least noise to the most, and what was left out and why."""

    epsilon: float
    delta: float
    adjacency: str
    ranked: tuple[RankedPlan, ...]
    left_out: tuple[tuple[str, str], ...]

    @property
    def best(self) -> RankedPlan:
        return self.ranked[0]

    def to_json(self) -> Json:
        """Plain data."""
        data = asdict(self)
        data["left_out"] = dict(self.left_out)
        data["conclusion"] = conclusion(self)
        return data

    @classmethod
    def from_json(cls, data: Json) -> RecipeRanking:
        """What `to_json` gave."""
        return cls(
            data["epsilon"],
            data["delta"],
            data["adjacency"],
            tuple(RankedPlan(**row) for row in data["ranked"]),
            tuple(data["left_out"].items()),
        )


def compare_recipes(
    names: Iterable[str] | None = None,
    *,
    examples: int,
    batch_size: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    adjacency: str | None = None,
    unit: str = "example",
    keep: bool = True,
    watch: Callable[[str], None] | None = None,
    **options: Any,
) -> RecipeRanking:
    """Plan the named recipes (default: every private one) and rank them.

    Args:
      examples, batch_size, epochs, steps, epsilon, delta, adjacency, unit, options: as in
        `sordino.plan`; an option that a recipe does not have or use is left out for it.
      keep: look the comparison up in the user's cache folder, and store it there.
      watch: called with each label before it is planned.
    """
    adjacency = adjacency or DEFAULT_ADJACENCY
    if epsilon is None or delta is None:
        raise SordinoError("a comparison needs one budget for all: give epsilon and delta")
    epsilon, delta = checked_budget(epsilon, delta)
    for name in ("mechanism", "sampling", "noise", "noise_multiplier"):
        if name in options:
            raise SordinoError(f"a comparison tries every {name}; leave it out")
    # What is wrong for all is an error; what is wrong for one recipe leaves it out.
    Population(examples, examples if batch_size is None else batch_size, steps=1)
    if epochs is not None:
        require_positive("epochs", epochs, maximum=1e9)
    warn_of_weak_budget(epsilon, delta, examples)
    request = {
        "examples": examples,
        "batch_size": batch_size,
        "epochs": epochs,
        "steps": steps,
        "epsilon": epsilon,
        "delta": delta,
        "adjacency": adjacency,
        "unit": unit,
        **options,
    }
    tried = candidates(names)
    stored = _Stored.of(request, tried) if keep else None
    if stored is not None and (known := stored.read()) is not None:
        return known
    ranked: list[RankedPlan] = []
    left_out: list[tuple[str, str]] = []
    for candidate in tried:
        if watch is not None:
            watch(candidate.label)
        try:
            ranked.append(_row(candidate, request))
        except SordinoError as error:
            left_out.append((candidate.label, str(error)))
    if not ranked:
        raise SordinoError(left_out[-1][1])
    ranked.sort(key=lambda row: row.relative_error)
    result = RecipeRanking(epsilon, delta, adjacency, tuple(ranked), tuple(left_out))
    if stored is not None:
        stored.write(result)
    return result


def _row(candidate: PlanCandidate, request: Options) -> RankedPlan:
    from sordino.planning._decide import plan

    arguments = arguments_for(candidate.recipe, candidate.options, request)
    built = plan(candidate.recipe, **arguments)
    return RankedPlan(
        label=candidate.label,
        recipe=candidate.recipe,
        options=dict(candidate.options),
        relative_error=built.relative_error,
        gain=built.contribution.low_frequency_gain(),
        steps=built.population.steps,
        gradients=built.contribution.gradients,
        gradient_evaluations=built.gradient_evaluations,
        noise_vectors=built.mechanism.state_vectors() + 1,
        secret_batches=built.population.is_secret,
    )


def arguments_for(name: str, options: Mapping[str, str], request: Options) -> Options:
    """The arguments of `sordino.plan` for one candidate, at the request's gradient evaluations."""
    recipe = recipe_named(name)
    wanted = {**request, **options}
    own = recipe.useful({k: v for k, v in wanted.items() if k not in _PLAN_ARGUMENTS}, {})
    chosen = recipe.resolve(own)
    arguments = {k: v for k, v in wanted.items() if k in _PLAN_ARGUMENTS} | own
    gradients = recipe.contribution_for(chosen, steps_per_epoch=1).gradients
    passes = _passes(request) / gradients
    if recipe.full_batch:
        if passes < 1:
            raise SordinoError("one full step takes more gradients than the whole run")
        arguments.update(batch_size=None, epochs=None, steps=max(1, round(passes)))
        return arguments
    size = arguments["batch_size"] or request["examples"]
    per_epoch = -(-request["examples"] // size)
    count = max(1, round(passes * per_epoch))
    if chosen["mechanism"] == "dense" and count > MOST_DENSE_STEPS:
        raise SordinoError(
            f"finding the dense optimum takes long beyond {MOST_DENSE_STEPS} steps; BLT is "
            "within a few percent of it for one epoch, about 15 for several"
        )
    if _passes(request) != 1 or gradients > 1 or size != request["batch_size"]:
        arguments.update(epochs=None, steps=count)
    return arguments


_PLAN_ARGUMENTS = (
    "examples",
    "batch_size",
    "epochs",
    "steps",
    "epsilon",
    "delta",
    "adjacency",
    "unit",
)


def _passes(request: Options) -> float:
    """Passes over the data; 1 where the request is incomplete, which planning then reports."""
    if request["epochs"] is not None:
        return float(request["epochs"])
    if request["steps"] is None or not request["batch_size"]:
        return 1.0
    return float(request["steps"] / -(-request["examples"] // request["batch_size"]))


def conclusion(ranking: RecipeRanking) -> str:
    """What the ranking says, in words."""
    best, *others = ranking.ranked
    words = [f"The least noise: {best.label}."]
    more = [row for row in others if row.steps > best.steps]
    if more and best.steps <= min(_FEW_STEPS, more[0].steps // 4):
        words.append(
            f"It takes only {plural(best.steps, 'step')}, so it suits models "
            f"that need no more; next, with {more[0].steps:,}, is {_times(more[0], best)}."
        )
    if best.secret_batches:
        words.append(
            "It counts on batches that are drawn at random for every step and stay secret."
        )
        plain = [row for row in others if not row.secret_batches]
        if plain:
            words.append(f"If yours are shuffled files or a stream, take {_times(plain[0], best)}.")
    elif others:
        words.append("It needs no secret about the batches.")
        secret = [row for row in others if row.secret_batches]
        if secret:
            words.append(f"The best that does is {_times(secret[0], best)}.")
    return " ".join([*words, *_on_recursion(ranking)])


def _on_recursion(ranking: RecipeRanking) -> list[str]:
    """Why paying for differences only can lose: the gain at low frequencies, and half the steps."""
    recursive = next((row for row in ranking.ranked if row.gain > 1 + 1e-9), None)
    if recursive is None:
        return []
    plain = [
        row
        for row in ranking.ranked
        if row.gradients == 1
        and row.secret_batches == recursive.secret_batches
        and row.steps >= recursive.steps
    ]
    text = (
        f"{recursive.label} pays for what is new in a gradient, but its recursion carries noise "
        f"along: slow noise counts {recursive.gain:.3g} times as much as in a plain gradient, and "
        f"{recursive.gradients} gradients per example leave it {recursive.steps:,} steps"
    )
    if plain and plain[0].relative_error < recursive.relative_error:
        ratio = recursive.relative_error / plain[0].relative_error
        return [f"{text}; here {plain[0].label} beats it by {ratio:.2f}."]
    return [f"{text}; here that pays, if gradients change as little as its clip assumes."]


def _times(row: RankedPlan, best: RankedPlan) -> str:
    return f"{row.label} ({row.relative_error / best.relative_error:.2f} times the noise)"


@dataclass(frozen=True)
class _Stored:
    """Where a comparison lies on disk. Of numbers only; no guarantee is ever read from here."""

    path: Path

    @classmethod
    def of(cls, request: Options, tried: list[PlanCandidate]) -> _Stored | None:
        folder = cache_folder("comparisons")
        # The code of somebody's own recipe is not in the digest below.
        if folder is None or any(candidate.recipe not in _OURS for candidate in tried):
            return None
        asked = [request, [asdict(candidate) for candidate in tried], code_digest()]
        text = json.dumps(asked, sort_keys=True, default=repr)
        return cls(folder / f"{hashlib.sha256(text.encode()).hexdigest()[:40]}.json")

    def read(self) -> RecipeRanking | None:
        try:
            return RecipeRanking.from_json(json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, ranking: RecipeRanking) -> None:
        try:
            write_atomically(self.path, json.dumps(ranking.to_json()))
        except OSError:
            return  # a cache that cannot be written is only slower
