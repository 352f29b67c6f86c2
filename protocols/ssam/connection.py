"""The sliding windows between two processes: requests without an answer, and requests of the peer.

Section 3.3.1: a request's cell is kept until its answer comes; a reply's cell is held until the peer's window has moved
on. Requests are handled in the order in which they were sent.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple, Protocol

from protocols.ssam.cells import SEQUENCE_NUMBERS, SESSIONS, Message
from protocols.ssam.settings import MAX_WINDOW

_INTRODUCTION: Final = Struct("!IIII")
_HALF: Final = 1 << 31
_MASK: Final = 0xFFFF_FFFF


class Identity(NamedTuple):
    """One half of a connection: the node's incarnation, and how often this half has begun anew since. Sessions are ours:
    the paper's prototype does not restart."""

    incarnation: int
    epoch: int

    def is_later_than(self, other: Identity) -> bool:
        """Whether this identity has replaced the other one. Incarnations are 32-bit serial numbers."""
        if self.incarnation == other.incarnation:
            return self.epoch > other.epoch
        return (self.incarnation - other.incarnation & _MASK) < _HALF


class Pending(Protocol):
    """Receiver of the answer to one request, in place of a handler."""

    def answered(self, message: Message) -> object:
        """Handle the answer, a reply or an acknowledgement, in the place of a handler."""
        ...

    def returned(self, reason: str) -> object:
        """Handle that there will be none. Not called as a handler: nothing may be sent."""
        ...


class Connection:
    """One process's half of a connection.

    number: its id in the traps. node: the peer's number. ours, theirs: the two identities, which define the session;
    while theirs is None only introductions are sent. window: requests without an answer. pending: by slot, what waits for
    an answer; None: the handlers that the process has set. base: the oldest request without an answer. next: the number of
    the next request. expected: the peer's next request. kept: requests that came before their turn. Numbers count from 0
    in every session.
    """

    __slots__ = (
        "_answered", "_burst", "_hurried", "_recover", "_tick_base", "_tick_next", "base", "expected", "kept", "next",
        "node", "number", "ours", "pending", "quiet", "session", "theirs", "window",
    )  # fmt: skip

    def __init__(self, number: int, node: int, window: int, incarnation: int) -> None:
        self.number: Final = number
        self.node: Final = node
        self.ours = Identity(incarnation, 0)
        self.theirs: Identity | None = None
        self.session = 0
        self.quiet = 0
        """Time-outs since the last answer to the oldest request."""
        self.window = window
        self.pending: Final[list[Pending | None]] = [None] * MAX_WINDOW
        self.kept: dict[int, Message] = {}
        self.base = 0
        self.next = 0
        self.expected = 0
        self._answered = bytearray(MAX_WINDOW)
        self._tick_base = 0
        self._tick_next = 0
        self._recover = 0  # requests below were sent before a time-out
        self._burst = 1
        self._hurried = -1  # the last request sent again before its time-out

    @property
    def is_open(self) -> bool:
        return self.theirs is not None

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent."""
        return self.next - self.base < self.window

    @property
    def outstanding(self) -> list[int]:
        """The requests without an answer, the oldest first."""
        return [number for number in range(self.base, self.next) if not self._answered[number % MAX_WINDOW]]

    def introduction(self) -> bytes:
        """Return the data that introduces this half to the other: its identity, and the other's as far as it is known."""
        return _INTRODUCTION.pack(*self.ours, *(self.theirs or (0, 0)))

    def adopt(self, theirs: Identity) -> None:
        """Begin a session with a peer's identity. Requests that wait for the first session keep their numbers."""
        if self.theirs is not None:
            self._begin()
        self.theirs = theirs
        self._define()

    def renew(self) -> None:
        """Begin anew, since it is not known which requests the peer has handled."""
        self.ours = Identity(self.ours.incarnation, self.ours.epoch + 1)
        self._begin()
        self._define()

    def _define(self) -> None:
        self.session = (sum(self.ours) + sum(self.theirs or ())) % SESSIONS
        self.quiet = 0

    # Requests to the peer.

    def take_number(self) -> int:
        """Return the number of a new request."""
        number, self.next = self.next, self.next + 1
        self._answered[number % MAX_WINDOW] = 0
        return number

    def answered(self, low: int) -> bool:
        """Record an answer, by the low bits of its request's number. False: it had been answered."""
        number = self.base + (low - self.base) % SEQUENCE_NUMBERS
        if number >= self.next or self._answered[number % MAX_WINDOW]:
            return False
        self._answered[number % MAX_WINDOW] = 1
        while self.base < self.next and self._answered[self.base % MAX_WINDOW]:
            self.base += 1
        return True

    def lost(self, low: int | None = None) -> int | None:
        """Return the request that the network has lost, or its answer, once for each. low: the low bits of the number that
        the peer misses; None: answers have come, and cells keep their order, so that it is the oldest one if a later
        one has been answered."""
        number = self.base if low is None else self.base + (low - self.base) % SEQUENCE_NUMBERS
        if number >= self.next or number <= self._hurried or self._answered[number % MAX_WINDOW]:
            return None
        if low is None and not any(self._answered[later % MAX_WINDOW] for later in range(number + 1, self.next)):
            return None
        self._hurried = number
        return number

    def recover(self) -> list[int]:
        """Return the requests to send again when answers have come after a time-out: those that were sent before it and
        still have none, twice as many each time, as TCP's slow start does (RFC 5681)."""
        if not self._hurried < self.base < self._recover:
            return []
        self._burst *= 2
        end = min(self.base + self._burst, self._recover)
        self._hurried = end - 1
        return [number for number in range(self.base, end) if not self._answered[number % MAX_WINDOW]]

    def overdue(self) -> int | None:
        """Return the request to send again at a time-out: the oldest one, if it has waited since the last time-out. Its
        answer tells whether others are missing, too."""
        overdue = None
        if self.base < self.next and self.base == self._tick_base and self._tick_next > self.base:
            overdue = self._hurried = self.base
            self._recover, self._burst = self._tick_next, 1
            self.quiet += 1
        elif self.base > self._tick_base:
            self.quiet = 0
        self._tick_base, self._tick_next = self.base, self.next
        return overdue

    # Requests of the peer.

    def place_of(self, low: int) -> int:
        """Return where a request stands, by the low bits of its number: 0: it is next; above 0: so many are missing
        before it; below 0: it has been handled."""
        ahead = (low - self.expected) % SEQUENCE_NUMBERS
        return ahead if ahead < MAX_WINDOW else ahead - SEQUENCE_NUMBERS

    def next_turn(self) -> Message | None:
        """Return the request whose turn has come, which is no longer kept; None: it has not come."""
        message = self.kept.pop(self.expected % SEQUENCE_NUMBERS, None)
        if message is not None:
            self.expected += 1
        return message

    def _begin(self) -> None:
        self.base = self.next = self.expected = 0
        self.kept.clear()
        self._tick_base = self._tick_next = 0
        self._recover = 0
        self._hurried = -1


def introduced(data: bytes) -> tuple[Identity, Identity] | None:
    """Return the identities in an introduction: the sender's, and the receiver's as the sender knows it."""
    if len(data) != _INTRODUCTION.size:
        return None
    incarnation, epoch, known, known_epoch = _INTRODUCTION.unpack(data)
    return Identity(incarnation, epoch), Identity(known, known_epoch)
