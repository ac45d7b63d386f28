"""All parties in one process, with the engine `plain`: for research and tests, it protects nobody.

    result = train_together(terms, loss, params, [data_1, data_2, ...], insecure_seed=0)

The same learners as in a real run, and exactly the noise of one: all that is missing is the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sordino._base.errors import SordinoError
from sordino._base.keys import RunKey
from sordino.engine import Result
from sordino.parts.mechanisms import ChaCha20Generator, discrete_gaussian
from sordino.together.parties._learner import Learner
from sordino.together.parties._terms import Terms
from sordino.together.secure._base import published_variance, share_variance


def party_key(seed: int | None, place: int) -> RunKey:
    """A party's own key: fresh, or made from a seed for tests."""
    if seed is None:
        return RunKey.fresh()
    whole = RunKey.from_insecure_seed(seed)
    return RunKey(whole.derive(f"party/{place}"), insecure=True)


def train_together(
    terms: Terms,
    loss: Any,
    params: Any,
    data: Sequence[Any],
    *,
    insecure_seed: int | None = None,
    evaluate: Callable[[Any], Mapping[str, float]] | None = None,
    every: int | None = None,
    lost: Sequence[int] = (),
    **options: Any,
) -> Result:
    """Train as `terms` say, with every party's data in this process.

    Args:
      data: one tuple of arrays for each party.
      insecure_seed: makes batches and noise reproducible.
      evaluate: a function of the private parameters on PUBLIC data, called every `every` turns.
      lost: turns whose sums are lost, as if a party had died in them.
      options: of `Learner`.
    """
    if len(data) != terms.parties:
        raise SordinoError(f"there is data for {len(data)} parties, agreed are {terms.parties}")
    began = time.perf_counter()
    learners = [
        Learner(terms, place, loss, params, own, key=party_key(insecure_seed, place), **options)
        for place, own in enumerate(data)
    ]
    noise = party_key(insecure_seed, -1)
    history: list[Mapping[str, float]] = []
    first = learners[0]
    while not first.finished:
        turn = first.done
        total = sum((learner.vector().clipped for learner in learners), np.int64(0))
        released = None if turn in lost else total + _noise(terms, turn, noise)
        first.take(released)
        for other in learners[1:]:
            other.follow(first, released)
        if evaluate is not None and (first.finished or (every and first.done % every == 0)):
            history.append({"step": first.done, **evaluate(first.params)})
    return Result(
        params=first.params,
        plan=terms.plan,
        guarantee=terms.guarantee,
        history=tuple(history),
        seconds=time.perf_counter() - began,
        insecure=insecure_seed is not None,
        run=noise.identity,
    )


def _noise(terms: Terms, turn: int, key: RunKey) -> Any:
    """What the engine of the terms would add: one draw, or every party's share."""
    assumption = terms.assumption
    share = share_variance(terms.variances[turn], assumption)
    parts = published_variance(terms.variances[turn], assumption) // share
    generator = ChaCha20Generator(key.derive(f"noise/{turn}"))
    return sum(discrete_gaussian(share, terms.parameters, generator) for _ in range(parts))
