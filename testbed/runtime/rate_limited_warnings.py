"""Rate-limited warnings of a relay that does not keep up.

The first warning comes at once, further ones at growing intervals while the condition lasts: warnings are events, which
are kept as long as the cluster.
"""

from __future__ import annotations

from typing import Final

SELDOM: Final = 64_000_000_000
"""Maximum nanoseconds between warnings of a direction that stays behind."""

_SOON: Final = 1_000_000_000


class Behind:
    """The warnings of one direction."""

    __slots__ = ("_due", "_late", "_lost", "_pause", "_since")

    def __init__(self, now: int) -> None:
        """now: nanoseconds; all times here are of one clock."""
        self._late = self._lost = 0
        self._due = self._since = now
        self._pause = _SOON

    def look(self, now: int, late: int, lost: int) -> tuple[int, int, int] | None:
        """Return (late, lost, nanoseconds): the new late and lost frames to warn of, and the time in which they came.

        None if there are no new ones, or the next warning is not due. late, lost: frames since the start.
        """
        if (late, lost) == (self._late, self._lost) or now < self._due:
            return None
        goes_on = now < self._due + self._pause
        self._pause = min(2 * self._pause, SELDOM) if goes_on else _SOON
        found = late - self._late, lost - self._lost, now - self._since
        self._late, self._lost, self._since, self._due = late, lost, now, now + self._pause
        return found
