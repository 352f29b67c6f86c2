"""A node in the simulation: its host core, its NIC with the agent on it, and what its programs can do with time."""

from __future__ import annotations

from typing import Final

from protocols.core.firmware import Adapter, Agent, Host
from testbed.engine.loop import Loop
from testbed.engine.server import Server
from testbed.sim.nic import SimNic


class SimNode:
    """core: the host's one core; what a program computes and what it costs to talk to the NIC queue for it."""

    def __init__(self, loop: Loop, name: str, number: int, core: Server) -> None:
        self._loop = loop
        self.name: Final = name
        self.number: Final = number
        self.core: Final = core
        self.nic: SimNic
        self.agent: Agent
        self.adapter: Adapter

    @property
    def endpoint(self) -> Host:
        """The host library on the NIC that runs now."""
        return self.agent.host

    def now(self) -> int:
        """Nanoseconds since the simulation began."""
        return self._loop.now()

    def reached(self) -> int:
        """When the core has done what a program asked the NIC for: for the program, which has asked, that is now."""
        return max(self._loop.now(), self.nic.posted)

    async def sleep(self, nanoseconds: int) -> None:
        """Let time pass; the core is free meanwhile."""
        await self._loop.sleep(nanoseconds)

    async def compute(self, nanoseconds: int) -> None:
        """Take the core for so long, once it is free."""
        await self._loop.sleep_until(self.core.reserve(self._loop.now(), nanoseconds))

    def waiting(self) -> list[str]:
        """A sentence for everything that its host and its firmware wait for."""
        oversized = self.nic.oversized
        lost = [f"{oversized} frames were longer than its MTU, {self.adapter.mtu}, lets it take"] if oversized else []
        return [
            *[f"{self.name}, host: {sentence}" for sentence in self.agent.host.waiting()],
            *[f"{self.name}, firmware: {sentence}" for sentence in self.agent.firmware.waiting()],
            *[f"{self.name}, NIC: {sentence}" for sentence in lost],
        ]
