"""A resource that is booked ahead: a processor or a bus whose users know of some of their jobs before they come.

A NIC knows when it will be through with a transfer, and books its processor for what follows then. Whoever comes before
that, and is done in time, need not wait: a job gets the first gap that is long enough, not a place behind all that is
booked. (`Server`, which is faster, is for resources that are used in the order of the calls.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from testbed.engine.server import Server


class Booked(Server):
    """A server whose jobs take the first gap from their time on. A job that costs nothing has begun and ended where
    nothing else is served. `longest` is not counted."""

    __slots__ = ("_begins", "_clock", "_ends")

    def __init__(self, name: str, clock: Callable[[], int]) -> None:
        """clock: the time before which nothing will be booked any more."""
        super().__init__(name)
        self._clock = clock
        self._begins: list[int] = []  # of what is booked, in order; jobs that meet are one
        self._ends: list[int] = []

    def reserve(self, now: int, cost: int) -> int:
        self.jobs += 1
        self.busy += cost
        begins, ends = self._begins, self._ends
        if ends and ends[0] <= (past := self._clock()):
            over = bisect_right(ends, past)
            del begins[:over], ends[:over]
        place = bisect_right(ends, now)
        start = now
        while place < len(begins) and start + cost > begins[place]:
            start = max(start, ends[place])
            place += 1
        self.waited += start - now
        finish = start + cost
        if not cost:
            return finish
        before = place > 0 and ends[place - 1] == start
        behind = place < len(begins) and begins[place] == finish
        if before and behind:
            ends[place - 1] = ends[place]
            del begins[place], ends[place]
        elif before:
            ends[place - 1] = finish
        elif behind:
            begins[place] = start
        else:
            begins.insert(place, start)
            ends.insert(place, finish)
        self.free = ends[-1]
        return finish

    def _to_come(self, now: int) -> int:
        return sum(end - max(begin, now) for begin, end in zip(self._begins, self._ends, strict=True) if end > now)
