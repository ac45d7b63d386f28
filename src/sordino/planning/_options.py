"""What each option of a recipe means: said once, for plans, errors, the command line and estimators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sordino._base.errors import SordinoError
from sordino._base.registry import Registry

CLIPPING, BATCHES, NOISE, UPDATE, SEARCH = (
    "Clipping",
    "Batches",
    "Noise",
    "Update",
    "Adaptive budget",
)


@dataclass(frozen=True)
class Option:
    """One option of recipes.

    Attributes:
      name, type: what it is called, and what kind of value it has: int, float or str.
      help: one phrase, for people.
      choices: values it may have, where they are few and known.
      low, high: limits of numbers, where there are any.
      panel: what it is about.
      needs: another option, and the values of it without which this one has no effect.
      decided_by_run: whether recipes that spend their budget as they go have no such option.
    """

    name: str
    type: type
    help: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    panel: str = UPDATE
    needs: tuple[str, tuple[str, ...]] | None = None
    decided_by_run: bool = False

    def is_used(self, chosen: Mapping[str, Any]) -> bool:
        """Whether it has an effect beside the other chosen options."""
        return self.needs is None or chosen[self.needs[0]] in self.needs[1]

    def check_used(self, chosen: Mapping[str, Any]) -> None:
        """Refuse a value that the other chosen options leave without effect."""
        if self.needs is not None and not self.is_used(chosen):
            other, values = self.needs
            raise SordinoError(
                f"{self.name} has no effect with {other} {chosen[other]!r}: it goes with "
                f"{' or '.join(map(repr, values))}"
            )

    def parse(self, text: str) -> Any:
        """The value that was typed: a number where it is one, none for "none"."""
        if text.lower() == "none":
            return None
        if self.type is str:
            return text
        try:
            return self.type(text)
        except ValueError:
            kind = "a whole number" if self.type is int else "a number"
            raise SordinoError(f"{self.name} must be {kind}, got {text!r}") from None


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
        needs=("form", ("anchored",)),
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
        "form",
        str,
        "anchor-free (two gradients, a ring of iterates) or anchored (three, two anchors)",
        choices=("anchor-free", "anchored"),
        panel=CLIPPING,
    ),
    Option("sampling", str, "how batches are chosen", panel=BATCHES),
    Option("order_seed", int, "which public order reshuffled batches have", low=0, panel=BATCHES),
    Option("first_batch", int, "size of the first batch, where it differs", low=1, panel=BATCHES),
    Option("mechanism", str, "how the noise of the steps is correlated", panel=NOISE),
    Option(
        "bands",
        int,
        "bands of a banded mechanism, by default the best number",
        low=1,
        panel=NOISE,
        needs=("mechanism", ("banded",)),
    ),
    Option(
        "workload",
        str,
        "what correlated noise is shaped for",
        choices=("auto", "prefix", "momentum"),
        panel=NOISE,
        decided_by_run=True,
    ),
    Option(
        "schedule",
        str,
        "how the budget is spread over the steps",
        panel=NOISE,
        decided_by_run=True,
    ),
    Option("optimizer", str, "how the model moves along the estimate", decided_by_run=True),
    Option(
        "learning_rate",
        float,
        "step size, by default the recipe's",
        low=0,
        decided_by_run=True,
    ),
    Option(
        "momentum", float, "share of the last step that is kept", low=0, high=1, decided_by_run=True
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
        "output",
        str,
        "return the last iterate or a random one",
        choices=("last", "random"),
        decided_by_run=True,
    ),
    Option(
        "step_length",
        float,
        "how far one adaptive step may go (zeta / L)",
        low=0,
        needs=("optimizer", ("adaptive",)),
    ),
    Option(
        "kappa",
        float,
        "step of the second sequence: 1/2 is proved, 1 is as printed",
        low=0,
        high=1,
        needs=("optimizer", ("nesterov",)),
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
        "factor on the longest step to try when no step helps; 1 is the paper's",
        low=0,
        high=1,
        panel=SEARCH,
    ),
):
    OPTIONS.add(_option.name, _option)
