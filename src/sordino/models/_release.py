"""Everything that a fit must know of a table, in one Gaussian release (papers/06, section 3).

Each person spreads a weight of 1 over the cells of a column: 1/n_p for each of n_p rows. Released are, with
one sigma: the weights of numbers and of dates over public grids, with noise shaped for running sums; the
weights of text values, where they pass the threshold; the weight of missing cells. A person's text share
goes to one value, drawn among the person's texts. The parts of a column are orthogonal and each weighs its
cells by columns of norm 1: a person moves one column by at most 1, and m of them by sqrt(m). So the release
is (sqrt(m)/sigma)-GDP, beside the chance that a value shows which only one person has (`TableRelease`).

Only `TableAnswer` leaves: noisy numbers, and what follows from them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from sordino._base.codec import pack, unpack
from sordino._base.errors import DAMAGE, SordinoError, nearest, shown
from sordino._base.keys import RunKey
from sordino._base.types import Json
from sordino.models._cells import Array, Cells, Codes
from sordino.models._prefix import _series, prefix_noise, rounded_off
from sordino.models._schema import Value
from sordino.planning import TableRelease

# Of numbers: sign x octaves from 2^-20 to 2^40 x 32 cells, and 0. What is outside goes to the ends.
_LOWEST, _HIGHEST, _PER_OCTAVE = -20, 40, 32
_SIDE = (_HIGHEST - _LOWEST) * _PER_OCTAVE
NUMBER_CELLS = 2 * _SIDE + 1
# Of dates: one cell a day from 1900 to 2099.
FIRST_DAY, DATE_CELLS = -25_567, 73_049
# Weights are multiples of this, so that their sums are exact in any order, and never above 1.
_WEIGHT_UNIT = 2.0**-30
# A kind must be this many standard deviations of its noise, and this share of what is not missing.
_SURE, _MOST, _DOUBT = 6.0, 0.9, 2.0


def number_edges() -> Array:
    """The edges of the cells of numbers (NUMBER_CELLS + 1,); cells are closed at the side of 0."""
    octaves = 2.0 ** np.arange(_LOWEST, _HIGHEST)
    inner = octaves[:, None] * (1 + np.arange(_PER_OCTAVE) / _PER_OCTAVE)
    side = np.append(inner.ravel(), 2.0**_HIGHEST)
    return np.concatenate([-side[::-1], side])


def date_edges() -> Array:
    """The edges of the cells of dates (DATE_CELLS + 1,), in days since 1970."""
    return FIRST_DAY + np.arange(DATE_CELLS + 1.0)


def number_cells(numbers: Array) -> Codes:
    """The cell of each finite number, exactly: by exponent and leading digits, not by a logarithm."""
    leading = np.abs(numbers).view(np.int64) >> (52 - 5)  # 11 bits of exponent, 5 of the mantissa
    place = np.clip(leading - ((1023 + _LOWEST) << 5), -1, _SIDE - 1) + 1
    return _SIDE + np.where(numbers < 0, -place, place)


def date_cells(days: Array) -> Codes:
    """The cell of each day."""
    return np.clip(np.floor(days) - FIRST_DAY, 0, DATE_CELLS - 1).astype(np.int64)


@lru_cache(maxsize=8)
def total_error(cells: int) -> float:
    """Standard deviation of the sum of all cells of `prefix_noise`, at sigma 1."""
    inverse, norms = _series(cells)
    return float(np.linalg.norm(fftconvolve(norms[::-1], inverse)[:cells]))


NUMBERS, DATES, TEXT, DECLARED, UNKNOWN = "numbers", "dates", "text", "declared", "unknown"
_CELLS = {NUMBERS: NUMBER_CELLS, DATES: DATE_CELLS}


@dataclass(frozen=True, eq=False)
class ColumnAnswer:
    """What the release says of one column; all of it is noisy.

    Attributes:
      kind: "numbers", "dates", "text", "declared" (its values were public), or "unknown": ignored.
      numbers, dates, missing: weights of these cells.
      counts: weights over the cells of numbers or dates, if that is the kind.
      values: weights of text values that passed the threshold, sorted, or of the declared values.
    """

    name: str
    kind: str
    numbers: float
    dates: float
    missing: float
    counts: Array | None = None
    values: tuple[tuple[Value, float], ...] = ()

    @property
    def total(self) -> float:
        """The weight of the cells of its kind."""
        if self.kind in _CELLS:
            return self.numbers if self.kind == NUMBERS else self.dates
        return math.fsum(weight for _, weight in self.values)

    def to_json(self) -> Json:
        data: Json = {"name": self.name, "kind": self.kind, "numbers": self.numbers}
        data |= {"dates": self.dates, "missing": self.missing}
        if self.values:
            data["values"] = [list(pair) for pair in self.values]
        if self.counts is not None:
            data |= {"count": len(self.counts), "float64": pack(self.counts)}
        return data

    @classmethod
    def from_json(cls, data: Json) -> ColumnAnswer:
        counts = None
        if data["kind"] in _CELLS:
            cells = _CELLS[data["kind"]]
            counts = unpack(data, "float64", "count", largest=8 * cells, what="a column's counts")
            if len(counts) != cells:
                raise SordinoError("a column's counts have another length than its grid")
        elif data["kind"] not in (TEXT, DECLARED, UNKNOWN):
            raise SordinoError(f"a column of kind {shown(data['kind'])} is not known")
        numbers, dates, missing = (float(data[part]) for part in (NUMBERS, DATES, "missing"))
        values = tuple((value, float(weight)) for value, weight in data.get("values", ()))
        return cls(str(data["name"]), data["kind"], numbers, dates, missing, counts, values)


@dataclass(frozen=True, eq=False)
class TableAnswer:
    """What a `TableRelease` answers.

    Attributes:
      sigma: of its noise.
      threshold: that text values had to pass.
      target: the column whose weights count the persons.
      declared_persons: how many persons there are, where that is public.
    """

    sigma: float
    threshold: float
    columns: tuple[ColumnAnswer, ...]
    target: str | None = None
    declared_persons: int | None = None

    def __getitem__(self, name: str) -> ColumnAnswer:
        for column in self.columns:
            if column.name == name:
                return column
        hint = nearest(name, [column.name for column in self.columns])
        raise SordinoError(f"the release has no column {shown(name)}{hint}")

    @property
    def persons(self) -> float:
        """How many persons have a target that can be used: declared, or noisy and at least 1."""
        if self.declared_persons is not None:
            return float(self.declared_persons)
        if self.target is None:
            raise SordinoError("nobody was counted: the release had no target column")
        return max(1.0, self[self.target].total)

    def to_json(self) -> Json:
        return {
            "sigma": self.sigma,
            "threshold": None if self.threshold == math.inf else self.threshold,
            "target": self.target,
            "declared_persons": self.declared_persons,
            "columns": [column.to_json() for column in self.columns],
        }

    @classmethod
    def from_json(cls, data: Json) -> TableAnswer:
        try:
            threshold = math.inf if data["threshold"] is None else float(data["threshold"])
            columns = tuple(ColumnAnswer.from_json(column) for column in data["columns"])
            persons = data["declared_persons"]
            return cls(float(data["sigma"]), threshold, columns, data["target"], persons)
        except SordinoError:
            raise
        except DAMAGE:
            raise SordinoError("this is not the answer of a table's release") from None


class Owners:
    """Whose row is whose, and what one row weighs.

    Args:
      owners: the index of each row's person, -1 for a row of nobody, which counts nothing; None
        where each row is a person.
    """

    def __init__(self, owners: NDArray[np.int64] | None, rows: int) -> None:
        self.alone = owners is None
        owners = np.arange(rows) if owners is None else np.asarray(owners, np.int64)
        if len(owners) != rows:
            raise SordinoError("there must be one owner for each row of the table")
        self.owners = owners
        self.count = int(owners.max(initial=-1)) + 1
        sizes = np.bincount(owners[owners >= 0], minlength=self.count)
        self.share = np.floor(1 / (_WEIGHT_UNIT * np.maximum(sizes, 1))) * _WEIGHT_UNIT
        # Of each row; one more entry for the rows of nobody.
        self.weights = np.append(self.share, 0.0)[owners]
        # Rows by person, each person's in their order.
        self._order = None if self.alone else np.argsort(owners, kind="stable")

    def spoken(self, texts: Codes, rng: np.random.Generator) -> tuple[Codes, Array]:
        """The one text that each person with texts (codes, -1 for none) names, and their share of texts."""
        draws = rng.random(self.count)
        if self._order is None:
            rows = np.flatnonzero(texts >= 0)
            return texts[rows], self.weights[rows]
        rows = self._order[(texts[self._order] >= 0) & (self.owners[self._order] >= 0)]
        counts = np.bincount(self.owners[rows], minlength=self.count)
        first = np.cumsum(counts) - counts
        who = np.flatnonzero(counts)
        drawn = first[who] + (draws[who] * counts[who]).astype(np.int64)
        return texts[rows[drawn]], (counts * self.share)[who]


def _sums_by(places: Codes, weights: Array, size: int) -> Array:
    return np.bincount(places, weights, size).astype(np.float64, copy=False)


@dataclass(frozen=True, eq=False)
class Parts:
    """The weights of a column's cells, before noise (as sensitive as the data) or after it."""

    numbers: Array
    dates: Array
    texts: Mapping[str, float]
    values: Array
    missing: float


