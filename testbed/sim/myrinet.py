"""Myrinet in the simulation: directions whose frames stretch over several of them, and what lets their network go on."""

from __future__ import annotations

from collections import deque
from typing import Final

from testbed.engine.loop import Loop
from testbed.sim.way import DirectionName, Receive, Shared, Way
from testbed.spec.layout import Link
from testbed.wire.flows import Known
from testbed.wire.myrinet.channel import Channel
from testbed.wire.myrinet.network import Network, OnDrop
from testbed.wire.myrinet.settings import Settings


class Wormholes:
    """All the Myrinet switches of a simulation and what is between them."""

    def __init__(self, loop: Loop, settings: Settings, on_drop: OnDrop | None) -> None:
        """on_drop: as for `Network`."""
        self.settings: Final = settings
        self._network = Network(settings, on_drop)
        self._timer = loop.timer(self._due)
        self._is_busy = False

    def offer(self, now: int, way: MyrinetWay, frame: bytes) -> bool:
        """A NIC's frame. False: not now."""
        taken = self._network.offer(now, way, frame)
        if not self._is_busy:
            self._timer.set(self._network.deadline)
        return taken

    def _due(self, now: int) -> None:
        self._is_busy = True
        self._network.poll(now)
        self._is_busy = False
        self._timer.set(self._network.deadline)


class MyrinetWay(Channel):
    """From one end of a link to the other. What a NIC sends while the link is held waits in the NIC's memory."""

    __slots__ = ("_kept", "_wormholes", "end", "link", "source")

    def __init__(self, link: Link, direction: DirectionName, shared: Shared, wormholes: Wormholes) -> None:
        forward = direction == "forward"
        super().__init__(
            link.name,
            direction,
            link.forward if forward else link.backward,
            seed=shared.seed,
            settings=wormholes.settings,
            rules=shared.rules,
            fields=shared.fields,
            classifier=shared.classifier,
            files=shared.files,
            log=shared.log,
        )
        self._wormholes = wormholes
        self._kept: deque[bytes] = deque()
        self.link: Final = link.name
        self.source: Final = link.a if forward else link.b
        self.end: Final = link.b if forward else link.a
        self.on_space = self._go_on

    @property
    def kept(self) -> int:
        """Frames that the NIC could not send yet."""
        return len(self._kept)

    def enter(self, now: int, frame: bytes, known: Known | None = None) -> None:  # noqa: ARG002
        """A NIC sends a frame. known: not used."""
        if self._kept or not self._wormholes.offer(now, self, frame):
            self._kept.append(frame)

    def forget(self) -> None:
        """The NIC has lost its memory, and what waited there."""
        self._kept.clear()

    def lead_to(self, receive: Receive) -> None:
        """From now on the frames come there."""
        self.receive = receive

    def _go_on(self, now: int) -> None:
        """The link is the NIC's."""
        kept = self._kept
        while kept and self._wormholes.offer(now, self, kept[0]):
            kept.popleft()


AnyWay = Way | MyrinetWay
"""A direction of a link, whatever network it belongs to."""
