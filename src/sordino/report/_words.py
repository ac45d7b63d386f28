"""A guarantee in words for people who do not do this for a living."""

from __future__ import annotations

from sordino.privacy import INSECURE, Adjacency, Guarantee

_SECRET = {
    "zero-out": "whether one given {unit}'s contributions were used",
    "add-remove": "whether one given {unit} was in the data",
    Adjacency.REPLACE_ONE.value: "which of two possible contents one given {unit} had",
}


def guessing(guarantee: Guarantee) -> str:
    """The guarantee as a bet: how often can anyone guess right?

    With no prior inclination, the best guess between two data sets is right with probability
    ``(1 + TV) / 2``, and the total variation distance TV is at most delta at epsilon 0.
    """
    secret = _SECRET[guarantee.adjacency].format(unit=guarantee.unit)
    who = "Someone without the seed of the noise" if guarantee.insecure else "Someone"
    best = (1 + guarantee.delta(0.0)) / 2
    # Rounded up: this is a promise.
    share = min(100.0, int(best * 1000 + 1) / 10)
    return (
        f"{who} who sees everything that was released, and knows all the rest of the data, and "
        f"must guess {secret}, is right at most {share:g} % of the time; tossing a coin is right "
        f"50 % of the time."
    )


def meaning(guarantee: Guarantee) -> list[str]:
    """What the guarantee promises."""
    unit = guarantee.unit
    return [
        f"Any one {unit} changes the odds of any released outcome by little, whatever else anyone "
        "knows or will learn.",
        "It covers the released model, every intermediate model, and all that is ever computed from "
        "them.",
        "It was fixed before training began, and rests on clipping and noise alone: no assumption "
        "about the data or the model.",
    ]


def limits(guarantee: Guarantee) -> list[str]:
    """What the guarantee does not promise."""
    unit = guarantee.unit
    result = [
        "It does not hide what the data say as a whole: learning that is the purpose.",
        "It does not cover other releases from the same data; each spends more, and they add up.",
        "It does not cover what was declared public: the number of examples, the columns and their "
        "bounds, the settings, the test data.",
    ]
    if unit == "example":
        result.insert(
            1,
            "It protects one example (one row). A person with several rows is protected less: "
            "k rows cost up to k times the mu.",
        )
    if guarantee.insecure:
        result.insert(0, INSECURE)
    if guarantee.is_amplified:
        result.append(
            "It counts on batches that were drawn at random and stay secret; whoever sees who was "
            "in which batch is not covered by this epsilon."
        )
    return result


GLOSSARY = (
    (
        "epsilon",
        "how much one unit of data can change the odds of any outcome: by a factor of at most "
        "e^epsilon. Smaller is more private; 1 is a strong promise, 10 a weak one.",
    ),
    (
        "delta",
        "roughly, the probability with which that factor may be exceeded. It should be well below "
        "one over the number of examples.",
    ),
    (
        "mu-GDP",
        "the same promise as one number: telling two neighbouring data sets apart is as hard as "
        "telling a normal distribution with mean 0 from one with mean mu. All pairs of epsilon and "
        "delta follow from it.",
    ),
    (
        "adjacency",
        "which two data sets must look alike: with one unit's contributions set to zero, with one "
        "unit removed, or with one unit replaced. Replacing is about twice as demanding.",
    ),
    (
        "clip",
        "the largest influence that one example may have on one step; longer contributions are "
        "shortened.",
    ),
    (
        "correlated noise",
        "noise in one step that noise in later steps partly takes back. Each step is noisier, the "
        "model that adds them up is less so, and the guarantee is the same.",
    ),
)