def weigh(
    cells: Cells, people: Owners, rng: np.random.Generator, declared: Sequence[Value] | None = None
) -> Parts:
    """What everyone's cells of a column weigh together: AS SENSITIVE AS THE DATA, it never leaves here.

    Args:
      rng: draws the one text that speaks for a person.
      declared: public values of the column; then only they, and missing cells, are weighed.
    """
    weights = people.weights

    if declared is not None:
        places = cells.positions(declared)
        named = places >= 0
        values = _sums_by(places[named], weights[named], len(declared))
        missing = float(weights[cells.missing & ~named].sum())
        return Parts(np.zeros(0), np.zeros(0), {}, values, missing)

    def ordered(values: Array | None, cell_of: Callable[[Array], Codes], size: int) -> Array:
        if values is None:
            return np.zeros(size)
        known = ~np.isnan(values)
        if known.all():
            return _sums_by(cell_of(values), weights, size)
        return _sums_by(cell_of(values[known]), weights[known], size)

    texts: dict[str, float] = {}
    if cells.codes is not None:
        spoken, shares = people.spoken(cells.codes, rng)
        sums = np.bincount(spoken, shares, len(cells.vocabulary))
        texts = {cells.vocabulary[at]: float(sums[at]) for at in np.flatnonzero(sums)}
    return Parts(
        ordered(cells.numbers, number_cells, NUMBER_CELLS),
        ordered(cells.days, date_cells, DATE_CELLS),
        texts,
        np.zeros(0),
        float(weights[cells.missing].sum()),
    )


