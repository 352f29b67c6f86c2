"""The port of a live NIC: a packet socket, by which its frames leave; in a network with back-pressure they wait there while
the network takes none (see `fabric.stop_go`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from protocols.core.firmware import Buffer
from testbed.engine.loop import Loop, Timer
from testbed.fabric.stop_go import ADDRESS, ASK_INTERVAL, Outlet
from testbed.kernel.frame_socket import FrameSocket

BUFFER: Final = 128 << 20
"""Bytes of frames that have come, with the kernel's overhead for each; the kernel uses what it needs of it."""


class VethPort:
    """Gives frames to the kernel. unsent: frames that it did not take although the interface was up: lost inside the
    emulator. down: frames for an interface that was down or gone, or whose other end was."""

    __slots__ = ("_give", "_wire", "down", "unsent")

    def __init__(self, wire: FrameSocket) -> None:
        self.unsent = 0
        self.down = 0
        self._wire = wire
        self._give = wire.send

    @property
    def kept(self) -> int:
        """Frames that wait in it until the network takes them."""
        return 0

    def send(self, frame: Buffer) -> bool | None:
        """A frame leaves, and is not touched any more. Returns True if it waits in the port."""
        try:
            self._give(frame)
        except OSError as error:
            self._untaken(error, frame)
        return None

    def when_sent(self, then: Callable[[], object]) -> None:
        """Call `then` when the frames that wait are gone: here none does."""
        then()

    def on_control_frame(self, frame: bytes) -> bool:  # noqa: ARG002
        """A frame has come; whether it was for the port, and not for its NIC."""
        return False

    def _untaken(self, error: OSError, frame: Buffer) -> None:
        if self._wire.is_down(error, len(frame)):
            self.down += 1
        else:
            self.unsent += 1


class HoldingPort(VethPort):
    """A port in a network with back-pressure. on_hold: called when a first frame waits; `ask_again` is then to be called
    every ASK_INTERVAL, until it returns that no frame waits."""

    __slots__ = ("ask_again", "on_hold", "outlet")

    def __init__(self, wire: FrameSocket, head: bytes) -> None:
        """head: the NIC's address and its frames' EtherType."""
        super().__init__(wire)

        def say(word: bytes) -> None:
            with contextlib.suppress(OSError):  # it is lost, and will be resent
                wire.socket.send(word)

        self.on_hold: Callable[[], object] = _ignore
        self.outlet: Final = Outlet(self._put, say, head, lambda: self.on_hold())
        self.ask_again: Final = self.outlet.repeat_ask

    @property
    def kept(self) -> int:
        return len(self.outlet.waiting_frames)

    def send(self, frame: Buffer) -> bool | None:
        return self.outlet.send(frame)

    def when_sent(self, then: Callable[[], object]) -> None:
        if self.outlet.waiting_frames:
            self.outlet.when_sent(then)
        else:
            then()

    def on_control_frame(self, frame: bytes) -> bool:
        return frame[:6] == ADDRESS and self.outlet.on_control_frame(frame)

    def _put(self, frame: Buffer) -> bool:
        """Give a frame to the kernel; whether it has taken it."""
        try:
            self._give(frame)
        except OSError as error:
            self._untaken(error, frame)
            return False
        return True


def port_on(wire: FrameSocket, head: bytes) -> VethPort:
    """head: see `HoldingPort`; empty in a network without back-pressure."""
    return HoldingPort(wire, head) if head else VethPort(wire)


def socket_on(device: str, ethertype: int, mtu: int, *, holding: bool) -> FrameSocket:
    """holding: in a network with back-pressure; it has room for all that may come then, from everybody, while a program
    computes, as nothing is ever sent again. OSError."""
    return FrameSocket(device, ethertype, mtu, BUFFER) if holding else FrameSocket(device, ethertype, mtu)


class Asking:
    """Timer of a loop by which a port asks again while frames wait in it."""

    __slots__ = ("_again", "_loop", "_port", "_timer")

    def __init__(self, loop: Loop, port: HoldingPort, slowed: int = 1) -> None:
        """slowed: how many nanoseconds of the machine are one of the loop's."""
        self._loop = loop
        self._port = port
        self._again: Final = max(1, ASK_INTERVAL // slowed)
        self._timer: Final[Timer] = loop.timer(self._due)
        port.on_hold = self._begin
        if port.kept:
            self._begin()

    def _begin(self) -> None:
        """A first frame waits."""
        if self._timer.when is None:
            self._timer.set(self._loop.now() + self._again)

    def _due(self, now: int) -> None:
        if self._port.ask_again():
            self._timer.set(now + self._again)


def _ignore() -> None:
    """Do nothing: no network holds frames back."""
