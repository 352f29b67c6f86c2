"""Two nodes with SSAM and a fibre that the test controls."""

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

Lose = Callable[[bytes], bool]
Work = Coroutine[Completion[None], None, object]


class Node:
    """One node: its library, and the environment of its interface."""

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
        return {name: count for name, count in self.device.counter_values().items() if count}


class Pair:
    """Two nodes and the fibre between them. lose: whether a frame is lost."""

    def __init__(self, lose: Lose = lambda _: False, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.nodes = [Node(number, self.settings) for number in (0, 1)]
        self.lose = lose
        self._waits: Completion[None] | None = None

    def __iter__(self) -> object:
        return iter(self.nodes)

    def deliver_frames(self) -> bool:
        """Deliver everything that is on the way; return whether there was anything."""
        has_moved = False
        for node, peer in (self.nodes, self.nodes[::-1]):
            while node.outgoing:
                frame = node.outgoing.popleft()
                has_moved = True
                if not self.lose(frame):
                    peer.device.receive(peer.now, frame)
        for node in self.nodes:
            node.library.handle_all()
        return has_moved

    def settle(self, time_outs: int = 0) -> None:
        """Deliver frames until nothing moves, through a number of time-outs."""
        for _ in range(time_outs + 1):
            while self.deliver_frames():
                pass
            for node in self.nodes:
                if node.device.deadline is not None:
                    node.now = node.device.deadline
                    node.device.on_timer(node.now)

    def start(self, work: Work, rounds: int) -> bool:
        """Drive a program while the fibre carries cells, for a number of rounds; return whether it has ended. Time passes
        only when nothing moves."""
        for _ in range(rounds):
            waits_for = self._waits
            if waits_for is None or waits_for.done:
                try:
                    self._waits = work.send(None)
                except StopIteration:
                    self._waits = None
                    return True
            if not self.deliver_frames():
                self.settle(time_outs=1)
        return False

    def drive(self, work: Work, time_outs: int) -> None:
        """Drive a program to its end. Raises AssertionError if it has not ended in time."""
        assert self.start(work, 50 * time_outs), "the program does not end"

    def restart(self, number: int) -> None:
        before = self.nodes[number]
        self.nodes[number] = Node(number, self.settings, before.library.incarnation + 1)


def run(coroutine: Coroutine[object, None, object]) -> None:
    """Run a coroutine that need not wait."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


def kind_of(frame: bytes) -> int:
    message = unpack(frame[ETHERNET + HEADER :])
    assert message is not None
    return message.kind