def run_table_release(
    query: TableRelease,
    table: Mapping[str, Cells],
    owners: NDArray[np.int64] | None,
    key: RunKey,
    *,
    target: str | None = None,
    declared: Mapping[str, Sequence[Value]] | None = None,
    persons: int | None = None,
) -> TableAnswer:
    """The answer of `query` on a table: noisy numbers alone.

    Args:
      owners: the index of each row's person, -1 for rows that count nothing; None: a row is a person.
      key: of this query; noise is derived from it for each column and part.
      target: the column whose weights count the persons.
      declared: public values of columns, such as classes: they need not pass the threshold.
      persons: how many persons there are, where that is public.
    """
    for name in query.columns:
        if name not in table:
            raise SordinoError(f"the table has no column {shown(name)}{nearest(name, table)}")
    if target is not None and target not in query.columns:
        raise SordinoError(f"the target {shown(target)} is not among the columns of the release")
    sigma, threshold = query.sigma, query.threshold()
    people: Owners | None = None
    noisy: dict[str, Parts] = {}
    values = {name: (declared or {}).get(name) for name in query.columns}
    with np.errstate(all="ignore"):
        for name in query.columns:
            cells = table[name]
            people = people or Owners(owners, len(cells))
            speaker = key.generator(f"table/{name}/speaker")
            clean = weigh(cells, people, speaker, values[name])
            noisy[name] = _noised(clean, sigma, threshold, key, name)
    everyone, doubt = (math.nan, math.nan) if persons is None else (float(persons), 0.0)
    if target is not None and persons is None:
        everyone, doubt = _everyone(noisy[target], values[target], sigma)
    columns = tuple(
        _answer(name, parts, values[name], everyone, doubt, sigma) for name, parts in noisy.items()
    )
    return TableAnswer(sigma, threshold, columns, target, persons)


