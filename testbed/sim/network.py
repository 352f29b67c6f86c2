"""The links and switches of a layout in the simulation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from testbed import fabrics
from testbed.engine.loop import Loop
from testbed.fabric.interface import Fabric, OnDrop, Plug, Receive
from testbed.fabric.interface import Network as Model
from testbed.fates.flows import Classifier
from testbed.fates.header_fields import Fields
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fates.stage import FateOptions
from testbed.sim.ethernet_switch import Port, make_ports
from testbed.sim.recorder import Recording
from testbed.sim.sim_direction import SimDirection
from testbed.sim.sim_network import AnyDirection, ChannelDirection, Driver
from testbed.spec.layout import BOTH, DirectionName, End, Layout, Link, Switch


class Network:
    """All directions of all links, and the switches between them. link_directions: by link name and direction."""

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
        overrides: Mapping[str, Fabric] | None = None,
    ) -> None:
        """Arguments as for `FateOptions`. overrides: fabrics that replace the registered fabrics, by kind."""
        self.link_directions: dict[tuple[str, DirectionName], AnyDirection] = {}
        self._outgoing: dict[End, AnyDirection] = {}
        self._incoming: dict[End, AnyDirection] = {}
        self._recording = recording
        self._models: dict[str, tuple[Model, Driver]] = {}
        classifier = Classifier(fields if rules is None else rules.fields)
        options = FateOptions(
            seed, rules=rules, fields=fields, classifier=classifier, files={} if files is None else files, log=log
        )
        modelled = layout.simulated_switches().keys()
        self._make_models(loop, layout, overrides or {}, None if recording is None else recording.drop)
        for link in layout.links:
            for direction in BOTH:
                link_direction = (
                    SimDirection(link, direction, loop, options)
                    if link.model is None
                    else self._channel(link, direction, options, modelled, *self._models[link.kind])
                )
                if recording is not None:
                    recording.record_direction(link_direction)
                self.link_directions[link.name, direction] = self._outgoing[link_direction.source] = self._incoming[
                    link_direction.end
                ] = link_direction
        macs = {
            nic.mac: classifier.mac(bytes.fromhex(nic.mac.replace(":", "")))
            for node in layout.nodes
            for nic in node.nics
        }
        for switch in layout.switches:
            if switch.name in modelled:
                continue
            for number, port in self._ports(switch, macs).items():
                link_direction = self._incoming[End(switch.name, str(number))]
                assert isinstance(link_direction, SimDirection)
                link_direction.connect_switch(port)

    def outgoing(self, end: End) -> AnyDirection:
        """The direction that starts at this end."""
        return self._outgoing[end]

    def incoming(self, end: End) -> AnyDirection:
        """The direction that ends at this end."""
        return self._incoming[end]

    def set_receiver(self, end: End, receive: Receive) -> None:
        """Deliver frames that arrive at this NIC to `receive` from now on."""
        self._incoming[end].set_receiver(receive if self._recording is None else self._recording.arriving(end, receive))

    @property
    def switches(self) -> dict[str, Mapping[str, int]]:
        """The counters of each modelled switch, by cause."""
        return {name: counters for model, _ in self._models.values() for name, counters in model.switches.items()}

    def _make_models(
        self,
        loop: Loop,
        layout: Layout,
        overrides: Mapping[str, Fabric],
        on_drop: OnDrop | None,
    ) -> None:
        """Make the network model of each kind."""
        for kind in dict.fromkeys(link.kind for link in layout.links if link.model):
            fabric = overrides[kind] if kind in overrides else fabrics.fabric(kind)
            model = fabric.network(on_drop=on_drop)
            model.keep({switch.name: fabric.table(layout, switch) for switch in layout.switches if switch.kind == kind})
            self._models[kind] = model, Driver(loop, model)

    def _channel(
        self,
        link: Link,
        direction: DirectionName,
        options: FateOptions,
        modelled: Collection[str],
        model: Model,
        driver: Driver,
    ) -> ChannelDirection:
        a, b = (Plug(end.owner, int(end.port)) if end.owner in modelled else None for end in (link.a, link.b))
        forward = direction == "forward"
        impairment = link.forward if forward else link.backward
        start, end = (a, b) if forward else (b, a)
        channel = model.join(link.name, direction, impairment, options, start, end)
        return ChannelDirection(link, direction, channel, driver)

    def _ports(self, switch: Switch, macs: Mapping[str, bytes]) -> dict[int, Port]:
        link_directions = {number: self._outgoing[End(switch.name, str(number))] for number in switch.ports}
        ethernet_directions = {
            number: link_direction
            for number, link_direction in link_directions.items()
            if isinstance(link_direction, SimDirection)
        }
        return make_ports(ethernet_directions, switch.learns, switch.forwarding, switch.tree, macs)
