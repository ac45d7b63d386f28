"""Mechanisms by name, fitted to a workload and a participation rule."""

from __future__ import annotations

from functools import lru_cache

from sordino.errors import require_choice
from sordino.mechanisms.banded import Banded
from sordino.mechanisms.base import Mechanism
from sordino.mechanisms.blt import BLT
from sordino.mechanisms.dense import Dense
from sordino.mechanisms.independent import Independent
from sordino.mechanisms.tree import Tree
from sordino.mechanisms.workloads import Workload
from sordino.privacy.participation import FixedBatches, Participation, SinglePass

NAMES = ("auto", "independent", "blt", "banded", "toeplitz", "dense", "tree")
# Up to here the dense optimum for several epochs is found in seconds; beyond, BLT is close to it.
_AUTO_DENSE_STEPS = 256
# Up to here the square root fits in memory; it is the best for one epoch's last iterates.
_AUTO_ROOT_STEPS = 1024


@lru_cache(maxsize=32)
def fit_mechanism(
    name: str, workload: Workload, participation: Participation, bands: int | None = None
) -> Mechanism:
    """The named mechanism with the least error of `workload` under `participation`.

    A pure function of hashable values, so the last few results are kept: comparing learning rates
    or cross-validating plans a run once.
    """
    require_choice("mechanism", name, NAMES)
    if name == "auto":
        name = _automatic(participation)
    if name == "independent":
        return Independent(participation.steps)
    if name == "tree":
        return Tree.matched(workload, participation.steps)
    if name == "banded":
        return Banded.optimized(workload, participation, bands)
    if name == "toeplitz":
        return Dense.square_root(workload, participation)
    if name == "dense":
        return Dense.optimized(workload, participation)
    return BLT.optimized(workload, participation)


def _automatic(participation: Participation) -> str:
    steps, uses = participation.steps, participation.max_participations
    if uses == steps:
        return "independent"  # a unit present in every step leaves nothing for correlation to gain
    if not isinstance(participation, FixedBatches | SinglePass):
        return "blt"
    if uses == 1 and steps <= _AUTO_ROOT_STEPS:
        return "toeplitz"
    return "dense" if steps <= _AUTO_DENSE_STEPS else "blt"
