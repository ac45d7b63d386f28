"""What a run is identified by: everything that decides its release, as keyed digests by name.

Noise is a function of the run key and the step. The same key with anything else changed would put the
same noise around other sums, and the difference of two releases would be free of it. So the ledger, a
checkpoint and a key that is used again all ask the same question: is every part of this equal?
`sordino.engine._description` makes an identity; whoever cannot see all of its inputs has none, and
such a run is never the same run again.
"""

from __future__ import annotations

from collections.abc import Mapping

# The digest of each part by its name.
Identity = Mapping[str, str]

# What to say of each part that differs.
MEANINGS = {
    "plan": "the plan",
    "data": "the data or its labels",
    "start": "the initial parameters",
    "settings": "the driver, microbatches, evaluation or callbacks",
    "program": "the loss, the optimizer, the regularizer or the code",
    "environment": "the versions of the software, the processor or the number of its cores",
}


def changes(stored: Identity, wanted: Identity) -> list[str]:
    """What differs between two runs, in words; nothing if they are one and the same run."""
    names = dict.fromkeys([*MEANINGS, *stored, *wanted])
    differ = [name for name in names if stored.get(name) != wanted.get(name)]
    return [MEANINGS.get(name, f"the {name}") for name in differ]
