"""An Ethernet switch: it looks up a frame's destination and hands the frame to the outgoing direction.

It has no queue: frames wait in the queue of the outgoing direction. If switches form cycles, it uses the layout's tables, as
the kernel's bridges do for the same layout; otherwise it learns as they do, but without ageing (a bridge removes an entry
after 300 s without a frame).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from testbed.fates.flows import FlowEntry
from testbed.sim.sim_direction import SimDirection, SwitchInput

_GROUP: Final = 1  # in a MAC's first byte
_RESERVED: Final = bytes.fromhex("0180c20000")  # IEEE 802.1Q table 8-1: 01-80-c2-00-00-00 to -0f are not forwarded


class Port(SwitchInput):
    """A switch's input port. out: the outgoing direction of this port. table: MAC -> outgoing direction."""

    __slots__ = ("_floods", "out", "table")

    def __init__(self, out: SimDirection, table: dict[bytes, SimDirection], floods: tuple[SimDirection, ...]) -> None:
        """table: MAC -> direction, shared by the switch's ports. floods: the directions for unknown destinations, from
        any port."""
        self.table: dict[bytes, SimDirection] = table
        self._floods = tuple([link_direction for link_direction in floods if link_direction is not out])
        self.out: SimDirection = out

    @property
    def learns(self) -> bool:
        return False

    def receive(self, now: int, frame: bytes, entry: FlowEntry | None) -> None:
        """Forward a frame without delay. entry: its flow, if already classified."""
        link_direction = self.table.get(frame[:6] if entry is None else entry.destination)
        if link_direction is None:
            self._flood(now, frame)
        elif link_direction is not self.out:
            link_direction.enter(now, frame, entry)

    def _flood(self, now: int, frame: bytes) -> None:
        if frame[:5] == _RESERVED and frame[5] < 16:
            return
        for link_direction in self._floods:
            link_direction.enter(now, frame)


class LearningPort(Port):
    """A port of a learning switch: it learns the port of each frame's source address."""

    __slots__ = ()

    @property
    def learns(self) -> bool:
        return True

    def receive(self, now: int, frame: bytes, entry: FlowEntry | None) -> None:
        table, out = self.table, self.out
        source = frame[6:12]
        if table.get(source) is not out and source and not source[0] & _GROUP:
            table[source] = out
        link_direction = table.get(frame[:6] if entry is None else entry.destination)
        if link_direction is None:
            self._flood(now, frame)
        elif link_direction is not out:
            link_direction.enter(now, frame, entry)


def make_ports(
    link_directions: Mapping[int, SimDirection],
    learns: bool,
    forwarding: Mapping[str, int],
    tree: tuple[int, ...],
    macs: Mapping[str, bytes],
) -> dict[int, Port]:
    """Make a switch's ports, by number.

    link_directions: outgoing, by port. learns, forwarding, tree: from the layout. macs: the bytes of every MAC in
    `forwarding_tables`, shared by all switches.
    """
    table = {macs[mac]: link_directions[port] for mac, port in forwarding.items()}
    port_class = LearningPort if learns else Port
    floods = tuple([link_directions[port] for port in sorted(link_directions) if learns or port in tree])
    return {number: port_class(link_direction, table, floods) for number, link_direction in link_directions.items()}
