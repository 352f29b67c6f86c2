"""Myrinet as a registered fabric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from testbed.fabric.interface import OnDrop, Path, Table
from testbed.fabric.myrinet.network import Network
from testbed.fabric.myrinet.route import append_crc, route_byte
from testbed.fabric.myrinet.settings import DEFAULT, Settings
from testbed.fates.header_fields import ETHERNET_HEADER
from testbed.spec.kinds import MYRINET, Kind
from testbed.spec.layout import Layout, Switch


@dataclass(frozen=True, slots=True)
class Myrinet:
    """The Myrinet fabric. settings: settings of its hardware. Implements `fabric.interface.Fabric` and `Routing`."""

    settings: Settings = DEFAULT
    kind: ClassVar[Kind] = MYRINET

    def network(self, slowed: int = 1, on_drop: OnDrop | None = None) -> Network:
        """Make an empty network. slowed: the factor by which its hardware is slower."""
        return Network(self.settings.slowed(slowed), on_drop)

    def table(self, layout: Layout, switch: Switch) -> Table:  # noqa: ARG002
        """Return an empty table: switches forward by the routes in the frames."""
        return {}

    def has_route(self, layout: Layout, path: Path) -> bool:  # noqa: ARG002
        """Return True: a source route can take any path."""
        return True

    def build_frame(self, layout: Layout, path: Path, frame: bytes) -> bytes:  # noqa: ARG002
        """Prepend a route to a frame's packet, and append the CRC-8. Raises ValueError if ports are too far apart."""
        route = bytes([route_byte(output - input_) for _, input_, output in path.hops])
        return append_crc(frame[:ETHERNET_HEADER], route + frame[ETHERNET_HEADER:])


FABRIC: Final = Myrinet()
