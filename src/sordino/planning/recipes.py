"""The named algorithms: each a line in a table that names its four parts.

A recipe is a stream, a mechanism, a schedule and an update, with the defaults that make it useful
and an honest word on when to use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sordino._base.errors import SordinoError, nearest, require_choice, shown
from sordino.parts import FIXED, POISSON, RESHUFFLED, WITHOUT_REPLACEMENT
from sordino.parts.contributions import (
    NO_CLIP,
    Anchored,
    Contribution,
    Gradient,
    GradientPair,
    Lagged,
    Recursive,
    TwoClip,
    WeightedGradient,
    WeightedRecursive,
)

# Options that every recipe has, with the default they have unless the recipe says otherwise.
COMMON_OPTIONS: Mapping[str, Any] = MappingProxyType(
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
# Options that only some recipes have, and what each is.
SPECIAL_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "difference_clip": "largest norm of a gradient's change (C2)",
        "residual_clip": "largest norm of a gradient's change since the epoch began (anchored form)",
        "gamma": "share of the plain gradient in a recursive estimate",
        "decay": "share of the last estimate that a recursive one keeps (c)",
        "form": "anchor-free (two gradients, a ring of iterates) or anchored (three, two anchors)",
        "first_batch": "size of the first batch, where it differs",
        "step_length": "how far one adaptive step may go (zeta / L)",
        "kappa": "step of the second sequence: 1/2 is proved, 1 is as printed",
        "splits": "parts of an adaptive budget, by default one for each step",
        "line_search": "share of an adaptive budget that pays for choosing step sizes",
        "growth": "how much budget a gradient gets more when no step along it helps",
        "candidates": "step sizes that a line search chooses from, 0 among them",
        "largest_step": "longest step that a line search tries",
        "objective_clip": "largest loss of one example that counts in a line search (C_obj)",
        "shrink": "factor on the longest step to try when no step helps; 1 is the paper's",
    }
)
FORMS = ("anchor-free", "anchored")
# A learning rate for gradients of norm at most 1, where nothing better is known.
LEARNING_RATE = 0.5


@dataclass(frozen=True)
class Recipe:
    """One algorithm: its four parts, its defaults, and advice.

    Attributes:
      stream: the kind of contribution, a key of `STREAMS`.
      mechanisms, samplings: what it may be run with, by name.
      defaults: practical ones, over `COMMON_OPTIONS`; names of `SPECIAL_OPTIONS` among them are the
        options that the recipe has besides.
      rate_over_steps: if given, the default learning rate is this over the number of steps.
      private: False for the algorithms that are here only to compare with.
      without: common options that it has no use for.
    """

    name: str
    title: str
    stream: str
    mechanisms: tuple[str, ...]
    schedule: str
    update: str
    samplings: tuple[str, ...]
    full_batch: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    rate_over_steps: float | None = None
    private: bool = True
    without: tuple[str, ...] = ()
    reference: str = ""
    use_when: str = ""
    avoid_when: str = ""

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options: what was given, else the recipe's default, else the common one."""
        offered = self.option_names()
        for name in given:
            if name not in offered:
                raise SordinoError(f"{self.name} has no option {name!r}{nearest(name, offered)}")
        return {**COMMON_OPTIONS, **self.defaults, **given}

    def option_names(self) -> frozenset[str]:
        """The options that may be given."""
        return frozenset({*COMMON_OPTIONS, *self.defaults} - set(self.without))

    def contribution(self, options: Mapping[str, Any], steps_per_epoch: int) -> Contribution:
        """What one example adds in each step, for these options."""
        return STREAMS[self.stream](options, steps_per_epoch)

    def learning_rate(self, given: float | None, steps: int) -> float:
        """The learning rate: the given one, or the recipe's default."""
        if given is not None:
            return given
        over = self.rate_over_steps
        return LEARNING_RATE if over is None else over / steps


def _lagged(options: Mapping[str, Any], steps_per_epoch: int) -> Contribution:
    common = {
        "clip": options["clip"],
        "difference_clip": options["difference_clip"],
        "gamma": options["gamma"],
        "lag": steps_per_epoch,
    }
    if require_choice("form", options["form"], FORMS) == "anchor-free":
        return Lagged(**common)
    return Anchored(**common, residual_clip=options["residual_clip"])


