"""Lose messages on purpose: what a network does now and then, at a rate that tests can choose."""

from __future__ import annotations

import random

from sordino._base.errors import SordinoError, shown
from sordino.together.federated._messages import Endpoint
from sordino.together.federated.flower._app import MessageLostError


class LossyEndpoint:
    """An endpoint behind a bad line.

    A lost request is never seen by the client. A lost reply is worse: the client has answered, and
    what it released is spent, but the server never learns of it.

    Args:
      endpoint: the client.
      requests: probability that a request is lost.
      replies: probability that the reply to a request that arrived is lost.
      seed: which messages are lost.
    """

    def __init__(
        self, endpoint: Endpoint, *, requests: float = 0.1, replies: float = 0.1, seed: int = 0
    ) -> None:
        if not (0 <= requests <= 1 and 0 <= replies <= 1):
            raise SordinoError(
                f"probabilities of loss must be in 0 to 1, not {shown(requests)}, {shown(replies)}"
            )
        self._endpoint = endpoint
        self._requests = requests
        self._replies = replies
        self._dice = random.Random(seed)
        self.lost_requests = 0
        self.lost_replies = 0

    def answer(self, message: bytes) -> bytes:
        """The client's reply, unless something was lost."""
        # Two throws every time, so that one probability does not change what the other one hits.
        no_request = self._dice.random() < self._requests
        no_reply = self._dice.random() < self._replies
        if no_request:
            self.lost_requests += 1
            raise MessageLostError("the request was lost")
        reply = self._endpoint.answer(message)
        if no_reply:
            self.lost_replies += 1
            raise MessageLostError("the reply was lost")
        return reply
