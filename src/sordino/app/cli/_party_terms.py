"""For ``sordino party``: from options to terms, and terms as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from sordino import models, parts, planning
from sordino._base.errors import SordinoError, shown
from sordino._base.types import Json
from sordino.app.cli._console import new_table, out, say, show_plan
from sordino.together import parties, sites

if TYPE_CHECKING:
    from sordino.app.cli._options import RecipeOptions
    from sordino.together.parties import Consortium, Terms
    from sordino.together.sites import ModelSpec

# Of all parties' records, a tenth of 1 over their number, as in `sordino train`.
_DELTA_TIMES_RECORDS = 0.1
_RUN, _BUDGET, _TOGETHER = "The run", "The budget", "Together"


@dataclass(frozen=True, kw_only=True)
class ProposalOptions:
    """What whoever proposes has asked for; None leaves a thing to the recipe or to the loss."""

    recipe: Annotated[str, typer.Option(help="From `sordino recipes`.", rich_help_panel=_RUN)] = (
        "dp-srm"
    )
    schema: Annotated[
        Path | None,
        typer.Option(
            help="What is public about the tables: bounds, categories, classes (JSON, TOML).",
            rich_help_panel=_RUN,
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(help="Instead: a model of your own, as module:name.", rich_help_panel=_RUN),
    ] = None
    batch_size: Annotated[
        int | None, typer.Option(help="Records of all parties in a step.", rich_help_panel=_RUN)
    ] = None
    batches: Annotated[
        str | None,
        typer.Option(help="Instead: each party's own, with commas.", rich_help_panel=_RUN),
    ] = None
    epochs: Annotated[
        float | None, typer.Option(help="Passes over all data.", rich_help_panel=_RUN)
    ] = None
    steps: Annotated[
        int | None, typer.Option(help="Turns, instead of epochs.", rich_help_panel=_RUN)
    ] = None
    name: Annotated[str | None, typer.Option(help="Of the run.", rich_help_panel=_RUN)] = None
    epsilon: Annotated[float, typer.Option(help="Each record's budget.", rich_help_panel=_BUDGET)]
    delta: Annotated[
        float | None,
        typer.Option(help="Default: a tenth of 1 over all records.", rich_help_panel=_BUDGET),
    ] = None
    adjacency: Annotated[
        str | None,
        typer.Option(help="zero-out, add-remove or replace-one.", rich_help_panel=_BUDGET),
    ] = None
    unit: Annotated[
        str | None,
        typer.Option(
            help="Whose data a record is: example, user, client.", rich_help_panel=_BUDGET
        ),
    ] = None
    one_row_per_person: Annotated[
        bool,
        typer.Option(
            "--one-row-per-person",
            help="Your statement, for --unit user or client: each has one record, at one party only.",
            rich_help_panel=_BUDGET,
        ),
    ] = False
    engine: Annotated[
        str,
        typer.Option(help="How sums are kept secret: mask, mpyc, spu.", rich_help_panel=_TOGETHER),
    ] = "mask"
    colluders: Annotated[
        int | None,
        typer.Option(help="How many parties may work together.", rich_help_panel=_TOGETHER),
    ] = None
    timeout: Annotated[
        float, typer.Option(help="Seconds that a turn may take.", rich_help_panel=_TOGETHER)
    ] = 60.0

    def made_model(self) -> ModelSpec:
        if (self.schema is None) == (self.model is None):
            raise SordinoError("give --schema for tables, or --model for a model of your own")
        if self.schema is not None:
            return sites.table_model(models.Schema.load(self.schema))
        return sites.own_model(str(self.model))

    def asked(self, options: RecipeOptions) -> Json:
        """The recipe's options, and what of a plan can be set by ``--set`` besides."""
        given = options.of(self.recipe, lattice_steps=int, adjacency=str, unit=str)
        stated = {"adjacency": self.adjacency, "unit": self.unit}
        return given | {name: value for name, value in stated.items() if value is not None}

    def terms(self, model: ModelSpec, examples: Sequence[int], asked: Json) -> Terms:
        """For parties with so many records; `asked` as above."""
        spec = planning.RECIPES[self.recipe]
        options = dict(asked)
        linear = isinstance(model.loss, parts.LinearLoss)
        batches = _numbers(self.batches, len(examples))
        size, epochs = self.batch_size, self.epochs
        if linear:
            # What `sordino train` would choose for a table, but for passes: here each step is a message.
            result = models.choose_settings(
                model.loss,
                examples=sum(examples),
                recipe=self.recipe,
                epochs=None if spec.full_batch else models.EPOCHS,
                batch_size=None if spec.full_batch else size,
                clip=asked.get("clip"),
                momentum=asked.get("momentum"),
            )
            size = result.batch_size if batches is None and size is None else size
            epochs = result.epochs if epochs is None and self.steps is None else epochs
            wanted = {"clip": result.clip, "momentum": result.momentum}
            if {**spec.defaults(), **asked}["output"] == "last":
                wanted["average"] = models.AVERAGE
            options |= spec.useful(wanted, asked)
        terms = parties.agree(
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
        if linear and "learning_rate" in spec.option_names():
            rate = options.get("learning_rate") or models.choose_learning_rate(
                terms.plan, model.loss
            )
            # Momentum also where it has no effect: plans keep the hash that they had up to 0.5.
            update = {"learning_rate": rate, "momentum": result.momentum}
            terms = replace(terms, plan=terms.plan.with_update(**update))
        return terms


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
    terms = consortium.terms
    show_plan(terms.plan, terms.parameters)
    show_shares(consortium, own=own)
    say(
        f"engine {terms.engine}: {parties.ENGINES[terms.engine]}; here up to {parties.collusion(terms)}\n"
        f"model: {parties.described(consortium.model)}, {terms.parameters:,} parameters; "
        f"a turn may take {consortium.timeout:g} s"
    )


def show_shares(consortium: Consortium, *, own: str | None = None) -> None:
    """One line for each party: what it brings, and how often a record of it is used."""
    table = new_table()
    table.add_column("party", overflow="fold")
    for name in ("records", "in a step", "rate"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("address", overflow="fold")
    for partner, (batch, rate) in zip(
        consortium.partners, parties.shares(consortium.terms), strict=True
    ):
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
        say(f"  {partner.name:<{width}}  {partner.member.fingerprint}")
