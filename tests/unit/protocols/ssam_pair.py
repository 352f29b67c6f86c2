"""Two nodes with SSAM, joined by a fibre that the test controls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine

import pytest

from protocols.atm.cell import ETHERNET, HEADER
from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Buffer
from protocols.ssam.am_library import ActiveMessages
from protocols.ssam.cells import unpack
from protocols.ssam.host import Reply
from protocols.ssam.plug import plug
from protocols.ssam.sba100 import Sba100
from protocols.ssam.settings import Settings

ADDRESSES = [bytes((2, 0, 0, 0, 0, number)) for number in range(3)]
ECHO, ECHOED, COUNT = 1, 2, 3
TIMEOUT = Settings().timeout

LossRule = Callable[[bytes], bool]
Program = Coroutine[Completion[None], None, object]


class Node:
    """A node: its library and its interface, whose actions are carried out at once. echoed, counted: data of handled
    messages."""

    def __init__(self, number: int, settings: Settings, incarnation: int = 1) -> None:
        self.outgoing: deque[bytes] = deque()
        self.now = 0
        agent = plug(settings)(Adapter(number, ADDRESSES, incarnation=incarnation), self)
        assert isinstance(agent.firmware, Sba100)
        assert isinstance(agent.host, ActiveMessages)
        self.device, self.library = agent.firmware, agent.host
        self.echoed: list[bytes] = []
        self.counted: list[bytes] = []
        self.library.set_handler(ECHO, lambda _, data: Reply(ECHOED, data))
        self.library.set_handler(ECHOED, lambda _, data: self.echoed.append(data))
        self.library.set_handler(COUNT, lambda _, data: self.counted.append(data))

    def send(self, frame: Buffer) -> None:
        self.outgoing.append(bytes(frame))

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:  # noqa: ARG002
        self.device.on_doorbell(self.now, index)

    def post_completion(self, index: int) -> None:
        self.library.on_completion(index)

    def interrupt(self, index: int) -> None:
        raise AssertionError(f"no interrupt, {index}")

    def dma_read(self, segments: object) -> bytes:
        raise AssertionError(f"the interface has no DMA, {segments}")

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        raise AssertionError(f"the interface has no DMA, {target!r} {data!r}")

    def send_later(self, make: Callable[[], bytes]) -> None:
        self.send(make())

    def counters(self) -> dict[str, int]:
        """Return the counters that are not 0."""
        return {name: count for name, count in self.device.counter_values().items() if count}


class Pair:
    """Two nodes and the fibre between them. is_lost: whether the fibre loses a frame."""

    def __init__(self, is_lost: LossRule = lambda _: False, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.nodes = [Node(number, self.settings) for number in (0, 1)]
        self.is_lost = is_lost
        self._awaited: Completion[None] | None = None

    def deliver_frames(self) -> bool:
        """Deliver all frames in flight and let the libraries poll; return whether there was a frame."""
        has_delivered = False
        for node, peer in (self.nodes, self.nodes[::-1]):
            while node.outgoing:
                frame = node.outgoing.popleft()
                has_delivered = True
                if not self.is_lost(frame):
                    peer.device.receive(peer.now, frame)
        for node in self.nodes:
            node.library.handle_all()
        return has_delivered

    def settle(self, timeouts: int = 0) -> None:
        """Deliver frames until none is in flight, through a number of timeouts."""
        for _ in range(timeouts + 1):
            while self.deliver_frames():
                pass
            for node in self.nodes:
                if node.device.deadline is not None:
                    node.now = node.device.deadline
                    node.device.on_timer(node.now)

    def start(self, program: Program, rounds: int) -> bool:
        """Drive a program while the fibre carries cells, for a number of rounds; return whether it has ended. Time passes
        only when no frame is in flight."""
        for _ in range(rounds):
            awaited = self._awaited
            if awaited is None or awaited.done:
                try:
                    self._awaited = program.send(None)
                except StopIteration:
                    self._awaited = None
                    return True
            if not self.deliver_frames():
                self.settle(timeouts=1)
        return False

    def drive(self, program: Program, timeouts: int) -> None:
        """Drive a program to its end. Raises AssertionError if it has not ended in time."""
        assert self.start(program, 50 * timeouts), "the program does not end"

    def restart(self, number: int) -> None:
        previous = self.nodes[number]
        self.nodes[number] = Node(number, self.settings, previous.library.incarnation + 1)


def run(coroutine: Coroutine[object, None, object]) -> None:
    """Run a coroutine that does not wait."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


def kind_of(frame: bytes) -> int:
    message = unpack(frame[ETHERNET + HEADER :])
    assert message is not None
    return message.kind
