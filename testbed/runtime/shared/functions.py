"""Functions of a NIC, as in PCI: each appears as a separate NIC to the host process that attaches to it.

EMP's NIC serves one application (section 5 of its paper). So each host process gets a function with its own firmware, MAC
address and number; the functions share the interface. Frames between two functions of one NIC are delivered in the agent,
since a switch would not send them back. Firmware that serves several host processes is one function, with a slot for each.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from protocols.core.firmware import Adapter, Buffer
from protocols.core.split_memory import OnDoorbell, SharedActions, SplitDriver
from testbed.engine.failures import TimerCallCounter
from testbed.fabric.stop_go import ASK_INTERVAL
from testbed.runtime.nodes.veth_port import FlowControlPort, VethPort
from testbed.runtime.shared.heap import HeapView
from testbed.runtime.shared.region import Region
from testbed.runtime.shared.rings import ProtocolViolationError, Reader, Writer
from testbed.spec.names import MAX_RANKS

_MAX_LOCAL_FRAMES: Final = 4_096
"""Maximum number of waiting frames between functions; further ones are dropped, as by a switch."""

_LOSS_ERRORS: Final = (errno.EAGAIN, errno.ENOTCONN, errno.ECONNREFUSED, errno.EPIPE)
"""Errors of handing a frame over to another worker: its inbox is full, or the worker has ended, and its functions with
it."""

MAX_FUNCTIONS: Final = MAX_RANKS
"""Maximum number of functions of one NIC."""


class Wire:
    """The sending side of the interface that the functions share. port: sends frames to the network. deadline: time at which
    to call `on_timer`, or None."""

    __slots__ = (
        "_has_routes",
        "_other_inboxes",
        "_own_addresses",
        "_send",
        "deadline",
        "deferred",
        "handed_over",
        "local",
        "overflowed",
        "port",
    )

    def __init__(
        self,
        port: VethPort,
        own_addresses: frozenset[bytes],
        other_inboxes: Mapping[bytes, socket.socket] | None = None,
    ) -> None:
        """own_addresses: MAC addresses of the functions. other_inboxes: inboxes of other workers, by the addresses of their
        functions."""
        self.port: Final = port
        self.deadline: int | None = None
        self.local: deque[Buffer] = deque()
        """Frames between the functions, to be delivered by the agent."""
        self.deferred: list[Buffer] = []
        """Frames to be sent at the next `flush`."""
        self.overflowed = 0
        """Number of frames between functions or workers that were dropped because too many waited."""
        self.handed_over = 0
        """Number of frames from the wire for functions of other workers."""
        self._other_inboxes = other_inboxes or {}
        self._own_addresses = own_addresses
        self._send = port.send
        # In a network with source routes, a frame that a NIC sends to itself, such as a probe, must follow its route.
        self._has_routes = isinstance(port, FlowControlPort)
        if isinstance(port, FlowControlPort):
            port.on_hold = self._start_timer
            if port.frames_waiting:
                self._start_timer()

    def on_timer(self, now: int) -> None:
        """Let the port repeat its ASK if that is due."""
        if self.deadline is not None and self.deadline <= now:
            assert isinstance(self.port, FlowControlPort)
            self.deadline = now + ASK_INTERVAL if self.port.ask_again() else None

    def _start_timer(self) -> None:
        if self.deadline is None:
            self.deadline = time.monotonic_ns() + ASK_INTERVAL

    def hand_over(self, frame: bytes) -> bool:
        """Hand a frame from the wire over to the worker that has its function; return False if no other worker has it."""
        inbox = self._other_inboxes.get(frame[:6])
        if inbox is None:
            return False
        self.handed_over += 1
        self._put_into(inbox, frame)
        return True

    def _put_into(self, inbox: socket.socket, frame: Buffer) -> None:
        try:
            inbox.send(frame)
        except OSError as error:
            if error.errno not in _LOSS_ERRORS:
                raise
            self.overflowed += 1

    def send(self, frame: Buffer) -> bool | None:
        """Send a frame to another function, another worker's function, or the network. Returns True if it waits in the
        port."""
        destination = frame[:6]
        if self._other_inboxes and (inbox := self._other_inboxes.get(bytes(destination))) is not None:
            self._put_into(inbox, frame)
            return None
        if destination in self._own_addresses and not (self._has_routes and destination == frame[6:12]):
            if len(self.local) < _MAX_LOCAL_FRAMES:
                self.local.append(frame)
            else:
                self.overflowed += 1
            return None
        return self._send(frame)

    def when_sent(self, then: Callable[[int], object]) -> None:
        self.port.when_sent(lambda: then(time.monotonic_ns()))

    def flush(self) -> None:
        """Send the deferred frames."""
        for frame in self.deferred:
            self.send(frame)
        self.deferred.clear()


class AttachedHost:
    """A host process, as its NIC's agent sees it: its region, and the descriptors for wake-ups and for its end.

    function, slot: the function and slot to which it is attached. on_doorbell: called with its doorbells. is_awake: whether
    the agent polls its doorbells. last_turn: number of the agent's last turn with a doorbell of this host. violation: the
    reason why the host is to be detached, or empty.
    """

    __slots__ = (
        "completions",
        "connection",
        "doorbells",
        "eventfd",
        "function",
        "is_awake",
        "last_turn",
        "on_doorbell",
        "pid",
        "pidfd",
        "region",
        "slot",
        "violation",
        "wake_pipe",
    )

    def __init__(
        self, region: Region, connection: socket.socket, pid: int, pidfd: int, eventfd: int, wake_pipe: int
    ) -> None:
        """connection: socket of the attach protocol. eventfd: wakes the agent. wake_pipe: writing end of the pipe that wakes
        the host."""
        self.region = region
        self.connection = connection
        self.pid = pid
        self.pidfd = pidfd
        self.eventfd = eventfd
        self.wake_pipe = wake_pipe
        self.doorbells = Reader(region.doorbells.words, region.doorbells.numbers)
        self.completions = Writer(region.completions.words, region.completions.numbers, partial(_wake, wake_pipe))
        self.is_awake = False
        self.last_turn = 0
        self.violation = ""
        self.function: Function
        self.slot: int
        self.on_doorbell: OnDoorbell

    def close(self) -> None:
        """Close the connection and the descriptors."""
        self.connection.close()
        for descriptor in (self.pidfd, self.eventfd, self.wake_pipe):
            os.close(descriptor)


def _wake(pipe: int) -> None:
    try:
        os.write(pipe, b"\1")
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EPIPE):  # the pipe is full of unread wake-ups, or the host has ended
            raise


class Function(SharedActions):
    """One of a NIC's functions. Its firmware answers peers even when no host process is attached. hosts: the attached host
    processes, by slot. nic: the firmware, and its side of the split driver."""

    __slots__ = ("_violators", "_wire", "deadline", "hosts", "nic", "ticks")

    def __init__(self, adapter: Adapter, wire: Wire, split_driver: SplitDriver, violators: list[AttachedHost]) -> None:
        """violators: list to which the function appends hosts that violate the protocol, for the agent to detach."""
        self.hosts: Final[list[AttachedHost | None]] = [None] * split_driver.hosts
        self.deadline: int | None = None
        """The firmware's deadline when it was read last."""
        self.ticks: Final = TimerCallCounter()
        self._wire = wire
        self._violators = violators
        self.nic: Final = split_driver.nic(adapter, self)

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        return b"".join(segments)

    def send(self, frame: Buffer) -> bool | None:
        return self._wire.send(frame)

    def when_sent(self, then: Callable[[int], object]) -> None:
        self._wire.when_sent(then)

    def send_later(self, make: Callable[[], bytes]) -> None:
        self._wire.deferred.append(make())

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        target[:] = data

    def post_completion(self, host: int, index: int) -> None:
        attached = self.hosts[host]
        if attached is None:
            return
        try:
            if attached.completions.put(index):
                return
            reason = "its completion queue is full: it rings doorbells but takes no completions"
        except ProtocolViolationError as error:
            reason = str(error)
        self.report_violation(attached, reason)

    def report_violation(self, host: AttachedHost, reason: str) -> None:
        """Mark a host to be detached after the present turn."""
        if not host.violation:
            host.violation = reason  # not the error: its traceback would keep the host's region alive
            self._violators.append(host)

    def attach(self, now: int, host: AttachedHost, slot: int) -> None:
        """Attach a host process to a slot."""
        host.function, host.slot = self, slot
        self.hosts[slot] = host
        host.on_doorbell = self.nic.attach(now, slot, HeapView(host.region.heap), host.region.descriptors)

    def detach(self, now: int, host: AttachedHost, incarnation: int) -> None:
        """Detach a host process that has ended or has violated the protocol; its region is not read any more. incarnation:
        see `SharedNic`."""
        self.hosts[host.slot] = None
        host.close()
        self.nic.detach(now, host.slot, incarnation)
