"""Two Open-MX nodes joined by lists, with one endpoint each, and a wire that the test controls."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import cast

from protocols.core.firmware import FIRST, Plug
from protocols.openmx.endpoint import Endpoint
from protocols.openmx.firmware import Firmware
from protocols.openmx.frames import TYPES
from protocols.openmx.host import Library, plug
from protocols.openmx.mx_requests import Request, Result
from protocols.openmx.partners import Partner
from protocols.openmx.settings import Settings
from tests.unit.protocols.host_programs import Program, T, run
from tests.unit.protocols.list_wires import Wires

LossRule = Callable[[bytes], bool]
ONE_NODE = (0, 0)
"""`hosts` of a pair whose agents are two ranks of one node."""
RESEND = Settings().tick * (Settings().resend + 2)
"""Nanoseconds within which a lost message is resent."""


def kind_of(frame: bytes) -> str:
    return TYPES[frame[16]]


def with_checksum(frame: bytes) -> bytes:
    """Return the frame with a valid checksum at its end."""
    return frame[:-4] + zlib.crc32(frame[:-4]).to_bytes(4, "big")


def recorder(frames: list[bytes], kind: str | None = None) -> LossRule:
    """Return a loss rule that loses no frame, and adds those of a kind (None: all) to `frames`."""

    def record(frame: bytes) -> bool:
        if kind in (None, kind_of(frame)):
            frames.append(frame)
        return False

    return record


class EveryNth:
    """Loss rule: every n-th frame of a kind, as in Open-MX's own fault injection. lost: their number."""

    def __init__(self, kind: str, period: int) -> None:
        self.lost = 0
        self._kind = kind
        self._period = period
        self._seen = 0

    def __call__(self, frame: bytes) -> bool:
        if kind_of(frame) != self._kind:
            return False
        self._seen += 1
        is_lost = self._seen % self._period == 0
        self.lost += is_lost
        return is_lost


class EndpointPair:
    """Two nodes. ends: their endpoints. partners: by which each addresses the other. is_lost: whether the wire loses a
    frame."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        connected: bool = True,
        context_bits: int = 0,
        context_shift: int = 0,
        incarnation: int = FIRST,
        hosts: Sequence[int] = (),
        build: Plug | None = None,
    ) -> None:
        """connected: connect the endpoints. hosts: see `Adapter`. build: plug of the agents; None: Open-MX's with
        `settings`."""
        self.wires = Wires(build or plug(settings), 2, incarnation=incarnation, hosts=hosts)
        self.is_lost: LossRule = lambda _: False
        self.sent: list[str] = []
        self.ends = [
            self.library(number).open_endpoint(0, context_bits=context_bits, context_shift=context_shift)
            for number in range(2)
        ]
        self.partners = [end.partner(1 - number) for number, end in enumerate(self.ends)]
        if connected:
            self.run(self.ends[0].connect(1))

    def library(self, number: int) -> Library:
        return cast(Library, self.wires.agents[number].host)

    def driver(self, number: int) -> Firmware:
        return cast(Firmware, self.wires.agents[number].firmware)

    def counter(self, number: int, name: str) -> int:
        return self.driver(number).counter_values()[name]

    def deliver_frames(self) -> None:
        """Deliver frames until no node sends any more."""
        while any(nic.sent for nic in self.wires.nics):
            for number in range(2):
                for frame in self.wires.take(number):
                    self.sent.append(kind_of(frame))
                    if not self.is_lost(frame):
                        self.wires.deliver(frame)

    def run(self, *programs: Program[T]) -> list[T]:
        return run(self.wires, *programs, deliver=self.deliver_frames)

    def elapse(self, span: int) -> None:
        """Let `span` nanoseconds pass."""
        end = self.wires.now + span
        self.deliver_frames()
        while (deadline := self.wires.deadline) is not None and deadline <= end:
            self.wires.tick()
            self.deliver_frames()
        self.wires.now = end

    def send(self, data: bytes, match: int = 5, *, synchronous: bool = False) -> Request:
        """Begin a send from the first node to the second."""
        end = self.ends[0]
        return (end.issend if synchronous else end.isend)([data], self.partners[0], match)

    def receive(self, size: int, match: int = 5) -> tuple[bytearray, Request]:
        """Begin a receive at the second node."""
        buffer = bytearray(size)
        return buffer, self.ends[1].irecv(buffer, match)

    def finish(self, *requests: Request) -> list[Result]:
        """Run until these requests are done; return their results."""
        return self.run(*(result_of(request) for request in requests))

    def restart(self, number: int) -> Endpoint:
        """Restart a node and open its endpoint again."""
        self.wires.restart(number)
        self.ends[number] = self.library(number).open_endpoint(0)
        return self.ends[number]


async def result_of(request: Request) -> Result:
    await request
    return request.result()


@cache
def pattern(size: int) -> bytes:
    """Return bytes in which no two fragments, blocks or pages are equal."""
    return bytes(index * 7 + (index >> 8) * 13 + (index >> 16) & 0xFF for index in range(size))


def partner_of(pair: EndpointPair, number: int) -> Partner:
    """Return the partner by which a node's endpoint addresses the other node's."""
    return pair.ends[number].partner(1 - number)
