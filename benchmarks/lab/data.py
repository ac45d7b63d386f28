"""The rows of a population: read, prepared record by record, and the part of them that is public."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from benchmarks.lab.experiment import PopulationSpec, Tuning
from benchmarks.lab.models import NETWORKS, NetworkLoss, network_loss
from benchmarks.lab.scattering import scattering_features
from benchmarks.lab.strokes import DRAWINGS, drawings
from benchmarks.published import Rows, TrainTest, load_a9a, load_cifar10, load_ijcnn1, load_mnist
from sordino import LinearLoss, Logistic, NonconvexLogistic, Softmax, SordinoError
from sordino._base.errors import (
    known_fields,
    require_choice,
    require_count,
    require_positive,
    shown,
)
from sordino.models import PublicWhitening

Array = NDArray[np.float32]
Loss = LinearLoss | NetworkLoss
# The public rows, and how they are cut into folds, are drawn from this: a constant, not from the data.
_PUBLIC_SEED = 7
# Added to variances, as layers of this kind do.
_LEAST_VARIANCE = 1e-5


@dataclass(frozen=True)
class RowRule:
    """How one row becomes the model's input. Nothing here depends on another row.

    Attributes:
      features: the name of a fixed map of images that is applied first, of `FEATURES`; "" for none.
      groups: channels of those features are cut into so many groups, and each group of a row is
        centred and scaled to variance 1 by the row's own numbers; 0 for none.
      strokes: the features of a row, scaled to norm 1, are then seen in so many directions in which
        those of drawings by chance vary most, all made to vary alike; 0 for none. See
        `benchmarks.lab.strokes`.
      blur: images are smoothed by a Gaussian of this many pixels, a public linear map; 0 for none.
      center: a public constant to subtract, one number or one per channel (the last axis), or "own":
        the row's own mean.
      scale: a public factor, after centring.
      norm: rows are scaled to this norm; None leaves them.
      longest: rows of a greater norm are scaled down to it; None leaves them.
      bias: a constant column to append, after scaling; 0 for none.
    """

    features: str = ""
    groups: int = 0
    strokes: int = 0
    blur: float = 0.0
    center: float | tuple[float, ...] | str = 0.0
    scale: float = 1.0
    norm: float | None = None
    longest: float | None = None
    bias: float = 0.0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RowRule:
        result = known_fields("rows", given, cls)
        center = result.get("center", 0.0)
        if isinstance(center, str):
            require_choice("center", center, ("own",))
        elif isinstance(center, list):
            result["center"] = tuple(float(value) for value in center)
        if result.get("features"):
            require_choice("features", result["features"], FEATURES)
        for name in ("groups", "strokes"):
            require_count(name, result.get(name, 0), minimum=0)
        if result.get("strokes") and not result.get("features"):
            raise SordinoError("strokes are for features of images, and rows has no features")
        for name in ("norm", "longest", "scale"):
            if result.get(name) is not None:
                require_positive(name, result[name])
        return cls(**result)

    def __call__(self, X: Array) -> Array:
        if self.features:
            rows = FEATURES[self.features](X)
        else:
            rows = np.array(X, np.float32, copy=True)
        if self.groups:
            _normalize_groups(rows, self.groups)
        if self.strokes:
            if X.ndim != 3 or X.shape[1] != X.shape[2]:
                raise SordinoError(f"strokes are for square images, got an array of {X.shape}")
            rows = rows.reshape(len(rows), -1)
            rows /= _norms(rows)
            rows = _whitening(self.features, self.groups, self.strokes, X.shape[1])(rows)
        if self.blur:
            width = (0, self.blur, self.blur, 0)[: rows.ndim]
            rows = gaussian_filter(rows, width)
        if self.center != "own":
            rows -= np.asarray(self.center, np.float32)
        rows = rows.reshape(len(rows), -1)
        if self.center == "own":
            rows -= rows.mean(axis=1, keepdims=True)
        if self.scale != 1.0:
            rows *= np.float32(self.scale)
        if self.norm is not None:
            rows *= self.norm / _norms(rows)
        elif self.longest is not None:
            rows *= np.minimum(1.0, self.longest / _norms(rows))
        if self.bias:
            rows = np.hstack([rows, np.full((len(rows), 1), self.bias, np.float32)])
        return rows


FEATURES: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {"scattering": scattering_features}
)


@lru_cache(maxsize=1)
def _whitening(features: str, groups: int, kept: int, side: int) -> PublicWhitening:
    """The directions of drawings of a side, by features that are made as those of rows are."""
    built = RowRule(features=features, groups=groups, norm=1.0)(drawings(DRAWINGS, side))
    return PublicWhitening.of(built, kept)


def _norms(rows: Array) -> Array:
    """The norms of flat rows, (rows, 1), never 0."""
    result: Array = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return result


def _normalize_groups(rows: Array, groups: int) -> None:
    """Group normalisation without parameters, in place: channels are the axis after the rows."""
    channels = rows.shape[1]
    if channels % groups:
        raise SordinoError(f"{channels} channels cannot be cut into {groups} groups of one size")
    for row in np.array_split(rows, max(1, len(rows) // 1000)):
        parts = row.reshape(len(row), groups, -1)
        parts -= parts.mean(axis=2, keepdims=True)
        parts /= np.sqrt(np.mean(parts**2, axis=2, keepdims=True) + _LEAST_VARIANCE)


@dataclass(frozen=True, eq=False)
class PreparedData:
    """A population's rows as models take them.

    Attributes:
      as_published: False where the files were read, but are not the published ones.
    """

    loss: Loss
    train: Rows
    test: Rows
    as_published: bool = True

    @property
    def start(self) -> Any:
        """The parameters that every run starts from."""
        if isinstance(self.loss, NetworkLoss):
            return self.loss.start()
        return np.zeros(self.loss.parameter_shape(self.train[0].shape[1]), np.float32)

    def shaped(self, flat: Array) -> Any:
        """Parameters from one row of all their numbers."""
        if isinstance(self.loss, NetworkLoss):
            return self.loss.shaped(flat)
        return flat.reshape(self.start.shape)

    def with_rows(self, count: int) -> PreparedData:
        """The same with so many training rows: the first ones, repeated in turn where they are few."""
        (X, y), at = self.train, np.arange(count) % len(self.train[1])
        return replace(self, train=(X[at], y[at]))


def prepare(population: PopulationSpec, folder: str | None) -> PreparedData:
    """Read and prepare a population's rows."""
    split, as_published = _read(population.data, folder)
    rule = RowRule.of(population.rows)
    loss = make_loss(population.loss, len(split.classes))
    (X, y), (X_test, y_test) = split.train, split.test
    return PreparedData(loss, (rule(X), y), (rule(X_test), y_test), as_published)


