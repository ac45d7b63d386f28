"""What a federated run trains: a linear model of a table, or a model of your own.

A model is public: all sites hold the same description, and the start is a function of it. What a site
brings is data. A model of your own is code that a site has installed itself; nothing is ever loaded that
came over the network. Descriptions come from others, and name such code: it is imported only if whoever
runs this site has named it too (`allow`), and never called before it is known to be a `ModelSpec`.

    # study.py, installed at every site
    from sordino.together.sites import ModelSpec
    model = ModelSpec(loss=my_loss, params=start, load=lambda path: (X, y), metrics=None)
"""

from __future__ import annotations

import hashlib
import importlib
import io
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.codec import load_json
from sordino._base.errors import SordinoError, one_line, shown
from sordino._base.types import Json, PyTree
from sordino.models import RowPreparation, Schema, read_table
from sordino.parts import LeastSquares, LinearLoss, Logistic, Softmax
from sordino.together.federated._contribution import flattened

if TYPE_CHECKING:
    import pandas as pd

Arrays = tuple[PyTree, ...]
# module:name, or module, whose name is then "model".
_MODEL_NAME = re.compile(r"[A-Za-z_][\w.]{0,199}(:[A-Za-z_]\w{0,99})?", re.ASCII)
Metrics = Callable[[PyTree, Arrays], Mapping[str, float]]