def _or_gradient(stream: Contribution) -> Contribution:
    """The stream; where it keeps nothing of the last estimate, the plain gradient that it is then.

    The same numbers from half of the gradients, and the very program of the recipe that is its limit:
    two programs for one formula may differ in the last bit, on some processors.
    """
    return stream if stream.decay else Gradient(stream.clip)


# Streams by name: from a recipe's options and the steps of an epoch to a contribution.
STREAMS: Mapping[str, Callable[[Mapping[str, Any], int], Contribution]] = MappingProxyType(
    {
        "gradient": lambda o, _: Gradient(o["clip"]),
        "recursive difference": lambda o, _: _or_gradient(Recursive(o["clip"], o["decay"])),
        "weighted recursive difference": lambda o, _: WeightedRecursive(o["clip"]),
        "recursive difference, two clips": lambda o, _: _or_gradient(
            TwoClip(o["clip"], o["difference_clip"], o["gamma"])
        ),
        "difference to the last epoch": _lagged,
        "weighted gradient": lambda o, _: WeightedGradient(o["clip"]),
        "pair of gradients": lambda o, _: GradientPair(o["clip"]),
    }
)

CORRELATED = ("auto", "blt", "dense", "toeplitz", "banded", "tree", "tree-full", "independent")
# Those that fit a map that no Toeplitz matrix describes.
GENERAL = ("auto", "leaky", "cancelling", "dense", "tree", "independent")
SECRET = (POISSON, WITHOUT_REPLACEMENT)
PUBLIC = (FIXED, RESHUFFLED)

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe(
                name="dp-gd",
                title="private gradient descent on all examples",
                stream="gradient",
                mechanisms=("independent",),
                schedule="any",
                update="gradient descent, or any optax optimizer",
                samplings=(FIXED,),
                full_batch=True,
                defaults={"learning_rate": 1.0},
                reference="Song, Chaudhuri & Sarwate 2013; Wang, Ye & Xu 2017; schedules: paper 04",
                use_when="the data fits a step and few, clean steps are enough",
                avoid_when="many steps are needed: each one reads all the data",
            ),
            Recipe(
                name="dp-gd-momentum",
                title="private gradient descent on all examples, with bias-corrected momentum",
                stream="gradient",
                mechanisms=("independent",),
                schedule="any",
                update="bias-corrected momentum",
                samplings=(FIXED,),
                full_batch=True,
                defaults={
                    "learning_rate": 1.0,
                    "momentum": 0.9,
                    "optimizer": "bias-corrected",
                },
                reference="On dynamic noise influence in differentially private learning (paper 04)",
                use_when="as dp-gd, where the noise of single steps should be averaged; it also makes "
                "the best noise schedule nearly flat",
                avoid_when="the steps are very few: an average over them lags behind",
            ),
            Recipe(
                name="dp-sgd",
                title="private stochastic gradient descent with independent noise",
                stream="gradient",
                mechanisms=("independent",),
                schedule="uniform",
                update="SGD with momentum, or any optax optimizer",
                samplings=(*SECRET, *PUBLIC),
                defaults={"sampling": POISSON, "momentum": 0.9},
                reference="Abadi et al. 2016",
                use_when="batches can be drawn at random and kept secret, at small epsilon or for "
                "many epochs",
                avoid_when="batches are shuffled files or streams: then nothing is amplified and "
                "dp-memf adds several times less noise",
            ),
            Recipe(
                name="dp-psgd",
                title="private SGD with a noise schedule, accounted at its amplified cost",
                stream="gradient",
                mechanisms=("independent",),
                schedule="any",
                update="SGD, or any optax optimizer",
                samplings=(POISSON,),
                defaults={"sampling": POISSON, "schedule": "exponential"},
                reference="On dynamic noise influence in differentially private learning (paper 04)",
                use_when="late steps matter more than early ones, and public facts or public data say "
                "by how much",
                avoid_when="the noise multiplier is below 1: there a schedule costs more than it gains",
            ),
            Recipe(
                name="dp-srm",
                title="stochastic recursive momentum: pay for what is new in each gradient",
                stream="recursive difference, two clips",
                mechanisms=("independent",),
                schedule="uniform",
                update="recursive momentum with an adaptive step",
                samplings=(*SECRET, *PUBLIC),
                defaults={
                    "sampling": POISSON,
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
                stream="weighted recursive difference",
                mechanisms=GENERAL,
                schedule="uniform, or by participation",
                update="anytime average (mu^2)",
                samplings=(FIXED,),
                defaults={"mechanism": "leaky", "optimizer": "anytime"},
                rate_over_steps=1.0,
                reference="Reshef & Levy 2025 (paper 02), leaky cancellation",
                use_when="convex problems in one pass, and as the centralized form of dp-mu2-fl",
                avoid_when="many epochs, or a tight clip is not known: the weights t make a clip that "
                "binds hurt for ever",
            ),
            Recipe(
                name="dp-srgd",
                title="accelerated stochastic recursive gradients",
                stream="weighted recursive difference",
                mechanisms=(*GENERAL, "blt", "toeplitz"),
                schedule="uniform",
                update="Nesterov coupling with projection",
                samplings=(FIXED,),
                defaults={
                    "mechanism": "auto",
                    "optimizer": "nesterov",
                    "kappa": 0.5,
                    "learning_rate": 0.1,
                },
                reference="Choquette-Choo, Ganesh & Thakurta 2024, Algorithm 1 (paper 03), corrected",
                use_when="smooth convex problems in one pass with large batches",
                avoid_when="gradients are rough: the weights t amplify every change between steps, and "
                "the joint clip then cuts the signal",
            ),
            Recipe(
                name="dp-memf",
                title="multi-epoch matrix factorization: noise that later noise partly cancels",
                stream="gradient",
                mechanisms=CORRELATED,
                schedule="uniform",
                update="SGD with momentum, or any optax optimizer",
                samplings=PUBLIC,
                defaults={"mechanism": "auto", "momentum": 0.9},
                reference="Denisov et al. 2022; Choquette-Choo et al. 2023, 2024 (paper 03)",
                use_when="batches come in a fixed order, in one or a few epochs, and nothing about "
                "their randomness can be trusted",
                avoid_when="very many epochs at small epsilon with true random batches: amplified "
                "dp-sgd can win",
            ),
            Recipe(
                name="dp-srg-memf",
                title="matrix factorization for recursive gradients",
                stream="recursive difference",
                mechanisms=CORRELATED,
                schedule="uniform",
                update="SGD with momentum, or any optax optimizer",
                samplings=PUBLIC,
                defaults={"mechanism": "auto", "momentum": 0.9, "decay": 0.0821},
                reference="Choquette-Choo, Ganesh & Thakurta 2024, Algorithm 3 (paper 03), corrected",
                use_when="as dp-memf, where a second gradient per example is affordable and steps are "
                "small enough that neighbouring gradients agree",
                avoid_when="gradients are the cost: at equal gradient evaluations it has half the steps",
            ),
            Recipe(
                name="dp-nsgd",
                title="normalized momentum: steps of one length along a noisy moving average",
                stream="gradient",
                mechanisms=CORRELATED,
                schedule="uniform",
                update="normalized momentum",
                samplings=PUBLIC,
                defaults={
                    "mechanism": "auto",
                    "optimizer": "normalized",
                    "momentum": 0.9,
                    "learning_rate": 0.05,
                },
                reference="Tran & Cutkosky 2022, Algorithm 1 (paper 00)",
                use_when="gradient norms vary widely and a step length is easier to choose than a "
                "learning rate; mechanism 'tree' is the paper's own",
                avoid_when="the estimate is mostly noise: then so is every step, at full length",
            ),
            Recipe(
                name="dp-nsgd-sr",
                title="normalized momentum that pays only for the change since the last epoch",
                stream="difference to the last epoch",
                mechanisms=("auto", "tree", "blt", "toeplitz", "dense"),
                schedule="split between the streams",
                update="normalized momentum",
                samplings=(FIXED,),
                defaults={
                    "mechanism": "auto",
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
                stream="gradient",
                mechanisms=("tree", "tree-full"),
                schedule="uniform",
                update="SGD, or any optax optimizer",
                samplings=PUBLIC,
                defaults={"mechanism": "tree"},
                reference="Kairouz et al. 2021",
                use_when="a published DP-FTRL result is to be compared with, at its exact cost",
                avoid_when="always otherwise: every factorization of dp-memf but short bands is "
                "better",
            ),
            Recipe(
                name="rrpsgd",
                title="random rounds of single-example SGD, returning a random iterate (a baseline)",
                stream="gradient",
                mechanisms=("independent",),
                schedule="uniform",
                update="SGD",
                samplings=SECRET,
                defaults={"sampling": POISSON, "output": "random", "learning_rate": 0.05},
                reference="Zhang, Zheng, Mou & Wang 2017",
                use_when="its published results are to be compared with (batch_size=1)",
                avoid_when="always otherwise: larger batches have a better ratio of signal to noise",
            ),
            Recipe(
                name="dp-agd",
                title="gradient descent with noisy line searches that spends its budget as needed "
                "(a baseline)",
                stream="gradient",
                mechanisms=("independent",),
                schedule="adaptive",
                update="normalised step by noisy line search",
                samplings=(FIXED,),
                full_batch=True,
                defaults={
                    "clip": 3.0,
                    "schedule": "adaptive",
                    "splits": None,
                    "line_search": 0.5,
                    "growth": 0.1,
                    "candidates": 21,
                    "largest_step": 2.0,
                    "objective_clip": 3.0,
                    "shrink": 0.7,
                },
                without=(
                    "schedule",
                    "workload",
                    "optimizer",
                    "learning_rate",
                    "momentum",
                    "lr_schedule",
                    "average",
                    "radius",
                    "output",
                ),
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
                stream="gradient",
                mechanisms=("independent",),
                schedule="none",
                update="SGD with momentum, or any optax optimizer",
                samplings=(*PUBLIC, *SECRET),
                defaults={"momentum": 0.9, "clip": NO_CLIP},
                private=False,
                reference="Robbins & Monro 1951",
                use_when="you want to know what privacy costs on public data",
                avoid_when="the data is private",
            ),
            Recipe(
                name="storm",
                title="stochastic recursive momentum with adaptive steps, NOT private",
                stream="pair of gradients",
                mechanisms=("independent",),
                schedule="none",
                update="STORM",
                samplings=(*PUBLIC, *SECRET),
                defaults={"optimizer": "storm", "learning_rate": 0.1, "clip": NO_CLIP},
                private=False,
                reference="Cutkosky & Orabona 2019",
                use_when="dp-srm is to be compared with its limit without privacy",
                avoid_when="the data is private",
            ),
            Recipe(
                name="nesterov",
                title="accelerated stochastic gradients by linear coupling, NOT private",
                stream="weighted gradient",
                mechanisms=("independent",),
                schedule="none",
                update="Nesterov coupling with projection",
                samplings=(*PUBLIC, *SECRET),
                defaults={
                    "optimizer": "nesterov",
                    "kappa": 0.5,
                    "learning_rate": 0.1,
                    "clip": NO_CLIP,
                },
                private=False,
                reference="Allen-Zhu & Orecchia 2014; Bansal & Gupta 2019",
                use_when="dp-srgd is to be compared with its limit without privacy",
                avoid_when="the data is private",
            ),
            Recipe(
                name="mu2",
                title="anytime average of recursive gradients, NOT private",
                stream="weighted recursive difference",
                mechanisms=("independent",),
                schedule="none",
                update="anytime average (mu^2)",
                samplings=(FIXED, *SECRET),
                defaults={"optimizer": "anytime", "clip": NO_CLIP},
                rate_over_steps=1.0,
                private=False,
                reference="Levy 2023; Reshef & Levy 2025 (paper 02)",
                use_when="dp-mu2 is to be compared with its limit without privacy",
                avoid_when="the data is private",
            ),
        )
    }
)


def recipe_named(name: str) -> Recipe:
    """The recipe called `name`, or an error with the nearest name."""
    if name not in RECIPES:
        raise SordinoError(f"there is no recipe {shown(name)}{nearest(str(name), RECIPES)}")
    return RECIPES[name]
