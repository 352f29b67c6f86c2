"""The draft of a plan: its operations so far, and the kernel's state as they leave it.

The steps of the planner read it and append to it. Links, ports and stages have state of their own, in their modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.interface_indexes import InterfaceIndexes
from testbed.cluster.plan.kernel_operations import Operation, RemoveDevice, SetDown, SetUp
from testbed.cluster.plan.link_services import LinkServices
from testbed.cluster.plan.veth_wiring import Device, Wiring
from testbed.kernel.rtnl_dump import Contents, Interface
from testbed.lazy_dataclass import dataclass
from testbed.spec.layout import Layout, Node

NOTHING = Contents()


@dataclass(frozen=True, slots=True)
class ExistingState:
    """The existing state: the contents of each namespace by key, the limits in force by node, and records of earlier
    changes.

    nics: of earlier layouts; in a node, only these and the wanted ones are ours. nodes, link_services: of the layout
    before.
    """

    namespaces: Mapping[str, Contents] = field(default_factory=dict)
    limits: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    nics: frozenset[Device] = frozenset()
    nodes: Mapping[str, Node] = field(default_factory=dict)
    link_services: LinkServices = field(default_factory=dict)


class Draft:
    """A plan in the making.

    bridges: the switches that are kernel bridges. kept: the existing interfaces that match the wanted layout. down: the
    wire-side devices of links that are to be down. up: the devices that are up, as far as the plan goes. patched: the
    ends of patches and stages. late_removals: of patches; slow in the kernel, so they come last. parted: indexes whose
    hook is removed.
    """

    def __init__(self, wanted: Layout, existing: ExistingState, link_services: LinkServices) -> None:
        self.wanted = wanted
        self.existing = existing
        self.link_services = link_services
        modelled = wanted.modelled()
        self.bridges = [switch for switch in wanted.switches if switch.name not in modelled]
        self.wiring = Wiring.of(wanted, {name: link_service.datapath for name, link_service in link_services.items()})
        self.wire = existing.namespaces.get(namespace_names.WIRE, NOTHING)
        self.by_index = {interface.index: interface for interface in self.wire.interfaces.values()}
        self.operations: list[Operation] = []
        self.kept = self._intact()
        self.down = self._down()
        self.up = {device for device, found in self.kept.items() if found.up}
        cables = [cable for cable in self.wiring.cables if cable.near[0] != namespace_names.WIRE]
        direct = {end for cable in cables for end in (cable.near, cable.far)}
        self.index = InterfaceIndexes(existing.namespaces, self.kept, direct).of
        self._number()
        self.patched = {end for cable in self.wiring.cables if cable.patch for end in (cable.near, cable.far)}
        self.late_removals: list[RemoveDevice] = []
        self.parted: set[int] = set()

    def _intact(self) -> dict[Device, Interface]:
        """The existing interfaces that match the wanted layout: switches, and cables with both ends."""
        kept = {}
        for switch in self.bridges:
            device = (namespace_names.WIRE, namespace_names.switch(switch.name))
            found = self.found(device)
            if found is not None and found.kind == "bridge":
                kept[device] = found
        for cable in self.wiring.cables:
            near, far = self.found(cable.near), self.found(cable.far)
            if near is not None and far is not None and is_pair(near, far):
                kept[cable.near] = near
                kept[cable.far] = far
        for device, (_, tunnel) in self.wiring.tunnels.items():
            found = self.found(device)
            if found is not None and found.kind == "vxlan" and found.alias == tunnel.alias:
                kept[device] = found
        return kept

    def _down(self) -> set[Device]:
        found: set[Device] = set()
        direct = {link.name for link in self.wanted.links if link.datapath == "direct"}
        for name, devices in self.wiring.of_link.items():
            if name in self.link_services and self.link_services[name].down:
                if not devices and name in direct:
                    raise ValueError(f"{name} is declared direct: it has no end here that could be set down")
                found.update(devices)
        return found

    def _number(self) -> None:
        """Assign indexes, patches last, so that the other indexes do not depend on patches."""
        for switch in self.bridges:
            self.bridge_index(switch.name)
        for cable in sorted(self.wiring.cables, key=lambda cable: cable.patch):
            self.index(cable.near)
            self.index(cable.far)
        for device in self.wiring.tunnels:
            self.index(device)

    def found(self, device: Device) -> Interface | None:
        return self.existing.namespaces.get(device[0], NOTHING).interfaces.get(device[1])

    def kept_in_wire(self) -> dict[Device, Interface]:
        """The kept interfaces of the wire namespace."""
        return {device: found for device, found in self.kept.items() if device[0] == namespace_names.WIRE}

    def kept_indexes(self) -> set[int]:
        """The indexes of the kept interfaces of the wire namespace."""
        return {found.index for found in self.kept_in_wire().values()}

    def bridge_index(self, switch: str) -> int:
        return self.index((namespace_names.WIRE, namespace_names.switch(switch)))

    def switch_index(self, device: Device) -> int:
        """The index of the switch that a device is to be plugged into; 0: none."""
        switch = self.wiring.plugged.get(device)
        return self.bridge_index(switch) if switch is not None else 0

    def set_up(self, device: Device) -> None:
        if device not in self.up and device not in self.down:
            self.operations.append(SetUp(*device, self.index(device)))
            self.up.add(device)

    def set_down(self, device: Device) -> None:
        self.operations.append(SetDown(*device, self.index(device)))
        self.up.discard(device)


def is_pair(near: Interface, far: Interface) -> bool:
    """Whether two interfaces are the ends of one veth pair."""
    return near.kind == far.kind == "veth" and near.peer == far.index and far.peer == near.index