def _noised(clean: Parts, sigma: float, threshold: float, key: RunKey, name: str) -> Parts:
    def released(weights: Array, noise: Array) -> Array:
        return rounded_off(weights + sigma * noise, sigma)

    def ordered(part: str, weights: Array) -> Array:
        if not len(weights):
            return weights
        return released(weights, prefix_noise(len(weights), key.generator(f"table/{name}/{part}")))

    words = sorted(clean.texts)
    weights = released(
        np.array([clean.texts[word] for word in words], np.float64),
        _gaussians(key.derive(f"table/{name}/text"), words),
    )
    rng = key.generator(f"table/{name}/declared")
    values = released(clean.values, rng.standard_normal(len(clean.values)))
    rng = key.generator(f"table/{name}/missing")
    missing = released(np.array([clean.missing]), rng.standard_normal(1))
    return Parts(
        ordered(NUMBERS, clean.numbers),
        ordered(DATES, clean.dates),
        {word: float(w) for word, w in zip(words, weights, strict=True) if w >= threshold},
        values,
        float(missing[0]),
    )


def _gaussians(key: bytes, words: Sequence[str]) -> Array:
    """A standard normal number for each word, a function of the key and that word (Box-Muller)."""
    drawn = b"".join(
        hashlib.blake2b(word.encode(), key=key, digest_size=16).digest() for word in words
    )
    uniform = np.frombuffer(drawn, "<u8").reshape(-1, 2) * 2.0**-64
    radius = np.sqrt(-2 * np.log(uniform[:, 0] + 2.0**-64))
    return np.asarray(radius * np.cos(2 * math.pi * uniform[:, 1]))


def _sums(parts: Parts) -> tuple[float, float, float]:
    text = math.fsum(parts.texts.values()) + math.fsum(parts.values)
    return float(parts.numbers.sum()), float(parts.dates.sum()), text


def _everyone(parts: Parts, declared: object, sigma: float) -> tuple[float, float]:
    """How many persons the target column counts, its missing cells included, and that number's noise."""
    kind = _kind(parts, declared, math.nan, 0.0, sigma)
    numbers, dates, text = _sums(parts)
    if kind in _CELLS:
        total, noise = (numbers if kind == NUMBERS else dates), total_error(_CELLS[kind])
    else:
        total, noise = text, math.sqrt(len(parts.texts) + len(parts.values))
    return total + parts.missing, sigma * math.hypot(noise, 1)


def _kind(parts: Parts, declared: object, everyone: float, doubt: float, sigma: float) -> str:
    """What a column is: from its noisy weights alone, and those of the target.

    Numbers (or dates) must be six standard deviations of their noise, and nine tenths of the cells that
    are not missing, less two standard deviations of the noise in that comparison.
    """
    if declared is not None:
        return DECLARED
    *sums, text = _sums(parts)
    noises = [sigma * total_error(cells) for cells in _CELLS.values()]
    present = everyone - parts.missing
    if math.isnan(present):  # the target's own: of what is seen
        present = text + sum(
            max(0.0, s) for s, noise in zip(sums, noises, strict=True) if s > noise
        )
    best, most = UNKNOWN, 0.0
    for kind, weight, noise in zip(_CELLS, sums, noises, strict=True):
        slack = _DOUBT * math.hypot(noise, _MOST * doubt, _MOST * sigma)
        if weight >= _SURE * noise and weight >= _MOST * present - slack and weight > most:
            best, most = kind, weight
    return TEXT if best == UNKNOWN and parts.texts else best


def _answer(
    name: str,
    parts: Parts,
    declared: Sequence[Value] | None,
    everyone: float,
    doubt: float,
    sigma: float,
) -> ColumnAnswer:
    kind = _kind(parts, declared, everyone, doubt, sigma)
    numbers, dates, _ = _sums(parts)
    counts = {NUMBERS: parts.numbers, DATES: parts.dates}.get(kind)
    values: tuple[tuple[Value, float], ...] = ()
    if declared is not None:
        values = tuple(zip(declared, parts.values.tolist(), strict=True))
    elif kind == TEXT:
        values = tuple(parts.texts.items())
    return ColumnAnswer(name, kind, numbers, dates, parts.missing, counts, values)
