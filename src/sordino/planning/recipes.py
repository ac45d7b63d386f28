"""The named algorithms: each a line in a table that names its parts.

A recipe is a contribution, a mechanism, a schedule and an update, with the defaults that make it useful
and an honest word on when to use it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import SequenceMatcher
from types import MappingProxyType
from typing import TypeGuard

import numpy as np

from sordino._base.errors import SordinoError, nearest, require_choice, require_positive, shown
from sordino._base.registry import Registry
from sordino.parts.contributions import (
    CONTRIBUTIONS,
    NO_CLIP,
    Anchored,
    ClipSequence,
    Contribution,
    Gradient,
    GradientPair,
    Lagged,
    Recursive,
    TwoClip,
    VaryingRecursive,
    WeightedGradient,
    WeightedRecursive,
)
from sordino.parts.sampling import CYCLIC, FIXED, RESHUFFLED, SAMPLINGS, SLOTS
from sordino.planning._options import OPTIONS as OPTIONS
from sordino.planning._options import Option, Options, listed
from sordino.privacy import POISSON, WITHOUT_REPLACEMENT

# Options that every recipe has, with the default they have unless the recipe says otherwise.
COMMON_OPTIONS: Mapping[str, object] = MappingProxyType(
    {
        "clip": 1.0,
        "sampling": FIXED,
        "order_seed": 0,
        "mechanism": "independent",
        "bands": None,
        "workload": "auto",
        "schedule": "uniform",
        "optimizer": "sgd",
        "learning_rate": None,
        "momentum": 0.0,
        "lr_schedule": "constant",
        "average": 0.0,
        "radius": None,
        "output": "last",
    }
)
TREES = ("tree", "tree-full")
CORRELATED = ("auto", "blt", "scaled-blt", "dense", "toeplitz", "banded", *TREES, "independent")
# Those that fit a map that no Toeplitz matrix describes.
GENERAL = ("auto", "leaky", "cancelling", "scaled-blt", "banded", "dense", "tree", "independent")
SECRET = (POISSON, WITHOUT_REPLACEMENT)
PUBLIC = (FIXED, RESHUFFLED)
# Fixed and cyclic batches, whichever leave less noise: for recipes that work with both.
AUTO = "auto"
FORMS = ("anchor-free", "anchored")
# A learning rate for gradients of norm at most 1, where nothing better is known.
LEARNING_RATE = 0.5
# What a contribution takes besides options.
_FROM_POPULATION = "steps_per_epoch"
# Parts whose own fields may be set, as in "schedule.ratio".
PARTS = ("schedule", "mechanism")
# Those that go with any gradient estimate. The others need one that is weighted for them, so they are
# only for recipes that name them.
ANY_OPTIMIZER = ("sgd", "adam", "normalized", "bias-corrected")


@dataclass(frozen=True)
class Recipe:
    """One algorithm: its parts, its defaults, and advice.

    Attributes:
      contribution: what one example adds in a step: a class of `Contribution`, or a function that makes
        one. Its arguments are options of the recipe, by name; `steps_per_epoch` may be among them.
      mechanisms, samplings: what it may be run with, by name; the first is the default.
      schedules, optimizers: the same; any, if none are named.
      options: the recipe's own defaults. Names that are not in `COMMON_OPTIONS` are options that it has
        besides.
      adaptive: whether the run decides how to spend its budget (then schedule and update are its own).
      full_batch: whether every step uses all examples.
      private: False for the algorithms that are here only to compare with.
      rate_over_steps: if given, the default learning rate is this over the number of steps.
    """

    name: str
    title: str
    contribution: Callable[..., Contribution]
    mechanisms: tuple[str, ...] = ("independent",)
    samplings: tuple[str, ...] = (FIXED,)
    schedules: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    adaptive: bool = False
    full_batch: bool = False
    private: bool = True
    rate_over_steps: float | None = None
    reference: str = ""
    use_when: str = ""
    avoid_when: str = ""

    def allowed(self) -> dict[str, tuple[str, ...]]:
        """Names of parts that it may be made of, by option; none where any will do."""
        own = str(self.options.get("optimizer", COMMON_OPTIONS["optimizer"]))
        return {
            "mechanism": self.mechanisms,
            "sampling": self.samplings,
            "schedule": self.schedules,
            "optimizer": self.optimizers or tuple(dict.fromkeys((own, *ANY_OPTIMIZER))),
        }

    def defaults(self) -> Options:
        """All options with their defaults: the recipe's, else those of its parts, else the common ones."""
        first = {
            "mechanism": self.mechanisms,
            "sampling": self.samplings,
            "schedule": self.schedules,
            "optimizer": self.optimizers,
        }
        chosen = {name: names[0] for name, names in first.items() if names}
        return {**COMMON_OPTIONS, **chosen, **self.options}

    def resolve(self, given: Mapping[str, object]) -> Options:
        """All options: what was given, else the default; refuses what the chosen parts do not use.

        A name such as "schedule.ratio" is a field of the chosen schedule or mechanism, and stays so.
        """
        offered = self.option_names()
        resolved: dict[str, object] = {}
        for name, value in given.items():
            value = tuple(value.tolist()) if isinstance(value, np.ndarray) and value.ndim else value
            part, _, field_name = name.partition(".")
            option = OPTIONS.get(field_name) if is_field(name) else None
            if option is not None and part in [other for other, _ in option.needs]:
                name = field_name  # "mechanism.bands" is the option "bands"
            if (part if is_field(name) else name) not in offered:
                raise self.unknown(name)
            if name in resolved:
                raise SordinoError(f"{name} is given twice, as {name!r} and as '{part}.{name}'")
            resolved[name] = value
        defaults = self.defaults()
        chosen = {**defaults, **resolved}
        for name, value in resolved.items():
            if name in defaults and value != defaults[name]:
                self.option(name).check_used(chosen)
        return chosen

    def useful(self, wanted: Mapping[str, object], given: Mapping[str, object]) -> Options:
        """Those of `wanted` that the recipe has, that `given` does not set, and that have an effect."""
        offered = self.option_names()
        chosen = {**self.defaults(), **wanted, **given}

        def is_useful(name: str) -> bool:
            part = name.partition(".")[0] if is_field(name) else name
            return part in offered and self.option(part).is_used(chosen)

        return {n: v for n, v in wanted.items() if n not in given and is_useful(n)}

    def has_use_for(self, name: str) -> bool:
        """Whether some choice of its parts makes use of this option."""
        option, allowed = self.option(name), self.allowed()
        if option.idle_with is not None:
            other, values = option.idle_with
            if set(allowed[other]) <= set(values):
                return False
        known = {other: allowed.get(other) or OPTIONS[other].choices for other, _ in option.needs}
        offered = self.option_names()
        return not option.needs or any(
            other in offered and self.has_use_for(other) and set(known[other]) & set(values)
            for other, values in option.needs
        )

    def unknown(self, name: str) -> SordinoError:
        """What to raise for an option that the recipe does not have; it names the nearest."""
        names = sorted(self.option_names())
        hint = nearest(name, names)
        if len(name) < 1000 and "did you mean" not in hint:
            closest = max(names, key=lambda known: SequenceMatcher(None, name, known).ratio())
            hint = f"; the nearest of {', '.join(names)} is {closest!r}"
        return SordinoError(f"{self.name} has no option {shown(name)}{hint}")

    def option_names(self) -> frozenset[str]:
        """The options that may be given."""
        return frozenset(
            name
            for name in (*COMMON_OPTIONS, *self.options)
            if not (self.adaptive and self.option(name).decided_by_run)
        )

    def option(self, name: str) -> Option:
        """What an option means."""
        if name in OPTIONS:
            return OPTIONS[name]
        default = self.defaults()[name]
        parts = fields(self.contribution) if is_dataclass(self.contribution) else ()
        about = {f.name: f.metadata.get("help", "") for f in parts}
        kind = type(default) if isinstance(default, bool | int | float | str) else float
        return Option(name, kind, about.get(name) or f"of {self.name}")

    def check_sampling(self, sampling: str) -> None:
        """Refuse batches that it does not work with; secret slots stand in for fixed batches."""
        if sampling in self.samplings:
            return
        if sampling != SLOTS or FIXED not in self.samplings or self.adaptive:
            raise SordinoError(
                f"{self.name} works with {listed(self.samplings)} batches, not {sampling!r}"
            )

    def contribution_for(self, options: Mapping[str, object], steps_per_epoch: int) -> Contribution:
        """What one example adds in each step, for these options."""
        known = {**options, _FROM_POPULATION: steps_per_epoch}
        return self.contribution(
            **{name: known[name] for name in self._arguments() if name in known}
        )

    def learning_rate(self, given: float | None, steps: int) -> float:
        """The learning rate: the given one, or the recipe's default."""
        if given is not None:
            return given
        over = self.rate_over_steps
        return LEARNING_RATE if over is None else over / steps

    def _arguments(self) -> Mapping[str, inspect.Parameter]:
        """What the contribution takes; what has a default there need not be an option."""
        return inspect.signature(self.contribution).parameters


