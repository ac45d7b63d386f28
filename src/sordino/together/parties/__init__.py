"""Training between data owners: each brings its own records, and only noised sums are ever seen.

terms      what the parties agree on: a plan, their sizes, the engine, how many may collude
learner    one party's computation: its rows, its vector of a turn, and the model after it
journal    what a party has taken part in, on its own disk
party      the whole of one party: meet, sum, keep, go on
consortium the file that all parties sign

    from sordino import parties
    terms = parties.agree("dp-srm", examples=[...], ...)      # before any data
    parties.train_together(terms, ...)                        # all of them in one process

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = ["Terms", "agree", "train_together"]

if TYPE_CHECKING:
    from sordino.together._callbacks import Callbacks as Callbacks
    from sordino.together.parties._consortium import Consortium as Consortium
    from sordino.together.parties._consortium import PartyCard as PartyCard
    from sordino.together.parties._consortium import described as described
    from sordino.together.parties._journal import TurnRecord as TurnRecord
    from sordino.together.parties._learner import train_together as train_together
    from sordino.together.parties._party import PartyResult as PartyResult
    from sordino.together.parties._report import write_parties_report as write_parties_report
    from sordino.together.parties._terms import ENGINES as ENGINES
    from sordino.together.parties._terms import Terms as Terms
    from sordino.together.parties._terms import agree as agree
    from sordino.together.parties._terms import collusion as collusion
    from sordino.together.parties._terms import shares as shares
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
