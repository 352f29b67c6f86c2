"""A NIC's functions: what each host process that attaches has for a NIC of its own, as PCI calls it.

EMP's NIC serves one application (its paper's section 5). So each host process gets a function with firmware, MAC address and
number of its own; they share the interface. Frames between two functions of one NIC never reach a wire, whose switch would
not send them back: they are handed on here. Firmware that serves several host processes is one function, with places.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from protocols.core.apart import Apart, Ring
from protocols.core.firmware import Adapter, Buffer
from testbed.kernel.frame_socket import DOWN, FrameSocket
from testbed.runtime.shared.heap import ReachedMemory
from testbed.runtime.shared.region import Region
from testbed.runtime.shared.rings import MisconductError, Reader, Writer

_LOCAL: Final = 4_096
"""Frames between functions that may wait; what is more is dropped, as a switch drops it."""


def address_of(node: bytes, function: int) -> bytes:
    """The MAC address of a NIC's function, from its own: the first byte's upper six bits, of which locally administered
    addresses use none, count on. Function 0 has the NIC's own."""
    if not function:
        return node
    return bytes([((node[0] + 4 * function) & 0xFC) | 2]) + node[1:]


MOST: Final = 64
"""Functions of one NIC."""


class Wire:
    """The interface that the functions share, on the way out. Frames as in `InlineNic`."""

    __slots__ = ("_own", "_send", "_wire", "down", "later", "local", "overflowed", "unsent")

    def __init__(self, wire: FrameSocket, own: frozenset[bytes]) -> None:
        """own: the functions' addresses."""
        self.local: deque[Buffer] = deque()
        """Frames from one function to another."""
        self.later: list[Buffer] = []
        """Frames that nobody is in a hurry for."""
        self.unsent = 0
        self.down = 0
        self.overflowed = 0
        """Frames between functions for which there was no room."""
        self._own = own
        self._wire = wire
        self._send = wire.socket.send

    @property
    def due(self) -> int | None:
        """When `tick` is to be called."""
        return None

    @property
    def kept(self) -> int:
        """Frames that wait until the network takes them."""
        return 0

    def hear(self, frame: bytes) -> bool:  # noqa: ARG002
        """A frame has come that is for no function; whether it is for this."""
        return False

    def tick(self, now: int) -> None:
        """The time has come."""

    def send(self, frame: Buffer) -> None:
        if frame[:6] in self._own:
            if len(self.local) < _LOCAL:
                self.local.append(frame)
            else:
                self.overflowed += 1
            return
        self.put(frame)

    def put(self, frame: Buffer) -> bool:
        """Give a frame to the kernel; whether it has taken it."""
        try:
            self._send(frame)
        except OSError as error:
            if error.errno in DOWN or not self._wire.has_carrier():
                self.down += 1
            else:
                self.unsent += 1
            return False
        return True

    def flush(self) -> None:
        """Send what has waited."""
        for frame in self.later:
            self.send(frame)
        self.later.clear()


class Attached:
    """A host process, as the agent has it: its region, what wakes it, and by what its death is seen. All of it is freed with
    this. function, place: where it is attached; ring: what its doorbells are for. awake: the agent looks at them by itself.
    suspect: why it shall not be trusted any more, or empty."""

    __slots__ = (
        "awake", "bell", "completions", "connection", "doorbells", "function", "handle", "heard", "pid", "pipe", "place",
        "region", "ring", "suspect",
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
        self.heard = 0  # in which turn of the agent something came last
        self.suspect = ""
        self.function: Function
        self.place: int
        self.ring: Ring

    def close(self) -> None:
        self.connection.close()
        for descriptor in (self.handle, self.bell, self.pipe):
            os.close(descriptor)


def _wake(pipe: int) -> None:
    try:
        os.write(pipe, b"\1")
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EPIPE):  # it has not read what woke it before; or it is ending
            raise


class Function:
    """One of a NIC's functions: its firmware, which tells peers who is here also when no host process is attached. Is the
    firmware's `SharedActions`."""

    __slots__ = ("_later", "_suspects", "due", "fetch", "hosts", "nic", "send")

    def __init__(self, adapter: Adapter, wire: Wire, apart: Apart, suspects: list[Attached]) -> None:
        """suspects: host processes of which the firmware has found that they shall be detached; it goes on till then."""
        self.hosts: Final[list[Attached | None]] = [None] * apart.hosts
        self.due: int | None = None
        """The firmware's deadline, when it was looked at last."""
        self.fetch = b"".join
        self.send = wire.send
        self._later = wire.later
        self._suspects = suspects
        self.nic: Final = apart.nic(adapter, self)

    def send_later(self, make: Callable[[], bytes]) -> None:
        self._later.append(make())

    def store(self, piece: memoryview, data: Buffer) -> None:
        piece[:] = data

    def show(self, host: int, index: int) -> None:
        attached = self.hosts[host]
        if attached is None:
            return
        try:
            if attached.completions.put(index):
                return
            why = "it takes no completions, and rings for more"
        except MisconductError as error:
            why = str(error)
        self.suspect(attached, why)

    def suspect(self, host: Attached, why: str) -> None:
        """It shall be detached, when nothing is being done any more."""
        if not host.suspect:
            host.suspect = why  # not the error: that would keep what it has gone through, and with that its region
            self._suspects.append(host)

    def attach(self, now: int, host: Attached, place: int) -> None:
        """A host process begins."""
        host.function, host.place = self, place
        self.hosts[place] = host
        host.ring = self.nic.attach(now, place, ReachedMemory(host.region.heap), host.region.descriptors)

    def detach(self, now: int, host: Attached, incarnation: int) -> None:
        """It is gone, or no longer trusted: nothing of its region is looked at any more. incarnation: see `SharedNic`."""
        self.hosts[host.place] = None
        host.close()
        self.nic.detach(now, host.place, incarnation)
