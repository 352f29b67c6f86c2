"""STOP and GO: flow control between a NIC and the emulated network behind its real interface, and the NIC's side of it.

Myrinet has back-pressure, a veth pair has none: frames that are not read in time are dropped. So the process that runs a
NIC's firmware holds its frames back while the network, emulated by a process at the interface's other end, takes none:

- The network sends STOP when frames wait in it, and GO when they have gone on (Seitz and others, IEEE Micro 15(1), 1995).
- The input of a real switch has slack for the bytes that come before its STOP is heard, those on the cable meanwhile. How
  long a process takes to read a frame, or to hear STOP, has no bound. So the slack is a window, which every control frame
  carries: so many frames may be under way, all of which the network's socket buffer holds. After half of it the NIC sends
  ASK with the number of frames sent so far, and the network answers when all before that have gone on. The network counts
  nothing: an answer makes up for frames that were lost on a pulled cable or in a relay that died.
- A NIC begins with ASK and may send nothing before the answer; it asks again while frames wait in it.

A control frame is an Ethernet frame to the address of PAUSE frames, which no switch forwards (IEEE 802.3, annex 31B),
without a route and of a packet type of its own: that type (2 bytes), the word (1), a number of frames (4), the window in
frames (4), CRC-8.
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

AGAIN: Final = 100_000_000
"""Nanoseconds after which a NIC in which frames wait asks again."""

_FORM: Final = Struct("!HBII")
_HEAD: Final = 14
_SIZE: Final = _HEAD + _FORM.size + 1
_NUMBERS: Final = 0xFFFF_FFFF

Frame = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Word:
    """Content of a control frame. kind: STOP, GO or ASK. count: frames modulo 2^32: of ASK, those sent; else the count of
    the last ASK that is answered. window: how many more than those may be under way; unused in ASK."""

    kind: int
    count: int
    window: int = 0


def frame_of(word: Word, head: bytes) -> bytes:
    """Encode a control frame. head: the NIC's address and the EtherType to which it listens."""
    return closed(ADDRESS + head, _FORM.pack(TYPE, word.kind, word.count & _NUMBERS, word.window))


def word_in(frame: bytes) -> Word | None:
    """Decode a control frame; None for any other frame."""
    if frame[:6] != ADDRESS or len(frame) != _SIZE or not is_intact(frame):
        return None
    type_, kind, count, window = _FORM.unpack_from(frame, _HEAD)
    return Word(kind, count, window) if type_ == TYPE and kind <= ASK else None


class Outlet:
    """The sending side of a NIC, with flow control.

    put: sends a frame; returns whether it is under way, and not lost at once on a pulled cable. say: sends a control frame,
    if it can. on_hold: called when a first frame waits; call `again` every AGAIN from then on.
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
        "_say",
        "_then",
        "kept",
        "sent",
    )

    def __init__(
        self, put: Callable[[Frame], bool], say: Callable[[bytes], object], head: bytes, on_hold: Callable[[], object]
    ) -> None:
        """head: see `frame_of`."""
        self.kept: Final[deque[Frame]] = deque()
        """Frames that wait, in order."""
        self._gone = 0  # frames that have waited and do not any more
        self._then: deque[tuple[int, Callable[[], object]]] = deque()  # what to call at which of their number
        self.sent = 0
        self._put = put
        self._say = say
        self._head = head
        self._on_hold = on_hold
        self._limit = 0  # maximum of `sent`
        self._next = 0  # value of `sent` at which to ask or to stop
        self._asked_at = 0
        self._half = 1
        self._ask()

    def send(self, frame: Frame) -> bool:
        """Send a frame now, or as soon as the network takes it; return whether it waits. The caller must not change it
        any more."""
        if self.sent == self._next and not self._goes_on():
            self.kept.append(frame)
            if len(self.kept) == 1:
                self._on_hold()
            return True
        if self._put(frame):
            self.sent += 1
        return False

    def when_sent(self, then: Callable[[], object]) -> None:
        """Call `then` when all frames that wait now are gone."""
        self._then.append((self._gone + len(self.kept), then))

    def on_control_frame(self, frame: bytes) -> bool:
        """Process a frame that has come to the NIC; return whether it was a control frame."""
        word = word_in(frame)
        if word is None:
            return False
        if word.kind == ASK:
            return True
        reached = self.sent - ((self.sent - word.count) & _NUMBERS)
        if word.kind == STOP:
            self._limit = self.sent
        else:
            self._limit = max(self.sent, reached + word.window)
        self._half = max(1, word.window // 2)
        self._next = max(self.sent, min(self._limit, self._asked_at + self._half))
        kept = self.kept
        while kept and (self.sent != self._next or self._goes_on()):
            self.sent += self._put(kept.popleft())
            self._gone += 1
            while self._then and self._then[0][0] <= self._gone:
                self._then.popleft()[1]()
        return True

    def again(self) -> bool:
        """Ask again, if frames wait; return whether they do."""
        if self.kept:
            self._ask()
        return bool(self.kept)

    def forget(self) -> None:
        """Drop the waiting frames: the NIC has lost its memory."""
        self.kept.clear()
        self._then.clear()

    def _goes_on(self) -> bool:
        """Ask for a new window, if `sent` has not reached the limit; return whether more frames may be sent."""
        if self.sent == self._limit:
            return False
        self._ask()
        self._next = min(self._limit, self.sent + self._half)
        return True

    def _ask(self) -> None:
        self._asked_at = self.sent
        self._say(frame_of(Word(ASK, self.sent), self._head))
