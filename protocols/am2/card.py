"""What the parts of the firmware share: the NIC itself, its host's endpoints, and the other NICs as it knows them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from protocols.am2 import page as layout
from protocols.am2.codec import KIND_MESSAGE, REASON_NONE
from protocols.am2.counters import Counters
from protocols.am2.endpoint_frames import Resident
from protocols.am2.packets import OVERHEAD, prefix
from protocols.am2.peers import Peer
from protocols.am2.settings import LEAST_MEDIUM, MOST_SEQUENCES, Settings
from protocols.core.firmware import Actions, Adapter

BROADCAST: Final = b"\xff" * 6
_ARGUMENTS: Final = 4 * layout.MOST_ARGUMENTS


def settled(settings: Settings, adapter: Adapter) -> Settings:
    """As they are on that network. Raises ValueError for one on which a medium message would be too short."""
    room = adapter.mtu - OVERHEAD - _ARGUMENTS - (settings.route if adapter.routed else 0)
    if room < LEAST_MEDIUM:
        raise ValueError(f"an MTU of {adapter.mtu} bytes leaves {room} for data: AM-II has {LEAST_MEDIUM} at least")
    room &= ~7
    sequences = settings.sequences
    if not adapter.ordered and sequences == 2:
        sequences = MOST_SEQUENCES
    return replace(settings, medium=min(settings.medium, room), packet=min(settings.packet, room), sequences=sequences)


class Card:
    """settings: `settled`. endpoints: of all its hosts, by number. looped: frames to this NIC itself, which no wire brings
    back. is_mapped: whether routes are known, as far as there are any."""

    __slots__ = (
        "adapter", "address", "counters", "endpoints", "incarnation", "is_mapped", "looped", "nic", "number",
        "peers", "settings",
    )  # fmt: skip

    def __init__(self, adapter: Adapter, nic: Actions, settings: Settings) -> None:
        self.adapter: Final = adapter
        self.number: Final = adapter.number
        self.address: Final = adapter.address
        self.incarnation: Final = adapter.incarnation
        self.nic: Final = nic
        self.settings: Final = settings
        self.counters: Final = Counters()
        self.endpoints: Final[dict[int, Resident]] = {}
        self.looped: Final[deque[bytes]] = deque()
        self.is_mapped = not adapter.routed
        self.peers: Final[dict[int, Peer]] = {}
        """Those that there has been anything to do with, by node number."""
        self.greet(self.peer(self.number), self.incarnation)

    def peer(self, number: int) -> Peer:
        """A node's, which there is."""
        found = self.peers.get(number)
        if found is None:
            own, adapter = number == self.number, self.adapter
            send, later = (self.looped.append, self._loop_later) if own else (self.nic.send, self.nic.send_later)
            # On a network with routes the address is found with the route; its switches look at neither.
            address = BROADCAST if adapter.routed and not own else adapter.addresses[number]
            route = None if adapter.routed and not own else b""
            found = self.peers[number] = Peer(number, address, route, self.settings, send, later)
            self.look_up(found)
        return found

    def greet(self, peer: Peer, incarnation: int) -> None:
        """A peer has that incarnation."""
        peer.incarnation = incarnation
        self.look_up(peer)

    def look_up(self, peer: Peer) -> None:
        """How messages' frames to a peer begin now."""
        peer.prefix = self.prefix(peer, KIND_MESSAGE, REASON_NONE)

    def prefix(self, peer: Peer, kind: int, reason: int) -> bytes:
        """How frames of a kind to a peer begin."""
        return prefix(
            peer.address, self.address, kind, reason, self.number, peer.number, self.incarnation, peer.incarnation
        )

    def _loop_later(self, make: Callable[[], bytes]) -> None:
        self.looped.append(make())
