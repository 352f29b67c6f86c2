"""The peers of a NIC, each with its last known incarnation, and the handshake after a restart.

A NIC that restarts gets a greater incarnation (`Adapter.incarnation`) and loses all messages that were sent to it. So a
frame names two incarnations: its sender's, and its receiver's as known to the sender, 0 if unknown.

- A NIC rejects a frame that is addressed to another of its incarnations, and answers with a frame that states the
  current one.
- When a NIC learns a peer's first incarnation, it resends the messages in progress: frames for incarnation 0 have not
  been accepted.
- When a NIC learns a later incarnation, it discards partly received messages from the peer, and fails the sends in
  progress to it, since it cannot determine whether these have arrived.
- Frames from an earlier incarnation, or from none, are dropped.

So no message is received by two incarnations. `PEER` is the state table. Firmware uses this module as follows::

    self.peers = Peers(adapter, nic, make_peer)

    # sender, receiver: the incarnations in the frame; self: the `PeerEvents`.
    standing = self.peers.classify(now, peer, sender, receiver, self)
    if standing is Standing.MISDIRECTED:
        ...  # answer with `self.peers.incarnation`, to `peer.incarnation`
    elif standing is Standing.CURRENT:
        ...  # handle the frame

In a cluster whose NICs count their incarnations from FIRST, a protocol may presume that a peer has not restarted, and
write to its first incarnation before it has received a frame from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Final, Generic, Protocol, TypeVar

from protocols.core.compiled_build import mypyc_attr
from protocols.core.firmware import FIRST, Adapter, FirmwareActions
from protocols.core.states import Row, StateTable

Send = Callable[[bytes], bool | None]
SendLater = Callable[[Callable[[], bytes]], object]

_MASK: Final = 0xFFFF_FFFF
_HALF: Final = 1 << 31
_MAX_CACHED_HEADERS: Final = 256
"""Maximum cached headers. A full cache is cleared, so that the headers of active senders are cached again."""

UNKNOWN: Final = "unknown"
KNOWN: Final = "known"

PEER: Final = StateTable(
    "Peer",
    UNKNOWN,
    (
        Row(UNKNOWN, "presumed", "write to its first incarnation", KNOWN),
        Row(UNKNOWN, "incarnation", "adopt it and resend messages in flight", KNOWN),
        Row(UNKNOWN, "no incarnation", "drop", UNKNOWN, ("stale",)),
        Row(KNOWN, "same incarnation", "accept", KNOWN),
        Row(
            KNOWN, "later incarnation", "discard partial messages, adopt it, fail sends in flight", KNOWN, ("restarts",)
        ),
        Row(KNOWN, "earlier incarnation", "drop", KNOWN, ("stale",)),
        Row(KNOWN, "no incarnation", "drop", KNOWN, ("stale",)),
        Row(KNOWN, "meant for another incarnation", "drop and announce this NIC's incarnation", KNOWN, ("stale",)),
    ),
)
"""State table of a peer. The events are the incarnations in its frames, and the presumption of FIRST."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Peer:
    """Another NIC, or this NIC. number: its node's number. address: its MAC. incarnation: the last known or presumed
    one; 0 if unknown. send, send_later: those of `FirmwareActions`, or of `Loopback` for this NIC itself."""

    __slots__ = ("address", "incarnation", "number", "send", "send_later")

    def __init__(self, number: int, address: bytes, incarnation: int, send: Send, send_later: SendLater) -> None:
        self.number: Final = number
        self.address = address
        self.incarnation = incarnation
        self.send = send
        self.send_later = send_later


AnyPeer = TypeVar("AnyPeer", bound=Peer)
EventPeer = TypeVar("EventPeer", bound=Peer, contravariant=True)
CachedHeader = TypeVar("CachedHeader")
MakePeer = Callable[[int, int, Send, SendLater], AnyPeer]
"""Make a peer from a node's number, an incarnation, and its two send functions."""


class PeerEvents(Protocol[EventPeer]):
    """Firmware callbacks for a change of a peer's incarnation."""

    __slots__ = ()

    def on_peer_introduced(self, now: int, peer: EventPeer) -> None:
        """Handle the first known incarnation of a peer: resend the messages in progress."""
        ...

    def on_peer_restarting(self, peer: EventPeer) -> None:
        """Handle the restart of a peer, before `peer.incarnation` changes: discard partly received messages from it."""
        ...

    def on_peer_restarted(self, now: int, peer: EventPeer) -> None:
        """Handle the restart of a peer, after `peer.incarnation` has changed: fail the sends in progress to it."""
        ...


class Standing(Enum):
    """Comparison of the incarnations in a frame with the last known ones."""

    CURRENT = "from and for the last incarnations"
    STALE = "from an earlier incarnation, or from none"
    MISDIRECTED = "from the last incarnation, for another incarnation of this NIC"


