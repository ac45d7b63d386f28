"""The pack of a run: what a privacy officer keeps, written as one folder and checked as one.

    model.npz     the released weights, and how rows are made
    plan.json     what was asked of the data, and at what price
    schema.json   how columns are encoded; not for arrays
    report.html   for people
    preprocessing.json, evaluation.json   released numbers, if any were asked for
    guarantee.json   the record of all this

The record has one spelling: the SHA-256 of every other file, one of itself without that field, and the
bytes that `json.dumps` makes of it. `verify_pack` computes all that follows from the other files anew, the
guarantee from plan.json alone (papers/06, section 8). Records of version 1 (up to 0.6) are checked as they
were.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sklearn.utils.validation import check_is_fitted

from sordino import report
from sordino._base.codec import digest_of
from sordino._base.errors import DAMAGE, SordinoError, shown
from sordino._base.files import write_atomically
from sordino._base.types import Json
from sordino._version import __version__
from sordino.models._folder import (
    EVALUATION,
    FILES,
    GUARANTEE,
    MODEL,
    PLAN,
    PREPROCESSING,
    REPORT,
    SCHEMA,
    staged_folder,
)
from sordino.models._found import ColumnFact
from sordino.models._kinds import FoundCategorical, FoundDates
from sordino.models._saved import (
    FIELD,
    digest,
    load_model,
    model_bytes,
    read_record,
    record_text,
    recorded,
)
from sordino.models._schema import Categorical, Column, Numeric, Schema
from sordino.planning import Plan
from sordino.privacy import Guarantee

if TYPE_CHECKING:
    from sordino.models._linear import PrivateLinear
    from sordino.models._metrics import EvaluationMetrics
    from sordino.models._release import TableAnswer
    from sordino.report import ScoreTable

FORMAT, VERSION = "sordino-guarantee", 2
# How something about a column is known: said beforehand, released by the run, or looked up in the data,
# which no guarantee covers.
DECLARED, FOUND, TAKEN = "declared", "found", "taken from the data: NOT COVERED by the guarantee"
# How ids tell persons apart.
ID_RULE = (
    "compared as text after NFC and strip; whole numbers by their value (7, 7.0 and '7' are one person); "
    "rows without an id count for nothing"
)
_TOLERANCE = 1e-9
# Whose data a query asks, where it does not say.
TRAINING = "training"
# What a record of version 1 has, and no other.
_FIRST = {"sentence", "epsilon", "delta", "guarantee", "notes", "plan", "sordino", "date", FIELD}


def column_json(fact: ColumnFact, schema: Schema | None) -> Json:
    """A column as the record has it, with its encoding and its rules where it is used."""
    facts: Json = {"name": fact.name, "used": fact.used, "why": fact.why, "source": fact.source}
    if fact.hint:
        facts["hint"] = fact.hint
    return facts | (encoding(fact.name, schema) if fact.used else {})


def encoding(name: str, schema: Schema | None) -> Json:
    """How a used column becomes features: its description, and what missing and unknown cells are."""
    for column in () if schema is None else schema.columns:
        if column.name == name:
            missing, unknown = _rules(column)
            return {"encoding": column.to_json(), "missing": missing, "unknown": unknown}
    return {}


def _rules(column: Column) -> tuple[str, str]:
    """What missing cells, and cells of another kind or value, become."""
    if isinstance(column, Numeric):
        return "0, the middle of the bounds", "numbers beyond the bounds become the nearer bound"
    if isinstance(column, Categorical):
        return "no indicator is set", "no indicator is set"
    if isinstance(column, FoundCategorical):
        return "an indicator of its own", "the indicator 'other'"
    kind = "dates" if isinstance(column, FoundDates) or column.of_days else "numbers"
    return "a flag of its own", f"cells that are no {kind} count as missing"


@dataclass(frozen=True)
class PackFacts:
    """What a pack is made of, besides what follows from these.

    Attributes:
      model: fitted; its `plan_`, `guarantee_`, `schema_` and `history_` are the run's.
      columns: of the table, used or ignored.
      source: of the schema's columns that are not named there; by default by what the model declares.
      person_column, power: whose column of ids, and the alpha of ``n_p^-alpha``; None where rows are
        the unit.
      class_weights: the weight of each class, if they have any.
      preprocessing, evaluation: released numbers, for files of their own; the report shows the latter.
      ledger: the data set's name and the run's identity, where a ledger was charged.
    """

    model: PrivateLinear
    _: KW_ONLY
    title: str
    target: str
    notes: Sequence[str] = ()
    results: ScoreTable | None = None
    date: str = ""
    source: str | None = None
    columns: Sequence[ColumnFact] = ()
    person_column: str | None = None
    power: float | None = None
    class_weights: Mapping[str, float] | None = None
    preprocessing: TableAnswer | None = None
    evaluation: EvaluationMetrics | None = None
    ledger: tuple[str, str] | None = None

    def all_columns(self) -> list[ColumnFact]:
        """In the schema's order, then those that it does not have."""
        schema, named = self.model.schema_, {fact.name: fact for fact in self.columns}
        names = () if schema is None else schema.names
        why = "a column of the schema"
        used = [
            named.pop(name, ColumnFact(name, True, why, self.source or _source(self.model, name)))
            for name in names
        ]
        return [*used, *named.values()]


