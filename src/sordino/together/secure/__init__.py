"""Sums over data owners of which nobody sees the parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = ["MaskSum", "MpycSum", "Roster", "RosterEntry", "SecureSum", "SpuSum", "StarTransport"]

if TYPE_CHECKING:
    from sordino.together._certificates import Roster as Roster
    from sordino.together._certificates import RosterEntry as RosterEntry
    from sordino.together._certificates import certificate_fingerprint as certificate_fingerprint
    from sordino.together.secure._base import SecureSum as SecureSum
    from sordino.together.secure._child import Tls as Tls
    from sordino.together.secure._mask import MaskSum as MaskSum
    from sordino.together.secure._mask import new_private_key as new_private_key
    from sordino.together.secure._mask import public_key as public_key
    from sordino.together.secure._mpyc import MpycSum as MpycSum
    from sordino.together.secure._mpyc import require_mpyc as require_mpyc
    from sordino.together.secure._spu_engine import SpuSum as SpuSum
    from sordino.together.secure._spu_engine import find_environment as find_environment
    from sordino.together.secure._transport import StarTransport as StarTransport
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
