"""STOP and GO: what a NIC and the network behind its real interface say to each other, and the NIC's side of it.

Myrinet has back-pressure, a veth pair has none: what nobody reads in time is dropped. So whoever runs a NIC's firmware holds
its frames back while the network, which a process emulates at the interface's other end, takes none:

- The network says STOP when frames wait in it, and GO when they have gone on (Seitz and others, IEEE Micro 15(1), 1995).
- The input of a real switch has slack for what comes before its STOP is heard, as many bytes as fit on the cable meanwhile.
  How long a process takes to read a frame, or to hear STOP, has no bound. So the slack is a window that the network tells
  with each word: so many frames may be under way, all of which its socket's buffer holds. After half of it the NIC says
  ASK with the number of frames sent so far, and the network answers when all before that have gone on. Nothing is counted
  by the network: whatever was lost under way, on a cable that was pulled out or in a relay that died, an answer makes good.
- A NIC begins with ASK and may send nothing before its answer; it asks again while frames wait in it.

A word is an Ethernet frame to the address of PAUSE frames, which no switch forwards (IEEE 802.3, annex 31B), without a route
and of a packet type of its own: that type (2 bytes), the word (1), a number of frames (4), the window in frames (4), CRC-8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from testbed.wire.myrinet.route import closed, is_intact

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
    """kind: STOP, GO or ASK. count: frames, modulo 2^32: of ASK, those sent; else what the last ASK said that has been
    answered. window: how many more than those may be under way; of ASK nothing."""

    kind: int
    count: int
    window: int = 0


def frame_of(word: Word, head: bytes) -> bytes:
    """head: the NIC's address and the EtherType to which it listens."""
    return closed(ADDRESS + head, _FORM.pack(TYPE, word.kind, word.count & _NUMBERS, word.window))


def word_in(frame: bytes) -> Word | None:
    """What a frame says, if it is a word."""
    if frame[:6] != ADDRESS or len(frame) != _SIZE or not is_intact(frame):
        return None
    type_, kind, count, window = _FORM.unpack_from(frame, _HEAD)
    return Word(kind, count, window) if type_ == TYPE and kind <= ASK else None


class Outlet:
    """What a NIC's frames leave by. put: sends a frame; whether it is under way now, and not lost at once on a cable that is
    pulled out. say: sends a word, if it can. on_hold: called when a first frame waits: `again` is to be called every AGAIN
    from then on."""

    __slots__ = (
        "_asked",
        "_half",
        "_head",
        "_limit",
        "_next",
        "_on_hold",
        "_put",
        "_say",
        "held",
        "kept",
        "sent",
        "stops",
    )

    def __init__(
        self, put: Callable[[Frame], bool], say: Callable[[bytes], object], head: bytes, on_hold: Callable[[], object]
    ) -> None:
        """head: see `frame_of`."""
        self.kept: Final[deque[Frame]] = deque()
        """Frames that wait, in order."""
        self.held = 0
        """Frames that had to wait, since the beginning."""
        self.stops = 0
        """How often STOP was said."""
        self.sent = 0
        self._put = put
        self._say = say
        self._head = head
        self._on_hold = on_hold
        self._limit = 0  # how many may have been sent
        self._next = 0  # at how many something is to be done: ask, or stop
        self._asked = 0
        self._half = 1
        self._ask()

    def send(self, frame: Frame) -> None:
        """Now, or as soon as the network takes it. It is not touched any more."""
        if self.sent == self._next and not self._goes_on():
            self.held += 1
            self.kept.append(frame)
            if len(self.kept) == 1:
                self._on_hold()
        elif self._put(frame):
            self.sent += 1

    def hear(self, frame: bytes) -> bool:
        """A frame has come to the NIC; whether it was for this."""
        word = word_in(frame)
        if word is None:
            return False
        if word.kind == ASK:
            return True
        reached = self.sent - ((self.sent - word.count) & _NUMBERS)
        if word.kind == STOP:
            self.stops += 1
            self._limit = self.sent
        else:
            self._limit = max(self.sent, reached + word.window)
        self._half = max(1, word.window // 2)
        self._next = max(self.sent, min(self._limit, self._asked + self._half))
        kept = self.kept
        while kept and (self.sent != self._next or self._goes_on()):
            self.sent += self._put(kept.popleft())
        return True

    def again(self) -> bool:
        """Ask again, if frames wait; whether they do."""
        if self.kept:
            self._ask()
        return bool(self.kept)

    def forget(self) -> None:
        """The NIC has lost its memory, and what waited there."""
        self.kept.clear()

    def _goes_on(self) -> bool:
        """So many frames have been sent that something is to be done; whether more may be."""
        if self.sent == self._limit:
            return False
        self._ask()
        self._next = min(self._limit, self.sent + self._half)
        return True

    def _ask(self) -> None:
        self._asked = self.sent
        self._say(frame_of(Word(ASK, self.sent), self._head))
