"""AM-II's peers: the send and the receive table of each, and the cached headers of frames from and to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocols.am2.settings import Settings
from protocols.am2.transport import Incoming, Outgoing
from protocols.am2.turns import Turns
from protocols.core import peers

if TYPE_CHECKING:
    from protocols.am2.endpoint_frames import Resident
    from protocols.am2.transport import Packet


class Peer(peers.Peer):
    """Another host's NIC. route: in the format of frames; None: no route is known. lost_at: when it becomes unreachable
    unless a route is known by then; None: no deadline yet. prefix: first bytes of messages' frames to it. turns:
    messages that wait for a channel, or for a route."""

    __slots__ = ("incoming", "lost_at", "outgoing", "prefix", "route", "turns")

    def __init__(
        self,
        number: int,
        address: bytes,
        incarnation: int,
        send: peers.Send,
        send_later: peers.SendLater,
        route: bytes | None,
        settings: Settings,
    ) -> None:
        peers.Peer.__init__(self, number, address, incarnation, send, send_later)
        self.route = route
        self.lost_at: int | None = None
        self.prefix = b""
        self.turns: Final[Turns[Resident]] = Turns(1 << settings.attempts)
        self.forget(settings)

    def forget(self, settings: Settings) -> None:
        """Reset both tables: nothing has been sent or received."""
        self.outgoing: Outgoing[Packet] = Outgoing(settings)
        self.incoming = Incoming(settings)


class CachedHeader:
    """Frames of one kind from one peer that begin with the same bytes, are for this NIC, and belong to the last
    incarnations of both. answers: the first bytes of answers to messages, by reason."""

    __slots__ = ("answers", "kind", "peer", "reason")

    def __init__(self, peer: Peer, kind: int, reason: int, answers: tuple[bytes, ...]) -> None:
        self.peer: Final = peer
        self.kind: Final = kind
        self.reason: Final = reason
        self.answers: Final = answers
