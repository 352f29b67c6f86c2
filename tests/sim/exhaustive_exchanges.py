"""What two nodes say to each other under every schedule, and what each checks: through MPI's device, so on any protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Final

from swarm_faults import Violation

from protocols.core.completion import Completion
from protocols.mpi.device import Device
from protocols.mpi.errors import Envelope, MPIError
from testbed.sim.node import SimNode

GUARD: Final = 64
"""Bytes around each buffer of a receive that nothing may touch."""
UNTOUCHED: Final = 0xEE
"""What is in a receive's buffer before."""
REUSED: Final = 0xDD
"""What a sender writes over a message as soon as it may."""


@dataclass(frozen=True, slots=True)
class Message:
    """From a node (0 or 1) to the other one, so many frames long."""

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


@cache
def content(number: int, size: int) -> bytes:
    """Of the number-th message of an exchange: no frame's part is like another's."""
    return Random(number).randbytes(size)


class Party:
    """A node's program, and what it has seen."""

    def __init__(self, number: int, device: Device, exchange: Exchange, size: Callable[[int], int]) -> None:
        """size: bytes of a message of so many frames."""
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
        """Nothing has come behind the end. Raises Violation."""
        for memory, data in self._buffers:
            _look(memory, data)

    def _send(self, tag: int, data: bytes) -> Completion[Envelope]:
        memory = bytearray(data)
        completion = self._device.send(self._other, 0, tag, memoryview(memory))
        completion.add_callback(partial(_reuse, memory))
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


def _reuse(memory: bytearray, _: object) -> None:
    """The host is told that its message is sent: its memory serves something else at once."""
    memory[:] = bytes([REUSED]) * len(memory)


def _look(memory: bytearray, data: bytes, _: object = None) -> None:
    """The host is told that a message has come: it is there, and nothing else."""
    if memory[GUARD:-GUARD] != data:
        raise Violation(f"a message of {len(data)} bytes has other ones than were sent")
    if memory.count(UNTOUCHED, 0, GUARD) + memory.count(UNTOUCHED, len(memory) - GUARD) != 2 * GUARD:
        raise Violation("what is beside a receive's buffer has been written to")