def is_field(name: str) -> bool:
    """Whether it names a field of a part, as "schedule.ratio" does."""
    part, dot, _ = name.partition(".")
    return bool(dot) and part in PARTS


def _admit(name: str, recipe: object) -> Recipe:
    """`recipe`, if it can be planned; a new class of contributions is then known, too."""
    if not isinstance(recipe, Recipe):
        raise SordinoError(f"a recipe is a sordino.Recipe, got {shown(recipe)}")
    if recipe.name != name:
        raise SordinoError(f"a recipe goes by its name, {recipe.name!r}, not {name!r}")
    if not callable(recipe.contribution):
        raise SordinoError(
            f"the contribution of {name} must be a class of Contribution or a function that makes one"
        )
    known = {*recipe.defaults(), _FROM_POPULATION}
    for argument, parameter in recipe._arguments().items():
        if argument not in known and parameter.default is parameter.empty:
            raise SordinoError(
                f"{name} has no default for {argument!r}, which its contribution needs"
            )
    for sampling in recipe.samplings:
        require_choice(f"sampling of {name}", sampling, (AUTO, *SAMPLINGS))
    if recipe not in OURS:
        _check_names(recipe)
    part = recipe.contribution
    if (
        isinstance(part, type)
        and issubclass(part, Contribution)
        and not same_part(CONTRIBUTIONS.get(part.kind), part)
    ):
        if part.kind in CONTRIBUTIONS:
            raise SordinoError(f"there is another contribution of kind {part.kind!r} already")
        CONTRIBUTIONS.add(part.kind, part)
    return recipe


