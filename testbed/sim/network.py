"""The links and switches of a layout, in the simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from testbed.engine.loop import Loop
from testbed.errors import UnsupportedError
from testbed.sim.recording import Recording
from testbed.sim.switch import Port, ports
from testbed.sim.way import DirectionName, Shared, Way
from testbed.spec.layout import End, Layout, Switch
from testbed.wire.fates import Record
from testbed.wire.fields import Fields
from testbed.wire.flows import Classifier
from testbed.wire.rules import RuleSet

BOTH: Final[tuple[DirectionName, DirectionName]] = ("forward", "backward")


class Network:
    """Every direction of every link (`ways`, by the link's name and the direction), and the switches between them."""

    def __init__(
        self,
        loop: Loop,
        layout: Layout,
        fields: Fields,
        *,
        seed: int,
        rules: RuleSet | None = None,
        files: Mapping[str, str] | None = None,
        recording: Recording | None = None,
        log: Callable[[Record], object] | None = None,
    ) -> None:
        """As for `Direction`. Raises UnsupportedError for a switch that is none of Ethernet's."""
        self.ways: dict[tuple[str, DirectionName], Way] = {}
        self._from: dict[End, Way] = {}
        self._to: dict[End, Way] = {}
        classifier = Classifier(fields if rules is None else rules.fields)
        shared = Shared(loop, seed, fields, classifier, rules, files, log)
        for link in layout.links:
            for direction in BOTH:
                way = Way(link, direction, shared) if recording is None else recording.way(link, direction, shared)
                self.ways[link.name, direction] = self._from[way.source] = self._to[way.end] = way
        macs = {
            nic.mac: classifier.mac(bytes.fromhex(nic.mac.replace(":", "")))
            for node in layout.nodes
            for nic in node.nics
        }
        for switch in layout.switches:
            for number, port in self._ports(switch, macs).items():
                self._to[End(switch.name, str(number))].lead_on(port.receive)

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
