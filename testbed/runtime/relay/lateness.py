"""Lateness of a relay: statistics of how late frames leave it, and rate-limited warnings if it does not keep up.

The first warning is due at once, further ones at growing intervals while frames are late or lost: warnings are events, and
the event log grows until the cluster is taken down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from testbed.fabric.direction import Delivery

LATE_THRESHOLD: Final = 1_000_000
"""Nanoseconds of lateness above which a frame counts as late: the relay does not keep up."""

_BUCKETS: Final = 48  # for lateness of up to 39 hours


class Lateness:
    """A histogram of lateness in powers of two of nanoseconds, which is cheap to update. A GSO frame counts once.

    buckets: numbers of frames, by the bit length of their lateness. late_frames: number of frames above LATE_THRESHOLD.
    worst: longest lateness, nanoseconds.
    """

    __slots__ = ("buckets", "late_frames", "worst")

    def __init__(self) -> None:
        self.buckets = [0] * _BUCKETS
        self.worst = 0
        self.late_frames = 0

    def count(self, now: int, due: Sequence[Delivery]) -> None:
        """Count frames that leave now. due: the frames, at least one, in the order of their due times."""
        buckets = self.buckets
        for when, _ in due:
            buckets[(now - when).bit_length()] += 1
        longest = now - due[0][0]
        if longest > self.worst:
            self.worst = longest
        if longest > LATE_THRESHOLD:
            self.late_frames += sum(now - when > LATE_THRESHOLD for when, _ in due)

    def add(self, lateness: int) -> None:
        """Count one frame. lateness: nanoseconds, 0 or more."""
        self.buckets[lateness.bit_length()] += 1
        if lateness > self.worst:
            self.worst = lateness
        self.late_frames += lateness > LATE_THRESHOLD

    def quantile(self, share: float) -> int:
        """Return an upper bound of a quantile in nanoseconds, at most twice the true value; 0 without frames. share: 0 to
        1."""
        rank, cumulative = share * sum(self.buckets), 0
        for bits, count in enumerate(self.buckets):
            cumulative += count
            if count and cumulative >= rank:
                return min((1 << bits) - 1, self.worst)
        return 0


MAX_WARNING_INTERVAL: Final = 64_000_000_000
"""Maximum nanoseconds between warnings of a direction that stays late."""

_MIN_WARNING_INTERVAL: Final = 1_000_000_000


class LatenessWarnings:
    """Rate-limited warnings of one direction."""

    __slots__ = ("_due", "_interval", "_late", "_lost", "_since")

    def __init__(self, now: int) -> None:
        """now: nanoseconds, on the same clock as in `take_due`."""
        self._late = self._lost = 0
        self._due = self._since = now
        self._interval = _MIN_WARNING_INTERVAL

    def take_due(self, now: int, late: int, lost: int) -> tuple[int, int, int] | None:
        """Return the warning that is due: the numbers of late and of lost frames since the last warning, and the
        nanoseconds since then.

        Returns None if no frame was late or lost since then, or the next warning is not due yet. late, lost: numbers of
        frames since the start.
        """
        if (late, lost) == (self._late, self._lost) or now < self._due:
            return None
        persists = now < self._due + self._interval
        self._interval = min(2 * self._interval, MAX_WARNING_INTERVAL) if persists else _MIN_WARNING_INTERVAL
        warning = late - self._late, lost - self._lost, now - self._since
        self._late, self._lost, self._since, self._due = late, lost, now, now + self._interval
        return warning
