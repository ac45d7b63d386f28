"""Names for types that Python cannot spell."""

from __future__ import annotations

from typing import Any, TypeAlias

# Nested tuples, lists, dicts or dataclasses of arrays: parameters, records, states of an optimizer.
PyTree: TypeAlias = Any
# Plain data as `json` reads and writes it: a table of fields.
Json: TypeAlias = dict[str, Any]
