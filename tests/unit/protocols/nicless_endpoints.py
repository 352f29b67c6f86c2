"""Endpoints for MPI's device that are no NIC: one that leaves matching to the library, and one that has descriptors only."""

# ruff: noqa: ARG002 -- they look at little of what they are given

from __future__ import annotations

from collections.abc import Callable, Sequence

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, Nic
from protocols.mpi.device import Device, ProbeResult, ReceiveCompletion
from protocols.mpi.matching import SoftwareMatchingEndpoint
from protocols.mpi.mpi_errors import Envelope
from tests.unit.protocols.emp_ranks import Ranks
from tests.unit.protocols.list_wires import Wires


class Post:
    """Firmware and host library in one: a frame is a message, and none is lost. A send is over when it has been sent."""

    deadline = None

    def __init__(self, adapter: Adapter, nic: Nic) -> None:
        self.adapter = adapter
        self.nic = nic
        self.endpoint = PostEndpoint(self)

    def receive(self, now: int, frame: bytes) -> None:
        source, context, tag = frame[12], int.from_bytes(frame[13:15], "big"), int.from_bytes(frame[15:19], "big")
        self.endpoint.matching.arrive_complete(source, context, tag, frame[19:])

    def on_doorbell(self, now: int, index: int) -> None:
        raise AssertionError

    def on_timer(self, now: int) -> None:
        raise AssertionError

    def completed(self, index: int) -> None:
        raise AssertionError

    def waiting(self) -> list[str]:
        waiting = self.endpoint.matching.posted_count()
        return [f"{waiting} receives"] if waiting else []

    def counted(self) -> dict[str, int]:
        return {}


class PostEndpoint(SoftwareMatchingEndpoint):
    contexts, max_tag, max_message_size = 256, (1 << 24) - 1, 1 << 20

    def __init__(self, post: Post) -> None:
        super().__init__()
        self._post = post
        self.rank = post.adapter.number
        self.size = len(post.adapter.addresses)

    def send(
        self, destination: int, context: int, tag: int, data: memoryview, completion: Completion[Envelope]
    ) -> bool:
        adapter = self._post.adapter
        head = bytes([adapter.number]) + context.to_bytes(2, "big") + tag.to_bytes(4, "big")
        self._post.nic.send(adapter.addresses[destination] + adapter.address + head + bytes(data))
        completion.complete(Envelope(destination, tag, len(data)))
        return True


def _post(adapter: Adapter, nic: Nic) -> Agent:
    post = Post(adapter, nic)
    return Agent(post, post)


class LibraryRanks(Ranks):
    """Ranks whose messages the library matches."""

    def __init__(self, count: int = 2, mtu: int = 1500) -> None:
        self.wires = Wires(_post, count, mtu)
        self.devices = [Device(agent.host.endpoint) for agent in self.wires.agents]  # type: ignore[attr-defined]
        self.world = self.communicators(0)


by_library: Callable[..., Ranks] = LibraryRanks


class DescriptorsOnly:
    """Endpoint whose receives end only when they are cancelled.

    held: messages that probes find, (source, context, tag, length) each.
    """

    rank, size, contexts, max_tag, max_message_size = 0, 2, 4, 100, 1000

    def __init__(self, receives: int) -> None:
        self.free = receives
        self.held: Sequence[tuple[int, int, int, int]] = []

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
        fits = [held for held in self.held if held[:3] == (source, context, tag)]
        completion.complete(ProbeResult(Envelope(fits[0][0], fits[0][2], fits[0][3]), None) if fits else None)
        return True
