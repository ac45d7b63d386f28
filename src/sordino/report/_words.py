"""A guarantee in words for people who do not do this for a living; more of them are in the templates."""

from __future__ import annotations

from sordino.privacy import Guarantee, secret


def guessing(guarantee: Guarantee) -> str:
    """The guarantee as a bet: how often can anyone guess right?

    With no prior inclination, the best guess between two data sets is right with probability
    ``(1 + TV) / 2``, and the total variation distance TV is at most delta at epsilon 0.
    """
    hidden = secret(guarantee.adjacency, guarantee.unit)
    who = "Someone without the seed of the noise" if guarantee.insecure else "Someone"
    best = (1 + guarantee.delta(0.0)) / 2
    # Rounded up: this is a promise.
    share = min(100.0, int(best * 1000 + 1) / 10)
    return (
        f"{who} who sees everything that was released, and knows all the rest of the data, and "
        f"must guess {hidden}, is right at most {share:g} % of the time; tossing a coin is right "
        f"50 % of the time."
    )
