"""A NIC whose firmware runs in its host's own process: every action is performed at once, in place.

What must not happen is that the firmware is entered again while it is at work. Two ways lead there, and both are cut:

- `show` tells the host library at once, which completes what a program awaits; but nothing of the program runs then. Who
  drives the program only notes that it can go on (see `driver`).
- The host library may answer a completion with another descriptor: a doorbell that is rung while the firmware is at work
  waits until it is not. From outside, as a program rings it, it is answered at once, and the frames have left when the
  call returns. What the firmware raises comes out of the call; later doorbells, and those that waited, are still answered.

What may be sent later (`Firmware`'s acknowledgements) is, behind what the program answers, as long as programs answer
quickly: the message that somebody waits for goes first. After a step of a program that took long it is sent at once, until
the steps are short again: no more than one frame of a peer waits for a program that computes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from protocols.core.firmware import Agent, Buffer, Firmware
from testbed.kernel.frame_socket import DOWN, FrameSocket


class InlineNic:
    """The surroundings of one firmware on a packet socket. busy: the firmware is at work; whoever calls it says so."""

    __slots__ = ("_ring", "_send", "_wire", "busy", "down", "interrupt", "later", "prompt", "rung", "show", "unsent")

    def __init__(self, wire: FrameSocket) -> None:
        self.busy = False
        self.rung: deque[int] = deque()
        """Descriptors whose doorbell was rung while the firmware was at work."""
        self.later: list[Callable[[], bytes]] = []
        """What makes frames that may leave after those of the program's next step."""
        self.prompt = False
        """Whether programs answer quickly, so that frames may be kept in `later`."""
        self.unsent = 0
        """Frames that the kernel did not take although the interface was up: lost inside the emulator."""
        self.down = 0
        """Frames for an interface that was down or gone, or whose other end was."""
        self._wire = wire
        self._send = wire.socket.send
        self.show: Callable[[int], None]
        self.interrupt: Callable[[int], None]
        self._ring: Callable[[int, int], None]

    def attach(self, agent: Agent) -> None:
        """Whose actions these are; before the first one."""
        self.show = self.interrupt = agent.host.completed
        self._ring = agent.firmware.ring

    fetch = staticmethod(b"".join)

    @property
    def kept(self) -> int:
        """Frames that wait in it until the network takes them."""
        return 0

    def taking(self, firmware: Firmware) -> Callable[[int, bytes], None]:
        """What frames that have come are given to."""
        return firmware.receive

    def send(self, frame: Buffer) -> None:
        try:
            self._send(frame)
        except OSError as error:
            self._untaken(error)

    def put(self, frame: Buffer) -> bool:
        """Give a frame to the kernel; whether it has taken it."""
        try:
            self._send(frame)
        except OSError as error:
            self._untaken(error)
            return False
        return True

    def _untaken(self, error: OSError) -> None:
        if error.errno in DOWN or not self._wire.has_carrier():
            self.down += 1
        else:
            self.unsent += 1

    def send_later(self, make: Callable[[], bytes]) -> None:
        if self.prompt:
            self.later.append(make)
        else:
            self.send(make())

    def flush(self) -> None:
        """Send what has waited."""
        for make in self.later:
            self.send(make())
        self.later.clear()

    def store(self, piece: memoryview, data: Buffer) -> None:
        piece[:] = data

    def doorbell(self, index: int, written: int, translated: int) -> None:  # noqa: ARG002  here they cost what they cost
        if self.busy:
            self.rung.append(index)
            return
        self.busy = True
        try:
            self._ring(time.monotonic_ns(), index)
        finally:
            self.busy = False
            if self.rung:
                self.answer()

    def answer(self) -> None:
        """Answer the doorbells that were rung while the firmware was at work; it no longer is."""
        rung, ring = self.rung, self._ring
        self.busy = True
        try:
            while rung:
                ring(time.monotonic_ns(), rung.popleft())
        finally:
            self.busy = False
            if rung:
                self.answer()
