"""A rank in the simulation: its core, its NIC with the agent, and the time functions of its programs."""

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
    """The environment of the programs of a node, or of one of its ranks.

    core: the core that its programs are bound to, charged with their computation and the host's costs of NIC access. tasks:
    unfinished tasks started by its programs, with their coroutines; a crash cancels them, too.
    """

    def __init__(self, clock: VirtualClock, loop: Loop, rank: Rank, core: Core) -> None:
        self._clock = clock
        self._loop = loop
        self.name: Final = rank.name
        self.number: Final = rank.number
        self.rank: Final = rank
        self.core = core
        self.tasks: Final[dict[Task[object], Work[object]]] = {}
        self.departure_callbacks: Final[list[Callable[[int, bool], object]]] = []
        """Functions to call with each rank that crashes."""
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

    def reached(self) -> int:
        """When the core will have posted all NIC requests made so far, ns: the current time for the calling program."""
        return max(self._clock.time, self.nic.posted)

    async def sleep(self, nanoseconds: int) -> None:
        """Let time pass without using the core."""
        await self._loop.sleep(nanoseconds)

    async def compute(self, nanoseconds: int) -> None:
        """Occupy the core for this time, once it is free."""
        await self.core.compute(nanoseconds, self.rank.function)

    def move_to(self, core: Core) -> None:
        """Bind the rank's programs to another core from now on."""
        self.core = core

    def end_tasks(self) -> None:
        """Cancel all tasks."""
        for task in self.tasks:
            task.cancel()
        self.close_unstarted()
        self.tasks.clear()
        self.departure_callbacks.clear()

    def close_unstarted(self) -> None:
        """Close the coroutines of tasks that have ended before their first step: they will not be awaited."""
        for work in self.tasks.values():
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()

    def losses(self) -> list[str]:
        """Describe the frames that the NIC could not take, in a sentence; empty if there were none."""
        nic, mtu = self.nic, self.adapter.mtu
        if not nic.oversized:
            return []
        return [
            f"{self.name}, NIC: {nic.oversized} frames were longer than its MTU, {mtu}, lets it take: lost, of up to "
            f"{nic.max_oversized} bytes"
        ]

    def pending_work(self) -> list[str]:
        """Describe each condition that the host or the firmware waits for, in a sentence."""
        return [
            *[f"{self.name}, host: {sentence}" for sentence in self.agent.host.pending_work()],
            *[f"{self.name}, firmware: {sentence}" for sentence in self.agent.firmware.pending_work()],
        ]
