"""How late frames left the relay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from testbed.wire.direction import Delivery

LATE: Final = 1_000_000
"""Nanoseconds from which on a frame counts as late: the relay does not keep up."""

_BUCKETS: Final = 48


class Lateness:
    """How late frames left, in powers of two of nanoseconds, so that counting costs next to nothing. A piece of several
    frames counts once."""

    __slots__ = ("buckets", "late", "worst")

    def __init__(self) -> None:
        self.buckets = [0] * _BUCKETS
        self.worst = 0
        self.late = 0

    def count(self, now: int, due: Sequence[Delivery]) -> None:
        """These frames leave now; the one that was due first comes first."""
        buckets = self.buckets
        for when, _ in due:
            buckets[(now - when).bit_length()] += 1
        most = now - due[0][0]
        if most > self.worst:
            self.worst = most
        if most > LATE:
            self.late += sum(now - when > LATE for when, _ in due)

    def quantile(self, share: float) -> int:
        """An upper bound of the lateness of that share of the frames, at most twice the true value."""
        wanted, seen = share * sum(self.buckets), 0
        for bits, count in enumerate(self.buckets):
            seen += count
            if count and seen >= wanted:
                return min((1 << bits) - 1, self.worst)
        return 0
