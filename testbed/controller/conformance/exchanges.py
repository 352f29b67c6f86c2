"""Exchanges of messages between two nodes for `fate_schedules`, with their checks. They use MPI's device, and so run on any
protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Any, Final

from protocols.core.completion import Completion
from protocols.core.firmware import Plug
from protocols.mpi.device import Device
from protocols.mpi.mpi_errors import Envelope, MPIError
from testbed.controller.conformance.network_faults import SECOND
from testbed.controller.conformance.trials import Violation
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation, StalledError

TIMEOUT: Final = 20 * SECOND
"""Virtual time after which an exchange is stuck, nanoseconds."""
GUARD: Final = 64
"""Bytes before and after each receive buffer that must not be written."""
UNTOUCHED: Final = 0xEE
"""Initial value of a receive buffer's bytes."""
REUSED: Final = 0xDD
"""Byte with which a sender overwrites a message when it may reuse the buffer."""


@dataclass(frozen=True, slots=True)
class Message:
    """Message of `frames` frames from node `source` (0 or 1) to the other node."""

    source: int
    frames: int
    tag: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """Messages that are all sent at once. preposted: all receives are posted first; otherwise receives are posted one after
    another, from the last message to the first, each when the previous receive is complete."""

    name: str
    messages: tuple[Message, ...]
    preposted: bool = True


EXCHANGES: Final = {
    exchange.name: exchange
    for exchange in (
        *[Exchange(f"{frames}", (Message(0, frames),)) for frames in (1, 2, 3, 4, 7)],
        Exchange("1+1", (Message(0, 1), Message(0, 1))),
        Exchange("2+4", (Message(0, 2), Message(0, 4))),
        Exchange("2-2", (Message(0, 2), Message(1, 2))),
        Exchange("4+1late", (Message(0, 4, 1), Message(0, 1, 2)), preposted=False),
    )
}
"""By name: frames of each message; "+": in one direction; "-": one in each direction; "late": receives are not preposted."""


