"""Resources with a queue: a NIC's processor, a DMA engine, a bus, a host's cores.

A job occupies the resource for its cost, and jobs are served first come, first served. Because no job overtakes another,
the time at which a job ends is known on its arrival: reserving is arithmetic, without an event.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from typing import Final

from protocols.core.host_work import COMPUTE, POLL, SWITCH
from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.waitables import Until

_SECOND: Final = 10**9
_NOBODY: Final = -1  # no program in particular
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

    def use(self, cost: int) -> Until:
        """Reserve, and wait until the job is done: ``await server.use(cost)``. The job of a task that is interrupted
        meanwhile stays reserved."""
        if self._loop is None:
            raise RuntimeError(f"{self.name!r} was given no loop: its time is reserved, tasks cannot use it")
        return Until(self.reserve(self._loop.now(), cost))

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

    def __init__(self, name: str, clock: VirtualClock) -> None:
        """clock: shows the time before which nothing will be booked any more."""
        super().__init__(name)
        self._clock = clock
        self._begins: list[int] = []  # of bookings, in order; adjacent jobs are merged
        self._ends: list[int] = []

    def reserve(self, now: int, cost: int) -> int:
        self.jobs += 1
        self.busy += cost
        begins, ends = self._begins, self._ends
        if ends and ends[0] <= (past := self._clock.time):
            over = bisect_right(ends, past)
            del begins[:over], ends[:over]
        if not ends or ends[-1] < now:
            finish = now + cost
            if cost:
                begins.append(now)
                ends.append(finish)
                self.free = finish
            return finish
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


class Core(Server):
    """A host's core, accounted for by cause, shared by programs and interrupted by the kernel.

    Programs' work is served first come, first served. The kernel's work (interrupts, softirqs) does not wait for it: it
    begins as soon as earlier work of the kernel has ended, and puts off what programs have reserved. A computation under
    way is lengthened by that (`compute`). Library work whose end was known already ends then, and what comes
    after it makes up for the difference: such work takes microseconds.

    causes: nanoseconds by cause; what faults and background load take has
    none. switch: nanoseconds to change from one
    program to another. timeslice: longest uninterrupted computation where there are others."""

    __slots__ = ("_kernel_free", "_polled", "_polls", "_runs", "_stolen", "causes", "programs", "switch", "timeslice")

    def __init__(self, name: str, loop: Loop | None = None, switch: int = 0, timeslice: int = 0) -> None:
        super().__init__(name, loop)
        self.causes: Final[Counter[str]] = Counter()
        self.programs = 0
        """Number of programs that are bound to it."""
        self.switch = switch
        self.timeslice = timeslice
        self._runs = _NOBODY  # the program that has run last
        self._kernel_free = 0  # when the kernel's reserved work will be done
        self._stolen = 0  # nanoseconds that the kernel has taken from programs
        self._polls = 0  # under way
        self._polled = 0  # until when polls are accounted for

    def spend(self, now: int, cost: int, cause: str, program: int = _NOBODY) -> int:
        """Reserve the core for a program; return when that is done."""
        if program != self._runs and program != _NOBODY:
            self._change(now, program)
        self.causes[cause] += cost
        return self.reserve(now, cost)

    def _change(self, now: int, program: int) -> None:
        """Switch to another program."""
        if self._runs != _NOBODY and self.switch:
            self.causes[SWITCH] += self.switch
            self.reserve(now, self.switch)
        self._runs = program

    def is_idle(self, now: int) -> bool:
        """Whether the core has nothing to do: no reserved work, and no program polls."""
        return self.free <= now and self._kernel_free <= now and not self._polls

    def kernel_free(self, now: int) -> int:
        """Return when the kernel's reserved work will be done, not before now."""
        return max(self._kernel_free, now)

    def preempt(self, now: int, cost: int, cause: str) -> int:
        """Reserve the core for the kernel, ahead of all programs; return when that is done."""
        self.jobs += 1
        self.busy += cost
        self.causes[cause] += cost
        start = max(self._kernel_free, now)
        self.waited += start - now
        self._kernel_free = finish = start + cost
        if self.free > start:
            self._stolen += cost
            self.free += cost
        else:
            self.free = finish
        return finish

    async def compute(self, cost: int, program: int = _NOBODY) -> None:
        """Compute for this time: ``await core.compute(ns)``. Programs that share the core have their turns in between."""
        assert self._loop is not None
        while True:
            part = min(cost, self.timeslice) if self.programs > 1 and self.timeslice else cost
            stolen = self._stolen
            end = self.spend(self._loop.now(), part, COMPUTE, program)
            await Until(end)
            while self._stolen > stolen:  # interrupted meanwhile
                end, stolen = end + self._stolen - stolen, self._stolen
                await Until(end)
            cost -= part
            if cost <= 0:
                return

    def begin_poll(self, now: int) -> None:
        """Account for a poll of a program that begins: polls burn the core while it does nothing else."""
        if not self._polls:
            self._polled = now
        self._polls += 1

    def end_poll(self, now: int) -> None:
        """Account for a poll that ends."""
        self._polls -= 1
        since = max(self._polled, self.free)
        if now > since:
            self.jobs += 1
            self.busy += now - since
            self.causes[POLL] += now - since
        self._polled = now


def usage_of(servers: Iterable[Server], owner: str, now: int) -> dict[str, dict[str, float]]:
    """Return the use of an owner's servers until now, by their names without the owner's: jobs, busy_ns, waited_ns, share
    of the time; of a core also the nanoseconds by cause."""
    used = {}
    for server in servers:
        usage: dict[str, float] = {
            "jobs": server.jobs, "busy_ns": server.busy, "waited_ns": server.waited, "share": server.utilisation(now),
        }  # fmt: skip
        if isinstance(server, Core):
            usage |= {f"{cause}_ns": spent for cause, spent in sorted(server.causes.items())}
        used[server.name.removesuffix(f" of {owner}")] = usage
    return used


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
