"""Environment of one rank's programs in the simulation: a core, a NIC with firmware and host library, and the time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Final

from protocols.core.firmware import Adapter, Agent, Host
from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.server import Core
from testbed.engine.tasks import Task, Work
from testbed.nic.immediate import ImmediateNic
from testbed.spec.placement import Rank


class SimNode:
    """Environment of the programs of one rank; a node with a single rank has one `SimNode`, named like the node.

    core: the core that the programs are bound to; it is charged with their computation and with the host's part of NIC
    accesses. tasks: unfinished tasks started by the programs, with their coroutines; a crash cancels them, too.
    """

    def __init__(self, clock: VirtualClock, loop: Loop, rank: Rank, core: Core) -> None:
        self._clock = clock
        self._loop = loop
        self.name: Final = rank.name
        self.number: Final = rank.number
        self.rank: Final = rank
        self.core = core
        self.tasks: Final[dict[Task[object], Work[object]]] = {}
        self.crash_callbacks: Final[list[Callable[[int, bool], object]]] = []
        """Called with the number of each rank that crashes, and whether it will restart."""
        self.nic: ImmediateNic
        self.agent: Agent
        self.adapter: Adapter

    @property
    def endpoint(self) -> Host:
        """The host library on the current NIC."""
        return self.agent.host

    def now(self) -> int:
        """Nanoseconds since the start of the simulation."""
        return self._clock.time

    def program_time(self) -> int:
        """Current time of the program, ns: the time at which the core will have posted the requests to the NIC made so far,
        if that is later than now."""
        return max(self._clock.time, self.nic.posting_end)

    async def sleep(self, nanoseconds: int) -> None:
        """Let time pass without using the core."""
        await self._loop.sleep(nanoseconds)

    async def compute(self, nanoseconds: int) -> None:
        """Compute for this time on the core, after its earlier work."""
        await self.core.compute(nanoseconds, self.rank.function)

    def move_to(self, core: Core) -> None:
        """Bind the rank's programs to another core from now on."""
        self.core = core

    def end_tasks(self) -> None:
        """Cancel all tasks, and forget the crash callbacks, which the programs have set."""
        for task in self.tasks:
            task.cancel()
        self.close_unstarted()
        self.tasks.clear()
        self.crash_callbacks.clear()

    def close_unstarted(self) -> None:
        """Close the coroutines of tasks that were cancelled before their first step: Python would warn that they were never
        awaited."""
        for work in self.tasks.values():
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()

    def oversize_drops(self) -> list[str]:
        """Describe, in a sentence, the frames that the NIC dropped as longer than its MTU allows; empty if none."""
        nic, mtu = self.nic, self.adapter.mtu
        if not nic.oversized:
            return []
        frames = f"{nic.oversized} frame{'s' if nic.oversized != 1 else ''}"
        return [
            f"{self.name}, NIC: dropped {frames} longer than the MTU of {mtu} bytes allows "
            f"(longest {nic.max_oversized} bytes)"
        ]

    def pending_work(self) -> list[str]:
        """Describe each condition that the host or the firmware waits for, in a sentence."""
        return [
            *[f"{self.name}, host: {sentence}" for sentence in self.agent.host.pending_work()],
            *[f"{self.name}, firmware: {sentence}" for sentence in self.agent.firmware.pending_work()],
        ]
