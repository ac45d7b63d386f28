"""Which recipe leaves the least loss? Any set of them at one guarantee and one number of gradients.

Rows are ranked by their predicted excess loss (`Plan.predicted_loss`), each at its own best learning
rate, recipes on all examples also at their best number of steps. That counts what the optimizer sees of
the noise, amplification, how far the steps get, and that a recipe with two gradients per example has
half of them. What cannot be predicted comes last. Nothing about data enters, so a comparison costs no
privacy; it knows nothing of bias either: what a clip cuts off, and how far a gradient moves between two
steps, only training shows.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sordino._base.errors import SordinoError, require_positive
from sordino._base.files import cache_folder, write_atomically
from sordino._base.threads import one_blas_thread
from sordino._base.types import Json
from sordino._version import code_digest
from sordino.parts import Population
from sordino.parts.sampling import CYCLIC, FIXED, checked_budget, warn_of_weak_budget
from sordino.planning import recipes
from sordino.planning._options import Options
from sordino.planning._prediction import Spectrum, best_rate, spectrum_of
from sordino.planning.recipes import recipe_named
from sordino.privacy import POISSON, WITHOUT_REPLACEMENT, plural

# One adjacency for all rows, so that they can be compared; fixed and Poisson batches both have it.
DEFAULT_ADJACENCY = "zero-out"
# The dense optimum takes seconds here and minutes at a few thousand steps.
MOST_DENSE_STEPS = 512
# Shares of the gradient budget that recipes on all examples may use: fewer steps are less noisy.
_SHARES = (1.0, 0.5, 0.25)
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
        ("cyclic Poisson batches", {"sampling": CYCLIC}),
    ),
    "dp-memf": (
        ("cyclic Poisson batches", {"sampling": CYCLIC}),
        ("BLT", {"mechanism": "blt"}),
        ("scaled BLT", {"mechanism": "scaled-blt"}),
        ("dense", {"mechanism": "dense"}),
        ("Toeplitz", {"mechanism": "toeplitz"}),
        ("banded", {"mechanism": "banded"}),
        ("tree", {"mechanism": "tree"}),
    ),
    "dp-srg-memf": (
        ("cyclic Poisson batches", {"sampling": CYCLIC}),
        ("BLT", {"mechanism": "blt"}),
        ("dense", {"mechanism": "dense"}),
    ),
    "dp-nsgd": (
        ("cyclic Poisson batches", {"sampling": CYCLIC}),
        ("BLT", {"mechanism": "blt"}),
        ("tree", {"mechanism": "tree"}),
    ),
    "dp-nsgd-sr": (
        ("cyclic Poisson batches", {"sampling": CYCLIC}),
        ("BLT", {"mechanism": "blt"}),
        ("tree", {"mechanism": "tree"}),
        ("anchored, BLT", {"mechanism": "blt", "form": "anchored"}),
    ),
    "dp-mu2": (
        ("scaled BLT", {"mechanism": "scaled-blt"}),
        ("leaky cancellation", {"mechanism": "leaky"}),
        ("cancelling", {"mechanism": "cancelling"}),
    ),
}


@dataclass(frozen=True)
class PlanCandidate:
    """One way to run: a recipe with its noise and batches."""

    recipe: str
    label: str
    options: Mapping[str, str | int] = field(default_factory=dict)


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
    """One ranked way to run; plain numbers, so that a comparison can be kept on disk.

    Attributes:
      predicted_loss: at `learning_rate`, the best one unless one was asked for; None if `unpredicted`
        says why there is none.
    """

    label: str
    recipe: str
    options: Mapping[str, str | int]
    predicted_loss: float | None
    learning_rate: float | None
    unpredicted: str
    relative_error: float
    gain: float
    steps: int
    gradients: int
    gradient_evaluations: int
    noise_vectors: int
    secret_batches: bool


@dataclass(frozen=True)
class RecipeRanking:
    """Ways to run from the least predicted loss to the most, and what was left out and why."""

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
    spectrum: Spectrum | None = None,
    keep: bool = True,
    watch: Callable[[str], None] | None = None,
    **options: Any,
) -> RecipeRanking:
    """Plan the named recipes (default: every private one) and rank them.

    Args:
      examples, batch_size, epochs, steps, epsilon, delta, adjacency, unit, options: as in
        `sordino.plan`; an option that a recipe does not have or use is left out for it.
      spectrum: what losses are predicted for; by default what is usual for tables.
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
    stored = _Stored.of(request, spectrum, tried) if keep else None
    if stored is not None and (known := stored.read()) is not None:
        return known
    ranked: list[RankedPlan] = []
    left_out: list[tuple[str, str]] = []
    for candidate in tried:
        if watch is not None:
            watch(candidate.label)
        try:
            with one_blas_thread():
                ranked.append(_row(candidate, request, spectrum))
        except SordinoError as error:
            left_out.append((candidate.label, str(error)))
    if not ranked:
        raise SordinoError(left_out[-1][1])
    ranked.sort(key=_place)
    result = RecipeRanking(epsilon, delta, adjacency, tuple(ranked), tuple(left_out))
    if stored is not None:
        stored.write(result)
    return result


