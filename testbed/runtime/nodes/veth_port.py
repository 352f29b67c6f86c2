"""Port of a live NIC: sends its frames on a packet socket. In a network with back-pressure, frames wait in the port while
the network accepts none (see `fabric.stop_go`). `incarnation` numbers the starts of NICs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from protocols.core.firmware import FIRST, Buffer
from testbed.engine.loop import Loop
from testbed.fabric.event_queue import Timer
from testbed.fabric.stop_go import ADDRESS, ASK_INTERVAL, Outlet
from testbed.kernel.frame_socket import BUFFER, FrameSocket

SOCKET_BUFFER_SIZE: Final = 128 << 20
"""Maximum bytes in the buffer of a socket with flow control, including the kernel's overhead for each frame. The kernel
allocates only what it needs."""


def incarnation() -> int:
    """Return the incarnation of a NIC that starts now, which differs from those of its predecessors: milliseconds since
    boot, as a 32-bit serial number; never 0 or FIRST, at which simulated NICs start to count."""
    return (time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000) % (0xFFFF_FFFF - FIRST) + FIRST + 1


class VethPort:
    """Passes frames to the kernel. unsent: number of frames that the kernel did not accept although the interface was up:
    they are lost inside the emulator. down: number of frames sent while the interface or its peer was down or removed."""

    __slots__ = ("_wire", "down", "transmit", "unsent")

    def __init__(self, wire: FrameSocket) -> None:
        self.unsent = 0
        self.down = 0
        self._wire = wire
        self.transmit: Callable[[Buffer], object] = wire.send
        """Send a frame, which the caller must not change afterwards. Returns True if it waits in the port. Raises OSError if
        it is lost; the caller then calls `count_lost`."""

    @property
    def frames_waiting(self) -> int:
        """Number of frames that wait in the port until the network accepts them."""
        return 0

    def send(self, frame: Buffer) -> bool | None:
        """Send a frame as `transmit`, and count it if it is lost. Returns None for a lost frame."""
        try:
            return self.transmit(frame) is True
        except OSError as error:
            self.count_lost(error, frame)
            return None

    def when_sent(self, then: Callable[[], object]) -> None:
        """Call `then` once no frame waits in the port; without flow control, at once."""
        then()

    def on_control_frame(self, frame: bytes) -> bool:  # noqa: ARG002
        """Handle a received frame if it is a control frame for the port; return whether it is. Other frames are for the
        NIC."""
        return False

    def count_lost(self, error: OSError, frame: Buffer) -> None:
        """Count a frame that the kernel did not accept."""
        if self._wire.is_down(error, len(frame)):
            self.down += 1
        else:
            self.unsent += 1


class FlowControlPort(VethPort):
    """Port in a network with back-pressure. on_hold: called when a frame begins to wait and no other does. From then on, the
    owner calls `ask_again` every ASK_INTERVAL, until it returns False because no frame waits."""

    __slots__ = ("ask_again", "on_hold", "outlet")

    def __init__(self, wire: FrameSocket, control_header: bytes) -> None:
        """control_header: the NIC's address and its frames' EtherType."""
        super().__init__(wire)

        def send_control(frame: bytes) -> None:
            with contextlib.suppress(OSError):  # a lost control frame is sent again
                wire.socket.send(frame)

        self.on_hold: Callable[[], object] = _ignore
        self.outlet: Final = Outlet(self._send_frame, send_control, control_header, lambda: self.on_hold())
        self.transmit = self.outlet.send
        self.ask_again: Final = self.outlet.repeat_ask

    @property
    def frames_waiting(self) -> int:
        return len(self.outlet.waiting_frames)

    def when_sent(self, then: Callable[[], object]) -> None:
        if self.outlet.waiting_frames:
            self.outlet.when_sent(then)
        else:
            then()

    def on_control_frame(self, frame: bytes) -> bool:
        return frame[:6] == ADDRESS and self.outlet.on_control_frame(frame)

    def _send_frame(self, frame: Buffer) -> bool:
        """Pass a frame to the kernel; return whether the kernel has accepted it."""
        try:
            self._wire.send(frame)
        except OSError as error:
            self.count_lost(error, frame)
            return False
        return True


def make_port(wire: FrameSocket, control_header: bytes) -> VethPort:
    """Make the port of a NIC. control_header: see `FlowControlPort`; empty in a network without back-pressure."""
    return FlowControlPort(wire, control_header) if control_header else VethPort(wire)


def open_socket(device: str, ethertype: int, mtu: int, *, flow_control: bool, polls_often: bool = False) -> FrameSocket:
    """Open the packet socket of a NIC. flow_control: whether the network has back-pressure; frames are not sent again there,
    so the socket's buffer must hold the windows of all senders while a program computes. polls_often: see `FrameSocket`.
    Raises OSError."""
    buffer = SOCKET_BUFFER_SIZE if flow_control else BUFFER
    return FrameSocket(device, ethertype, mtu, buffer, polls_often=polls_often)


class AskTimer:
    """Repeats a port's ASK while frames wait in the port, by a timer of a loop."""

    __slots__ = ("_interval", "_loop", "_port", "_timer")

    def __init__(self, loop: Loop, port: FlowControlPort, factor: int = 1) -> None:
        """factor: nanoseconds of the machine's clock for one of the loop's clock."""
        self._loop = loop
        self._port = port
        self._interval: Final = max(1, ASK_INTERVAL // factor)
        self._timer: Final[Timer] = loop.timer(self._on_timer)
        port.on_hold = self._start
        if port.frames_waiting:
            self._start()

    def _start(self) -> None:
        """Start the timer when a frame begins to wait."""
        if self._timer.when is None:
            self._timer.set(self._loop.now() + self._interval)

    def _on_timer(self, now: int) -> None:
        if self._port.ask_again():
            self._timer.set(now + self._interval)


def _ignore() -> None:
    """Do nothing: the default of `FlowControlPort.on_hold`."""
