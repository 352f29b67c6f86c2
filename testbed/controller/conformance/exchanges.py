"""Exchanges of two nodes under every schedule, with their checks: through MPI's device, so on any protocol."""

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
"""Virtual time after which an exchange is taken to have come to a halt."""
GUARD: Final = 64
"""Bytes around each buffer of a receive that nothing may touch."""
UNTOUCHED: Final = 0xEE
"""Byte that fills a receive's buffer beforehand."""
REUSED: Final = 0xDD
"""Byte that a sender writes over a message as soon as it may reuse the buffer."""


@dataclass(frozen=True, slots=True)
class Message:
    """Message from a node (0 or 1) to the other one, `frames` frames long."""

    source: int
    frames: int
    tag: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """Messages that are all sent at once. ahead: all receives are posted before that; otherwise one after another, from
    the last message to the first, each when the one before has come."""

    name: str
    messages: tuple[Message, ...]
    ahead: bool = True


EXCHANGES: Final = {
    exchange.name: exchange
    for exchange in (
        *[Exchange(f"{frames}", (Message(0, frames),)) for frames in (1, 2, 3, 4, 7)],
        Exchange("1+1", (Message(0, 1), Message(0, 1))),
        Exchange("2+4", (Message(0, 2), Message(0, 4))),
        Exchange("2-2", (Message(0, 2), Message(1, 2))),
        Exchange("4+1late", (Message(0, 4, 1), Message(0, 1, 2)), ahead=False),
    )
}
"""By name: messages of so many frames; "+": one way, at once; "-": one each way; "late": receives are not ahead."""


def _nothing(_host: object) -> tuple[int, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Matched:
    """A protocol with MPI's device, for exchanges.

    plug: of its NICs; the fewer frames reach the limits of its settings, the more is seen. device: as a protocol's.
    payload: bytes of a message in a full frame. bound: as a stage's. resources: of a host, what is left of each resource
    that transfers take and give back. max_message_size: bytes; longer messages of exchanges are cut to it.
    """

    plug: Plug
    device: Callable[[Any], Device]
    payload: int
    bound: int = TIMEOUT
    resources: Callable[[Any], tuple[int, ...]] = _nothing
    max_message_size: int = 1 << 20

    def size(self, frames: int) -> int:
        """Return the bytes of a message of `frames` frames, the last one about half full."""
        return min(self.payload * frames - self.payload // 2, self.max_message_size)


class Matching:
    """An exchange of messages that are matched: a stage of `exhaustive`."""

    def __init__(self, matched: Matched, exchange: Exchange) -> None:
        self.plug = matched.plug
        self.bound = matched.bound
        self._matched = matched
        self._exchange = exchange
        self._parties: list[Party] = []
        self._devices: list[Device] = []
        self._before: list[tuple[int, ...]] = []

    def begin(self, simulation: Simulation) -> None:
        nodes = list(simulation.nodes.values())
        self._devices = [self._matched.device(node.endpoint) for node in nodes]
        self._before = [self._matched.resources(node.endpoint) for node in nodes]
        for number, (node, device) in enumerate(zip(nodes, self._devices, strict=True)):
            self._parties.append(Party(number, device, self._exchange, self._matched.size))
            simulation.spawn(node.name, self._parties[-1].carry_on)

    def go_on(self, simulation: Simulation) -> None:
        try:
            simulation.run(timeout=TIMEOUT)
        except StalledError as error:
            raise Violation(f"no progress on a healed network: {error}") from error

    def check(self, simulation: Simulation) -> None:
        nodes = simulation.nodes.values()
        for party, device, node, had in zip(self._parties, self._devices, nodes, self._before, strict=True):
            party.check_memory()
            if left := [*device.waiting(), *node.waiting()]:
                raise Violation(f"{node.name} is not done: {'; '.join(left)}")
            if (has := self._matched.resources(node.endpoint)) != had:
                raise Violation(f"{node.name}: of its resources {had} are left {has}")


@cache
def content(number: int, size: int) -> bytes:
    """Return the content of an exchange's message: no two frames carry equal parts."""
    return Random(number).randbytes(size)


class Party:
    """Program of a node, with a record of its transfers."""

    def __init__(self, number: int, device: Device, exchange: Exchange, size: Callable[[int], int]) -> None:
        """size: bytes of a message, by its number of frames."""
        self._device = device
        self._ahead = exchange.ahead
        self._other = 1 - number
        messages = [(one, content(place, size(one.frames))) for place, one in enumerate(exchange.messages)]
        self._out = [(one.tag, data) for one, data in messages if one.source == number]
        self._in = [(one.tag, data) for one, data in messages if one.source != number]
        self._buffers: list[tuple[bytearray, bytes]] = []

    async def carry_on(self, endpoint: object, node: SimNode) -> None:  # noqa: ARG002
        """Raises Violation, also where a transfer fails."""
        try:
            receives = [self._receive(tag, data) for tag, data in self._in] if self._ahead else []
            sends = [self._send(tag, data) for tag, data in self._out]
            if not self._ahead:
                for tag, data in reversed(self._in):
                    self._check(await self._receive(tag, data), tag, data)
            for completion, (tag, data) in zip([*receives, *sends], [*self._in, *self._out], strict=self._ahead):
                self._check(await completion, tag, data)
        except MPIError as error:
            raise Violation(f"a transfer failed: {error}") from error

    def check_memory(self) -> None:
        """Check that no byte was written after the exchange had ended. Raises Violation."""
        for memory, data in self._buffers:
            _look(memory, data)

    def _send(self, tag: int, data: bytes) -> Completion[Envelope]:
        memory = bytearray(data)
        completion = self._device.send(self._other, 0, tag, memoryview(memory))
        completion.add_callback(partial(reuse, memory))
        return completion

    def _receive(self, tag: int, data: bytes) -> Completion[Envelope]:
        memory = bytearray([UNTOUCHED]) * (len(data) + 2 * GUARD)
        self._buffers.append((memory, data))
        completion = self._device.receive(self._other, 0, tag, memoryview(memory)[GUARD:-GUARD])
        completion.add_callback(partial(_look, memory, data))
        return completion

    def _check(self, envelope: Envelope, tag: int, data: bytes) -> None:
        if envelope != (self._other, tag, len(data)):
            raise Violation(f"of {len(data)} bytes, tag {tag}, with node {self._other} the host is told {envelope}")


def reuse(memory: bytearray, _: object) -> None:
    """Overwrite the buffer of a message that was reported sent, as a program may."""
    memory[:] = bytes([REUSED]) * len(memory)


def _look(memory: bytearray, data: bytes, _: object = None) -> None:
    """Check a received message on its completion: its content, and that nothing else was written."""
    if memory[GUARD:-GUARD] != data:
        raise Violation(f"a message of {len(data)} bytes has other ones than were sent")
    if memory.count(UNTOUCHED, 0, GUARD) + memory.count(UNTOUCHED, len(memory) - GUARD) != 2 * GUARD:
        raise Violation("what is beside a receive's buffer has been written to")
