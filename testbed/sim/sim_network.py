"""Networks of modelled switches in the simulation: their driver, and the directions of their links."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from testbed.engine.loop import Loop
from testbed.fabric.interface import Channel, Network, Receive
from testbed.fates.fate_counters import Counters
from testbed.fates.flows import Known
from testbed.sim.sim_direction import SimDirection
from testbed.spec.layout import DirectionName, Impairment, Link


class Driver:
    """Polls a network at its deadlines."""

    def __init__(self, loop: Loop, network: Network) -> None:
        self._network = network
        self._timer = loop.timer(self._due)
        self._is_busy = False

    def offer(self, now: int, channel: Channel, frame: bytes) -> bool:
        """Offer a NIC's frame to the network; False if it must wait."""
        taken = channel.offer(now, frame)
        if not self._is_busy:
            self._timer.set(self._network.deadline)
        return taken

    def _due(self, now: int) -> None:
        self._is_busy = True
        self._network.poll(now)
        self._is_busy = False
        self._timer.set(self._network.deadline)


class ChannelDirection:
    """One direction of a link, over a channel of a modelled network. Frames that the network does not accept yet wait
    in the NIC's memory."""

    __slots__ = ("_driver", "_entrance", "_kept", "_taken", "_then", "channel", "end", "link", "source")

    def __init__(self, link: Link, direction: DirectionName, channel: Channel, driver: Driver) -> None:
        forward = direction == "forward"
        self._driver = driver
        self._entrance = channel.entrance
        self._kept: deque[bytes] = deque()
        self._taken = 0  # frames that have waited and are gone
        self._then: deque[tuple[int, Callable[[int], object]]] = deque()  # what to call at which of their number
        self.channel: Final = channel
        self.link: Final = link.name
        self.source: Final = link.a if forward else link.b
        self.end: Final = link.b if forward else link.a
        channel.on_space = self._go_on

    @property
    def kept(self) -> int:
        """Number of frames that wait in the NIC."""
        return len(self._kept)

    @property
    def is_cut(self) -> bool:
        """Whether the cable is pulled: frames that enter are lost, frames under way arrive."""
        return self._entrance.is_cut

    @is_cut.setter
    def is_cut(self, value: bool) -> None:
        self._entrance.is_cut = value

    @property
    def lost(self) -> int:
        """Frames lost at a pulled cable."""
        return self._entrance.lost

    @property
    def impairment(self) -> Impairment:
        return self._entrance.fates.impairment

    @property
    def counters(self) -> Counters:
        return self._entrance.counters

    @property
    def overflowed(self) -> int:
        """Frames dropped because a queue was full."""
        return self._entrance.counters.queue

    @property
    def held(self) -> int:
        """Frames inside the network."""
        return self.channel.held

    def idle_rules(self) -> list[str]:
        """A sentence for each of the impairment's own rules that has never decided a fate."""
        return self._entrance.fates.idle_rules()

    def enter(self, now: int, frame: bytes, known: Known | None = None) -> bool:  # noqa: ARG002
        """Send a frame of a NIC; return whether it waits. known: not used."""
        if self._kept or not self._driver.offer(now, self.channel, frame):
            self._kept.append(frame)
            return True
        return False

    def when_sent(self, now: int, then: Callable[[int], object]) -> None:
        """Call `then` with the time at which the network has taken all frames that wait now."""
        if self._kept:
            self._then.append((self._taken + len(self._kept), then))
        else:
            then(now)

    def forget(self) -> None:
        """Drop the frames that wait in the NIC, which has lost its memory."""
        self._kept.clear()
        self._then.clear()

    def lead_to(self, receive: Receive) -> None:
        """Deliver frames to `receive` from now on."""
        self.channel.receive = receive

    def change(
        self, now: int, impairment: Impairment, files: Mapping[str, str] | None = None, restart: bool | None = None
    ) -> None:
        """Change the impairment, as `Direction.change` does."""
        self.channel.change(now, impairment, files, restart)

    def _go_on(self, now: int) -> None:
        """Send waiting frames: the link accepts frames again."""
        kept = self._kept
        while kept and self._driver.offer(now, self.channel, kept[0]):
            kept.popleft()
            self._taken += 1
            while self._then and self._then[0][0] <= self._taken:
                self._then.popleft()[1](now)


AnyDirection = SimDirection | ChannelDirection
"""A direction of a link, on an Ethernet or a modelled network."""
