"""The links and switches of a layout in the simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from testbed import fabrics
from testbed.engine.loop import Loop
from testbed.fabric.interface import Fabric, Receive, SwitchPort
from testbed.fabric.interface import Network as Model
from testbed.fates.flows import Classifier
from testbed.fates.header_fields import Fields
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fates.stage import FateOptions
from testbed.sim.recorder import Recording
from testbed.sim.sim_direction import Driver, SimDirection
from testbed.spec.layout import BOTH, DirectionName, End, Layout


class Network:
    """All directions of all links, and the switches between them. link_directions: by name of the link and direction."""

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
        """seed, rules, files, log, fields: see `FateOptions`. recording: records the frames and drops; None: nothing is
        recorded. overrides: fabrics that replace the registered fabrics, by kind."""
        self.link_directions: dict[tuple[str, DirectionName], SimDirection] = {}
        self._outgoing: dict[End, SimDirection] = {}
        self._incoming: dict[End, SimDirection] = {}
        self._recording = recording
        self._models: dict[str, tuple[Fabric, Model, Driver]] = {}  # by kind of link
        classifier = Classifier(fields if rules is None else rules.fields)
        options = FateOptions(
            seed, rules=rules, fields=fields, classifier=classifier, files={} if files is None else files, log=log
        )
        switches = {switch.name: switch.kind for switch in layout.switches}
        on_drop = None if recording is None else recording.record_drop
        for kind in dict.fromkeys([*switches.values(), *(link.kind for link in layout.links)]):
            fabric = overrides[kind] if overrides and kind in overrides else fabrics.fabric(kind)
            model = fabric.network(on_drop=on_drop)
            self._models[kind] = fabric, model, Driver(loop, model)
        for link in layout.links:
            _, model, driver = self._models[link.kind]
            a, b = (SwitchPort(end.owner, int(end.port)) if end.owner in switches else None for end in (link.a, link.b))
            for direction in BOTH:
                impairment, start, end = (link.forward, a, b) if direction == "forward" else (link.backward, b, a)
                channel = model.join(link.name, direction, impairment, options, start, end)
                link_direction = SimDirection(link, direction, channel, driver)
                if recording is not None:
                    recording.record_direction(link_direction)
                self.link_directions[link.name, direction] = link_direction
                self._outgoing[link_direction.source] = self._incoming[link_direction.end] = link_direction
        for kind, (fabric, model, _) in self._models.items():
            model.set_switches(
                {switch.name: fabric.table(layout, switch) for switch in layout.switches if switch.kind == kind}
            )

    def outgoing(self, end: End) -> SimDirection:
        """Return the direction that starts at this end."""
        return self._outgoing[end]

    def incoming(self, end: End) -> SimDirection:
        """Return the direction that ends at this end."""
        return self._incoming[end]

    def set_receiver(self, end: End, receive: Receive) -> None:
        """Deliver frames that arrive at this end, which is a NIC's, to `receive` from now on."""
        if self._recording is not None:
            receive = self._recording.capture_arrivals(end, receive)
        self._incoming[end].set_receiver(receive)

    @property
    def switch_counters(self) -> dict[str, Mapping[str, int]]:
        """Counters of dropped frames, by name of the modelled switch and by cause."""
        return {
            name: counters for _, model, _ in self._models.values() for name, counters in model.switch_counters.items()
        }
