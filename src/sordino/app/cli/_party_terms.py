"""For ``sordino party``: from options to terms, and terms as people read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino._base.errors import SordinoError, shown
from sordino.app.cli._console import out, show_plan

if TYPE_CHECKING:
    from sordino.together.parties import Consortium, Terms
    from sordino.together.sites import ModelSpec

# Of all parties' records, a tenth of 1 over their number, as in `sordino train`.
_DELTA_TIMES_RECORDS = 0.1


@dataclass(frozen=True)
class ProposalOptions:
    """What whoever proposes has asked for; None leaves a thing to the recipe or to the loss."""

    recipe: str
    epsilon: float
    delta: float | None
    schema: Path | None
    model: str | None
    engine: str
    colluders: int | None
    batch_size: int | None
    batches: str | None
    epochs: float | None
    steps: int | None
    clip: float | None
    learning_rate: float | None
    momentum: float | None
    sampling: str | None
    adjacency: str | None
    unit: str | None
    one_row_per_person: bool
    settings: Sequence[str]

    def made_model(self) -> ModelSpec:
        from sordino.models import Schema
        from sordino.together.sites import own_model, table_model

        if (self.schema is None) == (self.model is None):
            raise SordinoError("give --schema for tables, or --model for a model of your own")
        if self.schema is not None:
            return table_model(Schema.load(self.schema))
        return own_model(str(self.model))

    def terms(self, model: ModelSpec, examples: Sequence[int]) -> Terms:
        """For parties with so many records."""
        from sordino.models import choose_learning_rate
        from sordino.parts import LinearLoss
        from sordino.planning.recipes import recipe_named
        from sordino.together.parties import agree

        spec = recipe_named(self.recipe)
        given = {
            "clip": self.clip,
            "learning_rate": self.learning_rate,
            "momentum": self.momentum,
            "sampling": self.sampling,
            "adjacency": self.adjacency,
            "unit": self.unit,
        }
        options = {name: value for name, value in given.items() if value is not None}
        options |= _settings(self.settings)
        linear = isinstance(model.loss, LinearLoss)
        batches = _numbers(self.batches, len(examples))
        size, epochs = self.batch_size, self.epochs
        if linear:
            result = self._defaults(model.loss, sum(examples), spec.full_batch)
            size = result.batch_size if batches is None and size is None else size
            epochs = result.epochs if epochs is None and self.steps is None else epochs
            offered = spec.option_names()
            for name, value in (("clip", result.clip), ("momentum", result.momentum)):
                if name in offered:
                    options.setdefault(name, value)
            if spec.defaults()["output"] == "last" and "average" in offered:
                from sordino.models import AVERAGE

                options.setdefault("average", AVERAGE)
        terms = agree(
            self.recipe,
            examples=examples,
            parameters=model.parameters,
            batch_size=size,
            batches=batches,
            epochs=epochs,
            steps=self.steps,
            engine=self.engine,
            colluders=self.colluders,
            epsilon=self.epsilon,
            delta=_DELTA_TIMES_RECORDS / sum(examples) if self.delta is None else self.delta,
            one_row_per_person=self.one_row_per_person,
            **options,
        )
        if linear and "learning_rate" in spec.option_names() and "learning_rate" not in options:
            rate = choose_learning_rate(terms.plan, model.loss)
            terms = replace(terms, plan=terms.plan.with_update(learning_rate=rate))
        return terms

    def _defaults(self, loss: Any, examples: int, whole: bool) -> Any:
        """What `sordino train` would choose for a table, but for passes: here each step is a message."""
        from sordino.models import EPOCHS, choose_settings

        return choose_settings(
            loss,
            examples=examples,
            method=self.recipe,
            epochs=None if whole else EPOCHS,
            batch_size=None if whole else self.batch_size,
            clip=self.clip,
            momentum=self.momentum,
        )


def _settings(given: Sequence[str]) -> dict[str, Any]:
    """``--set name=value``, with numbers and true, false and none as such."""
    result: dict[str, Any] = {}
    words = {"true": True, "false": False, "none": None}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise SordinoError(f"--set takes name=value, not {shown(text)}")
        value = value.strip()
        try:
            read = words[value] if value in words else json.loads(value)
        except ValueError:
            read = value
        result[name.strip().replace("-", "_")] = (
            read if isinstance(read, bool | int | float | type(None)) else value
        )
    return result


def _numbers(text: str | None, parties: int) -> list[float] | None:
    """``--batches 50,50,20``."""
    if text is None:
        return None
    try:
        result = [float(part) for part in text.split(",")]
    except ValueError:
        raise SordinoError(f"--batches takes numbers with commas, not {shown(text)}") from None
    if len(result) != parties:
        raise SordinoError(f"--batches has {len(result)} sizes for {parties} parties")
    return [int(b) if b == int(b) else b for b in result]


def show_consortium(consortium: Consortium, *, own: str | None = None) -> None:
    """The plan's page, each party's share, and what the whole rests on."""
    from sordino.together.parties import ENGINES, collusion, described

    terms = consortium.terms
    show_plan(terms.plan, terms.parameters)
    show_shares(consortium, own=own)
    out().print(
        f"engine {terms.engine}: {ENGINES[terms.engine]}; here up to {collusion(terms)}\n"
        f"model: {described(consortium.model)}, {terms.parameters:,} parameters; "
        f"a turn may take {consortium.timeout:g} s",
        markup=False,
        soft_wrap=True,
    )


def show_shares(consortium: Consortium, *, own: str | None = None) -> None:
    """One line for each party: what it brings, and how often a record of it is used."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from sordino.together.parties import shares

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("party", overflow="fold")
    for name in ("records", "in a step", "rate"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("address", overflow="fold")
    for partner, (batch, rate) in zip(consortium.partners, shares(consortium.terms), strict=True):
        name = f"{partner.name} (this one)" if partner.name == own else partner.name
        table.add_row(
            escape(name),
            f"{partner.examples:,}",
            batch,
            rate,
            escape(f"{partner.host}:{partner.port}"),
            style="bold" if partner.name == own else "",
        )
    out().print(table)


def show_members(consortium: Consortium) -> None:
    """Certificate fingerprints, to be compared by telephone."""
    console = out()
    width = max(len(name) for name in consortium.names)
    console.print("certificates (SHA-256), to be compared with what each party says itself:")
    for partner in consortium.partners:
        console.print(
            f"  {partner.name:<{width}}  {partner.member.fingerprint}",
            markup=False,
            soft_wrap=True,
        )
