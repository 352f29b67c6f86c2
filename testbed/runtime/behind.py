"""When a relay that is behind says so: at once, and ever more seldom while that goes on. What it says is a line of the
cluster's events, which are kept for as long as the cluster lives."""

from __future__ import annotations

from typing import Final

SELDOM: Final = 64_000_000_000
"""Nanoseconds between two sentences of one direction that is behind for ever."""

_SOON: Final = 1_000_000_000


class Behind:
    """What one direction has told."""

    __slots__ = ("_due", "_late", "_lost", "_pause", "_since")

    def __init__(self, now: int) -> None:
        """now: as all times here, nanoseconds of one clock."""
        self._late = self._lost = 0
        self._due = self._since = now
        self._pause = _SOON

    def look(self, now: int, late: int, lost: int) -> tuple[int, int, int] | None:
        """late, lost: frames since the beginning. Of how many of each is to be told now, and over how many nanoseconds they
        came; None where there is nothing new, or it has time."""
        if (late, lost) == (self._late, self._lost) or now < self._due:
            return None
        goes_on = now < self._due + self._pause
        self._pause = min(2 * self._pause, SELDOM) if goes_on else _SOON
        found = late - self._late, lost - self._lost, now - self._since
        self._late, self._lost, self._since, self._due = late, lost, now, now + self._pause
        return found