def _no_resources(_host: object) -> tuple[int, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class MatchedProtocol:
    """A protocol with MPI's device, for exchanges.

    plug: plug of its NICs; settings that few frames exhaust make the search more effective. device: as of `Protocol`.
    payload: bytes of a message in a full frame. bound: as of `Stage`. resources: returns the free amounts of a host's
    resources that transfers take and give back. max_message_size: bytes; longer messages are cut to it.
    """

    plug: Plug
    device: Callable[[Any], Device]
    payload: int
    bound: int = TIMEOUT
    resources: Callable[[Any], tuple[int, ...]] = _no_resources
    max_message_size: int = 1 << 20

    def size(self, frames: int) -> int:
        """Return the size of a message of `frames` frames, bytes; the last frame is about half full."""
        return min(self.payload * frames - self.payload // 2, self.max_message_size)


class MatchedExchange:
    """An exchange of matched messages. Implements `fate_schedules.Stage`."""

    def __init__(self, protocol: MatchedProtocol, exchange: Exchange) -> None:
        self.plug = protocol.plug
        self.bound = protocol.bound
        self._protocol = protocol
        self._exchange = exchange
        self._parties: list[Party] = []
        self._devices: list[Device] = []
        self._resources_before: list[tuple[int, ...]] = []

    def begin(self, simulation: Simulation) -> None:
        nodes = list(simulation.nodes.values())
        self._devices = [self._protocol.device(node.endpoint) for node in nodes]
        self._resources_before = [self._protocol.resources(node.endpoint) for node in nodes]
        for number, (node, device) in enumerate(zip(nodes, self._devices, strict=True)):
            self._parties.append(Party(number, device, self._exchange, self._protocol.size))
            simulation.spawn(node.name, self._parties[-1].run)

    def run(self, simulation: Simulation) -> None:
        try:
            simulation.run(timeout=TIMEOUT)
        except StalledError as error:
            raise Violation(f"no progress on a healed network: {error}") from error

    def check(self, simulation: Simulation) -> None:
        nodes = simulation.nodes.values()
        for party, device, node, before in zip(
            self._parties, self._devices, nodes, self._resources_before, strict=True
        ):
            party.check_memory()
            if pending := [*device.pending_work(), *node.pending_work()]:
                raise Violation(f"{node.name} has pending operations: {'; '.join(pending)}")
            if (after := self._protocol.resources(node.endpoint)) != before:
                raise Violation(f"{node.name} had free resources {before} before, and has {after} after the exchange")


@cache
def content(number: int, size: int) -> bytes:
    """Return the content of a message. The contents of frames differ."""
    return Random(number).randbytes(size)


class Party:
    """Program of a node, with a record of its transfers."""

    def __init__(self, number: int, device: Device, exchange: Exchange, size: Callable[[int], int]) -> None:
        """number: number of the node, 0 or 1. size: returns the size in bytes of a message, by its number of
        frames."""
        self._device = device
        self._preposted = exchange.preposted
        self._peer = 1 - number
        messages = [(message, content(index, size(message.frames))) for index, message in enumerate(exchange.messages)]
        self._outgoing = [(message.tag, data) for message, data in messages if message.source == number]
        self._incoming = [(message.tag, data) for message, data in messages if message.source != number]
        self._buffers: list[tuple[bytearray, bytes]] = []

    async def run(self, endpoint: object, node: SimNode) -> None:  # noqa: ARG002
        """Send and receive all messages. Raises Violation, also if a transfer fails."""
        try:
            receives = [self._receive(tag, data) for tag, data in self._incoming] if self._preposted else []
            sends = [self._send(tag, data) for tag, data in self._outgoing]
            if not self._preposted:
                for tag, data in reversed(self._incoming):
                    self._check(await self._receive(tag, data), tag, data)
            transfers = [*self._incoming, *self._outgoing]
            for completion, (tag, data) in zip([*receives, *sends], transfers, strict=self._preposted):
                self._check(await completion, tag, data)
        except MPIError as error:
            raise Violation(f"a transfer failed: {error}") from error

    def check_memory(self) -> None:
        """Check that no byte was written after the exchange had ended. Raises Violation."""
        for memory, data in self._buffers:
            _check_buffer(memory, data)

    def _send(self, tag: int, data: bytes) -> Completion[Envelope]:
        memory = bytearray(data)
        completion = self._device.send(self._peer, 0, tag, memoryview(memory))
        completion.add_callback(partial(reuse, memory))
        return completion

    def _receive(self, tag: int, data: bytes) -> Completion[Envelope]:
        memory = bytearray([UNTOUCHED]) * (len(data) + 2 * GUARD)
        self._buffers.append((memory, data))
        completion = self._device.receive(self._peer, 0, tag, memoryview(memory)[GUARD:-GUARD])
        completion.add_callback(partial(_check_buffer, memory, data))
        return completion

    def _check(self, envelope: Envelope, tag: int, data: bytes) -> None:
        if envelope != (self._peer, tag, len(data)):
            raise Violation(
                f"the transfer of {len(data)} bytes, tag {tag}, with node {self._peer} completed with envelope {envelope}"
            )


def reuse(memory: bytearray, _: object) -> None:
    """Overwrite the buffer of a completed send, as a program may do."""
    memory[:] = bytes([REUSED]) * len(memory)


def _check_buffer(memory: bytearray, data: bytes, _: object = None) -> None:
    """Check a receive buffer: its content, and that its guards were not written. Raises Violation."""
    if memory[GUARD:-GUARD] != data:
        raise Violation(f"the content of a message of {len(data)} bytes differs from what was sent")
    if memory.count(UNTOUCHED, 0, GUARD) + memory.count(UNTOUCHED, len(memory) - GUARD) != 2 * GUARD:
        raise Violation("memory next to a receive buffer was written")
