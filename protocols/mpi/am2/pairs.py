"""What a node knows of another one with which it exchanges MPI's messages by active messages: who it is, in which order its
messages go, and what is under way.

Active messages have no order, and a node may start again. So each message says between which lives of both nodes it is: a
session is a node's incarnation, and how often it has begun anew with that peer since, having lost something on the way.
Within the sessions of both, messages to be matched are numbered; a receiver keeps those that come early. A sender stops
after WINDOW active messages until all have been answered, so that this is never more than so many.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from protocols.core.completion import Completion
from protocols.mpi.errors import Envelope
from protocols.mpi.matching import Arrival

MASK: Final = 0xFFFF_FFFF
WINDOW: Final = 64
"""Ours: one more round trip for so many messages is not much."""
_HALF: Final = 1 << 31
_ANEW: Final = 8
"""How often in a row a peer is told that it is begun anew with, before that is left to who next sends (ours)."""

Session = tuple[int, int]
"""Incarnation, and how often begun anew."""
Head = tuple[int, int, int, int]
"""The words that each request begins with: the sender's session, and the receiver's; zeros where that is not known."""


class Outgoing:
    """A message that is sent. number: among those to its peer. sent: bytes of it that the NIC has. wanted: bytes that its
    receiver has room for; -1: as long as it was not asked."""

    __slots__ = ("context", "data", "number", "over", "sent", "tag", "wanted")

    def __init__(self, number: int, context: int, tag: int, data: memoryview, over: Completion[Envelope]) -> None:
        self.number = number
        self.context = context
        self.tag = tag
        self.data = data
        self.over = over
        self.sent = 0
        self.wanted = -1


class Piece(NamedTuple):
    """Of a message, as much as goes into one slot of its receiver's staging region."""

    message: Outgoing
    slot: int


class Word(NamedTuple):
    """What is told to a peer beside messages. arguments: behind the head."""

    handler: int
    arguments: tuple[int, ...] = ()


class Fragment(NamedTuple):
    """What has come of a message. offset: where its bytes are; -1: they come only when it has its receive."""

    context: int
    tag: int
    length: int
    offset: int
    data: bytes | memoryview


class Incoming:
    """A message of which not all has come. missing: bytes. slots: of the staging region, for it."""

    __slots__ = ("arrival", "missing", "slots")

    def __init__(self, missing: int) -> None:
        self.arrival: Arrival
        self.missing = missing
        self.slots: tuple[int, ...] = ()


class Pair:
    """peer: its rank. ours, theirs: the sessions. is_open: whether the peer's is known to be the one beside ours. outgoing,
    incoming: how messages begin then; incoming is None before. place: in the translation table; -1: nowhere.

    queue: what waits to be sent. numbered: messages to it so far. sending: those that are not sent, by number. unanswered:
    requests that wait for an answer. run: requests since none did. former: those that waited when the session ended.
    is_told: a request that says who we are is under way. tellings: how often it will be told that we have begun anew, though
    nobody sends. refusals: how often it had no endpoint. is_ready: whether it stands among those that have something to
    send. owes: it waits to hear that nothing of a former session is under way any more.

    unheard: answers of ours that have come back, in all; said: so many of which the peer has been told; missed: the peer's
    that it has told of. lacks: the credits of requests whose answers will not come.

    expected: the number of the next message from it. early: what has come before its turn. arriving: what has come in part.
    """

    __slots__ = (
        "arriving", "early", "expected", "former", "incoming", "is_open", "is_ready", "is_told", "lacks", "missed",
        "numbered", "ours", "outgoing", "owes", "peer", "place", "queue", "refusals", "run", "said", "sending", "tellings",
        "theirs", "unanswered", "unheard",
    )  # fmt: skip

    def __init__(self, peer: int, incarnation: int) -> None:
        self.peer = peer
        self.place = -1
        self.ours: Session = (incarnation, 0)
        self.theirs: Session | None = None
        self.is_open = False
        self.outgoing: Head = (*self.ours, 0, 0)
        self.incoming: Head | None = None
        self.queue: deque[Outgoing | Piece | Word] = deque()
        self.unanswered = 0
        self.former = 0
        self.is_told = False
        self.tellings = 0
        self.refusals = 0
        self.is_ready = False
        self.owes = False
        self.unheard = 0
        self.said = 0
        self.missed = 0
        self.lacks = False
        self._begin()

    def _begin(self) -> None:
        self.numbered = 0
        self.sending: dict[int, Outgoing] = {}
        self.run = 0
        self.expected = 1
        self.early: dict[int, list[Fragment]] = {}
        self.arriving: dict[int, Incoming] = {}

    def is_news(self, theirs: Session) -> bool:
        """Whether that session of the peer's is a later one than that which is known, if any is."""
        known = self.theirs
        if known is None:
            return True
        if theirs[0] != known[0]:
            return theirs[0] - known[0] & MASK < _HALF
        return theirs[1] > known[1]

    def open(self, theirs: Session) -> None:
        """The peer has said who it is."""
        self.theirs = theirs
        self.is_open = True
        self.is_told = False
        self.tellings = self.refusals = 0
        self._head((*self.ours, *theirs))
        self.incoming = (*theirs, *self.ours)

    def end(self, renew: bool) -> tuple[list[Outgoing], list[Incoming]]:
        """What was under way is lost: that. renew: it is begun anew, by us."""
        if self.is_open:
            self.tellings = _ANEW
            self.owes = True
        if renew:
            self.ours = (self.ours[0], self.ours[1] + 1)
        lost = list(self.sending.values()), list(self.arriving.values())
        self.queue.clear()
        self.is_open = self.is_told = False
        self.incoming = None
        self._head((*self.ours, 0, 0))
        self._begin()
        return lost

    def message(self, context: int, tag: int, data: memoryview, over: Completion[Envelope]) -> Outgoing:
        """The next one to it."""
        self.numbered = number = self.numbered + 1 & MASK
        self.sending[number] = outgoing = Outgoing(number, context, tag, data, over)
        return outgoing

    def asks(self) -> None:
        """A request is sent, or tried."""
        self.unanswered += 1
        self.run += 1

    def has_not_asked(self) -> None:
        """It was not."""
        self.unanswered -= 1
        self.run -= 1

    def misses(self, unheard: int) -> None:
        """The peer says that so many of its answers have come back to it, more than before: nobody waits for those."""
        self.former = max(0, self.former - (unheard - self.missed))
        self.missed = unheard
        self.lacks = True

    def is_another(self) -> None:
        """The peer is another incarnation: nobody is there who could answer, or be told."""
        self.former = self.unheard = self.said = self.missed = 0
        self.lacks = False

    def answered(self, head: Head) -> None:
        """A request that began so has been."""
        if head != self.outgoing:
            self.former = max(0, self.former - 1)
            return
        self.unanswered -= 1
        if not self.unanswered:
            self.run = 0

    def ahead(self, number: int) -> int:
        """How many messages there are before that one; below 0: it has begun to come."""
        ahead = number - self.expected & MASK
        return ahead if ahead < _HALF else -1

    @property
    def has_more(self) -> bool:
        """Whether there is something to be sent to it."""
        return bool(self.queue or self.tellings)

    @property
    def is_evictable(self) -> bool:
        """Whether nothing comes for the place that leads to it."""
        return not (self.unanswered or self.former)

    def _head(self, head: Head) -> None:
        self.outgoing = head
        self.former += self.unanswered
        self.unanswered = self.run = 0