def public_folds(whole: PreparedData, tuning: Tuning) -> list[PreparedData]:
    """Stand-ins for the whole, made of public training rows only; see `Tuning`.

    In each, the rows to score on are one fold of the public part, those to train on the other folds.
    """
    X, y = whole.train
    order = np.random.default_rng(_PUBLIC_SEED).permutation(len(y))
    public = order[: max(tuning.folds, round(tuning.share * len(y)))]
    folds = np.array_split(public, tuning.folds)
    size = min(len(fold) for fold in folds)  # of one shape, so that one program serves all
    built = []
    for i, fold in enumerate(folds):
        others = np.concatenate([other[:size] for j, other in enumerate(folds) if j != i])
        held = fold[:size]
        built.append(
            PreparedData(whole.loss, (X[others], y[others]), (X[held], y[held]), whole.as_published)
        )
    return built


def make_loss(given: Mapping[str, Any], classes: int) -> Loss:
    """The loss that an experiment names."""
    options = dict(given)
    kind = require_choice("loss", options.pop("kind", ""), LOSSES)
    try:
        return LOSSES[kind](classes, **options)
    except TypeError:
        raise SordinoError(f"the loss {kind!r} has no options {shown(options)}") from None


LOSSES: Mapping[str, Callable[..., Loss]] = MappingProxyType(
    {
        "logistic": lambda classes: Logistic(),
        "nonconvex-logistic": lambda classes, lam=1e-3: NonconvexLogistic(lam),
        "softmax": lambda classes: Softmax(classes),
        **{name: partial(network_loss, name) for name in NETWORKS},
    }
)


def _synthetic(folder: str | None, *, verify: bool = True) -> TrainTest:
    """Two classes of 20 features, from a formula: for trying experiments without any file."""
    rng = np.random.default_rng(3)
    weights = rng.normal(size=20)
    parts = []
    for count in (4_000, 2_000):
        X = rng.normal(size=(count, 20)).astype(np.float32) / np.float32(np.sqrt(20))
        chance = 1 / (1 + np.exp(-4 * X @ weights))
        parts.append((X, (rng.random(count) < chance).astype(np.int32)))
    return TrainTest("synthetic", ("0", "1"), *parts)


DATA: Mapping[str, Callable[..., TrainTest]] = MappingProxyType(
    {
        "a9a": load_a9a,
        "ijcnn1": load_ijcnn1,
        "mnist": load_mnist,
        "cifar10": load_cifar10,
        "synthetic": _synthetic,
    }
)


def _read(name: str, folder: str | None) -> tuple[TrainTest, bool]:
    load = DATA[require_choice("data", name, DATA)]
    try:
        return load(folder), True
    except SordinoError:
        pass
    # What is missing or damaged is an error here too; what differs is read, and said to differ.
    return load(folder, verify=False), False