@lru_cache(maxsize=16)
def _numbers(addresses: tuple[bytes, ...]) -> Mapping[bytes, int]:
    """Return node numbers by MAC address; cached, so that all NICs of a cluster in one process share the mapping."""
    return {address: number for number, address in enumerate(addresses)}


class Peers(Generic[AnyPeer, CachedHeader]):
    """The peers of one NIC, created on demand.

    incarnation: this NIC's. number: this NIC's node number. known: peers by node number; the first is this NIC itself.
    loopback: frames to this NIC itself. cached_headers: decoded headers, by the first bytes of frames. These bytes name
    the last incarnations of both NICs, so that later frames that begin with them need no `classify`.
    """

    __slots__ = (
        "_addresses", "_make", "_numbers", "_presumed", "_send", "_send_later", "cached_headers", "incarnation",
        "known", "loopback", "number",
    )  # fmt: skip

    def __init__(
        self,
        adapter: Adapter,
        nic: FirmwareActions,
        make: MakePeer[AnyPeer],
        *,
        presumes_first: bool = False,
    ) -> None:
        """make: see `MakePeer`. presumes_first: if this NIC has incarnation FIRST, presume that unknown peers have it,
        too."""
        self.number: Final = adapter.number
        self.incarnation: Final = adapter.incarnation
        self.known: Final[dict[int, AnyPeer]] = {}
        self.loopback: Final = Loopback()
        self.cached_headers: Final[dict[bytes, CachedHeader]] = {}
        self._addresses = adapter.addresses
        self._numbers: Mapping[bytes, int] | None = None
        self._presumed = FIRST if presumes_first and adapter.incarnation == FIRST else 0
        self._make = make
        # One bound method for all of perhaps thousands of peers.
        self._send: Send = nic.send
        self._send_later: SendLater = nic.send_later
        loopback = self.loopback
        self.known[self.number] = make(self.number, self.incarnation, loopback.frames.append, loopback.send_later)

    def peer(self, number: int) -> AnyPeer:
        """Return the peer for a node of the cluster, creating it if necessary. number: the node's."""
        peer = self.known.get(number)
        if peer is None:
            peer = self.known[number] = self._make(number, self._presumed, self._send, self._send_later)
        return peer

    def by_address(self, address: bytes) -> AnyPeer | None:
        """Return the peer with a MAC address; None if the adapter does not list the address."""
        if self._numbers is None:
            self._numbers = _numbers(tuple(self._addresses))
        number = self._numbers.get(address)
        return None if number is None else self.known.get(number) or self.peer(number)

    def classify(
        self, now: int, peer: AnyPeer, incarnation: int, addressee: int, events: PeerEvents[AnyPeer]
    ) -> Standing:
        """Classify a frame by the two incarnations that it names: the sender's, as in `admit`, and the addressee's."""
        if not self.admit(now, peer, incarnation, events):
            return Standing.STALE
        return Standing.CURRENT if addressee == self.incarnation else Standing.MISDIRECTED

    def admit(self, now: int, peer: AnyPeer, incarnation: int, events: PeerEvents[AnyPeer]) -> bool:
        """Return whether a frame's incarnation is the last one of its peer; adopt it if it is later than the known one.
        events: the firmware; not stored here, since a reference cycle would delay the release of a stopped NIC and of
        its host's memory."""
        if incarnation == peer.incarnation or not incarnation:
            return incarnation != 0
        if not peer.incarnation:
            peer.incarnation = incarnation
            events.on_peer_introduced(now, peer)
            return True
        if (incarnation - peer.incarnation) & _MASK >= _HALF:
            return False
        self.cached_headers.clear()
        events.on_peer_restarting(peer)
        peer.incarnation = incarnation
        events.on_peer_restarted(now, peer)
        return True

    def cache_header(self, prefix: bytes, cached: CachedHeader) -> None:
        """Cache the decoded header of frames that begin with `prefix`, until a peer restarts or the cache is full."""
        if len(self.cached_headers) >= _MAX_CACHED_HEADERS:
            self.cached_headers.clear()
        self.cached_headers[prefix] = cached


class Loopback:
    """Queue of frames from a NIC to itself, delivered one at a time. is_running: a frame is being delivered."""

    __slots__ = ("frames", "is_running")

    def __init__(self) -> None:
        self.frames: Final[deque[bytes]] = deque()
        self.is_running = False

    def send_later(self, make: Callable[[], bytes]) -> None:
        """Queue a frame; see `FirmwareActions.send_later`. `frames.append` serves as `FirmwareActions.send`."""
        self.frames.append(make())

    def run(self, now: int, receive: Callable[[int, bytes], object]) -> None:
        """Pass the queued frames, and those sent meanwhile, to `receive`. A host that gets a completion may ring its
        doorbell, which calls this method again; then the outer call delivers the frames."""
        if self.is_running:
            return
        self.is_running = True
        frames = self.frames
        try:
            while frames:
                receive(now, frames.popleft())
        finally:
            self.is_running = False
