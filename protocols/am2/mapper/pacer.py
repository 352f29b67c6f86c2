"""A rate limit for a mapper's frames, with bursts."""

from __future__ import annotations


class Pacer:
    """A rate limit. interval: nanoseconds between two frames on average. burst: frames that may follow each other at
    once."""

    __slots__ = ("_interval", "_slack", "_when")

    def __init__(self, interval: int, burst: int) -> None:
        self._interval = interval
        self._slack = (burst - 1) * interval
        self._when = 0  # due time of the next frame, if all had been sent at equal intervals

    @property
    def free(self) -> int:
        """Time from which a frame may be sent."""
        return self._when - self._slack

    def take(self, now: int) -> bool:
        """Count a frame if it may be sent now; returns whether it may."""
        if now < self.free:
            return False
        self._when = max(self._when, now) + self._interval
        return True
