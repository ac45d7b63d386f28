"""Sites: the folders in which servers and clients of a federated run live, and what they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = ["ModelSpec", "local_clients", "local_server", "pad_keys", "run_directly"]

if TYPE_CHECKING:
    from sordino.together._certificates import AUTHORITY as AUTHORITY
    from sordino.together.sites._federated import AGREEMENT as AGREEMENT
    from sordino.together.sites._federated import ENGINES as ENGINES
    from sordino.together.sites._federated import MODEL_DESCRIPTION as MODEL_DESCRIPTION
    from sordino.together.sites._federated import ClientSite as ClientSite
    from sordino.together.sites._federated import ServerSite as ServerSite
    from sordino.together.sites._federated import create as create
    from sordino.together.sites._federated import local_clients as local_clients
    from sordino.together.sites._federated import local_parts as local_parts
    from sordino.together.sites._federated import local_server as local_server
    from sordino.together.sites._federated import pad_keys as pad_keys
    from sordino.together.sites._federated import read_pad_key as read_pad_key
    from sordino.together.sites._federated import run_directly as run_directly
    from sordino.together.sites._federated import run_here as run_here
    from sordino.together.sites._federated import run_on_ray as run_on_ray
    from sordino.together.sites._federated import seen_by_clients as seen_by_clients
    from sordino.together.sites._models import ModelSpec as ModelSpec
    from sordino.together.sites._models import code_folder as code_folder
    from sordino.together.sites._models import load_model_description as load_model_description
    from sordino.together.sites._models import named_code as named_code
    from sordino.together.sites._models import own_model as own_model
    from sordino.together.sites._models import table_model as table_model
    from sordino.together.sites._parties import CARD as CARD
    from sordino.together.sites._parties import CONSORTIUM as CONSORTIUM
    from sordino.together.sites._parties import JOURNAL as JOURNAL
    from sordino.together.sites._parties import MODEL as MODEL
    from sordino.together.sites._parties import SIGNATURES as SIGNATURES
    from sordino.together.sites._parties import PartySite as PartySite
    from sordino.together.sites._parties import create_party as create_party
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