def _source(model: PrivateLinear, name: str) -> str:
    """Whether a column's bounds or values were declared."""
    bounds = model.feature_bounds
    known = name in bounds if isinstance(bounds, Mapping) else bounds is not None
    schema = model.schema_
    numeric = schema is not None and name in schema.bounds
    return DECLARED if (known if numeric else name in (model.categories or ())) else TAKEN


def pack_facts(model: Any, **about: Any) -> PackFacts:
    """The facts of a fitted estimator: what it has as attributes, and `about` the rest."""
    if not isinstance(getattr(model, "plan_", None), Plan):
        raise SordinoError(
            "a pack is about one run of one plan, which this model does not have: it was loaded from a "
            "file or chosen by a search; save() writes the model by itself"
        )
    if taken := getattr(model, "_undeclared", ()):
        about.setdefault(
            "notes", [f"Used as if public, outside the guarantee: {'; '.join(taken)}."]
        )
    about.setdefault("evaluation", getattr(model, "evaluation_", None))
    if model.ledger is not None:
        about.setdefault("ledger", (str(model.dataset), model.result_.run))
    table = getattr(model, "table_run_", None)
    if table is not None:
        about = {
            "columns": table.found.columns,
            "class_weights": table.weights,
            "preprocessing": table.found.answer,
            "person_column": table.person_column,
            "power": None if table.person_column is None else float(model.person_power),
        } | about
    return PackFacts(model, **about)


def write_pack(folder: Path, facts: PackFacts) -> None:
    """Write all files of a pack into `folder`, which exists; the record comes last."""
    model = facts.model
    plan, guarantee, schema = model.plan_, model.guarantee_, model.schema_
    others = {
        SCHEMA: schema,
        PREPROCESSING: facts.preprocessing,
        EVALUATION: facts.evaluation,
    }
    write_atomically(folder / MODEL, model_bytes(model, facts.target))
    plan.save(folder / PLAN)
    for name, released in others.items():
        if released is not None:
            write_atomically(folder / name, record_text(released.to_json()))
    report.write_report(
        folder / REPORT,
        plan,
        guarantee=guarantee,
        title=facts.title,
        history=model.history_,
        results=facts.results,
        evaluation=None if facts.evaluation is None else facts.evaluation.facts(),
        notes=facts.notes,
        date=facts.date,
        columns=[(fact.name, fact.text) for fact in facts.columns],
    )
    record = {
        **statement(plan, guarantee),
        "persons": None
        if facts.person_column is None
        else {"column": facts.person_column, "alpha": facts.power, "ids": ID_RULE},
        "target": facts.target,
        "features": int(model.n_features_in_) if schema is None else len(schema.names),
        "columns": [column_json(fact, schema) for fact in facts.all_columns()],
        "class_weights": None if facts.class_weights is None else dict(facts.class_weights),
        "notes": list(facts.notes),
        "ledger": None
        if facts.ledger is None
        else dict(zip(("dataset", "run"), facts.ledger, strict=True)),
        "title": facts.title,
        "date": facts.date,
        "versions": _versions(),
        FIELD: {
            name: digest((folder / name).read_bytes())
            for name in FILES
            if name != GUARANTEE and (folder / name).is_file()
        },
    }
    write_atomically(folder / GUARANTEE, record_text({**record, "record": digest_of(record)}))


