"""AM-II's peers, each with its send and receive tables, and the cached headers of frames from and to peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocols.am2.endpoint_scheduler import EndpointScheduler
from protocols.am2.settings import Settings
from protocols.am2.transport import ReceiveTable, SendTable
from protocols.core import peers

if TYPE_CHECKING:
    from protocols.am2.nic_endpoint import NicEndpoint
    from protocols.am2.transport import Packet


class Peer(peers.Peer):
    """Another host's NIC. route: bytes of the source route in frames; None: no route is known. unreachable_at: time at
    which the peer becomes unreachable unless a route is known by then; None: not set. message_prefix: first bytes of
    the frames of messages to it. scheduler: messages that wait for a channel, or for a route. reply_count: number of
    replies received from its present incarnation. is_watched: see `reply_watch`."""

    __slots__ = (
        "is_watched", "message_prefix", "receive_table", "reply_count", "route", "scheduler", "send_table",
        "unreachable_at",
    )  # fmt: skip

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
        self.unreachable_at: int | None = None
        self.message_prefix = b""
        self.scheduler: Final[EndpointScheduler[NicEndpoint]] = EndpointScheduler(1 << settings.attempts)
        self.is_watched = False
        self.reset_tables(settings)

    def reset_tables(self, settings: Settings) -> None:
        """Reset both tables, and the count of replies, to their initial state."""
        self.reply_count = 0
        self.send_table: SendTable[Packet] = SendTable(settings)
        self.receive_table = ReceiveTable(settings)


class CachedHeader:
    """Decoded first bytes of frames of one kind from one peer, for the last incarnations of the peer and of this NIC.
    answer_prefixes: the first bytes of answers to messages, by reason."""

    __slots__ = ("answer_prefixes", "kind", "peer", "reason")

    def __init__(self, peer: Peer, kind: int, reason: int, answer_prefixes: tuple[bytes, ...]) -> None:
        self.peer: Final = peer
        self.kind: Final = kind
        self.reason: Final = reason
        self.answer_prefixes: Final = answer_prefixes
