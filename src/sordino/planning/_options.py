"""What each option of a recipe means: said once, for plans, errors, the command line and estimators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from sordino._base.errors import SordinoError, require_choice
from sordino._base.registry import Registry
from sordino.privacy import NoiseKind

# What a text can stand for.
OptionValue: TypeAlias = str | float | bool | tuple["OptionValue", ...] | None
# A value for every option of a recipe, by name; a schedule may be a `NoiseSchedule`.
Options: TypeAlias = dict[str, Any]

GAUSSIAN, DISCRETE = NoiseKind.GAUSSIAN.value, NoiseKind.DISCRETE.value
NOISE_KINDS = (GAUSSIAN, DISCRETE)
CLIPPING, BATCHES, NOISE, UPDATE, SEARCH = (
    "Clipping",
    "Batches",
    "Noise",
    "Update",
    "Adaptive budget",
)

# What a theorem may have to know of a loss.
FACTS: Mapping[str, str] = MappingProxyType(
    {
        "lipschitz": "largest norm of an example's gradient",
        "smoothness": "largest curvature of an example's loss",
        "curvature": "least curvature of the loss, or its PL constant",
        "gap": "first loss less the least one",
        "diameter": "of the ball that the iterates stay in",
        "dimension": "number of parameters",
    }
)


@dataclass(frozen=True)
class Option:
    """One option of recipes.

    Attributes:
      name, type: what it is called, and what kind of value it has: int, float or str.
      help: one phrase, for people.
      choices: values it may have, where they are few. Packages may add mechanisms and schedules.
      low, high: limits of numbers, where there are any.
      panel: what it is about.
      needs: other options with values that make use of this one; it has no effect without any of them.
      idle_with: another option, and values of it that make no use of this one.
      decided_by_run: whether recipes that spend their budget as they go have no such option.
    """

    name: str
    type: type
    help: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    panel: str = UPDATE
    needs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    idle_with: tuple[str, tuple[str, ...]] | None = None
    decided_by_run: bool = False

    @property
    def flag(self) -> str:
        """How it is spelled on the command line."""
        return f"--{self.name.replace('_', '-')}"

    def described(self) -> str:
        """What it means, and the values it may have."""
        return self.help + (f": {listed(self.choices)}" if self.choices else "")

    def is_used(self, chosen: Mapping[str, object]) -> bool:
        """Whether it has an effect beside the other chosen options."""
        if self.idle_with is not None and chosen.get(self.idle_with[0]) in self.idle_with[1]:
            return False
        return not self.needs or any(chosen.get(other) in values for other, values in self.needs)

    def check_used(self, chosen: Mapping[str, object]) -> None:
        """Refuse a value that the other chosen options leave without effect."""
        if self.is_used(chosen):
            return
        other = self.needs[0][0] if self.needs else self.idle_with[0] if self.idle_with else ""
        goes = f": it goes with {listed(map(repr, self.needs[0][1]))}" if self.needs else ""
        raise SordinoError(f"{self.name} has no effect with {other} {chosen[other]!r}{goes}")

    def parse(self, text: str) -> OptionValue:
        """The value that was typed."""
        return parse_as(self.name, self.type, text, optional=True)


def parse_as(name: str, kind: object, text: str, *, optional: bool = False) -> OptionValue:
    """`text` as a value of a type: a number, true or false, numbers with commas, or text.

    Args:
      name: what it is called, for messages.
      kind: int, float, bool, str, ``tuple[float, ...]``; None of those: a number where it is one.
      optional: whether "none" stands for None, whatever the type.
    """
    text = text.strip()
    if text.lower() == "none" and optional:
        return None
    if kind is str:
        return text
    if kind is bool:
        return require_choice(name, text.lower(), ("true", "false")) == "true"
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise SordinoError(f"{name} must be {wanted}, got {text!r}") from None
    if kind == tuple[float, ...]:
        return tuple(parse_as(f"each of {name}", float, part) for part in text.split(","))
    for guess in (int, float):
        try:
            return guess(text)
        except ValueError:
            continue
    return text


def listed(names: Iterable[str]) -> str:
    """Names as in a sentence: "a, b or c"."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else str(last)


def checked_kind(noise: object) -> str:
    """`noise`, if it is the name of a kind."""
    if not isinstance(noise, str) or noise.strip().replace(".", "", 1).isdigit():
        raise SordinoError(
            f"noise names the kind of noise, {' or '.join(NOISE_KINDS)}; its amount in units of the "
            f"clip is noise_multiplier, so write noise_multiplier={noise!r}"
        )
    return str(require_choice("noise", noise, NOISE_KINDS))


