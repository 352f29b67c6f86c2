"""Functions of a NIC, as in PCI: each is a NIC of its own to the host process that attaches to it.

EMP's NIC serves one application (its paper's section 5). So each host process gets a function with firmware, MAC address and
number of its own; they share the interface. Frames between two functions of one NIC are passed on here: a switch would not
send them back. Firmware that serves several host processes is one function, with a place for each.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from protocols.core.firmware import Adapter, Buffer
from protocols.core.split_memory import OnDoorbell, SplitDriver
from testbed.engine.failures import TickCount
from testbed.fabric.stop_go import ASK_INTERVAL
from testbed.runtime.nodes.veth_port import HoldingPort, VethPort
from testbed.runtime.shared.heap import ReachedMemory
from testbed.runtime.shared.region import Region
from testbed.runtime.shared.rings import ProtocolViolationError, Reader, Writer
from testbed.spec.names import MAX_RANKS

_LOCAL: Final = 4_096
"""Frames between functions that may wait; further ones are dropped, as by a switch."""


_LOST: Final = (errno.EAGAIN, errno.ENOTCONN, errno.ECONNREFUSED, errno.EPIPE)
"""Errors of handing a frame over: the worker has no room, or has ended, and with it its functions."""

MAX: Final = MAX_RANKS
"""Maximum of functions of one NIC."""


class Wire:
    """The sending side of the interface that the functions share. port: sends frames. due: when to call `on_timer`."""

    __slots__ = (
        "_has_routes",
        "_others",
        "_own",
        "_send",
        "due",
        "handed_over",
        "later",
        "local",
        "overflowed",
        "port",
    )

    def __init__(
        self, port: VethPort, own: frozenset[bytes], others: Mapping[bytes, socket.socket] | None = None
    ) -> None:
        """own: the functions' addresses. others: inboxes of the workers that have further functions. In a network with
        back-pressure, which has routes, a frame to its own sender takes its way through it, as a probe does."""
        self.port: Final = port
        self.due: int | None = None
        self.local: deque[Buffer] = deque()
        """Frames from one function to another."""
        self.later: list[Buffer] = []
        """Frames that may be sent later."""
        self.overflowed = 0
        """Frames between functions, or workers, for which there was no room."""
        self.handed_over = 0
        """Frames from the wire that were another worker's."""
        self._others = others or {}
        self._own = own
        self._send = port.send
        self._has_routes = isinstance(port, HoldingPort)
        if isinstance(port, HoldingPort):
            port.on_hold = self._hold
            if port.kept:
                self._hold()

    def on_timer(self, now: int) -> None:
        """Let a port that holds frames back ask again, if that is due."""
        if self.due is not None and self.due <= now:
            assert isinstance(self.port, HoldingPort)
            self.due = now + ASK_INTERVAL if self.port.ask_again() else None

    def _hold(self) -> None:
        if self.due is None:
            self.due = time.monotonic_ns() + ASK_INTERVAL

    def hand_over(self, frame: bytes) -> bool:
        """Pass a frame from the wire to the worker that has its function; False: there is none."""
        inbox = self._others.get(frame[:6])
        if inbox is None:
            return False
        self.handed_over += 1
        self._pass_on(inbox, frame)
        return True

    def _pass_on(self, inbox: socket.socket, frame: Buffer) -> None:
        try:
            inbox.send(frame)
        except OSError as error:
            if error.errno not in _LOST:
                raise
            self.overflowed += 1

    def send(self, frame: Buffer) -> bool | None:
        to = frame[:6]
        if self._others and (inbox := self._others.get(bytes(to))) is not None:
            self._pass_on(inbox, frame)
            return None
        if to in self._own and not (self._has_routes and to == frame[6:12]):
            if len(self.local) < _LOCAL:
                self.local.append(frame)
            else:
                self.overflowed += 1
            return None
        return self._send(frame)

    def when_sent(self, then: Callable[[int], object]) -> None:
        self.port.when_sent(lambda: then(time.monotonic_ns()))

    def flush(self) -> None:
        """Send the frames that have waited."""
        for frame in self.later:
            self.send(frame)
        self.later.clear()


