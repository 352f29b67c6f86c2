"""State shared by the parts of the firmware: the NIC's settings and counters, its hosts' endpoints, and its peers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from protocols.am2 import page as layout
from protocols.am2.codec import KIND_MESSAGE, REASON_NONE
from protocols.am2.counters import Counters
from protocols.am2.nic_endpoint import NicEndpoint
from protocols.am2.peers import CachedHeader, Peer
from protocols.am2.settings import MAX_SEQUENCES, MIN_MEDIUM, Settings
from protocols.am2.transport import FRAME_OVERHEAD, frame_prefix
from protocols.core.firmware import Adapter, FirmwareActions
from protocols.core.peers import Peers, Send, SendLater

BROADCAST: Final = b"\xff" * 6
_MAX_ARGUMENTS_SIZE: Final = 4 * layout.MAX_ARGUMENTS


def adapt_settings(settings: Settings, adapter: Adapter) -> Settings:
    """Adapt settings to a network: to its MTU, and, if it may reorder frames, the default number of sequence numbers.
    Raises ValueError if the MTU leaves too little room for a medium message."""
    room = adapter.mtu - FRAME_OVERHEAD - _MAX_ARGUMENTS_SIZE - (settings.route if adapter.routed else 0)
    if room < MIN_MEDIUM:
        raise ValueError(
            f"an MTU of {adapter.mtu} bytes leaves {room} bytes for data: AM-II needs at least {MIN_MEDIUM}"
        )
    room &= ~7  # so that buffers of this size, one after the other, are aligned
    sequences = settings.sequences
    if not adapter.ordered and sequences == 2:
        sequences = MAX_SEQUENCES
    return replace(settings, medium=min(settings.medium, room), packet=min(settings.packet, room), sequences=sequences)


class Card:
    """Shared state of one NIC. settings: as adapted by `adapt_settings`. endpoints: endpoints of all its hosts, by
    number. is_mapped: whether routes have been installed, or none are needed. privileged: the endpoint of a mapper
    daemon, or None."""

    __slots__ = (
        "adapter", "address", "counters", "endpoints", "incarnation", "is_mapped", "nic", "number", "peers", "privileged",
        "settings",
    )  # fmt: skip

    def __init__(self, adapter: Adapter, nic: FirmwareActions, settings: Settings) -> None:
        self.adapter: Final = adapter
        self.number: Final = adapter.number
        self.address: Final = adapter.address
        self.incarnation: Final = adapter.incarnation
        self.nic: Final = nic
        self.settings: Final = settings
        self.counters: Final = Counters()
        self.endpoints: Final[dict[int, NicEndpoint]] = {}
        self.is_mapped = not adapter.routed
        self.privileged: NicEndpoint | None = None
        self.peers: Final[Peers[Peer, CachedHeader]] = Peers(adapter, nic, self._make_peer)

    def _make_peer(self, number: int, incarnation: int, send: Send, send_later: SendLater) -> Peer:
        adapter = self.adapter
        # On a source-routed network the MAC address becomes known with the route; switches ignore it.
        if adapter.routed and number != self.number:
            peer = Peer(number, BROADCAST, incarnation, send, send_later, None, self.settings)
        else:
            peer = Peer(number, adapter.addresses[number], incarnation, send, send_later, b"", self.settings)
        self.update_prefix(peer)
        return peer

    def update_prefix(self, peer: Peer) -> None:
        """Update the prefix of the frames of messages to a peer."""
        peer.message_prefix = self.frame_prefix(peer, KIND_MESSAGE, REASON_NONE)

    def frame_prefix(self, peer: Peer, kind: int, reason: int) -> bytes:
        """Return the first bytes of frames of a kind to a peer."""
        return frame_prefix(
            peer.address, self.address, kind, reason, self.number, peer.number, self.incarnation, peer.incarnation
        )
