"""A released model as a file that needs no pickle, and back.

The npz file holds `coef` and `intercept`, `classes` or `target_bounds`, `feature_names`, `target`, and
`schema`: the JSON of the public description that turns a table into features. With the encoded features
x and ``r = max(radius, |(x, 1)|)``, the decision is ``(coef x + intercept) radius / r``. Everything in
it is public or was released under the run's guarantee.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from sordino.errors import SordinoError
from sordino.models.estimators import PrivateClassifier, PrivateRegressor
from sordino.models.rows import RowPreparation
from sordino.models.schema import Schema

FORMAT = "sordino-model 1"


def model_bytes(model: Any, target: str) -> bytes:
    """The file for a fitted estimator whose columns are described by a schema."""
    arrays: dict[str, Any] = {
        "format": np.array(FORMAT),
        "coef": model.coef_,
        "intercept": model.intercept_,
        "feature_names": np.array(model.schema_.feature_names, dtype=str),
        "target": np.array(target),
        "schema": np.array(json.dumps(model.schema_.to_json())),
        "radius": np.array(RowPreparation(model.schema_).radius(model.n_features_in_)),
    }
    if hasattr(model, "classes_"):
        classes = np.asarray(model.classes_)
        arrays["classes"] = classes.astype(str) if classes.dtype == object else classes
    else:
        arrays["target_bounds"] = np.asarray(model.target_bounds_, np.float64)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def load_model(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """The fitted estimator in a file of `model_bytes`, and the name of its target."""
    where = Path(path)
    if not where.is_file():
        raise SordinoError(f"there is no model at {str(where)!r}")
    try:
        with np.load(where, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        if str(arrays["format"]) != FORMAT:
            raise ValueError(f"its format is {str(arrays['format'])!r}, not {FORMAT!r}")
        return _model(arrays), str(arrays["target"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise SordinoError(f"{str(where)!r} is not a model of sordino: {error}") from None


def _model(arrays: dict[str, Any]) -> Any:
    schema = Schema.from_json(json.loads(str(arrays["schema"])))
    coef, intercept = arrays["coef"], arrays["intercept"]
    model: Any
    if "classes" in arrays:
        model = PrivateClassifier()
        model.classes_ = arrays["classes"]
        wanted: tuple[int, ...] = (1 if len(model.classes_) == 2 else len(model.classes_),)
    else:
        model = PrivateRegressor()
        low, high = (float(bound) for bound in arrays["target_bounds"])
        model.target_bounds_ = (low, high)
        wanted = ()
    if intercept.shape != wanted or coef.shape != (*wanted, schema.width):
        raise ValueError("its weights do not fit its schema")
    model.coef_, model.intercept_ = coef, intercept
    model.schema_ = schema
    model._preparation = RowPreparation(schema)
    model.n_features_in_ = len(schema.names)
    model.feature_names_in_ = np.array(schema.names, dtype=object)
    return model
