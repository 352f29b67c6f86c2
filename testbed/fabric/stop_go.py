"""STOP and GO: flow control on the real interface between a NIC and the emulated network, and the NIC's side of it.

Myrinet has back-pressure, a veth pair has none: frames that are not read in time are dropped. So the process that runs a
NIC's firmware holds frames back while the network, emulated by a process at the peer interface, does not accept them:

- The network sends STOP when frames wait in it, and GO when they have left (Seitz and others, IEEE Micro 15(1), 1995).
- The input of a real switch has slack for the bytes on the cable, which arrive before its STOP takes effect. The time that a
  process takes to read a frame, or STOP, is unbounded. So the slack is a window, stated in every control frame: the
  maximum number of frames in flight, all of which fit into the network's socket buffer. After half a window, the NIC
  sends ASK with the number of frames sent so far, and the network answers when all of these have left. The network does
  not count frames, so an answer also accounts for frames that were lost on a pulled cable or in a relay that died.
- A NIC starts with ASK and must not send before the answer. It repeats ASK while frames wait in the NIC.

A control frame is an Ethernet frame to the address of PAUSE frames, which no switch forwards (IEEE 802.3, annex 31B). It has
no route: packet type (2 bytes), STOP, GO or ASK (1), a number of frames (4), the window in frames (4), CRC-8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from testbed.fabric.myrinet.route import append_crc, is_intact

ADDRESS: Final = bytes.fromhex("0180c2000001")
TYPE: Final = 0x0006

STOP: Final = 0
GO: Final = 1
ASK: Final = 2

ASK_INTERVAL: Final = 100_000_000
"""Nanoseconds after which a NIC with waiting frames repeats ASK."""

_FORMAT: Final = Struct("!HBII")
_ETHERNET_HEADER: Final = 14
_SIZE: Final = _ETHERNET_HEADER + _FORMAT.size + 1
_COUNT_MASK: Final = 0xFFFF_FFFF

Frame = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """Content of a control frame. kind: STOP, GO or ASK. count: number of frames modulo 2^32: in ASK, the frames sent
    so far; otherwise the count of the ASK that is answered. window: maximum number of frames in flight beyond the
    count; unused in ASK."""

    kind: int
    count: int
    window: int = 0


def encode(control: ControlFrame, header: bytes) -> bytes:
    """Encode a control frame. header: source address and EtherType."""
    return append_crc(ADDRESS + header, _FORMAT.pack(TYPE, control.kind, control.count & _COUNT_MASK, control.window))


def decode(frame: bytes) -> ControlFrame | None:
    """Decode a control frame; return None for any other frame."""
    if frame[:6] != ADDRESS or len(frame) != _SIZE or not is_intact(frame):
        return None
    type_, kind, count, window = _FORMAT.unpack_from(frame, _ETHERNET_HEADER)
    return ControlFrame(kind, count, window) if type_ == TYPE and kind <= ASK else None


class Outlet:
    """The sending side of a NIC, with flow control.

    send_frame: sends a frame; returns whether it was sent, and not lost on a pulled cable. send_control: sends a control
    frame, if possible. on_hold: called when a frame begins to wait and no other does; from then on, the owner calls
    `repeat_ask` every ASK_INTERVAL until it returns False. sent: number of frames sent so far.
    """

    __slots__ = (
        "_asked_at",
        "_half_window",
        "_header",
        "_limit",
        "_next_request",
        "_on_hold",
        "_send_control",
        "_send_frame",
        "_sent_callbacks",
        "_sent_waiting",
        "sent",
        "waiting_frames",
    )

    def __init__(
        self,
        send_frame: Callable[[Frame], bool],
        send_control: Callable[[bytes], object],
        header: bytes,
        on_hold: Callable[[], object],
    ) -> None:
        """header: see `encode`."""
        self.waiting_frames: Final[deque[Frame]] = deque()
        """Waiting frames, in order."""
        self._sent_waiting = 0  # number of frames that have waited and been sent
        # Value of `_sent_waiting` at which to call, and callback.
        self._sent_callbacks: deque[tuple[int, Callable[[], object]]] = deque()
        self.sent = 0
        self._send_frame = send_frame
        self._send_control = send_control
        self._header = header
        self._on_hold = on_hold
        self._limit = 0  # maximum of `sent`
        self._next_request = 0  # value of `sent` at which to send ASK, or to stop
        self._asked_at = 0  # value of `sent` at the last ASK
        self._half_window = 1
        self._ask()

    def send(self, frame: Frame) -> bool:
        """Send a frame now, or as soon as the network accepts it; return whether it waits. The caller must not change the
        frame afterwards."""
        if self.waiting_frames or (self.sent == self._next_request and not self._renew_window()):
            self.waiting_frames.append(frame)
            if len(self.waiting_frames) == 1:
                self._on_hold()
            return True
        if self._send_frame(frame):
            self.sent += 1
        return False

    def when_sent(self, callback: Callable[[], object]) -> None:
        """Call `callback` when all frames that wait now have been sent. Only valid while frames wait."""
        self._sent_callbacks.append((self._sent_waiting + len(self.waiting_frames), callback))

    def on_control_frame(self, frame: bytes) -> bool:
        """Process a received frame; return whether it was a control frame."""
        control = decode(frame)
        if control is None:
            return False
        if control.kind == ASK:
            return True
        acknowledged = self.sent - ((self.sent - control.count) & _COUNT_MASK)
        if control.kind == STOP:
            self._limit = self.sent
        else:
            self._limit = max(self.sent, acknowledged + control.window)
        self._half_window = max(1, control.window // 2)
        self._next_request = max(self.sent, min(self._limit, self._asked_at + self._half_window))
        waiting_frames = self.waiting_frames
        while waiting_frames and (self.sent != self._next_request or self._renew_window()):
            self.sent += self._send_frame(waiting_frames.popleft())
            self._sent_waiting += 1
            while self._sent_callbacks and self._sent_callbacks[0][0] <= self._sent_waiting:
                self._sent_callbacks.popleft()[1]()
        return True

    def repeat_ask(self) -> bool:
        """Repeat ASK if frames wait; return whether they do."""
        if self.waiting_frames:
            self._ask()
        return bool(self.waiting_frames)

    def forget(self) -> None:
        """Drop the waiting frames, as a NIC that has lost its memory."""
        self.waiting_frames.clear()
        self._sent_callbacks.clear()

    def _renew_window(self) -> bool:
        """Request a new window if `sent` is below the limit; return whether it is."""
        if self.sent == self._limit:
            return False
        self._ask()
        self._next_request = min(self._limit, self.sent + self._half_window)
        return True

    def _ask(self) -> None:
        self._asked_at = self.sent
        self._send_control(encode(ControlFrame(ASK, self.sent), self._header))
