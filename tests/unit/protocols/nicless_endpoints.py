"""Endpoints for MPI's device without a NIC: one with software matching, and one with descriptors only."""

# ruff: noqa: ARG002 -- most arguments are not used

from __future__ import annotations

from collections.abc import Sequence

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, Nic
from protocols.mpi.device import Device, ProbeResult, ReceiveCompletion
from protocols.mpi.matching import SoftwareMatchingEndpoint
from protocols.mpi.mpi_errors import Envelope
from tests.unit.protocols.emp_ranks import Ranks
from tests.unit.protocols.list_wires import Wires


class FrameAgent:
    """Firmware and host library in one. Each message is a frame; a send completes when its frame is sent."""

    deadline = None

    def __init__(self, adapter: Adapter, nic: Nic) -> None:
        self.adapter = adapter
        self.nic = nic
        self.endpoint = FrameEndpoint(self)

    def receive(self, now: int, frame: bytes) -> None:
        source, context, tag = frame[12], int.from_bytes(frame[13:15], "big"), int.from_bytes(frame[15:19], "big")
        self.endpoint.matching.arrive_complete(source, context, tag, frame[19:])

    def on_doorbell(self, now: int, index: int) -> None:
        raise AssertionError

    def on_timer(self, now: int) -> None:
        raise AssertionError

    def on_completion(self, index: int) -> None:
        raise AssertionError

    def pending_work(self) -> list[str]:
        posted_count = self.endpoint.matching.posted_count()
        return [f"{posted_count} receives"] if posted_count else []

    def counter_values(self) -> dict[str, int]:
        return {}


class FrameEndpoint(SoftwareMatchingEndpoint):
    """Endpoint that sends each message in one frame."""

    contexts, max_tag, max_message_size = 256, (1 << 24) - 1, 1 << 20

    def __init__(self, agent: FrameAgent) -> None:
        super().__init__()
        self._agent = agent
        self.rank = agent.adapter.number
        self.size = len(agent.adapter.addresses)

    def send(
        self, destination: int, context: int, tag: int, data: memoryview, completion: Completion[Envelope]
    ) -> bool:
        adapter = self._agent.adapter
        header = bytes([adapter.number]) + context.to_bytes(2, "big") + tag.to_bytes(4, "big")
        self._agent.nic.send(adapter.addresses[destination] + adapter.address + header + bytes(data))
        completion.complete(Envelope(destination, tag, len(data)))
        return True


def _plug(adapter: Adapter, nic: Nic) -> Agent:
    agent = FrameAgent(adapter, nic)
    return Agent(agent, agent)


class LibraryRanks(Ranks):
    """Ranks on endpoints without a NIC, whose messages the library matches."""

    def __init__(self, count: int = 2, mtu: int = 1500) -> None:
        self.wires = Wires(_plug, count, mtu)
        self.devices = [Device(agent.host.endpoint) for agent in self.wires.agents]  # type: ignore[attr-defined]
        self.world = self.communicators(0)


class DescriptorEndpoint:
    """Endpoint whose receives end only when they are cancelled.

    unexpected: messages that probes find, as (source, context, tag, length).
    """

    rank, size, contexts, max_tag, max_message_size = 0, 2, 4, 100, 1000

    def __init__(self, receives: int) -> None:
        self.free = receives
        self.unexpected: Sequence[tuple[int, int, int, int]] = []

    def send(
        self, destination: int, context: int, tag: int, data: memoryview, completion: Completion[Envelope]
    ) -> bool:
        raise AssertionError

    send_synchronously = send

    def receive(self, source: int, context: int, tag: int, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        self.free -= 1
        return self.free >= 0

    def receive_claimed(self, probe_result: ProbeResult, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        raise AssertionError

    def probe(
        self, source: int, context: int, tag: int, wait: bool, claim: bool, completion: Completion[ProbeResult | None]
    ) -> bool:
        matching = [message for message in self.unexpected if message[:3] == (source, context, tag)]
        completion.complete(
            ProbeResult(Envelope(matching[0][0], matching[0][2], matching[0][3]), None) if matching else None
        )
        return True
