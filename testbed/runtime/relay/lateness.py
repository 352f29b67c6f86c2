"""Lateness of a relay: statistics of how late frames leave it, and rate-limited warnings if it does not keep up.

The first warning comes at once, further ones at growing intervals while the condition lasts: warnings are events, which
are kept as long as the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from testbed.fabric.direction import Delivery

LATE: Final = 1_000_000
"""Nanoseconds of lateness above which a frame counts as late, which means that the relay does not keep up."""

_BUCKETS: Final = 48


class Lateness:
    """A histogram of lateness in powers of two of nanoseconds, which is cheap to update. A GSO frame counts once."""

    __slots__ = ("buckets", "late", "worst")

    def __init__(self) -> None:
        self.buckets = [0] * _BUCKETS
        self.worst = 0
        self.late = 0

    def count(self, now: int, due: Sequence[Delivery]) -> None:
        """Count frames that leave now, ordered by due time."""
        buckets = self.buckets
        for when, _ in due:
            buckets[(now - when).bit_length()] += 1
        most = now - due[0][0]
        if most > self.worst:
            self.worst = most
        if most > LATE:
            self.late += sum(now - when > LATE for when, _ in due)

    def add(self, late: int) -> None:
        """Count one frame. late: nanoseconds, 0 or more."""
        self.buckets[late.bit_length()] += 1
        if late > self.worst:
            self.worst = late
        self.late += late > LATE

    def quantile(self, share: float) -> int:
        """Return an upper bound of this quantile, at most twice the true value."""
        wanted, seen = share * sum(self.buckets), 0
        for bits, count in enumerate(self.buckets):
            seen += count
            if count and seen >= wanted:
                return min((1 << bits) - 1, self.worst)
        return 0


SELDOM: Final = 64_000_000_000
"""Maximum nanoseconds between warnings of a direction that stays behind."""

_SOON: Final = 1_000_000_000


class LatenessWarnings:
    """Rate-limited warnings of one direction."""

    __slots__ = ("_due", "_late", "_lost", "_pause", "_since")

    def __init__(self, now: int) -> None:
        """now: nanoseconds; all times here are of one clock."""
        self._late = self._lost = 0
        self._due = self._since = now
        self._pause = _SOON

    def take_due(self, now: int, late: int, lost: int) -> tuple[int, int, int] | None:
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
