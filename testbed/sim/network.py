"""The links and switches of a layout, in the simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from testbed.engine.loop import Loop
from testbed.errors import UnsupportedError
from testbed.sim.myrinet import AnyWay, MyrinetWay, Wormholes
from testbed.sim.recording import Recording
from testbed.sim.switch import Port, ports
from testbed.sim.way import DirectionName, Shared, Way
from testbed.spec.layout import End, Layout, Link, Switch
from testbed.wire.fates import Record
from testbed.wire.fields import Fields
from testbed.wire.flows import Classifier
from testbed.wire.myrinet.channel import Channel
from testbed.wire.myrinet.settings import USUAL, Settings
from testbed.wire.myrinet.switch import Switch as Crossbar
from testbed.wire.rules import RuleSet

MYRINET: Final = "myrinet"
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
        myrinet: Settings = USUAL,
    ) -> None:
        """As for `Direction`. myrinet: what its switches are like. Raises UnsupportedError for a switch of a kind that is
        not to be had."""
        self.ways: dict[tuple[str, DirectionName], AnyWay] = {}
        self.crossbars: dict[str, Crossbar] = {}
        """Myrinet's switches."""
        self._from: dict[End, AnyWay] = {}
        self._to: dict[End, AnyWay] = {}
        self._recording = recording
        classifier = Classifier(fields if rules is None else rules.fields)
        shared = Shared(loop, seed, fields, classifier, rules, files, log)
        kinds = {switch.name: switch.kind for switch in layout.switches}
        wormholes = Wormholes(loop, myrinet, None if recording is None else recording.drop)
        for link in layout.links:
            is_myrinet = MYRINET in (kinds.get(link.a.owner), kinds.get(link.b.owner))
            for direction in BOTH:
                way = (
                    self._channel(link, direction, shared, wormholes)
                    if is_myrinet
                    else self._way(link, direction, shared)
                )
                self.ways[link.name, direction] = self._from[way.source] = self._to[way.end] = way
        macs = {
            nic.mac: classifier.mac(bytes.fromhex(nic.mac.replace(":", "")))
            for node in layout.nodes
            for nic in node.nics
        }
        for switch in layout.switches:
            if switch.kind == MYRINET:
                self._cross(switch, myrinet.ports)
                continue
            for number, port in self._ports(switch, macs).items():
                way = self._to[End(switch.name, str(number))]
                assert isinstance(way, Way)
                way.lead_on(port)

    def leaving(self, end: End) -> AnyWay:
        """The direction that begins there."""
        return self._from[end]

    def arriving(self, end: End) -> AnyWay:
        """The direction that ends there."""
        return self._to[end]

    def _way(self, link: Link, direction: DirectionName, shared: Shared) -> Way:
        return Way(link, direction, shared) if self._recording is None else self._recording.way(link, direction, shared)

    def _channel(self, link: Link, direction: DirectionName, shared: Shared, wormholes: Wormholes) -> MyrinetWay:
        if self._recording is None:
            return MyrinetWay(link, direction, shared, wormholes)
        return self._recording.channel(link, direction, shared, wormholes)

    def _cross(self, switch: Switch, most: int) -> None:
        """Lead what comes to a Myrinet switch into it, and out of it. most: ports, if it has not more."""
        outputs: dict[int, Channel] = {}
        self.crossbars[switch.name] = crossbar = Crossbar(switch.name, max(most, *switch.ports, 0), outputs)
        for number in switch.ports:
            end = End(switch.name, str(number))
            out, come = self._from[end], self._to[end]
            assert isinstance(out, Channel)
            assert isinstance(come, Channel)
            outputs[number] = out
            come.end_at(crossbar, number)

    def _ports(self, switch: Switch, macs: Mapping[str, bytes]) -> dict[int, Port]:
        if switch.kind != "ethernet":
            raise UnsupportedError(
                f"switch {switch.name}: the simulation has switches of Ethernet and of Myrinet, and none of {switch.kind}"
            )
        ways = {number: self._from[End(switch.name, str(number))] for number in switch.ports}
        plain = {number: way for number, way in ways.items() if isinstance(way, Way)}
        return ports(plain, switch.learns, switch.forwarding, switch.tree, macs)