def _check_names(recipe: Recipe) -> None:
    """Refuse parts that nobody knows. (Mechanisms need jax, which the table of recipes does not.)"""
    from sordino.parts.mechanisms import MECHANISMS
    from sordino.parts.schedules import SCHEDULES

    for mechanism in recipe.mechanisms:
        MECHANISMS[mechanism]
    for schedule in recipe.schedules:
        SCHEDULES[schedule]


def same_part(one: Callable[..., object] | None, other: Callable[..., object]) -> bool:
    """Whether two classes or functions are one: a module that is run twice defines its own twice."""
    return one is not None and (one.__module__, one.__qualname__) == (
        other.__module__,
        other.__qualname__,
    )


def gradient(clip: float | Sequence[float]) -> Contribution:
    """A gradient, with one clip or one for each step."""
    if _is_sequence(clip):
        clips = tuple(require_positive("every clip", one) for one in clip)
        return ClipSequence(max(clips, default=0.0), clips)
    return Gradient(clip)  # type: ignore[arg-type]


def recursive(clip: float, decay: float | Sequence[float]) -> Contribution:
    """The change of a gradient, beside a share of it: one share, or one for each step."""
    if _is_sequence(decay):
        return VaryingRecursive(clip, tuple(decay))
    return _or_gradient(Recursive(clip, decay))  # type: ignore[arg-type]


def two_clips(clip: float, difference_clip: float, gamma: float) -> Contribution:
    """A gradient and its change, each with a clip of its own."""
    return _or_gradient(TwoClip(clip, difference_clip, gamma))


def lagged(
    clip: float,
    difference_clip: float,
    gamma: float,
    form: str,
    residual_clip: float,
    steps_per_epoch: int,
) -> Contribution:
    """The change of a gradient since the last epoch."""
    if require_choice("form", form, FORMS) == "anchor-free":
        return Lagged(clip, difference_clip, gamma, steps_per_epoch)
    return Anchored(clip, difference_clip, gamma, steps_per_epoch, residual_clip)


