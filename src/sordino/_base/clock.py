"""The time of day, as files say it."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now(timespec: str = "seconds") -> str:
    """Now, in UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec=timespec)
