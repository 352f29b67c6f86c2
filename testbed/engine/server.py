"""Resources with a queue: a NIC's processor, a DMA engine, a bus, a host's cores.

A job occupies the resource for its cost, and jobs are served first come, first served. Because no job overtakes another,
the time at which a job ends is known on its arrival: reserving is arithmetic, without an event.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator
from types import coroutine
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from testbed.engine.loop import Loop

_SECOND: Final = 10**9
_LOAD_PERIOD: Final = 10_000_000  # ns; as `testbed.cluster.faults.background_load` has in namespaces


def transfer_time(size: int, rate: int) -> int:
    """Return the nanoseconds, rounded up, for `size` bytes at a rate in bit/s; rate 0 means no limit."""
    return -(-size * 8 * _SECOND // rate) if rate else 0


class Server:
    """A resource with one unit. Times and costs are integer nanoseconds.

    Statistics count a job when it is reserved, with its full cost.
    """

    __slots__ = ("_loop", "busy", "free", "jobs", "name", "waited")

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
        self._loop = loop

    def reserve(self, now: int, cost: int) -> int:
        """Reserve the resource for a job that arrives now; return when it will be done. Jobs are served in the order of the
        calls, even if a call's `now` lies before that of an earlier call."""
        self.jobs += 1
        self.busy += cost
        start = self.free
        if start < now:
            start = now
        self.waited += start - now
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


class Booked(Server):
    """A resource that is booked ahead: some jobs are known before they start.

    A job gets the first sufficient gap from its time on, rather than a place behind all bookings. (`Server`, which is
    faster, is for resources used in the order of the calls.) A job of no cost begins and ends in a gap.
    """

    __slots__ = ("_begins", "_clock", "_ends")

    def __init__(self, name: str, clock: Callable[[], int]) -> None:
        """clock: the time before which nothing will be booked any more."""
        super().__init__(name)
        self._clock = clock
        self._begins: list[int] = []  # of bookings, in order; adjacent jobs are merged
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
