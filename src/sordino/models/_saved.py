"""A released model as a file that needs no pickle, and back; the hashes that its guarantee records.

The npz file holds `coef` and `intercept`, `classes` or `target_bounds`, `feature_names`, `target`, and
`schema`: the JSON of the public description that turns a table into features. With the encoded features
x and ``r = max(radius, |(x, 1)|)``, the decision is ``(coef x + intercept) radius / r``. Everything in
it is public or was released under the run's guarantee. Format 2 adds `rows`, JSON of how rows are made
where that is not by a schema and with an intercept; models of arrays have no `schema`.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sordino._base.errors import PrivacyWarning, SordinoError, one_line, shown
from sordino._base.types import Json
from sordino.models._checks import Labels
from sordino.models._folder import GUARANTEE, MODEL
from sordino.models._rows import RowPreparation
from sordino.models._schema import Schema, parse_bounds, parse_values

if TYPE_CHECKING:
    from sordino.models._estimators import PrivateClassifier, PrivateRegressor

# Models of tables with an intercept are written as they always were.
FORMAT, GENERAL = "sordino-model 1", "sordino-model 2"


def model_bytes(model: Any, target: str) -> bytes:
    """The file for a fitted estimator, or what has its attributes."""
    schema: Schema | None = model.schema_
    prepare = getattr(model, "_preparation", None) or _usual(schema)
    rows = _rows_json(prepare)
    general = schema is None or bool(rows)
    arrays: dict[str, Labels] = {
        "format": np.array(GENERAL if general else FORMAT),
        "coef": model.coef_,
        "intercept": model.intercept_,
    }
    if schema is not None:
        arrays["feature_names"] = np.array(schema.feature_names, dtype=str)
    elif hasattr(model, "feature_names_in_"):
        arrays["feature_names"] = np.array(model.feature_names_in_, dtype=str)
    arrays["target"] = np.array(target)
    if schema is not None:
        arrays["schema"] = np.array(json.dumps(schema.to_json()))
    arrays["radius"] = np.array(prepare.radius(model.n_features_in_))
    if general:
        arrays["rows"] = np.array(json.dumps(rows))
    if hasattr(model, "classes_"):
        classes = np.asarray(model.classes_)
        arrays["classes"] = classes.astype(str) if classes.dtype == object else classes
    else:
        arrays["target_bounds"] = np.asarray(model.target_bounds_, np.float64)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def load_model(path: str | os.PathLike[str]) -> tuple[PrivateClassifier | PrivateRegressor, str]:
    """The fitted estimator in a file of `model_bytes`, or in a run's folder, and its target's name.

    Nothing in the file is believed: no code in it is run, nothing larger than the file itself is
    allocated, and what does not fit together is refused. Where a guarantee.json beside the file
    records its hash, another file is refused.
    """
    where = Path(path)
    where = where / MODEL if where.is_dir() else where
    if not where.is_file():
        raise SordinoError(f"there is no model at {str(where)!r}")
    reason: object
    try:
        content = where.read_bytes()
    except OSError as error:
        raise SordinoError(f"cannot read {str(where)!r}: {one_line(error.strerror)}") from None
    check_recorded(where, content)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            arrays = _Arrays(archive, len(content))
            if "format" not in arrays:
                raise ValueError("it has no field 'format'")
            if (name := arrays.text("format")) not in (FORMAT, GENERAL):
                raise ValueError(f"its format is {shown(name)}, not {FORMAT!r} or {GENERAL!r}")
            return _model(arrays), arrays.text("target")
    except OSError as error:
        reason = error.strerror or error
    except (EOFError, OverflowError, LookupError, struct.error, zipfile.BadZipFile) as error:
        reason = error
    except ValueError as error:  # `SordinoError` among them
        reason = error
    except RuntimeError:
        # The archive is encrypted, or packed in a way that is not written here.
        reason = "it is packed in a way that is not known here"
    raise SordinoError(f"{str(where)!r} is not a model of sordino: {one_line(reason)}")


class _Arrays:
    """The arrays of an npz file, read one by one and within bounds.

    numpy's own reader allocates what a header asks for before it looks at what is there.
    """

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self._archive, self._size = archive, size
        self._members = {member.filename: member for member in archive.infolist()}

    def __contains__(self, name: str) -> bool:
        return f"{name}.npy" in self._members

    def array(self, name: str, kinds: str, dimensions: int | None = None) -> Labels:
        """An array whose numpy kind is one of `kinds` (as in "fU")."""
        if name not in self:
            raise ValueError(f"it has no field {name!r}")
        member = self._members[f"{name}.npy"]
        # The archive's own words on both sizes: a stored member has but one.
        sizes = {member.file_size, member.compress_size}
        if member.compress_type != zipfile.ZIP_STORED or len(sizes) > 1 or max(sizes) > self._size:
            raise ValueError(f"its field {name!r} is packed in another way than is written here")
        array = _array(name, self._archive.read(member))
        if array.dtype.kind not in kinds or dimensions not in (None, array.ndim):
            raise ValueError(f"its field {name!r} holds other things than it should")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"its field {name!r} holds numbers that are not finite")
        return array

    def text(self, name: str) -> str:
        return str(self.array(name, "U", 0))

    def json(self, name: str) -> Any:
        try:
            return json.loads(self.text(name))
        except RecursionError:
            raise ValueError(f"its {name} is nested too deeply") from None

    def number(self, name: str) -> float:
        return float(self.array(name, "f", 0))


# The header of an npy file exactly as numpy writes it for plain numbers and text.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][fiubU]\d{1,9})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,15},? ?){0,4})\), \} *\n",
    re.DOTALL,
)


def _array(name: str, data: bytes) -> Labels:
    header = _HEADER.match(data)
    if header is None:
        raise ValueError(f"its field {name!r} is not an array of numbers or text")
    try:
        kind = np.dtype(header[1].decode())
    except TypeError:
        raise ValueError(f"its field {name!r} is of a type that is not known here") from None
    shape = tuple(int(length) for length in re.findall(rb"\d+", header[3]))
    body = data[header.end() :]
    if len(body) != kind.itemsize * math.prod(shape) or not body:
        raise ValueError(f"its field {name!r} has another length than its header says")
    if kind.kind == "U":
        body.decode("utf-32-le")  # numpy takes any number for a character, and fails later
    order: Literal["C", "F"] = "F" if header[2] == b"True" else "C"
    return np.frombuffer(body, kind).reshape(shape, order=order)


def _model(arrays: _Arrays) -> PrivateClassifier | PrivateRegressor:
    # Not above: whoever only compares hashes needs no scikit-learn.
    from sordino.models._estimators import PrivateClassifier, PrivateRegressor

    general = arrays.text("format") == GENERAL
    schema = None if general and "schema" not in arrays else Schema.from_json(arrays.json("schema"))
    coef, intercept = arrays.array("coef", "f"), arrays.array("intercept", "f")
    model: PrivateClassifier | PrivateRegressor
    if "classes" in arrays:
        model = PrivateClassifier()
        model.classes_ = arrays.array("classes", "Uiufb", 1)
        count = len(parse_values("its classes", model.classes_, minimum=2))
        wanted: tuple[int, ...] = (1 if count == 2 else count,)
    else:
        model = PrivateRegressor()
        model.target_bounds_ = parse_bounds("its target", arrays.array("target_bounds", "f", 1))
        wanted = ()
    columns = coef.shape[-1] if schema is None else len(schema.names)
    width = columns if schema is None else schema.width
    if intercept.shape != wanted or coef.shape != (*wanted, width):
        raise ValueError("its weights do not fit its schema")
    preparation = replace(_usual(schema), **(_rows(arrays, columns) if general else {}))
    if not math.isclose(arrays.number("radius"), preparation.radius(columns)):
        raise ValueError("its radius does not fit its schema")
    model.coef_, model.intercept_ = coef, intercept
    model.schema_ = schema
    model._preparation = preparation
    model.fit_intercept = preparation.intercept
    model.n_features_in_ = columns
    if schema is not None:
        model.feature_names_in_ = np.array(schema.names, dtype=object)
    elif "feature_names" in arrays:
        names = arrays.array("feature_names", "U", 1)
        if len(names) != columns:
            raise ValueError("its names are not those of its columns")
        model.feature_names_in_ = names.astype(object)
    return model


def _usual(schema: Schema | None) -> RowPreparation:
    return RowPreparation() if schema is None else RowPreparation.for_schema(schema)


def _rows_json(prepare: RowPreparation) -> Json:
    """How rows are made, besides by the schema: what differs from the usual."""
    usual = _usual(prepare.schema)
    own = {field.name: getattr(prepare, field.name) for field in fields(prepare)}
    return {
        name: np.asarray(value).tolist()
        for name, value in own.items()
        if name != "schema" and not np.array_equal(value, getattr(usual, name))
    }


def _rows(arrays: _Arrays, columns: int) -> dict[str, Any]:
    """What `_rows_json` wrote."""
    found, usual = arrays.json("rows"), RowPreparation()
    known = {field.name for field in fields(usual)} - {"schema"}
    if not isinstance(found, dict) or not found.keys() <= known:
        raise ValueError("its rows are made in a way that is not known here")
    for name, value in found.items():
        if name == "bounds":
            found[name] = bounds = np.asarray(value, np.float64)
            if bounds.shape != (2, columns) or not np.isfinite(bounds).all():
                raise ValueError("its bounds are not those of its columns")
            for low, high in bounds.T:
                parse_bounds("a column", (low, high))
        elif type(value) is not type(getattr(usual, name)):
            raise ValueError(f"its rows have no {name} {shown(value)}")
    if not 0 < found.get("constant", 1.0) <= 1:
        raise ValueError("its rows have no constant between 0 and 1")
    return found


# What belongs together: the SHA-256 of a run's files, as its guarantee.json records them. A model that was
# swapped by mistake, or a report that was edited, no longer has the recorded hash. That shows accidents and
# careless edits only: whoever can change a file can change guarantee.json too. Sign guarantee.json, or
# publish its hash elsewhere, where that matters.

FIELD = "sha256"
# A record is a page of text.
_LARGEST = 1 << 24


def digest(content: bytes) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def record_text(record: Json) -> str:
    """A record as its file has it."""
    return json.dumps(record, indent=1) + "\n"


def read_record(folder: Path) -> Json:
    """A folder's guarantee.json."""
    where = folder / GUARANTEE
    try:
        if where.stat().st_size > _LARGEST:
            raise SordinoError(f"{str(where)!r} is too large to be a guarantee")
        record = json.loads(where.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SordinoError(f"there is no {GUARANTEE} in {str(folder)!r}") from None
    except OSError as error:
        raise SordinoError(f"cannot read {str(where)!r}: {one_line(error.strerror)}") from None
    except (ValueError, RecursionError):
        raise SordinoError(f"{str(where)!r} is damaged: it is not JSON") from None
    if not isinstance(record, dict):
        raise SordinoError(f"{str(where)!r} is damaged: it is no table of fields")
    return record


def recorded(folder: Path) -> Mapping[str, str] | None:
    """The hashes that a folder's guarantee.json records, by file; None if it is from before 0.5.1."""
    hashes = read_record(folder).get(FIELD)
    if hashes is None:
        return None
    if not isinstance(hashes, dict) or not all(isinstance(value, str) for value in hashes.values()):
        raise SordinoError(
            f"{str(folder / GUARANTEE)!r} is damaged: {FIELD!r} is no list of hashes"
        )
    return hashes


def _is_of_train(record: Json) -> bool:
    return {"plan", "notes", "sordino"} <= set(record)


def check_recorded(path: Path, content: bytes) -> None:
    """Raise if a guarantee.json beside `path` records another hash for it; warn if it records none."""
    if not (path.parent / GUARANTEE).is_file():
        return
    hashes = recorded(path.parent)
    if hashes is None:
        if "versions" in (record := read_record(path.parent)):
            raise SordinoError(f"{str(path.parent / GUARANTEE)!r} was changed: it has no hashes")
        if not _is_of_train(record):
            return  # federated runs and parties have records of another kind
        warnings.warn(
            f"{str(path.parent / GUARANTEE)!r} records no hashes, as before version 0.5.1: that "
            f"{path.name} is the model it is about was not checked",
            PrivacyWarning,
            stacklevel=3,
        )
    elif path.name in hashes and hashes[path.name] != digest(content):
        raise SordinoError(
            f"{str(path)!r} is not the file that {GUARANTEE} beside it is about: it was exchanged or "
            "changed; take both from where they were made"
        )
