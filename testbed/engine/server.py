"""Servers of queueing models: a NIC's processor, a DMA engine, a bus, a host's cores.

A job occupies the server for its cost, and jobs are served first come, first served. Because no job overtakes another, the
time at which a job ends is known on its arrival: a reservation is arithmetic and needs no event.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from typing import Final

from protocols.core.host_work import COMPUTE, POLL, SWITCH
from testbed.engine.coroutines import until
from testbed.engine.loop import Loop, VirtualClock

_NS_PER_SECOND: Final = 10**9
_NO_PROGRAM: Final = -1  # no specific program
_LOAD_PERIOD: Final = (
    10_000_000  # ns, equal to that of the load in namespaces (`testbed.cluster.faults.background_load`)
)


def transfer_time(size: int, rate: int) -> int:
    """Return the nanoseconds, rounded up, that `size` bytes take at `rate` bit/s; rate 0 means no limit."""
    return -(-size * 8 * _NS_PER_SECOND // rate) if rate else 0


class Server:
    """A resource that serves one job at a time. Times and costs are integer nanoseconds.

    The statistics count a job with its full cost as soon as it is reserved.
    """

    __slots__ = ("_loop", "busy", "free", "jobs", "name", "waited")

    def __init__(self, name: str, loop: Loop | None = None) -> None:
        """loop: the loop of the tasks that call `use`; not needed for `reserve`."""
        self.name = name
        self.free = 0
        """Time at which all reserved jobs will be done."""
        self.busy = 0
        """Sum of the costs of all jobs."""
        self.jobs = 0
        """Number of jobs."""
        self.waited = 0
        """Sum of the times that jobs waited before they were served."""
        self._loop = loop

    def reserve(self, now: int, cost: int) -> int:
        """Reserve the resource for a job that arrives at time `now`; return the time at which the job will be done. Jobs are
        served in the order of the calls, even if a call's `now` lies before that of an earlier call."""
        self.jobs += 1
        self.busy += cost
        start = self.free
        if start < now:
            start = now
        self.waited += start - now
        self.free = finish = start + cost
        return finish

    def use(self, cost: int) -> Awaitable[None]:
        """Reserve, and wait until the job is done: ``await server.use(cost)``. The job stays reserved if the task is
        interrupted while it waits."""
        if self._loop is None:
            raise RuntimeError(f"server {self.name!r} has no loop: tasks cannot use it, only reserve()")
        return until(self.reserve(self._loop.now(), cost))

    def utilisation(self, now: int) -> float:
        """Return the share of the time until now in which the server was busy."""
        return (self.busy - self._future_cost(now)) / now if now > 0 else 0.0

    def _future_cost(self, now: int) -> int:
        """Return the part of the reserved cost that lies after now."""
        return max(self.free - now, 0)


class BookableServer(Server):
    """A resource that can be booked ahead, for jobs that are known before they start.

    A job gets the first sufficient gap from its arrival on, whereas a `Server`, which is faster, serves jobs in the order of
    the calls. A job with cost 0 needs a gap, too.
    """

    __slots__ = ("_clock", "_ends", "_starts")

    def __init__(self, name: str, clock: VirtualClock) -> None:
        """clock: the clock of the model; bookings that ended before its time are dropped."""
        super().__init__(name)
        self._clock = clock
        # Starts and ends of the bookings, in order of time; adjacent bookings are merged.
        self._starts: list[int] = []
        self._ends: list[int] = []

    def reserve(self, now: int, cost: int) -> int:
        self.jobs += 1
        self.busy += cost
        starts, ends = self._starts, self._ends
        if ends and ends[0] <= (past := self._clock.time):
            expired = bisect_right(ends, past)
            del starts[:expired], ends[:expired]
        if not ends or ends[-1] < now:
            finish = now + cost
            if cost:
                starts.append(now)
                ends.append(finish)
                self.free = finish
            return finish
        index = bisect_right(ends, now)
        start = now
        while index < len(starts) and start + cost > starts[index]:
            start = max(start, ends[index])
            index += 1
        self.waited += start - now
        finish = start + cost
        if not cost:
            return finish
        joins_previous = index > 0 and ends[index - 1] == start
        joins_next = index < len(starts) and starts[index] == finish
        if joins_previous and joins_next:
            ends[index - 1] = ends[index]
            del starts[index], ends[index]
        elif joins_previous:
            ends[index - 1] = finish
        elif joins_next:
            starts[index] = start
        else:
            starts.insert(index, start)
            ends.insert(index, finish)
        self.free = ends[-1]
        return finish

    def _future_cost(self, now: int) -> int:
        return sum(end - max(start, now) for start, end in zip(self._starts, self._ends, strict=True) if end > now)