def _place(row: RankedPlan) -> tuple[bool, float]:
    """Where a row stands: what cannot be predicted comes last, by its noise."""
    if row.predicted_loss is None:
        return True, row.relative_error
    return False, row.predicted_loss


def _row(candidate: PlanCandidate, request: Options, spectrum: Spectrum | None) -> RankedPlan:
    """The candidate at its best number of steps, if it is free to choose one."""
    counts = [0]
    if recipe_named(candidate.recipe).full_batch and request["epochs"] is not None:
        counts = sorted({max(1, round(_passes(request) * share)) for share in _SHARES})
    options = [
        {**candidate.options, "steps": count} if count else candidate.options for count in counts
    ]
    return min(
        (_planned(candidate, own, request, spectrum) for own in reversed(options)), key=_place
    )


def _planned(
    candidate: PlanCandidate,
    options: Mapping[str, str | int],
    request: Options,
    spectrum: Spectrum | None,
) -> RankedPlan:
    from sordino.planning._decide import plan

    built = plan(candidate.recipe, **arguments_for(candidate.recipe, options, request))
    reason, rate, loss = built.why_unpredicted(), built.update.learning_rate, None
    if not reason and request.get("learning_rate") is None:
        rate, loss = best_rate(built.training, spectrum_of(built.training, spectrum))
    elif not reason:
        loss = built.predicted_loss(spectrum)
    if loss is not None and not math.isfinite(loss):
        reason, loss = f"it diverges at learning rate {rate:g}", None
    return RankedPlan(
        label=candidate.label,
        recipe=candidate.recipe,
        options=dict(options),
        predicted_loss=loss,
        learning_rate=None if loss is None else rate,
        unpredicted=reason,
        relative_error=built.relative_error,
        gain=built.contribution.low_frequency_gain(),
        steps=built.population.steps,
        gradients=built.contribution.gradients,
        gradient_evaluations=built.gradient_evaluations,
        noise_vectors=built.training.noise_vectors,
        secret_batches=built.population.is_secret,
    )


def arguments_for(name: str, options: Mapping[str, str | int], request: Options) -> Options:
    """The arguments of `sordino.plan` for one candidate, at the request's gradient evaluations.

    `options` of a recipe on all examples may have fewer `steps`.
    """
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
        count = options.get("steps", max(1, round(passes)))
        arguments.update(batch_size=None, epochs=None, steps=count)
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
    if best.predicted_loss is None:
        words = [f"No loss can be predicted here; the least noise: {best.label}."]
    else:
        words = [
            f"The least predicted loss: {best.label}, with {plural(best.steps, 'step')} at learning "
            f"rate {best.learning_rate:.3g}."
        ]
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
    if plain and _place(plain[0]) < _place(recursive):
        return [f"{text}; here {plain[0].label} beats it{_by(recursive, plain[0])}."]
    return [f"{text}; here that pays, if gradients change as little as its clip assumes."]


def _times(row: RankedPlan, best: RankedPlan) -> str:
    if row.predicted_loss is None or best.predicted_loss is None:
        return f"{row.label} ({row.relative_error / best.relative_error:.2f} times the noise)"
    return f"{row.label} ({row.predicted_loss / best.predicted_loss:.2f} times the predicted loss)"


def _by(row: RankedPlan, best: RankedPlan) -> str:
    if row.predicted_loss is None or best.predicted_loss is None:
        return ""
    return f" by {row.predicted_loss / best.predicted_loss:.2f}"


@dataclass(frozen=True)
class _Stored:
    """Where a comparison lies on disk. Of numbers only; no guarantee is ever read from here."""

    path: Path

    @classmethod
    def of(
        cls, request: Options, spectrum: Spectrum | None, tried: list[PlanCandidate]
    ) -> _Stored | None:
        folder = cache_folder("comparisons")
        # The code of somebody's own recipe is not in the digest below.
        if folder is None or any(candidate.recipe not in _OURS for candidate in tried):
            return None
        asked = [request, repr(spectrum), [asdict(candidate) for candidate in tried], code_digest()]
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
