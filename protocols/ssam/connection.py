"""The sliding windows between two processes: unanswered requests, and requests of the peer.

Section 3.3.1: a request's cell is kept until the answer arrives; a reply's cell is kept until the peer's window has
moved past the request. Requests are handled in sending order.
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
    """Identity of one half of a connection. incarnation: the node's. epoch: number of sessions that this half has
    renewed in this incarnation. Sessions are ours: the paper's prototype does not handle restarts."""

    incarnation: int
    epoch: int

    def is_later_than(self, other: Identity) -> bool:
        """Whether this identity replaces another one of the same half. Incarnations are 32-bit serial numbers."""
        if self.incarnation == other.incarnation:
            return self.epoch > other.epoch
        return (self.incarnation - other.incarnation & _MASK) < _HALF


class Pending(Protocol):
    """Callbacks for the answer to one request, instead of a handler."""

    __slots__ = ()

    def on_answer(self, message: Message) -> object:
        """Handle the answer, a reply or an acknowledgement. Like a handler, this may not send."""
        ...

    def on_return(self, reason: str) -> object:
        """Handle the return of the request, whose answer will not arrive. This may not send."""
        ...


class Connection:
    """One process's half of a connection.

    number: its id in the traps. node: the peer's number. ours, theirs: the two identities, which define the session;
    while `theirs` is None, only introductions are sent. session: number of the session in cells. window: maximum
    unanswered requests. pending: callbacks by slot; None: the answer goes to the handlers of the process. base: number
    of the oldest unanswered request. next: number of the next request. expected: number of the peer's next request.
    kept: received requests that are not handled yet, by sequence number. Numbers start at 0 in every session.
    """

    __slots__ = (
        "_alarm_base", "_alarm_next", "_answered", "_burst", "_last_answered", "_last_resent", "_recovery_end", "base",
        "expected", "kept", "next", "node", "number", "ours", "pending", "session", "theirs", "timeout_count", "window",
    )  # fmt: skip

    def __init__(self, number: int, node: int, window: int, incarnation: int) -> None:
        self.number: Final = number
        self.node: Final = node
        self.ours = Identity(incarnation, 0)
        self.theirs: Identity | None = None
        self.session = 0
        self.timeout_count = 0
        """Number of consecutive time-outs of the oldest request."""
        self.window = window
        self.pending: Final[list[Pending | None]] = [None] * MAX_WINDOW
        self.kept: dict[int, Message] = {}
        self.base = 0
        self.next = 0
        self.expected = 0
        self._answered = bytearray(MAX_WINDOW)
        self._alarm_base = 0  # `base` at the last alarm
        self._alarm_next = 0  # `next` at the last alarm
        self._recovery_end = 0  # end of the requests sent before the last time-out
        self._burst = 1
        self._last_resent = -1  # latest request that was resent
        self._last_answered = -1  # latest request that is answered

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self.theirs is not None

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent."""
        return self.next - self.base < self.window

    @property
    def outstanding(self) -> list[int]:
        """Numbers of the unanswered requests, the oldest first."""
        return [number for number in range(self.base, self.next) if not self._answered[number % MAX_WINDOW]]

    def introduction(self) -> bytes:
        """Return the data of an introduction: this half's identity, and the peer's if known."""
        return _INTRODUCTION.pack(*self.ours, *(self.theirs or (0, 0)))

    def adopt(self, theirs: Identity) -> None:
        """Start a session with a peer's new identity. Requests queued before the first session keep their numbers."""
        if self.theirs is not None:
            self._reset()
        self.theirs = theirs
        self._update_session()

    def renew(self) -> None:
        """Start a new session, since it is unknown which requests the peer has handled."""
        self.ours = Identity(self.ours.incarnation, self.ours.epoch + 1)
        self._reset()
        self._update_session()

    def _update_session(self) -> None:
        self.session = (sum(self.ours) + sum(self.theirs or ())) % SESSIONS
        self.timeout_count = 0

    # Requests to the peer.

    def take_number(self) -> int:
        """Return the number of a new request, which occupies a slot of the window."""
        number, self.next = self.next, self.next + 1
        self._answered[number % MAX_WINDOW] = 0
        return number

    def record_answer(self, low: int) -> bool:
        """Record an answer. low: low bits of the request's number. Returns False for a duplicate."""
        number = self.base + (low - self.base) % SEQUENCE_NUMBERS
        if number >= self.next or self._answered[number % MAX_WINDOW]:
            return False
        self._answered[number % MAX_WINDOW] = 1
        self._last_answered = max(self._last_answered, number)
        while self.base < self.next and self._answered[self.base % MAX_WINDOW]:
            self.base += 1
        return True

    def find_lost(self, low: int | None = None) -> int | None:
        """Return the number of a request that is lost, or whose answer is lost; each is returned once. low: low bits of
        the number that the peer reports as missing; None: detect a loss from the answers. Cells keep their order, so
        the oldest request is lost if a later request is answered."""
        number = self.base if low is None else self.base + (low - self.base) % SEQUENCE_NUMBERS
        if number >= self.next or number <= self._last_resent or self._answered[number % MAX_WINDOW]:
            return None
        if low is None and self._last_answered < number:
            return None
        self._last_resent = number
        return number

    def recover(self) -> list[int]:
        """Return the numbers of the requests to resend after answers that follow a time-out: unanswered requests that
        were sent before the time-out, twice as many each time, as in TCP's slow start (RFC 5681)."""
        if not self._last_resent < self.base < self._recovery_end:
            return []
        self._burst *= 2
        end = min(self.base + self._burst, self._recovery_end)
        self._last_resent = end - 1
        return [number for number in range(self.base, end) if not self._answered[number % MAX_WINDOW]]

    def find_overdue(self) -> int | None:
        """Return the number of the request to resend at an alarm: the oldest, if it was sent before the previous alarm;
        None: no request is overdue. The answer shows whether further requests are missing."""
        overdue = None
        if self.base < self.next and self.base == self._alarm_base and self._alarm_next > self.base:
            overdue = self._last_resent = self.base
            self._recovery_end, self._burst = self._alarm_next, 1
            self.timeout_count += 1
        elif self.base > self._alarm_base:
            self.timeout_count = 0
        self._alarm_base, self._alarm_next = self.base, self.next
        return overdue

    # Requests of the peer.

    def distance_of(self, low: int) -> int:
        """Return the distance of a request from the expected one: 0 for the expected request; above 0, the number of
        requests before it that have not been handled; below 0, it has been handled. low: low bits of the request's
        number."""
        ahead = (low - self.expected) % SEQUENCE_NUMBERS
        return ahead if ahead < MAX_WINDOW else ahead - SEQUENCE_NUMBERS

    def next_turn(self) -> Message | None:
        """Remove and return the next request in order; None if it has not arrived."""
        message = self.kept.pop(self.expected % SEQUENCE_NUMBERS, None)
        if message is not None:
            self.expected += 1
        return message

    def _reset(self) -> None:
        """Drop all requests, since numbers start at 0 in a new session."""
        self.base = self.next = self.expected = 0
        self.kept.clear()
        self._alarm_base = self._alarm_next = 0
        self._recovery_end = 0
        self._last_resent = self._last_answered = -1


def unpack_introduction(data: bytes) -> tuple[Identity, Identity] | None:
    """Return the identities in an introduction: the sender's, and the receiver's as known to the sender. None if the
    data is malformed."""
    if len(data) != _INTRODUCTION.size:
        return None
    incarnation, epoch, receiver_incarnation, receiver_epoch = _INTRODUCTION.unpack(data)
    return Identity(incarnation, epoch), Identity(receiver_incarnation, receiver_epoch)