class Core(Server):
    """A host's core with accounting by cause, shared by programs and interrupted by the kernel.

    Work of programs is served first come, first served. Work of the kernel (interrupts, softirqs) preempts it: it starts as
    soon as earlier kernel work has ended, and postpones the programs' reservations by its cost. A running computation is
    extended by that time (`compute`). Library work, which takes microseconds, keeps its end, and the work after it starts
    later.

    causes: nanoseconds by cause (`protocols.core.host_work`), without those of injected faults and background load. switch:
    nanoseconds of a switch between programs. timeslice: nanoseconds after which a program that computes yields to other
    programs of the core; 0: it does not yield.
    """

    __slots__ = (
        "_kernel_end",
        "_last_program",
        "_polls",
        "_polls_counted_until",
        "_stolen",
        "causes",
        "programs",
        "switch",
        "timeslice",
    )

    def __init__(self, name: str, loop: Loop | None = None, switch: int = 0, timeslice: int = 0) -> None:
        super().__init__(name, loop)
        self.causes: Final[Counter[str]] = Counter()
        self.programs = 0
        """Number of programs that are bound to the core."""
        self.switch = switch
        self.timeslice = timeslice
        self._last_program = _NO_PROGRAM  # the program that ran last
        self._kernel_end = 0  # when the kernel's reserved work will be done
        self._stolen = 0  # nanoseconds by which the kernel has postponed programs
        self._polls = 0  # number of polling programs
        self._polls_counted_until = 0  # time until which polls are accounted for

    def spend(self, now: int, cost: int, cause: str, program: int = _NO_PROGRAM) -> int:
        """Reserve the core for a program's work; return the end of the reservation. A switch from another program comes
        first."""
        if program != self._last_program and program != _NO_PROGRAM:
            self._switch_to(now, program)
        self.causes[cause] += cost
        return self.reserve(now, cost)

    def _switch_to(self, now: int, program: int) -> None:
        """Switch to another program."""
        if self._last_program != _NO_PROGRAM and self.switch:
            self.causes[SWITCH] += self.switch
            self.reserve(now, self.switch)
        self._last_program = program

    def is_idle(self, now: int) -> bool:
        """Whether the core has no reserved work and no program polls on it."""
        return self.free <= now and self._kernel_end <= now and not self._polls

    def kernel_done_time(self, now: int) -> int:
        """Return the time at which the kernel's reserved work will be done, not before `now`."""
        return max(self._kernel_end, now)

    def preempt(self, now: int, cost: int, cause: str) -> int:
        """Reserve the core for the kernel, ahead of all programs; return the end of the reservation."""
        self.jobs += 1
        self.busy += cost
        self.causes[cause] += cost
        start = max(self._kernel_end, now)
        self.waited += start - now
        self._kernel_end = finish = start + cost
        if self.free > start:
            self._stolen += cost
            self.free += cost
        else:
            self.free = finish
        return finish

    async def compute(self, cost: int, program: int = _NO_PROGRAM) -> None:
        """Compute for `cost` nanoseconds: ``await core.compute(cost)``. Programs that share the core take turns."""
        assert self._loop is not None
        while True:
            share = min(cost, self.timeslice) if self.programs > 1 and self.timeslice else cost
            stolen = self._stolen
            end = self.spend(self._loop.now(), share, COMPUTE, program)
            await until(end)
            while self._stolen > stolen:  # preempted by the kernel
                end, stolen = end + self._stolen - stolen, self._stolen
                await until(end)
            cost -= share
            if cost <= 0:
                return

    def begin_poll(self, now: int) -> None:
        """Account for the beginning of a program's poll: polls keep the core busy while it has no other work."""
        if not self._polls:
            self._polls_counted_until = now
        self._polls += 1

    def end_poll(self, now: int) -> None:
        """Account for the end of a poll."""
        self._polls -= 1
        since = max(self._polls_counted_until, self.free)
        if now > since:
            self.jobs += 1
            self.busy += now - since
            self.causes[POLL] += now - since
        self._polls_counted_until = now


def usages_of(servers: Iterable[Server], owner: str, now: int) -> dict[str, dict[str, float]]:
    """Return the usage of an owner's servers until now, by the server's name without " of OWNER": jobs, busy_ns, waited_ns,
    and the share of the time in which it was busy; for a core also the nanoseconds by cause."""
    usages = {}
    for server in servers:
        usage: dict[str, float] = {
            "jobs": server.jobs, "busy_ns": server.busy, "waited_ns": server.waited, "share": server.utilisation(now),
        }  # fmt: skip
        if isinstance(server, Core):
            usage |= {f"{cause}_ns": time for cause, time in sorted(server.causes.items())}
        usages[server.name.removesuffix(f" of {owner}")] = usage
    return usages


class BackgroundLoad:
    """Background load that takes a share of a modelled core in every period of 10 ms. share: 0 to 1. busy: nanoseconds that
    it has taken so far."""

    def __init__(self, loop: Loop, core: Server, share: float) -> None:
        self._loop = loop
        self._core = core
        self._cost = round(share * _LOAD_PERIOD)
        self._is_running = True
        self.busy = 0
        self._begin_period(loop.now())

    def stop(self) -> None:
        self._is_running = False

    def _begin_period(self, now: int) -> None:
        if self._is_running:
            self._core.reserve(now, self._cost)
            self.busy += self._cost
            self._loop.at(now + _LOAD_PERIOD, self._begin_period)


def load_cores(loop: Loop, cores: Sequence[Server], share: float) -> list[BackgroundLoad]:
    """Load a host's cores, from the first on, as far as it has them. share: 0.5 is half of a core, 2 is two cores."""
    used = enumerate(cores[: math.ceil(share)])
    return [BackgroundLoad(loop, core, min(share - number, 1.0)) for number, core in used]
