"""Host processes that talk in pairs through standing NICs, both ways and all the time, and attach again when their agent has
died. What each has met comes back at the end."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from protocols.emp import host as emp
from protocols.emp.apart import apart
from protocols.emp.codec import ETHERTYPE
from testbed import RunningCluster
from testbed.engine.loop import Loop
from testbed.runtime.shared.attachment import Attachment, HostDriver
from testbed.runtime.shared.introduction import AttachError, NicGoneError
from tests.live.machine_state import eventually
from tests.live.shared_nic_processes import Process

PATIENCE = 30.0  # s
LAST = (1 << 63).to_bytes(8, "big")
"""Instead of a number: the end."""

SIZES = (8, 1_400, 20_000)


@dataclass(slots=True)
class Met:
    """What one process has met. gone: the sentences with which its own agent left it. told: what it was told of sends and
    receives that failed. wrong: messages that should not have come so."""

    gone: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    received: int = 0


class Talker(Process):
    """A process of a node's function, which talks with the process that has the number `peer`."""

    def __init__(self, cluster: RunningCluster, node: str, function: int, peer: int) -> None:
        self._counts = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")  # shared with the child
        self._end = os.eventfd(0)
        device = cluster[node].layout.nics[0].name
        super().__init__(lambda _: self._life(device, function, peer), cluster[node].namespace)

    @property
    def received(self) -> int:
        """Messages until now."""
        return self._counts[0]

    def finish(self) -> None:
        """Send a last message, and end when the peer's last has come."""
        os.eventfd_write(self._end, 1)

    def close(self) -> None:
        super().close()
        with contextlib.suppress(OSError):
            os.close(self._end)

    def _life(self, device: str, function: int, peer: int) -> Met:
        met = Met()
        talk = _Talk(met, self._counts, self._end, peer)
        while True:
            try:
                nic = Attachment(device, ETHERTYPE, apart(), function)
            except AttachError:  # there is no agent at the moment
                time.sleep(0.002)  # between two looks
                continue
            driver = HostDriver(nic, nic.host)
            try:
                driver.loop.complete(talk.both(nic.host, driver.loop))
                return met
            except NicGoneError as error:
                met.gone.append(str(error))
            finally:
                driver.close()
                nic.close()


class _Talk:
    """It goes on with another agent where it was."""

    def __init__(self, met: Met, counts: memoryview, end: int, peer: int) -> None:
        self._met = met
        self._counts = counts
        self._peer = peer
        self._end = end
        self._sent = 0
        self._expected = 0
        self._heard_last = False

    async def both(self, endpoint: emp.Endpoint, loop: Loop) -> None:
        hearing = loop.spawn(self._hear(endpoint), "hear")
        await self._say(endpoint)
        await hearing

    async def _say(self, endpoint: emp.Endpoint) -> None:
        while True:
            last = _can_be_read(self._end)
            head = LAST if last else self._sent.to_bytes(8, "big")
            size = SIZES[self._sent % len(SIZES)]
            try:
                await endpoint.send(self._peer, 1, head * (size // 8))
            except emp.EmpError as error:
                self._met.told.append(str(error))
                continue
            if last:
                return
            self._sent += 1

    async def _hear(self, endpoint: emp.Endpoint) -> None:
        buffer = bytearray(max(SIZES))
        while not self._heard_last:
            try:
                received = await endpoint.receive(self._peer, 1, buffer)
            except emp.EmpError as error:
                self._met.told.append(str(error))
                continue
            head = bytes(buffer[:8])
            if buffer[: received.length] != head * (received.length // 8):
                self._met.wrong.append(f"a message of {received.length} bytes is mixed with another")
            if head == LAST:
                self._heard_last = True
                return
            number = int.from_bytes(head, "big")
            # Who is not told whether a message has arrived sends it again: it may come twice, but none is left out.
            if number not in (self._expected, self._expected - 1):
                self._met.wrong.append(f"message {number} instead of {self._expected}")
            self._expected = number + 1
            self._met.received += 1
            self._counts[0] += 1


def _can_be_read(descriptor: int) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(0))


@contextlib.contextmanager
def talking(
    cluster: RunningCluster, pairs: Mapping[tuple[str, int], tuple[str, int]], functions: int
) -> Iterator[dict[tuple[str, int], Talker]]:
    """Processes that talk in these pairs of (node, function), and have begun to."""
    names = [node.name for node in cluster]

    def number(place: tuple[str, int]) -> int:
        return names.index(place[0]) * functions + place[1]

    with contextlib.ExitStack() as stack:
        found = {}
        for one, other in [*pairs.items(), *((other, one) for one, other in pairs.items())]:
            found[one] = Talker(cluster, *one, number(other))
            stack.callback(found[one].close)
        go_on(found)
        yield found


def go_on(talkers: Mapping[tuple[str, int], Talker], by: int = 20) -> None:
    """All of them get so many more messages."""
    before = {place: talker.received for place, talker in talkers.items()}
    for place, talker in talkers.items():
        eventually(lambda p=place, t=talker: t.received >= before[p] + by, f"{place} gets on", PATIENCE)  # type: ignore[misc]


def met(talkers: Mapping[tuple[str, int], Talker]) -> dict[tuple[str, int], Met]:
    """End them all; what they have met."""
    for talker in talkers.values():
        talker.finish()
    return {place: talker.result() for place, talker in talkers.items()}
