"""Linear maps that are not Toeplitz: what accelerated, averaged and lagged methods make of noise.

Each is the recursion of one algorithm with frozen gradients, no projection, step size 1 and the
sign dropped: row t of ``apply(noise)`` is the noise in the iterate (or estimate) after step t.

    >>> AnytimeMap().apply([1.0, 0.0, 0.0]).round(3)
    array([0.667, 1.333, 2.   ])
    >>> Composed((VaryingDecay((0.0, 0.5, 0.5)), Workload.prefix())).apply([1.0, 0.0, 0.0])
    array([1.  , 1.5 , 1.75])
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from sordino._base.errors import SordinoError, require_count, require_fraction, require_positive
from sordino._base.types import Json
from sordino.parts.mechanisms._workloads import (
    READERS,
    Array,
    LinearMap,
    Workload,
    linear_map_from_json,
)


@dataclass(frozen=True)
class AnytimeMap(LinearMap):
    """Iterates of mu^2-SGD from its corrections s_t (papers/02 1.1), t = 1..T:

        q += s_t,   w += q,   x += 2/(t+2) (w - x) ;      output x_2 .. x_{T+1} .

    Unrolled, ``x_{t+1} = 2/((t+1)(t+2)) sum_{i<=t} (i+1) w_{i+1}``: three running sums.
    """

    name: str = field(default="anytime average", init=False)
    kind: ClassVar[str] = "anytime"
    prefers_leaky: ClassVar[bool] = True

    def apply(self, x: npt.ArrayLike) -> Array:
        s = np.asarray(x, np.float64)
        w = _running_sum(_running_sum(s))
        t = _steps_of(s) + 1
        return _running_sum((t + 1) * w) * (2 / ((t + 1) * (t + 2)))

    def nearest_toeplitz(self) -> Workload:
        """The sums w, of which the iterates are averages."""
        return Workload("double prefix", ratios=(1.0, 1.0))

    def to_json(self) -> Json:
        return {"kind": self.kind}


@dataclass(frozen=True)
class NesterovMap(LinearMap):
    """y-iterates of Accelerated-DP-SRGD from its differences Delta_t (papers/03 1.5), t = 0..T-1:

        S += Delta_t,   z += kappa S / beta,   y = x + S / (beta (t+1)),
        x = (1 - tau) y + tau z,  tau = 2/(t+3) ;                           output y_1 .. y_T .

    With ``X_t = (t+1)(t+2) x_t`` the coupling is ``X_{t+1} = X_t + (t+2) (S_t / beta + 2 z_{t+1})``.
    For weights ``eta_t = (t+1)^power`` it is, with ``A_t = eta_0 + .. + eta_t`` and ``X_t = A_t x_t``,
    ``X_{t+1} = X_t + A_t / eta_t S_t / beta + eta_{t+1} z_{t+1}``. Not `summed`: the input is S itself.
    """

    kappa: float = 0.5
    beta: float = 1.0
    power: float = 1.0
    summed: bool = True
    name: str = field(default="accelerated coupling", init=False)
    kind: ClassVar[str] = "nesterov-coupling"
    prefers_leaky: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "kappa", require_positive("kappa", self.kappa))
        object.__setattr__(self, "beta", require_positive("beta", self.beta))
        object.__setattr__(self, "power", require_positive("power", self.power))

    def apply(self, x: npt.ArrayLike) -> Array:
        S = np.asarray(x, np.float64)
        S = (_running_sum(S) if self.summed else S) / self.beta
        z = self.kappa * _running_sum(S)
        t = _steps_of(S)
        if self.power != 1:
            eta = (t + 1) ** self.power
            A = _running_sum(eta)
            after = _running_sum(A / eta * S + (t + 2) ** self.power * z)
            return np.concatenate([np.zeros_like(after[:1]), after[:-1]]) / A + S / eta
        after = _running_sum((t + 2) * (S + 2 * z))  # X_{t+1}
        before = np.concatenate([np.zeros_like(after[:1]), after[:-1]])  # X_t
        return before / ((t + 1) * (t + 2)) + S / (t + 1)

    def nearest_toeplitz(self) -> Workload:
        """The second sequence, which sums the sums."""
        return Workload("double prefix", ratios=(1.0, 1.0))

    def to_json(self) -> Json:
        data: Json = {"kind": self.kind, "kappa": self.kappa, "beta": self.beta}
        # Absent at their defaults, as in plans that were made before there were others.
        data |= {} if self.power == 1 else {"power": self.power}
        return data | ({} if self.summed else {"summed": False})


@dataclass(frozen=True)
class RunningMeanMap(LinearMap):
    """Iterates of steps along ``S_t / eta_t``, ``eta_t = (t+1)^power``, from differences, t = 0..T-1:

    S += Delta_t,   x += S / eta_t ;                                    output x_1 .. x_T .
    """

    power: float = 1.0
    name: str = field(default="steps along the running mean", init=False)
    kind: ClassVar[str] = "running-mean"
    prefers_leaky: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "power", require_positive("power", self.power))

    def apply(self, x: npt.ArrayLike) -> Array:
        S = _running_sum(np.asarray(x, np.float64))
        return _running_sum(S / (_steps_of(S) + 1) ** self.power)

    def nearest_toeplitz(self) -> Workload:
        """The sums, of which the steps are fractions."""
        return Workload.prefix()

    def to_json(self) -> Json:
        return {"kind": self.kind, "power": self.power}


@dataclass(frozen=True)
class LaggedMomentumMap(LinearMap):
    """``alpha M_t`` of the lag-one-epoch recursion (papers/00 1.3), B = `lag`, t from 1:

        M_t = beta M_{t-1} + x_t                                                    (t <= B)
        M_t = (1-gamma) M_{t-B} + beta^(t-B) M_B + Y_t,  Y_t = beta Y_{t-1} + x_t   (t > B)

    The input is the gradient a_t in the first epoch and the difference y_t afterwards; for
    ``y_t = a_t - (1-gamma) a_{t-B}`` the output is the plain momentum of a, whatever gamma.
    """

    lag: int
    beta: float
    gamma: float
    alpha: float
    name: str = field(default="lagged momentum", init=False)
    kind: ClassVar[str] = "lagged-momentum"

    def __post_init__(self) -> None:
        object.__setattr__(self, "lag", require_count("lag", self.lag))
        for part in ("beta", "gamma"):
            checked = require_fraction(part, getattr(self, part), closed=True)
            object.__setattr__(self, part, checked)
        object.__setattr__(self, "alpha", require_positive("alpha", self.alpha))

    @property
    def decay(self) -> float:
        """By how much both momentum sums decay in a step."""
        return self.beta

    def apply(self, x: npt.ArrayLike) -> Array:
        a = np.asarray(x, np.float64)
        B, n = self.lag, len(a)
        momentum = Workload("momentum", ratios=(self.beta,))
        M = np.concatenate([momentum.apply(part) for part in (a[:B], a[B:]) if len(part)])
        if n <= B:
            return self.alpha * M
        M[B:] += self.beta ** (1 + _steps_of(a[B:])) * M[B - 1]
        for first in range(B, n, B):
            block = M[first : first + B]
            block += (1 - self.gamma) * M[first - B : first - B + len(block)]
        return self.alpha * M

    def nearest_toeplitz(self) -> Workload:
        return Workload("momentum", self.alpha, (self.beta,))

    def to_json(self) -> Json:
        return {
            "kind": self.kind,
            "lag": self.lag,
            "beta": self.beta,
            "gamma": self.gamma,
            "alpha": self.alpha,
        }


@dataclass(frozen=True)
class VaryingDecay(LinearMap):
    """``G_t = c_t G_{t-1} + x_t`` with a decay of its own in each step (papers/03 1.4 and 3.1).

    The first decay has nothing to act on. A shorter input uses the first decays.
    """

    decays: tuple[float, ...]
    name: str = field(default="varying decay", init=False)
    kind: ClassVar[str] = "varying-decay"

    def __post_init__(self) -> None:
        if not self.decays:
            raise SordinoError("a map of varying decay needs at least one decay")
        checked = tuple(require_fraction("every decay", c, closed=True) for c in self.decays)
        object.__setattr__(self, "decays", checked)

    def apply(self, x: npt.ArrayLike) -> Array:
        G = np.array(x, np.float64)
        if len(G) > len(self.decays):
            raise SordinoError(f"{len(G)} steps need as many decays, got {len(self.decays)}")
        for t in range(1, len(G)):
            G[t] += self.decays[t] * G[t - 1]
        return G

    def nearest_toeplitz(self) -> Workload:
        """With the mean decay."""
        mean = float(np.mean(self.decays[1:])) if len(self.decays) > 1 else 0.0
        return Workload("decay", ratios=(mean,))

    def to_json(self) -> Json:
        return {"kind": self.kind, "decays": list(self.decays)}


@dataclass(frozen=True)
class Composed(LinearMap):
    """Several maps, one after the other: the first of `maps` is applied first."""

    maps: tuple[LinearMap, ...]
    kind: ClassVar[str] = "composed"

    def __post_init__(self) -> None:
        _check_maps(self.maps, "a composed map")
        if any(isinstance(part, Channels) for part in self.maps):
            raise SordinoError("compose the maps of each channel, not the channels")

    @property
    def name(self) -> str:  # type: ignore[override]
        return " then ".join(part.name for part in self.maps)

    def apply(self, x: npt.ArrayLike) -> Array:
        result = np.asarray(x, np.float64)
        for part in self.maps:
            result = part.apply(result)
        return result

    def nearest_toeplitz(self) -> Workload:
        return reduce(Workload.then, [part.nearest_toeplitz() for part in self.maps])

    def to_json(self) -> Json:
        return {"kind": self.kind, "maps": [part.to_json() for part in self.maps]}


@dataclass(frozen=True)
class Channels(LinearMap):
    """Several channels released in each step, each through its own map, added up.

    The input has the layout of `Parallel`'s rows: ``(steps, channels * k)`` in equal consecutive
    blocks of columns; the output is ``(steps, k)``. `matrix` is ``[W_1 W_2 ...]``.
    """

    maps: tuple[LinearMap, ...]
    kind: ClassVar[str] = "channels"

    def __post_init__(self) -> None:
        _check_maps(self.maps, "a map of several channels")
        if any(isinstance(part, Channels) for part in self.maps):
            raise SordinoError("the channels of a map cannot have channels of their own")

    @property
    def parts(self) -> tuple[LinearMap, ...]:
        """One map for each channel."""
        return self.maps

    @property
    def name(self) -> str:  # type: ignore[override]
        return " plus ".join(part.name for part in self.maps)

    def apply(self, x: npt.ArrayLike) -> Array:
        wide = np.asarray(x, np.float64)
        count = len(self.maps)
        if wide.ndim != 2 or wide.shape[1] % count:
            raise SordinoError(
                f"a map of {count} channels needs (steps, {count} k) numbers, got {wide.shape}"
            )
        blocks = np.split(wide, count, axis=1)
        outputs = [part.apply(block) for part, block in zip(self.maps, blocks, strict=True)]
        return np.asarray(sum(outputs[1:], outputs[0]))

    def matrix(self, n: int) -> Array:
        return np.concatenate([part.matrix(n) for part in self.maps], axis=1)

    def nearest_toeplitz(self) -> Workload:
        raise SordinoError("a map of several channels is fitted channel by channel")

    def to_json(self) -> Json:
        return {"kind": self.kind, "maps": [part.to_json() for part in self.maps]}


def _check_maps(maps: tuple[LinearMap, ...], what: str) -> None:
    if not maps or not all(isinstance(part, LinearMap) for part in maps):
        raise SordinoError(f"{what} needs one or more linear maps, got {maps!r}")


def _running_sum(x: Array) -> Array:
    """Prefix sums along axis 0; by whole rows where they are wide, several times as fast."""
    if x.ndim == 1 or x.shape[1] < 64:
        return np.cumsum(x, axis=0)
    total = x.copy()
    for t in range(1, len(total)):
        total[t] += total[t - 1]
    return total


def _steps_of(x: Array) -> Array:
    """0, 1, ... along axis 0, shaped to multiply `x`."""
    return np.arange(float(len(x))).reshape(-1, *(1,) * (x.ndim - 1))


def _maps_of(data: Json) -> tuple[LinearMap, ...]:
    return tuple(linear_map_from_json(part) for part in data["maps"])


READERS[AnytimeMap.kind] = lambda data: AnytimeMap()
READERS[NesterovMap.kind] = lambda data: NesterovMap(
    data["kappa"], data["beta"], data.get("power", 1.0), data.get("summed", True) is not False
)
READERS[RunningMeanMap.kind] = lambda data: RunningMeanMap(data["power"])
READERS[LaggedMomentumMap.kind] = lambda data: LaggedMomentumMap(
    data["lag"], data["beta"], data["gamma"], data["alpha"]
)
READERS[VaryingDecay.kind] = lambda data: VaryingDecay(tuple(data["decays"]))
READERS[Composed.kind] = lambda data: Composed(_maps_of(data))
READERS[Channels.kind] = lambda data: Channels(_maps_of(data))
