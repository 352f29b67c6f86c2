"""Channel: one direction of a link of a Myrinet network, with the requests for it and the frames on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from testbed.fabric.entrance import Entrance
from testbed.fabric.interface import Receive, discard
from testbed.fabric.myrinet.worm import Hop, Worm, bytes_in
from testbed.fates.header_fields import ETHERNET_HEADER
from testbed.fates.stage import FateOptions
from testbed.spec.kinds import MYRINET
from testbed.spec.layout import DirectionName, Impairment

if TYPE_CHECKING:
    from testbed.fabric.myrinet.network import Network
    from testbed.fabric.myrinet.switch import Switch

NIC: Final = 0
"""Requester number of the NIC; a switch's inputs have their port numbers, from 1."""
DEFERRED: Final = -1
"""Requester number for frames that a rule has delayed or duplicated."""


class Channel:
    """One direction of a link, without a queue: while a frame occupies it, other frames wait where they are. A delayed or
    duplicated frame of a rule is kept outside the network, and enters at the start of the channel later."""

    __slots__ = (
        "_network", "deferred", "delay", "entrance", "frames", "free_at", "in_transit", "is_granted", "last_requester",
        "on_space", "port", "receive", "requests", "speed", "switch", "window",
    )  # fmt: skip

    def __init__(
        self, link: str, direction: DirectionName, impairment: Impairment, options: FateOptions, network: Network
    ) -> None:
        """Raises the errors of `Entrance`."""
        self._network = network
        self.entrance: Final = Entrance(link, direction, impairment, options, MYRINET)
        self.on_space: Callable[[int], object] | None = None
        self.receive: Receive = discard
        self.switch: Switch | None = None
        """The switch at its end, at input `port`; None: a NIC."""
        self.port = 0
        self.free_at = 0
        """Time at which the channel becomes or became free, ns; UNKNOWN: not determined yet."""
        self.requests: dict[int, Worm | None] = {}
        """Worms that wait for the channel, by requester; None for a NIC's request."""
        self.is_granted = False
        """Whether a NIC is being notified that it may use the channel."""
        self.deferred: list[tuple[int, int, bytes]] = []
        """Heap of frames that rules have delayed or duplicated: time at which they enter, sequence number, frame."""
        self.last_requester = DEFERRED
        """The requester that used the channel last."""
        self.frames: deque[Hop] = deque()
        """Frames on the channel or in the input at its end, in order."""
        self.in_transit = 0
        """Number of frames whose head has not arrived yet; at a NIC, whose end has not arrived yet."""
        self._apply(impairment)

    @property
    def in_flight(self) -> int:
        """Number of frames on the channel, and of deferred frames."""
        return self.in_transit + len(self.deferred)

    def change(
        self, now: int, impairment: Impairment, files: Mapping[str, str] | None = None, restart: bool | None = None
    ) -> None:
        """Set another impairment, as `LinkDirection.change`. Frames in flight keep their schedule."""
        self.entrance.change(now, impairment, files, restart)
        self._apply(impairment)

    def offer(self, now: int, frame: bytes) -> bool:
        """Offer a frame of the NIC at the start of the channel. Return False if it is rejected; `on_space` is called when to
        repeat the offer."""
        return self._network.offer(now, self, frame)

    def leave(self) -> None:
        """Remove the direction; its frames in flight are lost."""
        self._network.leave(self)

    def make_hop(self, worm: Worm, frame: bytes, now: int) -> Hop:
        """Make the hop of a frame that enters the channel now."""
        window = self.window if self.switch is not None else 0
        return Hop(worm, self, frame, max(len(frame) - ETHERNET_HEADER, 1), now, self.speed, self.delay, window)

    def connect_end(self, switch: Switch, port: int) -> None:
        """Connect the channel's end to a switch's port."""
        self.switch = switch
        self.port = port

    def count_delivered(self, hop: Hop) -> None:
        """Count a frame that has crossed the channel."""
        self.in_transit -= 1
        self.entrance.count_delivered(hop.frame)

    def _apply(self, impairment: Impairment) -> None:
        settings = self._network.settings
        self.delay = impairment.delay
        """The cable's delay, in nanoseconds."""
        self.speed = speed = impairment.rate or settings.rate
        """The rate, in bit/s."""
        self.window = max(settings.slack, bytes_in(settings.hop, speed)) + bytes_in(2 * self.delay, speed)
        """Bytes that may enter before the first byte has left the input at the channel's end."""