OPTIONS: Registry[Option] = Registry("option")
for _option in (
    Option("clip", float, "largest norm of what one example adds", low=0, panel=CLIPPING),
    Option(
        "difference_clip", float, "largest norm of a gradient's change (C2)", low=0, panel=CLIPPING
    ),
    Option(
        "residual_clip",
        float,
        "largest norm of a gradient's change since the epoch began (anchored form)",
        low=0,
        panel=CLIPPING,
        needs=(("form", ("anchored",)),),
    ),
    Option(
        "gamma",
        float,
        "share of the plain gradient in a recursive estimate",
        low=0,
        high=1,
        panel=CLIPPING,
    ),
    Option(
        "decay",
        float,
        "share of the last estimate that a recursive one keeps (c)",
        low=0,
        high=1,
        panel=CLIPPING,
    ),
    Option(
        "power",
        float,
        "k of the weights t^k that gradients have (1 is proved)",
        low=0,
        high=4,
        panel=CLIPPING,
    ),
    Option(
        "form",
        str,
        "two gradients and a ring of iterates, or three gradients and two anchors",
        choices=("anchor-free", "anchored"),
        panel=CLIPPING,
    ),
    Option(
        "sampling",
        str,
        "how batches are chosen",
        choices=(
            "fixed",
            "reshuffled",
            "poisson",
            "cyclic-poisson",
            "without-replacement",
            "slots",
            "auto",
        ),
        panel=BATCHES,
    ),
    Option(
        "order_seed",
        int,
        "public order of fixed or reshuffled batches, or of cyclic groups; none for an order of your own",
        low=0,
        panel=BATCHES,
        needs=(("sampling", ("fixed", "reshuffled", "cyclic-poisson", "auto")),),
    ),
    Option("first_batch", int, "size of the first batch, where it differs", low=1, panel=BATCHES),
    Option(
        "mechanism",
        str,
        "how the noise of the steps is correlated",
        choices=(
            "auto",
            "independent",
            "blt",
            "scaled-blt",
            "banded",
            "toeplitz",
            "dense",
            "tree",
            "tree-full",
            "cancelling",
            "leaky",
        ),
        panel=NOISE,
    ),
    Option(
        "bands",
        int,
        "bands of a banded mechanism, and groups of cyclic batches; by default the best number",
        low=1,
        panel=NOISE,
        needs=(("mechanism", ("banded",)), ("sampling", ("cyclic-poisson", "auto"))),
    ),
    Option(
        "workload",
        str,
        "what correlated noise is shaped for",
        choices=("auto", "prefix", "momentum", "ones"),
        panel=NOISE,
        idle_with=("mechanism", ("independent",)),
        decided_by_run=True,
    ),
    Option(
        "schedule",
        str,
        "how the budget is spread over the steps",
        choices=(
            "uniform",
            "exponential",
            "optimal",
            "influence",
            "gd-pl",
            "quadratic",
            "momentum-bound",
            "momentum-quadratic",
            "exp-influence",
            "mom-exp-influence",
            "participation",
            "given",
        ),
        panel=NOISE,
        decided_by_run=True,
    ),
    Option(
        "optimizer",
        str,
        "how the model moves along the estimate",
        choices=(
            *("sgd", "adam", "normalized", "bias-corrected", "adaptive"),
            *("nesterov", "srg", "anytime", "storm"),
        ),
        decided_by_run=True,
    ),
    Option(
        "learning_rate", float, "step size, by default the recipe's", low=0, decided_by_run=True
    ),
    Option(
        "momentum",
        float,
        "share of the last step that is kept",
        low=0,
        high=1,
        needs=(
            ("optimizer", ("sgd", "normalized", "bias-corrected")),
            ("workload", ("momentum",)),
            # Lagged gradients are averaged with it, whatever moves along the average.
            ("form", ("anchor-free", "anchored")),
        ),
        decided_by_run=True,
    ),
    Option(
        "lr_schedule",
        str,
        "how the step size changes over the run",
        choices=("constant", "linear", "cosine"),
        decided_by_run=True,
    ),
    Option(
        "average",
        float,
        "share of the last iterates whose average is returned",
        low=0,
        high=1,
        decided_by_run=True,
    ),
    Option("radius", float, "iterates stay in the ball of this radius", low=0, decided_by_run=True),
    Option(
        "output", str, "which iterate is returned", choices=("last", "random"), decided_by_run=True
    ),
    Option(
        "step_length",
        float,
        "how far one adaptive step may go (zeta / L)",
        low=0,
        needs=(("optimizer", ("adaptive",)),),
    ),
    Option(
        "kappa",
        float,
        "step of the second sequence (1/2 is proved, 1 is as printed)",
        low=0,
        high=1,
        needs=(("optimizer", ("nesterov",)),),
    ),
    Option(
        "splits",
        int,
        "parts of an adaptive budget, by default one for each step",
        low=1,
        panel=SEARCH,
    ),
    Option(
        "line_search",
        float,
        "share of an adaptive budget that pays for choosing step sizes",
        low=0,
        high=1,
        panel=SEARCH,
    ),
    Option(
        "growth",
        float,
        "how much budget a gradient gets more when no step along it helps",
        low=0,
        panel=SEARCH,
    ),
    Option(
        "candidates",
        int,
        "step sizes that a line search chooses from, 0 among them",
        low=2,
        panel=SEARCH,
    ),
    Option("largest_step", float, "longest step that a line search tries", low=0, panel=SEARCH),
    Option(
        "objective_clip",
        float,
        "largest loss of one example that counts in a line search (C_obj)",
        low=0,
        panel=SEARCH,
    ),
    Option(
        "shrink",
        float,
        "factor on the longest step to try when no step helps (1 in the paper)",
        low=0,
        high=1,
        panel=SEARCH,
    ),
):
    OPTIONS.add(_option.name, _option)
