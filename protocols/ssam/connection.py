"""The sliding windows between two processes: unanswered requests, and requests of the peer.

Section 3.3.1: a request's cell is kept until its answer arrives; a reply's cell is kept until the peer's window has
moved on. Requests are handled in sending order.
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
    """One half of a connection. incarnation: the node's. epoch: number of new sessions that this half started since.
    Sessions are ours: the paper's prototype does not handle restarts."""

    incarnation: int
    epoch: int

    def is_later_than(self, other: Identity) -> bool:
        """Whether this identity replaces the other identity. Incarnations are 32-bit serial numbers."""
        if self.incarnation == other.incarnation:
            return self.epoch > other.epoch
        return (self.incarnation - other.incarnation & _MASK) < _HALF


class Pending(Protocol):
    """Callbacks for the answer to one request, instead of a handler."""

    __slots__ = ()

    def answered(self, message: Message) -> object:
        """Handle the answer, a reply or an acknowledgement. Called as a handler."""
        ...

    def returned(self, reason: str) -> object:
        """Handle the loss of the request. Nothing may be sent."""
        ...


class Connection:
    """One process's half of a connection.

    number: its id in the traps. node: the peer's number. ours, theirs: the two identities, which define the session;
    while theirs is None only introductions are sent. window: maximum unanswered requests. pending: callbacks by slot;
    None: the answer goes to the handlers of the process. base: number of the oldest unanswered request. next: number of
    the next request. expected: number of the peer's next request. kept: requests received out of order. Numbers start
    at 0 in every session.
    """

    __slots__ = (
        "_answered", "_burst", "_hurried", "_last_answered", "_recover", "_tick_base", "_tick_next", "base", "expected",
        "kept", "next", "node", "number", "ours", "pending", "quiet", "session", "theirs", "window",
    )  # fmt: skip

    def __init__(self, number: int, node: int, window: int, incarnation: int) -> None:
        self.number: Final = number
        self.node: Final = node
        self.ours = Identity(incarnation, 0)
        self.theirs: Identity | None = None
        self.session = 0
        self.quiet = 0
        """Consecutive time-outs of the oldest request."""
        self.window = window
        self.pending: Final[list[Pending | None]] = [None] * MAX_WINDOW
        self.kept: dict[int, Message] = {}
        self.base = 0
        self.next = 0
        self.expected = 0
        self._answered = bytearray(MAX_WINDOW)
        self._tick_base = 0
        self._tick_next = 0
        self._recover = 0  # end of the requests sent before the last time-out
        self._burst = 1
        self._hurried = -1  # last request that was resent before its time-out
        self._last_answered = -1  # the latest request that is answered

    @property
    def is_open(self) -> bool:
        return self.theirs is not None

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent."""
        return self.next - self.base < self.window

    @property
    def outstanding(self) -> list[int]:
        """The unanswered requests, the oldest first."""
        return [number for number in range(self.base, self.next) if not self._answered[number % MAX_WINDOW]]

    def introduction(self) -> bytes:
        """Return the data of an introduction: this half's identity, and the peer's if known."""
        return _INTRODUCTION.pack(*self.ours, *(self.theirs or (0, 0)))

    def adopt(self, theirs: Identity) -> None:
        """Start a session with a peer's identity. Requests queued before the first session keep their numbers."""
        if self.theirs is not None:
            self._begin()
        self.theirs = theirs
        self._define()

    def renew(self) -> None:
        """Start a new session, since it is unknown which requests the peer has handled."""
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
        """Record an answer, by the low bits of its request's number. False: it is a duplicate."""
        number = self.base + (low - self.base) % SEQUENCE_NUMBERS
        if number >= self.next or self._answered[number % MAX_WINDOW]:
            return False
        self._answered[number % MAX_WINDOW] = 1
        self._last_answered = max(self._last_answered, number)
        while self.base < self.next and self._answered[self.base % MAX_WINDOW]:
            self.base += 1
        return True

    def lost(self, low: int | None = None) -> int | None:
        """Return a request that is lost, or whose answer is lost; each is returned once. low: low bits of the number
        that the peer reports as missing; None: detect the loss by the answers: cells keep their order, so the oldest
        request is lost if a later request is answered."""
        number = self.base if low is None else self.base + (low - self.base) % SEQUENCE_NUMBERS
        if number >= self.next or number <= self._hurried or self._answered[number % MAX_WINDOW]:
            return None
        if low is None and self._last_answered < number:
            return None
        self._hurried = number
        return number

    def recover(self) -> list[int]:
        """Return the requests to resend after answers that follow a time-out: unanswered requests that were sent before
        the time-out, twice as many each time, as in TCP's slow start (RFC 5681)."""
        if not self._hurried < self.base < self._recover:
            return []
        self._burst *= 2
        end = min(self.base + self._burst, self._recover)
        self._hurried = end - 1
        return [number for number in range(self.base, end) if not self._answered[number % MAX_WINDOW]]

    def overdue(self) -> int | None:
        """Return the request to resend at a time-out: the oldest, if it was sent before the previous time-out. Its
        answer shows whether further requests are missing."""
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
        """Return the distance of a request from the expected one, by the low bits of its number: 0: it is the next;
        above 0: number of missing requests before it; below 0: it is handled already."""
        ahead = (low - self.expected) % SEQUENCE_NUMBERS
        return ahead if ahead < MAX_WINDOW else ahead - SEQUENCE_NUMBERS

    def next_turn(self) -> Message | None:
        """Remove and return the next request in order; None: it has not arrived."""
        message = self.kept.pop(self.expected % SEQUENCE_NUMBERS, None)
        if message is not None:
            self.expected += 1
        return message

    def _begin(self) -> None:
        self.base = self.next = self.expected = 0
        self.kept.clear()
        self._tick_base = self._tick_next = 0
        self._recover = 0
        self._hurried = self._last_answered = -1


def introduced(data: bytes) -> tuple[Identity, Identity] | None:
    """Return the identities in an introduction: the sender's, and the receiver's as known to the sender. None:
    malformed."""
    if len(data) != _INTRODUCTION.size:
        return None
    incarnation, epoch, receiver_incarnation, receiver_epoch = _INTRODUCTION.unpack(data)
    return Identity(incarnation, epoch), Identity(receiver_incarnation, receiver_epoch)
