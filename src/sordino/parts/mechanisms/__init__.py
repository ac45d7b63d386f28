"""How the noise of one step is related to that of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = [
    "BLT",
    "MECHANISMS",
    "Banded",
    "Cancelling",
    "Dense",
    "Independent",
    "LinearMap",
    "Mechanism",
    "ScaledDraws",
    "Tree",
    "Workload",
    "fit_mechanism",
]

if TYPE_CHECKING:
    from sordino.parts.mechanisms._base import LONGEST_MATRIX as LONGEST_MATRIX
    from sordino.parts.mechanisms._base import Mechanism as Mechanism
    from sordino.parts.mechanisms._cancelling import Cancelling as Cancelling
    from sordino.parts.mechanisms._catalogue import MECHANISMS as MECHANISMS
    from sordino.parts.mechanisms._catalogue import check_noise_stays as check_noise_stays
    from sordino.parts.mechanisms._catalogue import fit_mechanism as fit_mechanism
    from sordino.parts.mechanisms._catalogue import mechanism_fields as mechanism_fields
    from sordino.parts.mechanisms._catalogue import mechanism_from_json as mechanism_from_json
    from sordino.parts.mechanisms._combined import ScaledDraws as ScaledDraws
    from sordino.parts.mechanisms._dense import Dense as Dense
    from sordino.parts.mechanisms._discrete import KEY_BYTES as KEY_BYTES
    from sordino.parts.mechanisms._discrete import MOST_VARIANCE as MOST_VARIANCE
    from sordino.parts.mechanisms._discrete import ChaCha20Generator as ChaCha20Generator
    from sordino.parts.mechanisms._discrete import discrete_gaussian as discrete_gaussian
    from sordino.parts.mechanisms._discrete import exp_enclosure as exp_enclosure
    from sordino.parts.mechanisms._gaussian import KEY_WORDS as KEY_WORDS
    from sordino.parts.mechanisms._gaussian import gaussian_key as gaussian_key
    from sordino.parts.mechanisms._gaussian import standard_normal_rows as standard_normal_rows
    from sordino.parts.mechanisms._gaussian import threefry_keys as threefry_keys
    from sordino.parts.mechanisms._lattice import LEAST_STEPS as LEAST_STEPS
    from sordino.parts.mechanisms._lattice import MOST_DRAWS as MOST_DRAWS
    from sordino.parts.mechanisms._lattice import Lattice as Lattice
    from sordino.parts.mechanisms._lattice import LatticeNoise as LatticeNoise
    from sordino.parts.mechanisms._lattice import Variances as Variances
    from sordino.parts.mechanisms._lattice import draw_stds as draw_stds
    from sordino.parts.mechanisms._lattice import is_on_lattice as is_on_lattice
    from sordino.parts.mechanisms._maps import AnytimeMap as AnytimeMap
    from sordino.parts.mechanisms._maps import Channels as Channels
    from sordino.parts.mechanisms._split import lagged_mechanism as lagged_mechanism
    from sordino.parts.mechanisms._toeplitz import BLT as BLT
    from sordino.parts.mechanisms._toeplitz import Banded as Banded
    from sordino.parts.mechanisms._toeplitz import Independent as Independent
    from sordino.parts.mechanisms._tree import Tree as Tree
    from sordino.parts.mechanisms._workloads import LinearMap as LinearMap
    from sordino.parts.mechanisms._workloads import Workload as Workload
    from sordino.parts.mechanisms._workloads import linear_map_from_json as linear_map_from_json
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
