"""Channel: one direction of a link of a Myrinet network, its owner, and the frames on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from testbed.fabric.entrance import Entrance
from testbed.fabric.interface import Receive, ignore
from testbed.fabric.myrinet.worm import Hop, Worm, pass_in
from testbed.fates.header_fields import ETHERNET_HEADER
from testbed.fates.stage import FateOptions
from testbed.spec.kinds import MYRINET
from testbed.spec.layout import DirectionName, Impairment

if TYPE_CHECKING:
    from testbed.fabric.myrinet.network import Network
    from testbed.fabric.myrinet.switch import Switch

NIC: Final = 0
"""The NIC as a requester of a channel; a switch's inputs have their port numbers, from 1 on."""
ASIDE: Final = -1
"""Requester for frames that a rule has delayed or duplicated."""


class Channel:
    """One direction of a link, without a queue: while one frame occupies it, others wait where they are. A frame that a rule
    delays or duplicates is taken out of the network, and put back at the channel's beginning later."""

    __slots__ = (
        "_network", "aside", "asking", "chosen", "delay", "entrance", "free", "inside", "is_granted", "on_space", "port",
        "receive", "speed", "switch", "under_way", "window",
    )  # fmt: skip

    def __init__(
        self, link: str, direction: DirectionName, impairment: Impairment, options: FateOptions, network: Network
    ) -> None:
        """Raises what `Entrance` does."""
        self._network = network
        self.entrance: Final = Entrance(link, direction, impairment, options, MYRINET)
        self.on_space: Callable[[int], object] | None = None
        self.receive: Receive = ignore
        self.switch: Switch | None = None
        """The switch at its end, at input `port`; None: a NIC."""
        self.port = 0
        self.free = 0
        """When it becomes free, or did; UNKNOWN: not known yet."""
        self.asking: dict[int, Worm | None] = {}
        """Worms that wait for it, by requester; a NIC has none yet."""
        self.is_granted = False
        """Whether a NIC is being told that it may use it."""
        self.aside: list[tuple[int, int, bytes]] = []
        """Heap of frames that rules have taken out of the network: until when, sequence number, frame."""
        self.chosen = ASIDE
        """The requester that has used it last."""
        self.inside: deque[Hop] = deque()
        """Frames that are on it or in the input at its end, in order."""
        self.under_way = 0
        """Frames whose head has not arrived yet, or, at a NIC, whose end has not."""
        self._lay(impairment)

    @property
    def held(self) -> int:
        """Frames that are on it, and those that rules have taken out of the network here."""
        return self.under_way + len(self.aside)

    def change(
        self, now: int, impairment: Impairment, files: Mapping[str, str] | None = None, restart: bool | None = None
    ) -> None:
        """Set another impairment, as `Direction.change`. Frames under way keep their schedule."""
        self.entrance.change(now, impairment, files, restart)
        self._lay(impairment)

    def offer(self, now: int, frame: bytes) -> bool:
        """Offer a frame of the NIC at its beginning. False: refused now; `on_space` says when to offer it again."""
        return self._network.offer(now, self, frame)

    def leave(self) -> None:
        """Remove the direction; its frames under way are lost."""
        self._network.leave(self)

    def hop(self, worm: Worm, frame: bytes, now: int) -> Hop:
        """Make the hop of a frame over it, from now on."""
        window = self.window if self.switch is not None else 0
        return Hop(worm, self, frame, max(len(frame) - ETHERNET_HEADER, 1), now, self.speed, self.delay, window)

    def end_at(self, switch: Switch, port: int) -> None:
        """Connect its end to a switch's port."""
        self.switch = switch
        self.port = port

    def came(self, hop: Hop) -> None:
        """Count a frame that has crossed it."""
        self.under_way -= 1
        self.entrance.came(hop.frame)

    def _lay(self, impairment: Impairment) -> None:
        settings = self._network.settings
        self.delay = impairment.delay
        """The cable's delay, in nanoseconds."""
        self.speed = speed = impairment.rate or settings.rate
        """The rate, in bit/s."""
        self.window = max(settings.slack, pass_in(settings.hop, speed)) + pass_in(2 * self.delay, speed)
        """Bytes that may pass before the first has left the input at the other end."""
