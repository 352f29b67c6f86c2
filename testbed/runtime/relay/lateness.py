"""Statistics of how late frames leave the relay."""

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

    def quantile(self, share: float) -> int:
        """An upper bound of this quantile, at most twice the true value."""
        wanted, seen = share * sum(self.buckets), 0
        for bits, count in enumerate(self.buckets):
            seen += count
            if count and seen >= wanted:
                return min((1 << bits) - 1, self.worst)
        return 0