class Attached:
    """A host process in the agent: its region, and the descriptors that wake it and report its death, all freed by `close`.

    function, place: where it is attached. ring: called with its doorbells. awake: the agent polls its doorbells. suspect:
    why it is not trusted any more, or empty.
    """

    __slots__ = (
        "awake",
        "bell",
        "completions",
        "connection",
        "doorbells",
        "function",
        "handle",
        "heard",
        "on_doorbell",
        "pid",
        "pipe",
        "place",
        "region",
        "suspect",
    )  # fmt: skip

    def __init__(self, region: Region, connection: socket.socket, pid: int, handle: int, bell: int, pipe: int) -> None:
        """pid: its process. handle: its pidfd. bell: its eventfd. pipe: the end that wakes it."""
        self.region = region
        self.connection = connection
        self.pid = pid
        self.handle = handle
        self.bell = bell
        self.pipe = pipe
        self.doorbells = Reader(region.doorbells.words, region.doorbells.numbers)
        self.completions = Writer(region.completions.words, region.completions.numbers, partial(_wake, pipe))
        self.awake = False
        self.heard = 0  # the agent's turn in which it rang last
        self.suspect = ""
        self.function: Function
        self.place: int
        self.on_doorbell: OnDoorbell

    def close(self) -> None:
        self.connection.close()
        for descriptor in (self.handle, self.bell, self.pipe):
            os.close(descriptor)


def _wake(pipe: int) -> None:
    try:
        os.write(pipe, b"\1")
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EPIPE):  # an earlier wake-up is unread; it is ending
            raise


class Function:
    """One of a NIC's functions: its firmware, which answers peers even when no host process is attached. Implements the
    firmware's `SharedActions`."""

    __slots__ = ("_later", "_suspects", "dma_read", "due", "hosts", "nic", "send", "ticks", "when_sent")

    def __init__(self, adapter: Adapter, wire: Wire, split_driver: SplitDriver, suspects: list[Attached]) -> None:
        """suspects: gets the host processes to be detached for misconduct; the firmware continues until then."""
        self.hosts: Final[list[Attached | None]] = [None] * split_driver.hosts
        self.due: int | None = None
        """The firmware's deadline when it was read last."""
        self.dma_read = b"".join
        self.send = wire.send
        self.when_sent = wire.when_sent
        self.ticks: Final = TickCount()
        self._later = wire.later
        self._suspects = suspects
        self.nic: Final = split_driver.nic(adapter, self)

    def send_later(self, make: Callable[[], bytes]) -> None:
        self._later.append(make())

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        target[:] = data

    def post_completion(self, host: int, index: int) -> None:
        attached = self.hosts[host]
        if attached is None:
            return
        try:
            if attached.completions.put(index):
                return
            reason = "it takes no completions, and rings for more"
        except ProtocolViolationError as error:
            reason = str(error)
        self.suspect(attached, reason)

    def suspect(self, host: Attached, why: str) -> None:
        """Mark a host to be detached after the present turn."""
        if not host.suspect:
            host.suspect = why  # not the error: its traceback would keep the host's region alive
            self._suspects.append(host)

    def attach(self, now: int, host: Attached, index: int) -> None:
        """Attach a host process."""
        host.function, host.place = self, index
        self.hosts[index] = host
        host.on_doorbell = self.nic.attach(now, index, ReachedMemory(host.region.heap), host.region.descriptors)

    def detach(self, now: int, host: Attached, incarnation: int) -> None:
        """Detach a host process that is gone or not trusted; its region is not read any more. incarnation: see
        `SharedNic`."""
        self.hosts[host.place] = None
        host.close()
        self.nic.detach(now, host.place, incarnation)
