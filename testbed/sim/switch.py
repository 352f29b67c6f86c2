"""An Ethernet switch: it looks a frame's destination up and hands it to the direction that leaves there.

It has no queue of its own: what waits for an output waits in that output's direction. Where switches form cycles it
follows the layout's tables, as the kernel's bridges do for the same layout; elsewhere it learns as they do, but never
forgets (a bridge does after 300 s without a frame).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from testbed.sim.way import Way
from testbed.wire.flows import Known

_GROUP: Final = 1  # in a MAC's first byte
_RESERVED: Final = bytes.fromhex("0180c20000")  # IEEE 802.1Q table 8-1: 01-80-c2-00-00-00 to -0f are not forwarded


class Port:
    """Where frames come into a switch. out: the direction that leaves here. table: MAC -> the direction in which it is."""

    __slots__ = ("_floods", "out", "table")

    learns: ClassVar[bool] = False
    """Whether it has to see frames whose way is known."""

    def __init__(self, out: Way, table: dict[bytes, Way], floods: tuple[Way, ...]) -> None:
        """table: the switch's, MAC -> direction, shared by its ports. floods: where unknown destinations go, from any
        port of it."""
        self.table = table
        self._floods = tuple([way for way in floods if way is not out])
        self.out = out

    def receive(self, now: int, frame: bytes, known: Known | None) -> None:
        """A frame has come; it leaves at once. known: its flow, where somebody has asked for it already."""
        way = self.table.get(frame[:6] if known is None else known.destination)
        if way is None:
            self._flood(now, frame)
        elif way is not self.out:
            way.enter(now, frame, known)

    def _flood(self, now: int, frame: bytes) -> None:
        if frame[:5] == _RESERVED and frame[5] < 16:
            return
        for way in self._floods:
            way.enter(now, frame)


class LearningPort(Port):
    """A port of a switch that learns: where a frame came from, frames for its source leave."""

    __slots__ = ()

    learns = True

    def receive(self, now: int, frame: bytes, known: Known | None) -> None:
        table, out = self.table, self.out
        source = frame[6:12]
        if table.get(source) is not out and source and not source[0] & _GROUP:
            table[source] = out
        way = table.get(frame[:6] if known is None else known.destination)
        if way is None:
            self._flood(now, frame)
        elif way is not out:
            way.enter(now, frame, known)


def ports(
    ways: Mapping[int, Way],
    learns: bool,
    forwarding: Mapping[str, int],
    tree: tuple[int, ...],
    macs: Mapping[str, bytes],
) -> dict[int, Port]:
    """A switch's ports, by number. ways: the direction that leaves from each port. learns, forwarding, tree: as the
    layout says them. macs: the bytes of every MAC in `forwarding`, so that all switches share them."""
    table = {macs[mac]: ways[port] for mac, port in forwarding.items()}
    kind = LearningPort if learns else Port
    floods = tuple([ways[port] for port in sorted(ways) if learns or port in tree])
    return {number: kind(way, table, floods) for number, way in ways.items()}
