"""How do several owners train one model? Federations, consortia, and the secure sums under both.

from sordino.together import federated, parties, secure
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = ["federated", "parties", "secure", "sites"]

if TYPE_CHECKING:
    from sordino.together import federated as federated
    from sordino.together import parties as parties
    from sordino.together import secure as secure
    from sordino.together import sites as sites
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
