"""How many frames a second a mapper may send: some at once, so many on average."""

from __future__ import annotations


class Pacer:
    """interval: nanoseconds between two frames on average. burst: frames that may follow each other at once."""

    __slots__ = ("_interval", "_slack", "_when")

    def __init__(self, interval: int, burst: int) -> None:
        self._interval = interval
        self._slack = (burst - 1) * interval
        self._when = 0  # when the next frame were due, had all been sent at equal intervals

    @property
    def free(self) -> int:
        """From when on a frame may be sent."""
        return self._when - self._slack

    def take(self, now: int) -> bool:
        """Whether a frame may be sent now; it is counted."""
        if now < self.free:
            return False
        self._when = max(self._when, now) + self._interval
        return True
