"""Resources that are busy: a NIC's processor, a DMA engine, a bus, a host's cores.

A job takes the resource for its cost; jobs are served in the order in which they come. Because nothing overtakes, the
time at which a job ends is known when it comes: reserving is arithmetic, without an event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from heapq import heapreplace
from types import coroutine
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.engine.loop import Loop


class Server:
    """A resource with one unit. Times and costs are integer nanoseconds.

    What is said of the use counts a job when it is reserved, with all of its cost.
    """

    __slots__ = ("_loop", "_starts", "busy", "free", "jobs", "longest", "name", "waited")

    def __init__(self, name: str, loop: Loop | None = None) -> None:
        """loop: where tasks run that `use` it; who only reserves needs none."""
        self.name = name
        self.free = 0
        """When it has done all that is reserved."""
        self.busy = 0
        """The sum of all costs."""
        self.jobs = 0
        self.waited = 0
        """For how long jobs waited before they were served, together."""
        self.longest = 0
        """How many jobs waited at once, at most; the one that is served does not wait."""
        self._loop = loop
        self._starts: deque[int] = deque()  # when those that have had to wait begin

    def reserve(self, now: int, cost: int) -> int:
        """The time at which a job that comes now will be done. Jobs are served in the order of the calls, also where a
        call's now lies before another's (one that knows of its job earlier)."""
        self.jobs += 1
        self.busy += cost
        start = self.free
        if start <= now:
            self.free = finish = now + cost
            return finish
        self.waited += start - now
        starts = self._starts
        while starts and starts[0] <= now:
            starts.popleft()
        starts.append(start)
        if len(starts) > self.longest:
            self.longest = len(starts)
        self.free = finish = start + cost
        return finish

    @coroutine
    def use(self, cost: int) -> Generator[int, None, None]:
        """``await server.use(cost)``: goes on when the job is done. Who is interrupted meanwhile leaves the job there."""
        if self._loop is None:
            raise RuntimeError(f"{self.name!r} was given no loop: its time is reserved, tasks cannot use it")
        yield self.reserve(self._loop.now(), cost)

    def utilisation(self, now: int, since: int = 0) -> float:
        """The share of the time from `since`, when the first job had not yet come, until now in which it was busy."""
        return (self.busy - self._to_come(now)) / (now - since) if now > since else 0.0

    def _to_come(self, now: int) -> int:
        """How much of the costs lies after now."""
        return max(self.free - now, 0)


class Servers(Server):
    """A resource with several units, of which a job takes the one that is free first; `free` is when that one is."""

    __slots__ = ("_frees",)

    def __init__(self, name: str, units: int, loop: Loop | None = None) -> None:
        if units < 1:
            raise ValueError(f"{name!r} cannot have {units} units: it has 1 or more")
        super().__init__(name, loop)
        self._frees = [0] * units  # a heap: when each has done what is reserved

    def reserve(self, now: int, cost: int) -> int:
        self.jobs += 1
        self.busy += cost
        frees = self._frees
        start = frees[0]
        if start <= now:
            start = now
        else:
            self.waited += start - now
            starts = self._starts
            while starts and starts[0] <= now:
                starts.popleft()
            starts.append(start)
            if len(starts) > self.longest:
                self.longest = len(starts)
        finish = start + cost
        heapreplace(frees, finish)
        self.free = frees[0]
        return finish

    def utilisation(self, now: int, since: int = 0) -> float:
        """The mean over the units."""
        return super().utilisation(now, since) / len(self._frees)

    def _to_come(self, now: int) -> int:
        return sum(free - now for free in self._frees if free > now)
