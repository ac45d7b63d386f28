"""Options of ``sordino train`` for raw tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from sordino._base.errors import SordinoError, nearest, require_choice
from sordino._base.types import Json

if TYPE_CHECKING:
    import pandas as pd

    from sordino.models import Schema

PAY, REFUSE, TAKE = "pay", "refuse", "take"
# Of the persons, held out to score the model, where no public test data is given.
SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class RawOptions:
    """How a raw table is read, and what of the budget goes where."""

    undeclared: Annotated[
        str | None,
        typer.Option(
            help="What is not in the schema: pay (find it inside the budget), refuse, or take (from the "
            "data, NOT covered by the guarantee)."
        ),
    ] = None
    evaluate: Annotated[
        float | None,
        typer.Option(
            help="Share of people held out to score the model, inside the budget. Default: 0.1, or 0 with "
            "--test-file."
        ),
    ] = None
    class_weight: Annotated[
        str | None, typer.Option(help="balanced: rare classes count as much as frequent ones.")
    ] = None
    features: Annotated[str, typer.Option(help="auto, linear, spline or onehot.")] = "auto"
    bins: Annotated[int, typer.Option(help="Pieces of a column of numbers.")] = 8
    preprocessing_share: Annotated[
        float, typer.Option(help="Part of the budget for what is not declared.")
    ] = 0.1
    drop: Annotated[
        list[str] | None, typer.Option(help="A column to leave out; may be repeated.")
    ] = None
    date_format: Annotated[
        list[str] | None,
        typer.Option(
            help="How a column's dates are written, as in born=%d.%m.%Y; may be repeated."
        ),
    ] = None
    separator: Annotated[
        str | None, typer.Option(help="Of a CSV file. Default: as the header shows.")
    ] = None
    decimal: Annotated[str, typer.Option(help="The decimal mark: . or ,")] = "."

    def share(self, *, tested: bool, noise: str) -> float:
        """The share of people held out."""
        if self.evaluate is not None:
            return self.evaluate
        return 0.0 if tested or noise != "gaussian" else SHARE

    def applies(self, schema: Schema | None, share: float, *, persons: bool) -> bool:
        """Whether the table is read as it is; else it is fully declared, or its facts are taken from it.

        `persons`: whether a column of ids says whose rows are protected together.
        """
        if self.undeclared is not None:
            require_choice("undeclared", self.undeclared, (PAY, REFUSE, TAKE))
        if self.undeclared != TAKE:
            if self.undeclared is not None or schema is None or persons:
                return True
            known = schema.classes is not None or schema.target_bounds is not None
            if share or self.class_weight or not known or schema.examples is None:
                return True
        elif share and self.evaluate is not None:
            raise SordinoError(
                "--evaluate holds people out inside the budget; use --undeclared pay"
            )
        for name, value in vars(self).items():
            if name not in ("undeclared", "evaluate") and value != getattr(RawOptions, name):
                raise SordinoError(
                    f"--{name.replace('_', '-')} is for tables of which something is found inside the "
                    "budget; use --undeclared pay, or leave it out"
                )
        return False

    def settings(self, schema: Schema | None, share: float) -> Json:
        """What the estimator is told."""
        public: Json = {}
        if schema is not None:
            public = {
                "feature_bounds": schema.bounds,
                "categories": schema.categories,
                "examples": schema.examples,
            }
        return public | {
            "undeclared": self.undeclared or PAY,
            "evaluate": share,
            "features": self.features,
            "bins": self.bins,
            "preprocessing_share": self.preprocessing_share,
            "decimal": self.decimal,
            "date_formats": dict(_pair(text) for text in self.date_format or ()),
        }

    def without(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The table without the columns that are left out."""
        for name in self.drop or ():
            check_column(frame, name)
        return frame.drop(columns=list(self.drop or ()))


def check_column(frame: pd.DataFrame, name: str) -> None:
    """Refuse the name of a column that is not there."""
    names = [str(column) for column in frame.columns]
    if name not in names:
        raise SordinoError(f"the table has no column {name!r}{nearest(name, names)}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, written = text.partition("=")
    if not (name and equals and "%" in written):
        raise SordinoError(
            f"--date-format is a column and a format, as in born=%d.%m.%Y, got {text!r}"
        )
    return name, written
