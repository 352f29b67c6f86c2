"""Resources with a queue: a NIC's processor, a DMA engine, a bus, a host's cores.

A job occupies the resource for its cost, and jobs are served first come, first served. Because no job overtakes another,
the time at which a job ends is known on its arrival: reserving is arithmetic, without an event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from heapq import heapreplace
from types import coroutine
from typing import Final

from testbed.engine.loop import Loop

_LOAD_PERIOD: Final = 10_000_000  # ns; as `testbed.cluster.faults.background_load` has in namespaces


class Server:
    """A resource with one unit. Times and costs are integer nanoseconds.

    Statistics count a job when it is reserved, with its full cost.
    """

    __slots__ = ("_loop", "_starts", "busy", "free", "jobs", "longest", "name", "waited")

    def __init__(self, name: str, loop: Loop | None = None) -> None:
        """loop: of the tasks that `use` it; not needed for `reserve`."""
        self.name = name
        self.free = 0
        """When all reserved jobs will be done."""
        self.busy = 0
        """The sum of all costs."""
        self.jobs = 0
        self.waited = 0
        """The sum of the times that jobs waited before they were served."""
        self.longest = 0
        """The maximum of jobs that waited at once, without the one in service."""
        self._loop = loop
        self._starts: deque[int] = deque()  # start times of the jobs that had to wait

    def reserve(self, now: int, cost: int) -> int:
        """Reserve the resource for a job that arrives now; return when it will be done. Jobs are served in the order of the
        calls, even if a call's `now` lies before that of an earlier call."""
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
        """Reserve and wait until the job is done: ``await server.use(cost)``. The job of a task that is interrupted
        meanwhile stays reserved."""
        if self._loop is None:
            raise RuntimeError(f"{self.name!r} was given no loop: its time is reserved, tasks cannot use it")
        yield self.reserve(self._loop.now(), cost)

    def utilisation(self, now: int, since: int = 0) -> float:
        """Return the share of the time from `since`, which lies before the first job, until now in which it was busy."""
        return (self.busy - self._to_come(now)) / (now - since) if now > since else 0.0

    def _to_come(self, now: int) -> int:
        """Return how much of the reserved cost lies after now."""
        return max(self.free - now, 0)


class Servers(Server):
    """A resource with several units; a job takes the unit that is free first. free: when that one is."""

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
        """Return the mean over the units."""
        return super().utilisation(now, since) / len(self._frees)

    def _to_come(self, now: int) -> int:
        return sum(free - now for free in self._frees if free > now)


class Burner:
    """Background load that takes a share of a modelled core in every 10 ms. busy: nanoseconds taken so far."""

    def __init__(self, loop: Loop, core: Server, share: float) -> None:
        self._loop = loop
        self._core = core
        self._cost = round(share * _LOAD_PERIOD)
        self._is_running = True
        self.busy = 0
        self._burn(loop.now())

    def stop(self) -> None:
        self._is_running = False

    def _burn(self, now: int) -> None:
        if self._is_running:
            self._core.reserve(now, self._cost)
            self.busy += self._cost
            self._loop.at(now + _LOAD_PERIOD, self._burn)
