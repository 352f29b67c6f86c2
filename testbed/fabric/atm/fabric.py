"""ATM as a registered fabric, and the tables of its switches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from protocols.atm.cell import ETHERNET, MAX_NODES, PAYLOAD, circuit, header
from testbed.errors import UnsupportedError
from testbed.fabric.atm.network import DEFAULT, Network, Settings
from testbed.fabric.interface import OnDrop, Path, Table
from testbed.spec.kinds import ATM, Kind
from testbed.spec.layout import Layout, Switch


@dataclass(frozen=True, slots=True)
class Atm:
    """The ATM fabric. settings: settings of its hardware. Implements `fabric.interface.Fabric` and `Routing`."""

    settings: Settings = DEFAULT
    kind: ClassVar[Kind] = ATM

    def network(self, slowed: int = 1, on_drop: OnDrop | None = None) -> Network:
        """Make an empty network. slowed: the factor by which its hardware is slower."""
        return Network(self.settings.slowed(slowed), on_drop)

    def table(self, layout: Layout, switch: Switch) -> Table:
        """Return a switch's table: output port, along shortest paths, by destination node; 0: none. Keys are the indices of
        the nodes in `layout.nodes`, as decimal numbers. Raises UnsupportedError for more than MAX_NODES nodes."""
        if len(layout.nodes) > MAX_NODES:
            raise UnsupportedError(
                f"{layout.name} has {len(layout.nodes):,} nodes: an ATM network has circuits between at most "
                f"{MAX_NODES:,} nodes"
            )
        return {str(number): switch.forwarding.get(mac, 0) for number, mac in enumerate(_macs(layout))}

    def has_route(self, layout: Layout, path: Path) -> bool:
        """Whether the circuit from a path's source to its sink follows the path."""
        sink = _macs(layout)[_node_number(layout, path.sink)]
        tables = {switch.name: switch.forwarding for switch in layout.switches}
        return all(tables[switch].get(sink) == output for switch, _, output in path.hops)

    def build_frame(self, layout: Layout, path: Path, frame: bytes) -> bytes:
        """Put the bytes after a frame's Ethernet header into a cell on the circuit from a path's source to its sink."""
        numbers = _node_number(layout, path.source), _node_number(layout, path.sink)
        payload = frame[ETHERNET : ETHERNET + PAYLOAD].ljust(PAYLOAD, b"\0")
        return frame[:ETHERNET] + header(circuit(*numbers, len(layout.nodes))) + payload


def _node_number(layout: Layout, node: str) -> int:
    return next(number for number, candidate in enumerate(layout.nodes) if candidate.name == node)


def _macs(layout: Layout) -> list[str]:
    return [node.nics[0].mac if node.nics else "" for node in layout.nodes]


FABRIC: Final = Atm()