def _is_sequence(value: float | Sequence[float]) -> TypeGuard[Sequence[float]]:
    """Whether numbers were given for the steps (a text is no sequence of numbers)."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def _or_gradient(contribution: Contribution) -> Contribution:
    """The contribution; where it keeps nothing of the last estimate, the plain gradient it is then.

    The same numbers from half of the gradients, and the very program of the recipe that is its limit:
    two programs for one formula may differ in the last bit, on some processors.
    """
    return contribution if contribution.decay else Gradient(contribution.clip)


RECIPES: Registry[Recipe] = Registry("recipe", group="sordino.recipes", admit=_admit)
# The library's own, apart from what others add.
OURS = (
    Recipe(
        name="dp-gd",
        title="private gradient descent on all examples",
        contribution=gradient,
        full_batch=True,
        options={"learning_rate": 1.0},
        reference="Song, Chaudhuri & Sarwate 2013; Wang, Ye & Xu 2017; schedules: paper 04",
        use_when="the data fits a step and few, clean steps are enough",
        avoid_when="many steps are needed: each one reads all the data",
    ),
    Recipe(
        name="dp-gd-momentum",
        title="private gradient descent on all examples, with bias-corrected momentum",
        contribution=gradient,
        full_batch=True,
        options={"learning_rate": 1.0, "momentum": 0.9, "optimizer": "bias-corrected"},
        reference="On dynamic noise influence in differentially private learning (paper 04)",
        use_when="as dp-gd, where the noise of single steps should be averaged; it also makes "
        "the best noise schedule nearly flat",
        avoid_when="the steps are very few: an average over them lags behind",
    ),
    Recipe(
        name="dp-sgd",
        title="private stochastic gradient descent with independent noise",
        contribution=gradient,
        samplings=(*SECRET, *PUBLIC),
        options={"momentum": 0.9},
        reference="Abadi et al. 2016",
        use_when="batches can be drawn at random and kept secret, at small epsilon or for "
        "many epochs",
        avoid_when="batches are shuffled files or streams: then nothing is amplified and "
        "dp-memf adds several times less noise",
    ),
    Recipe(
        name="dp-psgd",
        title="private SGD with a noise schedule, accounted at its amplified cost",
        contribution=gradient,
        samplings=(POISSON,),
        options={"schedule": "optimal"},
        reference="On dynamic noise influence in differentially private learning (paper 04)",
        use_when="late steps matter more than early ones, and public facts or public data say "
        "by how much",
        avoid_when="the noise multiplier is below 1: there a schedule costs more than it gains",
    ),
    Recipe(
        name="dp-srm",
        title="stochastic recursive momentum: pay for what is new in each gradient",
        contribution=two_clips,
        mechanisms=("independent", "banded"),
        samplings=(*SECRET, *PUBLIC, CYCLIC),
        options={
            "difference_clip": 0.01,
            "gamma": 0.1,
            "first_batch": None,
            "optimizer": "adaptive",
            "step_length": 1.0,
        },
        reference="Wang, Jayaraman, Evans & Gu, DP-SRM (paper 01), corrected",
        use_when="gradients change little from step to step, so that the difference can be "
        "clipped far below the gradient (C2 well below gamma C1)",
        avoid_when="C2 is not far below gamma C1: the noise that recursion carries along then "
        "outweighs what the smaller clip saves, and dp-sgd wins",
    ),
    Recipe(
        name="dp-mu2",
        title="anytime average of recursive gradients, noise that the next step cancels",
        contribution=WeightedRecursive,
        mechanisms=GENERAL,
        optimizers=("anytime",),
        options={"mechanism": "leaky"},
        rate_over_steps=1.0,
        reference="Reshef & Levy 2025 (paper 02), leaky cancellation",
        use_when="convex problems in one pass, and as the centralized form of dp-mu2-fl",
        avoid_when="many epochs, or a tight clip is not known: the weights t make a clip that "
        "binds hurt for ever",
    ),
    Recipe(
        name="dp-srgd",
        title="accelerated stochastic recursive gradients",
        contribution=WeightedRecursive,
        mechanisms=(*GENERAL, "blt", "toeplitz"),
        optimizers=("nesterov",),
        options={"kappa": 0.5, "power": 1.0, "learning_rate": 0.1},
        reference="Choquette-Choo, Ganesh & Thakurta 2024, Algorithm 1 (paper 03), corrected",
        use_when="smooth convex problems in one pass with large batches",
        avoid_when="gradients are rough: the weights t amplify every change between steps, and "
        "the joint clip then cuts the signal",
    ),
    Recipe(
        name="dp-srg",
        title="stochastic recursive gradients without acceleration",
        contribution=WeightedRecursive,
        mechanisms=(*GENERAL, "blt", "toeplitz"),
        optimizers=("srg",),
        options={"power": 1.0, "learning_rate": 0.5},
        reference="Choquette-Choo, Ganesh & Thakurta 2024, section 4.3 (paper 03)",
        use_when="as dp-srgd, where acceleration is unstable, or to see what it gains",
        avoid_when="the problem is smooth and ill-conditioned: dp-srgd needs fewer steps",
    ),
    Recipe(
        name="dp-nesterov",
        title="accelerated gradients by linear coupling, each with noise of its own",
        contribution=WeightedGradient,
        samplings=(*PUBLIC, *SECRET),
        optimizers=("nesterov",),
        options={"power": 1.0, "kappa": 0.5, "learning_rate": 0.1},
        reference="Choquette-Choo, Ganesh & Thakurta 2024, Theorem 4.11 (paper 03)",
        use_when="few steps with large batches on a smooth convex problem, where one gradient per "
        "example must do",
        avoid_when="many steps at small epsilon: acceleration adds up the noise of all steps, with "
        "growing weights; dp-srgd correlates it",
    ),
    Recipe(
        name="dp-memf",
        title="multi-epoch matrix factorization: noise that later noise partly cancels",
        contribution=Gradient,
        mechanisms=CORRELATED,
        samplings=(*PUBLIC, CYCLIC, AUTO),
        options={"momentum": 0.9},
        reference="Denisov et al. 2022; Choquette-Choo et al. 2023, 2024 (paper 03)",
        use_when="batches come in a fixed order, in one or a few epochs, and nothing about "
        "their randomness can be trusted",
        avoid_when="very many epochs at small epsilon with true random batches: amplified "
        "dp-sgd can win",
    ),
    Recipe(
        name="dp-srg-memf",
        title="matrix factorization for recursive gradients",
        contribution=recursive,
        mechanisms=CORRELATED,
        samplings=(*PUBLIC, CYCLIC, AUTO),
        options={"momentum": 0.9, "decay": 0.0821},
        reference="Choquette-Choo, Ganesh & Thakurta 2024, Algorithm 3 (paper 03), corrected",
        use_when="as dp-memf, where a second gradient per example is affordable and steps are "
        "small enough that neighbouring gradients agree",
        avoid_when="gradients are the cost: at equal gradient evaluations it has half the steps",
    ),
    Recipe(
        name="dp-nsgd",
        title="normalized momentum: steps of one length along a noisy moving average",
        contribution=Gradient,
        mechanisms=CORRELATED,
        samplings=(*PUBLIC, CYCLIC, AUTO),
        options={"optimizer": "normalized", "momentum": 0.9, "learning_rate": 0.05},
        reference="Tran & Cutkosky 2022, Algorithm 1 (paper 00)",
        use_when="gradient norms vary widely and a step length is easier to choose than a "
        "learning rate; mechanism 'tree' is the paper's own",
        avoid_when="the estimate is mostly noise: then so is every step, at full length",
    ),
    Recipe(
        name="dp-nsgd-sr",
        title="normalized momentum that pays only for the change since the last epoch",
        contribution=lagged,
        mechanisms=tuple(name for name in CORRELATED if name != "tree-full"),
        samplings=(FIXED, CYCLIC),
        schedules=("uniform",),
        options={
            "optimizer": "normalized",
            "momentum": 0.9,
            "learning_rate": 0.05,
            "difference_clip": 0.1,
            "residual_clip": 0.1,
            "gamma": 0.1,
            "form": "anchor-free",
        },
        reference="Tran & Cutkosky 2022, Algorithm 2 (paper 00), as one lag recursion",
        use_when="many epochs in which an example's gradient changes by less than a third of "
        "its clip per epoch, and twice the gradients are affordable",
        avoid_when="few epochs or large changes: dp-nsgd with BLT noise is then better",
    ),
    Recipe(
        name="dp-ftrl",
        title="tree-aggregated gradients (a baseline: dp-memf adds half the noise)",
        contribution=Gradient,
        mechanisms=("tree", "tree-full"),
        samplings=PUBLIC,
        reference="Kairouz et al. 2021",
        use_when="a published DP-FTRL result is to be compared with, at its exact cost",
        avoid_when="always otherwise: every factorization of dp-memf but short bands is better",
    ),
    Recipe(
        name="rrpsgd",
        title="random rounds of single-example SGD, returning a random iterate (a baseline)",
        contribution=Gradient,
        samplings=SECRET,
        options={"output": "random", "learning_rate": 0.05},
        reference="Zhang, Zheng, Mou & Wang 2017",
        use_when="its published results are to be compared with (batch_size=1)",
        avoid_when="always otherwise: larger batches have a better ratio of signal to noise",
    ),
    Recipe(
        name="dp-agd",
        title="gradient descent with noisy line searches that spends its budget as needed "
        "(a baseline)",
        contribution=Gradient,
        adaptive=True,
        full_batch=True,
        options={
            "clip": 3.0,
            "splits": None,
            "line_search": 0.5,
            "growth": 0.1,
            "candidates": 21,
            "largest_step": 2.0,
            "objective_clip": 3.0,
            "shrink": 0.7,
        },
        reference="Lee & Kifer 2018, DP-AGD (papers 01, section 1.3), corrected",
        use_when="no learning rate is known: steps are chosen by the run, inside the budget, "
        "in 30 to 60 iterations",
        avoid_when="a fair learning rate is known (dp-gd spends on gradients what line searches "
        "cost here), or the clip binds: clipped gradients then point where the loss does "
        "not fall, and the budget is spent on better ones in vain",
    ),
    Recipe(
        name="sgd",
        title="stochastic gradient descent, NOT private: to compare with",
        contribution=Gradient,
        schedules=("uniform",),
        samplings=(*PUBLIC, *SECRET),
        options={"momentum": 0.9, "clip": NO_CLIP},
        private=False,
        reference="Robbins & Monro 1951",
        use_when="you want to know what privacy costs on public data",
        avoid_when="the data is private",
    ),
    Recipe(
        name="storm",
        title="stochastic recursive momentum with adaptive steps, NOT private",
        contribution=GradientPair,
        schedules=("uniform",),
        samplings=(*PUBLIC, *SECRET),
        optimizers=("storm",),
        options={"learning_rate": 0.1, "clip": NO_CLIP},
        private=False,
        reference="Cutkosky & Orabona 2019",
        use_when="dp-srm is to be compared with its limit without privacy",
        avoid_when="the data is private",
    ),
    Recipe(
        name="nesterov",
        title="accelerated stochastic gradients by linear coupling, NOT private",
        contribution=WeightedGradient,
        schedules=("uniform",),
        samplings=(*PUBLIC, *SECRET),
        optimizers=("nesterov",),
        options={"kappa": 0.5, "learning_rate": 0.1, "clip": NO_CLIP},
        private=False,
        reference="Allen-Zhu & Orecchia 2014; Bansal & Gupta 2019",
        use_when="dp-srgd is to be compared with its limit without privacy",
        avoid_when="the data is private",
    ),
    Recipe(
        name="mu2",
        title="anytime average of recursive gradients, NOT private",
        contribution=WeightedRecursive,
        schedules=("uniform",),
        samplings=(FIXED, *SECRET),
        optimizers=("anytime",),
        options={"clip": NO_CLIP},
        rate_over_steps=1.0,
        private=False,
        reference="Levy 2023; Reshef & Levy 2025 (paper 02)",
        use_when="dp-mu2 is to be compared with its limit without privacy",
        avoid_when="the data is private",
    ),
)
for _recipe in OURS:
    RECIPES.add(_recipe.name, _recipe)


def recipe_named(name: str) -> Recipe:
    """The recipe called `name`, or an error with the nearest name."""
    return RECIPES[name]


def register(recipe: Recipe) -> None:
    """Enter a recipe into the table; the same one again changes nothing.

    Args:
      recipe: its name must be free. A new class of contributions among its parts becomes known as
        well, for plans that are read from files.
    """
    if not isinstance(recipe, Recipe):
        raise SordinoError(f"register takes a sordino.Recipe, got a {type(recipe).__name__}")
    known = RECIPES.get(recipe.name)
    if (
        known is not None
        and same_part(known.contribution, recipe.contribution)
        and replace(known, contribution=recipe.contribution) == recipe
    ):
        return
    RECIPES.add(recipe.name, recipe)