@dataclass(frozen=True)
class ModelSpec:
    """A loss, a start, and how data is read.

    Attributes:
      loss: a `LinearLoss`, or ``loss(params, *example) -> scalar`` in JAX.
      params: the start: any pytree of float arrays.
      load: the arrays of a file, as a tuple with equal leading axes.
      metrics: of (params, arrays), for public data; None for the mean loss.
      smoothness: about the largest curvature of the loss, for the default learning rate.
      save: the trained parameters as a file's bytes; None for an npz of the leaves.
      description: what the sites must have in common, as plain data.
      source: of a model of one's own, a digest of the file that it comes from.
    """

    loss: Any
    params: PyTree
    load: Callable[[Path], Arrays]
    metrics: Metrics | None = None
    smoothness: float = 0.5
    save: Callable[[PyTree], bytes] | None = None
    description: Json | None = None
    source: str | None = None

    @property
    def parameters(self) -> int:
        """d."""
        return int(flattened(self.params).size)

    def unflattened(self, vector: NDArray[np.float32]) -> PyTree:
        """A vector (d,) as parameters."""
        leaves, structure = jax.tree.flatten(self.params)
        ends = np.cumsum([np.size(leaf) for leaf in leaves])[:-1]
        parts = np.split(np.asarray(vector), ends)
        shaped = [part.reshape(np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
        return jax.tree.unflatten(structure, shaped)

    def evaluator(self, data: Arrays) -> Callable[[NDArray[np.float32]], Mapping[str, float]]:
        """Metrics of a vector of parameters on public data."""
        if self.metrics is not None:
            given = self.metrics
            return lambda vector: given(self.unflattened(vector), data)
        losses = jax.jit(jax.vmap(self.loss, in_axes=(None, *[0] * len(data))))
        return lambda vector: {"loss": float(jnp.mean(losses(self.unflattened(vector), *data)))}

    def saved(self, vector: NDArray[np.float32]) -> tuple[str, bytes]:
        """A file's name and bytes for the trained parameters."""
        if self.save is not None:
            return "model.npz", self.save(self.unflattened(vector))
        buffer = io.BytesIO()
        leaves = jax.tree.leaves(self.unflattened(vector))
        np.savez(buffer, allow_pickle=False, **{f"leaf-{i}": leaf for i, leaf in enumerate(leaves)})
        return "model.npz", buffer.getvalue()


def table_model(schema: Schema) -> ModelSpec:
    """A linear model of a table: logistic or softmax regression, or least squares."""
    if schema.target is None:
        raise SordinoError("the schema names no target column; add target")
    rows = RowPreparation(schema)
    width = schema.width + 1
    loss: LinearLoss
    if schema.classes is not None:
        binary = len(schema.classes) == 2
        loss = Logistic() if binary else Softmax(len(schema.classes))
        smoothness = 0.25 if binary else 0.5
    elif schema.target_bounds is not None:
        loss, smoothness = LeastSquares(), 1.0
    else:
        raise SordinoError("the schema has neither classes nor target_bounds; add one of them")

    def load(path: Path) -> Arrays:
        return arrays_of(read_table(path))

    def arrays_of(frame: pd.DataFrame) -> Arrays:
        features, target = schema.split(frame)
        if target.isna().any():
            raise SordinoError(
                f"the target {schema.target!r} has missing values; remove those rows first"
            )
        return rows(features), _labels(schema, target.to_numpy())

    def metrics(params: PyTree, data: Arrays) -> Mapping[str, float]:
        X, y = data
        scores = X @ np.asarray(params).T
        if schema.classes is None:
            low, high = schema.target_bounds or (-1.0, 1.0)
            error = float(np.sqrt(np.mean((scores - y) ** 2)))
            return {"root mean squared error": error * (high - low) / 2}
        guess = (scores > 0).astype(int) if scores.ndim == 1 else np.argmax(scores, axis=1)
        return {"accuracy": float(np.mean(guess == y))}

    def save(params: PyTree) -> bytes:
        from sordino.models import model_bytes

        coef, intercept = rows.to_features(params, len(schema.names))
        fitted: dict[str, object] = {
            "schema_": schema,
            "n_features_in_": len(schema.names),
            "coef_": coef if schema.classes is not None else coef[0],
            "intercept_": intercept if schema.classes is not None else intercept[0],
        }
        if schema.classes is not None:
            fitted["classes_"] = np.asarray(schema.classes)
        else:
            fitted["target_bounds_"] = schema.target_bounds
        return model_bytes(SimpleNamespace(**fitted), str(schema.target))

    return ModelSpec(
        loss,
        np.zeros(loss.parameter_shape(width), np.float32),
        load,
        metrics,
        smoothness,
        save,
        {"kind": "table", "schema": schema.to_json()},
    )


def own_model(name: str) -> ModelSpec:
    """A model of your own by ``module:name``, from what is installed here; the module is imported."""
    module, _, attribute = name.partition(":")
    try:
        if not _MODEL_NAME.fullmatch(name):
            raise ValueError("that is no name of a Python object")
        result: object = getattr(importlib.import_module(module), attribute or "model")
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SordinoError(
            f"there is no model {shown(name)} here ({one_line(error)}); give it as module:name"
        ) from None
    if not isinstance(result, ModelSpec):
        raise SordinoError(f"{shown(name)} is not a sordino.together.sites.ModelSpec")
    return replace(
        result, description={"kind": "own", "name": name}, source=_source(sys.modules[module])
    )


def code_folder(name: str) -> Path | None:
    """The folder on Python's path that an imported model of one's own comes from, if it is a file."""
    top = sys.modules[name.partition(":")[0].partition(".")[0]]
    path = getattr(top, "__file__", None)
    return None if path is None else Path(path).parents[1 if hasattr(top, "__path__") else 0]


def _source(module: ModuleType) -> str:
    """A digest of a module's own file; nothing where it has none."""
    path = getattr(module, "__file__", None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""


def named_code(data: Json) -> str | None:
    """The ``module:name`` that a description would have this site import; None for a table's model."""
    if isinstance(data, Mapping) and data.get("kind") == "own":
        name = data.get("name")
        if isinstance(name, str) and _MODEL_NAME.fullmatch(name):
            return name
        raise SordinoError(f"a model of one's own is named as module:name, not {shown(name)}")
    if isinstance(data, Mapping) and data.get("kind") == "table":
        return None
    raise SordinoError(f"this is not the description of a model: {shown(data)}")


def require_allowed(data: Json, allow: Collection[str]) -> None:
    """Refuse a description that names code which whoever runs this site has not named; imports nothing."""
    name = named_code(data)
    if name is not None and name not in allow:
        raise SordinoError(
            f"the file names code of this machine, {shown(name)}, and a file decides nothing about "
            f"what runs here; if you know it and want it, allow it yourself with --allow-model {name}"
        )


def model_from_json(data: Json, allow: Collection[str] = ()) -> ModelSpec:
    """The model that a description names.

    Args:
      allow: ``module:name`` of models of one's own, chosen by whoever runs this site: others are refused
        before anything is imported.
    """
    require_allowed(data, allow)
    name = named_code(data)
    return table_model(Schema.from_json(data.get("schema"))) if name is None else own_model(name)


def load_model_description(path: Path, allow: Collection[str] = ()) -> ModelSpec:
    """The model that a site's file describes; `allow` as in `model_from_json`."""
    return load_json(path, "a model's description", lambda data: model_from_json(data, allow))


def _labels(schema: Schema, target: NDArray[Any]) -> NDArray[Any]:
    if schema.classes is None:
        low, high = schema.target_bounds or (-1.0, 1.0)
        scaled = (np.asarray(target, np.float64) - (low + high) / 2) * (2 / (high - low))
        return np.clip(scaled, -1.0, 1.0).astype(np.float32)
    numbers: dict[object, int] = {value: i for i, value in enumerate(schema.classes)}
    result = [numbers.get(_plain(value), -1) for value in target]
    if -1 in result:
        raise SordinoError(
            f"the target {schema.target!r} has labels that are not among the classes"
        )
    return np.asarray(result, np.int32)


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value
