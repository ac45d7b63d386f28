"""What a member or a server tells whoever looks on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sordino.together.federated._coordinator import RoundRecord
    from sordino.together.parties._journal import TurnRecord
    from sordino.together.parties._learner import Learner
    from sordino.together.parties._party import Meeting


@dataclass(frozen=True)
class Callbacks:
    """Functions that are called with public facts only, while a training together goes on.

    Attributes:
      met: of a party, when all parties have come: the session and the number of settled turns.
      turned: of a party, after each turn.
      round_done: of a server, after each round.
      event: of a server, when a client is missing or refuses, for example.
    """

    met: Callable[[Meeting, int], None] = lambda session, settled: None
    turned: Callable[[TurnRecord, Learner], None] = lambda record, learner: None
    round_done: Callable[[RoundRecord], None] = lambda record: None
    event: Callable[[str], None] = lambda text: None
