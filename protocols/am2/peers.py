"""Other NICs, as one knows them: the send and the receive table for each, and how frames from and to it begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from protocols.am2.channels import Incoming, Outgoing
from protocols.am2.settings import Settings
from protocols.am2.turns import Turns

if TYPE_CHECKING:
    from protocols.am2.endpoint_frames import Resident
    from protocols.am2.messages import Packet


class Peer:
    """Another host's NIC. incarnation: the last one heard of; 0: none. route: as frames have it; None: no way there is
    known. lost_at: when it is unreachable unless there is one by then; None: there is no hurry yet. prefix: how messages'
    frames to it begin. turns: whose messages wait for a channel, or for a route."""

    __slots__ = (
        "address", "incarnation", "incoming", "lost_at", "number", "outgoing", "prefix", "route", "send", "send_later",
        "turns",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        address: bytes,
        route: bytes | None,
        settings: Settings,
        send: Callable[[bytes], object],
        send_later: Callable[[Callable[[], bytes]], object],
    ) -> None:
        self.number: Final = number
        self.address = address
        self.route = route
        self.lost_at: int | None = None
        self.incarnation = 0
        self.prefix = b""
        self.send = send
        self.send_later = send_later
        self.turns: Final[Turns[Resident]] = Turns(1 << settings.attempts)
        self.forget(settings)

    def forget(self, settings: Settings) -> None:
        """Nothing has been sent to it, or has come from it."""
        self.outgoing: Outgoing[Packet] = Outgoing(settings)
        self.incoming = Incoming(settings)


class Lane:
    """Frames of one kind from one peer that begin with the same bytes: they are for this NIC, from and for the last
    incarnations of both. answers: how the answers to messages begin, by reason."""

    __slots__ = ("answers", "kind", "peer", "reason")

    def __init__(self, peer: Peer, kind: int, reason: int, answers: tuple[bytes, ...]) -> None:
        self.peer: Final = peer
        self.kind: Final = kind
        self.reason: Final = reason
        self.answers: Final = answers
