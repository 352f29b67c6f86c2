"""STOP and GO: flow control between a NIC and the emulated network behind its real interface, and the NIC's side of it.

Myrinet has back-pressure, a veth pair has none: frames that are not read in time are dropped. So the process that runs a
NIC's firmware holds frames back while the network, emulated by a process at the interface's other end, accepts none:

- The network sends STOP when frames wait in it, and GO when they have gone on (Seitz and others, IEEE Micro 15(1), 1995).
- The input of a real switch has slack for the bytes that arrive before its STOP takes effect, those on the cable. The time
  that a process takes to read a frame, or STOP, has no bound. So the slack is a window, stated in every control frame: the
  maximum number of frames in flight, all of which fit into the network's socket buffer. After half of it the NIC sends
  ASK with the number of frames sent so far, and the network answers when all of these have gone on. The network counts
  nothing: an answer also replaces frames that were lost on a pulled cable or in a relay that died.
- A NIC begins with ASK and may send nothing before the answer; it asks again while frames wait in it.

A control frame is an Ethernet frame to the address of PAUSE frames, which no switch forwards (IEEE 802.3, annex 31B),
without a route and of a packet type of its own: that type (2 bytes), STOP, GO or ASK (1), a number of frames (4), the
window in frames (4), CRC-8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from testbed.fabric.myrinet.route import closed, is_intact

ADDRESS: Final = bytes.fromhex("0180c2000001")
TYPE: Final = 0x0006

STOP: Final = 0
GO: Final = 1
ASK: Final = 2

ASK_INTERVAL: Final = 100_000_000
"""Nanoseconds after which a NIC in which frames wait asks again."""

_FORM: Final = Struct("!HBII")
_HEAD: Final = 14
_SIZE: Final = _HEAD + _FORM.size + 1
_NUMBERS: Final = 0xFFFF_FFFF

Frame = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """Content of a control frame. kind: STOP, GO or ASK. count: number of frames modulo 2^32: in ASK, those sent; otherwise
    the count of the last ASK that is answered. window: maximum frames in flight beyond these; unused in ASK."""

    kind: int
    count: int
    window: int = 0


def encode(control: ControlFrame, head: bytes) -> bytes:
    """Encode a control frame. head: the NIC's address and its EtherType."""
    return closed(ADDRESS + head, _FORM.pack(TYPE, control.kind, control.count & _NUMBERS, control.window))


def decode(frame: bytes) -> ControlFrame | None:
    """Decode a control frame; None for any other frame."""
    if frame[:6] != ADDRESS or len(frame) != _SIZE or not is_intact(frame):
        return None
    type_, kind, count, window = _FORM.unpack_from(frame, _HEAD)
    return ControlFrame(kind, count, window) if type_ == TYPE and kind <= ASK else None


class Outlet:
    """The sending side of a NIC, with flow control.

    put: sends a frame; returns whether it has left, and is not lost at once on a pulled cable. send_control: sends a
    control frame, if it can. on_hold: called when a first frame waits; call `ask_again` every ASK_INTERVAL from then on.
    """

    __slots__ = (
        "_asked_at",
        "_gone",
        "_half",
        "_head",
        "_limit",
        "_next",
        "_on_hold",
        "_put",
        "_send_control",
        "_then",
        "kept",
        "sent",
    )

    def __init__(
        self,
        put: Callable[[Frame], bool],
        send_control: Callable[[bytes], object],
        head: bytes,
        on_hold: Callable[[], object],
    ) -> None:
        """head: see `encode`."""
        self.kept: Final[deque[Frame]] = deque()
        """Frames that wait, in order."""
        self._gone = 0  # number of frames that have waited and have been sent
        self._then: deque[tuple[int, Callable[[], object]]] = deque()  # value of `_gone`, and the function to call then
        self.sent = 0
        self._put = put
        self._send_control = send_control
        self._head = head
        self._on_hold = on_hold
        self._limit = 0  # maximum of `sent`
        self._next = 0  # value of `sent` at which to ask or to stop
        self._asked_at = 0
        self._half = 1
        self._ask()

    def send(self, frame: Frame) -> bool:
        """Send a frame now, or as soon as the network accepts it; return whether it waits. The caller must not change it
        afterwards."""
        if self.sent == self._next and not self._renew_window():
            self.kept.append(frame)
            if len(self.kept) == 1:
                self._on_hold()
            return True
        if self._put(frame):
            self.sent += 1
        return False

    def when_sent(self, then: Callable[[], object]) -> None:
        """Call `then` when all frames that wait now have been sent."""
        self._then.append((self._gone + len(self.kept), then))

    def on_control_frame(self, frame: bytes) -> bool:
        """Process a received frame; return whether it was a control frame."""
        control = decode(frame)
        if control is None:
            return False
        if control.kind == ASK:
            return True
        reached = self.sent - ((self.sent - control.count) & _NUMBERS)
        if control.kind == STOP:
            self._limit = self.sent
        else:
            self._limit = max(self.sent, reached + control.window)
        self._half = max(1, control.window // 2)
        self._next = max(self.sent, min(self._limit, self._asked_at + self._half))
        kept = self.kept
        while kept and (self.sent != self._next or self._renew_window()):
            self.sent += self._put(kept.popleft())
            self._gone += 1
            while self._then and self._then[0][0] <= self._gone:
                self._then.popleft()[1]()
        return True

    def ask_again(self) -> bool:
        """Ask again, if frames wait; return whether they do."""
        if self.kept:
            self._ask()
        return bool(self.kept)

    def forget(self) -> None:
        """Drop the waiting frames: the NIC has lost its memory."""
        self.kept.clear()
        self._then.clear()

    def _renew_window(self) -> bool:
        """Ask for a new window, if `sent` has not reached the limit; return whether more frames may be sent."""
        if self.sent == self._limit:
            return False
        self._ask()
        self._next = min(self._limit, self.sent + self._half)
        return True

    def _ask(self) -> None:
        self._asked_at = self.sent
        self._send_control(encode(ControlFrame(ASK, self.sent), self._head))
