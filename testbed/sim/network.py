"""The links and switches of a layout, in the simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from testbed.errors import UnsupportedError
from testbed.sim.recording import Recording, WatchedWay
from testbed.sim.switch import Port, ports
from testbed.sim.way import At, Way
from testbed.spec.layout import End, Impairment, Layout, Link, Switch
from testbed.wire.direction import Direction
from testbed.wire.fates import Record
from testbed.wire.fields import Fields
from testbed.wire.rules import RuleSet

DirectionName = Literal["forward", "backward"]
BOTH: Final[tuple[DirectionName, DirectionName]] = ("forward", "backward")


class Network:
    """Every direction of every link (`ways`, by the link's name and the direction), and the switches between them."""

    def __init__(
        self,
        at: At,
        layout: Layout,
        *,
        seed: int,
        rules: RuleSet | None = None,
        fields: Fields | None = None,
        files: Mapping[str, str] | None = None,
        recording: Recording | None = None,
        log: Callable[[Record], object] | None = None,
    ) -> None:
        """As for `Direction`. Raises UnsupportedError for a switch that is none of Ethernet's."""
        self.ways: dict[tuple[str, DirectionName], Way] = {}
        self._from: dict[End, Way] = {}
        self._to: dict[End, Way] = {}

        def lay(link: Link, direction: DirectionName, impairment: Impairment, source: End, end: End) -> None:
            model = Direction(
                link.name, direction, impairment, seed=seed, rules=rules, fields=fields, files=files, log=log
            )
            if recording is None:
                way = Way(at, model, link.name, source, end)
            else:
                way = WatchedWay(at, model, link.name, source, end, recording)
            self.ways[link.name, direction] = self._from[source] = self._to[end] = way

        for link in layout.links:
            lay(link, "forward", link.forward, link.a, link.b)
            lay(link, "backward", link.backward, link.b, link.a)
        macs = {nic.mac: bytes.fromhex(nic.mac.replace(":", "")) for node in layout.nodes for nic in node.nics}
        for switch in layout.switches:
            for number, port in self._ports(switch, macs).items():
                self._to[End(switch.name, str(number))].lead_to(port.receive)

    def leaving(self, end: End) -> Way:
        """The direction that begins there."""
        return self._from[end]

    def arriving(self, end: End) -> Way:
        """The direction that ends there."""
        return self._to[end]

    def _ports(self, switch: Switch, macs: Mapping[str, bytes]) -> dict[int, Port]:
        if switch.kind != "ethernet":
            raise UnsupportedError(
                f"switch {switch.name}: the simulation has Ethernet switches, and none of {switch.kind}"
            )
        ways = {number: self._from[End(switch.name, str(number))] for number in switch.ports}
        return ports(ways, switch.learns, switch.forwarding, switch.tree, macs)