def statement(plan: Plan, guarantee: Guarantee) -> Json:
    """What follows from a plan, and from whether its noise came from a seed."""
    at = guarantee.delta_hint
    return {
        "format": FORMAT,
        "version": VERSION,
        "sentence": guarantee.sentence(),
        "epsilon": None if at is None else _number(guarantee.epsilon(at)),
        "delta": at,
        "mu": _number(guarantee.mu),
        "lost": max(side.lost for side in (guarantee.own, *guarantee.sides)),
        "unit": guarantee.unit,
        "adjacency": guarantee.adjacency,
        "guarantee": guarantee.to_json(),
        "parts": [_part(query, guarantee) for query in plan.queries],
        "noise": plan.noise_kind,
        "insecure": guarantee.insecure,
        "plan": plan.hash,
    }


def _part(query: Any, whole: Guarantee) -> Json:
    """A query of the plan: what it costs by itself, whose data pays, and its noise."""
    own: Guarantee = query.guarantee(
        adjacency=whole.adjacency, unit=whole.unit, delta_hint=whole.delta_hint
    )
    return {
        "name": query.name,
        "kind": query.kind,
        "side": getattr(query, "side", TRAINING),
        "mu": _number(own.mu),
        "sigma": float(getattr(query, "sigma", getattr(query, "noise_multiplier", 0.0))),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no infinity


def _versions() -> Json:
    libraries = {
        name: version(name) for name in ("jax", "numpy", "scipy", "scikit-learn", "pandas")
    }
    return {"sordino": __version__, "python": platform.python_version(), **libraries}


# Reading one


def verify_pack(folder: Path) -> tuple[str, ...] | None:
    """Check a pack; the files whose hashes were compared, or None if its record has no hashes.

    Raises `SordinoError` with the first difference. This shows accidents and careless edits: whoever can
    change all files can make them fit.
    """
    try:
        return _verified(folder)
    except SordinoError:
        raise
    except DAMAGE:
        raise SordinoError(f"{GUARANTEE} is damaged: its fields are not what was written") from None


def _verified(folder: Path) -> tuple[str, ...] | None:
    record = read_record(folder)
    first = "version" not in record and set(record) <= _FIRST
    if not first and (record.get("format"), record.get("version")) != (FORMAT, VERSION):
        raise SordinoError(
            f"{GUARANTEE} is no record that is known here: its format is {shown(record.get('format'))}, "
            f"version {shown(record.get('version'))}"
        )
    hashes = _checked_hashes(folder, record, first)
    plan = Plan.load(folder / PLAN)  # computes its guarantee anew
    if record.get("plan") != plan.hash:
        raise SordinoError(f"{GUARANTEE} is about another plan than {PLAN}")
    try:
        stated = Guarantee.from_json(record.get("guarantee", {}))
    except SordinoError as error:
        raise SordinoError(f"in {GUARANTEE}: {error}") from None
    # That the noise came from a seed is the run's own; all the rest is the plan's.
    if replace(stated, insecure=False) != replace(plan.guarantee, insecure=False):
        raise _other_guarantee("guarantee")
    for name, value in statement(plan, stated).items():
        if name in record and not _same(record[name], value):
            raise _other_guarantee(name)
    if first:
        return None if hashes is None else tuple(sorted(hashes))
    _check_columns(folder, record)
    rest = {name: value for name, value in record.items() if name != "record"}
    if record.get("record") != digest_of(rest):
        raise SordinoError(
            f"{GUARANTEE} is not what was written: a text or a digit in it was changed, such as in its "
            "notes, columns, title, date or versions"
        )
    if (folder / GUARANTEE).read_bytes() != record_text(record).encode():
        raise SordinoError(f"{GUARANTEE} is not as it was written: its spaces or spellings differ")
    return tuple(name for name in FILES if name in (hashes or ()))


def _checked_hashes(folder: Path, record: Json, first: bool) -> Mapping[str, str] | None:
    """The hashes on record, all of them compared; only records of version 1 may have none."""
    hashes = recorded(folder)
    if hashes is None:
        if first:
            return None
        raise SordinoError(f"{GUARANTEE} records no hashes; it was changed")
    described = not first and record.get("columns") != []
    needed = {MODEL, PLAN, REPORT, *((SCHEMA,) if described else ())}
    for name in FILES[:-1]:
        if name not in hashes:
            if name in needed:
                raise SordinoError(f"{GUARANTEE} records no hash for {name}; it was changed")
            if not first and (folder / name).exists():
                raise SordinoError(f"{name} is no file of this run: {GUARANTEE} has no hash of it")
        elif not (folder / name).is_file():
            raise SordinoError(f"there is no {name} in {str(folder)!r}")
        elif digest((folder / name).read_bytes()) != hashes[name]:
            raise SordinoError(
                f"{name} is not the file that {GUARANTEE} is about: it was exchanged or changed"
            )
    if others := sorted(set(hashes) - set(FILES[:-1])):
        raise SordinoError(f"{GUARANTEE} records a hash for {shown(others[0])}; it was changed")
    return hashes


def _other_guarantee(name: str) -> SordinoError:
    return SordinoError(
        f"{GUARANTEE} states another guarantee than {PLAN} gives: its field {name!r} differs"
    )


def _check_columns(folder: Path, record: Json) -> None:
    """The model's own schema, the released one and the list of columns must agree."""
    model, target = load_model(folder / MODEL)
    schema = model.schema_
    released = Schema.load(folder / SCHEMA) if (folder / SCHEMA).is_file() else None
    own = None if schema is None else schema.to_json()
    if own != (None if released is None else released.to_json()):
        raise SordinoError(f"the schema in {MODEL} is not the one in {SCHEMA}")
    if (record.get("target"), record.get("features")) != (target, model.n_features_in_):
        raise SordinoError(f"{GUARANTEE} is about another model than {MODEL}: its target differs")
    listed = record["columns"]
    names = [] if schema is None else list(schema.names)
    if [one["name"] for one in listed if one["used"]] != names:
        raise SordinoError(f"the columns that {GUARANTEE} calls used are not those of {MODEL}")
    for one in listed:
        rules = {name: one[name] for name in ("encoding", "missing", "unknown") if name in one}
        if rules != json.loads(json.dumps(encoding(one["name"], schema if one["used"] else None))):
            raise SordinoError(
                f"what {GUARANTEE} says of the column {shown(one['name'])} is not in {SCHEMA}"
            )


def _same(stated: object, right: object) -> bool:
    """Equal; numbers to 1e-9, because another processor may differ in the last digits."""
    if isinstance(right, Mapping):
        return (
            isinstance(stated, Mapping)
            and stated.keys() == right.keys()
            and all(_same(stated[name], value) for name, value in right.items())
        )
    if isinstance(right, list | tuple):
        return (
            isinstance(stated, list)
            and len(stated) == len(right)
            and all(map(_same, stated, right))
        )
    if isinstance(right, float) and type(stated) in (int, float):
        return math.isclose(stated, right, rel_tol=_TOLERANCE)  # type: ignore[arg-type]
    return type(stated) is type(right) and stated == right


class Released:
    """What a fitted estimator is kept and handed on as: one file, or a whole pack."""

    def save(self, path: str | os.PathLike[str], *, target: str | None = None) -> None:
        """Write the released model to a file that needs no pickle; `load` and `sordino predict` read it.

        `target` is the name of what is predicted: by default that of the `y` it was fitted to.
        """
        check_is_fitted(self, "coef_")
        write_atomically(Path(path), model_bytes(self, target or self._target()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The fitted estimator in a file of `save`, or in a folder of `report` or `sordino train`."""
        model, target = load_model(path)
        if not isinstance(model, cls):
            raise SordinoError(
                f"{str(path)!r} holds a {type(model).__name__}; use {type(model).__name__}.load"
            )
        model.target_ = target
        return model

    def report(
        self,
        folder: str | os.PathLike[str],
        *,
        title: str | None = None,
        target: str | None = None,
        force: bool = False,
        **about: Any,
    ) -> None:
        """Write the run's folder as `sordino train` does: model, plan, schema, report and guarantee.json.

        Args:
          title, target: of the report, and the name of what is predicted.
          force: whether an earlier run's folder may be replaced.
          about: `notes`, `results`, `date` and whatever else `PackFacts` has.
        """
        check_is_fitted(self, "coef_")
        name = target or self._target()
        facts = pack_facts(self, title=title or f"Predicting {name}", target=name, **about)
        with staged_folder(Path(folder), force=force) as staging:
            write_pack(staging, facts)

    def _target(self) -> str:
        return getattr(self, "target_", "target")


def target_name(y: object) -> str:
    """What `y` is called, where it is a column of a table."""
    return str(getattr(y, "name", None) or "target")
