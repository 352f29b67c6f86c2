"""Host processes that exchange messages in pairs through standing NICs and re-attach when their agent dies.

Each returns a record of the messages and errors that it received.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from protocols.emp import host as emp
from protocols.emp.codec import ETHERTYPE
from protocols.emp.split_driver import split_driver
from testbed import RunningCluster
from testbed.engine.loop import Loop
from testbed.runtime.shared.attach_protocol import AttachError, NicGoneError
from testbed.runtime.shared.attachment import Attachment, HostDriver
from tests.live.machine_state import eventually
from tests.live.shared_nic_processes import Process

TIMEOUT = 30.0  # seconds
LAST = (1 << 63).to_bytes(8, "big")
"""Sequence number of the last message."""

SIZES = (8, 1_400, 20_000)


@dataclass(slots=True)
class HostRecord:
    """Record of one host process.

    gone: errors by which its own agent's death was reported. failures: errors of sends and receives. wrong: messages with
    unexpected content.
    """

    gone: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    received: int = 0


class ReattachingHost(Process):
    """A host process at a function of a node's NIC that exchanges messages with host number `peer`."""

    def __init__(self, cluster: RunningCluster, node: str, function: int, peer: int) -> None:
        self._counts = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")  # shared with the child
        self._end = os.eventfd(0)
        device = cluster[node].layout.nics[0].name
        super().__init__(lambda _: self._run_host(device, function, peer), cluster[node].namespace)

    @property
    def received(self) -> int:
        """Number of messages received so far."""
        return self._counts[0]

    def finish(self) -> None:
        """Send the last message; the process ends when the peer's last message has arrived."""
        os.eventfd_write(self._end, 1)

    def close(self) -> None:
        super().close()
        with contextlib.suppress(OSError):
            os.close(self._end)

    def _run_host(self, device: str, function: int, peer: int) -> HostRecord:
        record = HostRecord()
        exchange = _Exchange(record, self._counts, self._end, peer)
        while True:
            try:
                nic = Attachment(device, ETHERTYPE, split_driver(), function)
            except AttachError:  # no agent is running
                time.sleep(0.002)  # between two samples
                continue
            driver = HostDriver(nic, nic.host)
            try:
                driver.loop.complete(exchange.run(nic.host, driver.loop))
                return record
            except NicGoneError as error:
                record.gone.append(str(error))
            finally:
                driver.close()
                nic.close()


class _Exchange:
    """Exchange of numbered messages with a peer, resumable over another agent."""

    def __init__(self, record: HostRecord, counts: memoryview, end: int, peer: int) -> None:
        self._record = record
        self._counts = counts
        self._peer = peer
        self._end = end
        self._sent = 0
        self._expected = 0
        self._received_last = False

    async def run(self, endpoint: emp.Endpoint, loop: Loop) -> None:
        receiver = loop.spawn(self._receive(endpoint), "receive")
        await self._send(endpoint)
        await receiver

    async def _send(self, endpoint: emp.Endpoint) -> None:
        while True:
            is_last = _is_readable(self._end)
            head = LAST if is_last else self._sent.to_bytes(8, "big")
            size = SIZES[self._sent % len(SIZES)]
            try:
                await endpoint.send(self._peer, 1, head * (size // 8))
            except emp.EmpError as error:
                self._record.failures.append(str(error))
                continue
            if is_last:
                return
            self._sent += 1

    async def _receive(self, endpoint: emp.Endpoint) -> None:
        buffer = bytearray(max(SIZES))
        while not self._received_last:
            try:
                received = await endpoint.receive(self._peer, 1, buffer)
            except emp.EmpError as error:
                self._record.failures.append(str(error))
                continue
            head = bytes(buffer[:8])
            if buffer[: received.length] != head * (received.length // 8):
                self._record.wrong.append(f"a message of {received.length} bytes has parts of another")
            if head == LAST:
                self._received_last = True
                return
            number = int.from_bytes(head, "big")
            # A re-attached sender repeats a message of unknown fate: it may arrive twice, but none is missing.
            if number not in (self._expected, self._expected - 1):
                self._record.wrong.append(f"message {number} instead of {self._expected}")
            self._expected = number + 1
            self._record.received += 1
            self._counts[0] += 1


def _is_readable(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))


@contextlib.contextmanager
def reattaching_pairs(
    cluster: RunningCluster, pairs: Mapping[tuple[str, int], tuple[str, int]], functions: int
) -> Iterator[dict[tuple[str, int], ReattachingHost]]:
    """Start hosts that exchange messages in these pairs of (node, function), and wait for the first ones."""
    names = [node.name for node in cluster]

    def host_number(node: str, function: int) -> int:
        return names.index(node) * functions + function

    with contextlib.ExitStack() as stack:
        hosts = {}
        for first, second in [*pairs.items(), *((pair, first) for first, pair in pairs.items())]:
            hosts[first] = ReattachingHost(cluster, *first, host_number(*second))
            stack.callback(hosts[first].close)
        wait_for_progress(hosts)
        yield hosts


def wait_for_progress(hosts: Mapping[tuple[str, int], ReattachingHost], by: int = 20) -> None:
    """Wait until each host has exchanged `by` more messages."""
    before = {name: host.received for name, host in hosts.items()}
    for name, host in hosts.items():
        eventually(lambda n=name, h=host: h.received >= before[n] + by, f"{name} makes progress", TIMEOUT)  # type: ignore[misc]


def finish_all(hosts: Mapping[tuple[str, int], ReattachingHost]) -> dict[tuple[str, int], HostRecord]:
    """End all hosts and return their records."""
    for host in hosts.values():
        host.finish()
    return {name: host.result() for name, host in hosts.items()}
