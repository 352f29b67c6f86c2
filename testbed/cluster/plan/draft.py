"""The draft of a plan: its operations so far, and the kernel's state after them.

The steps of the planner read it and append operations to it. The state of ports, joins, diversions and stages is in their
own modules.
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

NO_CONTENTS = Contents()


@dataclass(frozen=True, slots=True)
class ExistingState:
    """The existing kernel state, and records of earlier changes.

    namespaces: contents of the namespaces, by key. limits: processor share and memory limit in force, by node. nics: NICs of
    earlier layouts; other interfaces in nodes are not managed. nodes: nodes of the previous layout, by name. link_services:
    services of the previous layout's links, if the kernel impaired any.
    """

    namespaces: Mapping[str, Contents] = field(default_factory=dict)
    limits: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    nics: frozenset[Device] = frozenset()
    nodes: Mapping[str, Node] = field(default_factory=dict)
    link_services: LinkServices = field(default_factory=dict)


class Draft:
    """An unfinished plan.

    bridges: the switches that are kernel bridges. wire: contents of the wire namespace. kept: the existing interfaces that
    match the desired layout. down: the wire-side devices of links that are to be down. up: the devices that are up after the
    operations so far. patched: the ends of patches and stages. late_removals: removals of patches and stages that may still
    carry frames; they are slow in the kernel. parted: indexes whose hook is removed.
    """

    def __init__(self, desired: Layout, existing: ExistingState, link_services: LinkServices) -> None:
        self.desired = desired
        self.existing = existing
        self.link_services = link_services
        modelled = desired.simulated_switches()
        self.bridges = [switch for switch in desired.switches if switch.name not in modelled]
        self.wiring = Wiring.from_datapaths(
            desired, {name: link_service.datapath for name, link_service in link_services.items()}
        )
        self.wire = existing.namespaces.get(namespace_names.WIRE, NO_CONTENTS)
        self.by_index = {interface.index: interface for interface in self.wire.interfaces.values()}
        self.operations: list[Operation] = []
        self.kept = self._matching()
        self.down = self._devices_to_set_down()
        self.up = {device for device, interface in self.kept.items() if interface.up}
        cables = [cable for cable in self.wiring.cables if cable.near[0] != namespace_names.WIRE]
        direct = {end for cable in cables for end in (cable.near, cable.far)}
        self.index = InterfaceIndexes(existing.namespaces, self.kept, direct).index_of
        self._assign_indexes()
        self.patched = {end for cable in self.wiring.cables if cable.patch for end in (cable.near, cable.far)}
        self.late_removals: list[RemoveDevice] = []
        self.parted: set[int] = set()

    def _matching(self) -> dict[Device, Interface]:
        """Return the existing interfaces that match the desired layout: switches, cables with both ends, and tunnels."""
        kept = {}
        for switch in self.bridges:
            device = (namespace_names.WIRE, namespace_names.switch(switch.name))
            bridge = self.existing_interface(device)
            if bridge is not None and bridge.kind == "bridge":
                kept[device] = bridge
        for cable in self.wiring.cables:
            near, far = self.existing_interface(cable.near), self.existing_interface(cable.far)
            if near is not None and far is not None and is_pair(near, far):
                kept[cable.near] = near
                kept[cable.far] = far
        for device, end in self.wiring.tunnels.items():
            vxlan = self.existing_interface(device)
            if vxlan is not None and vxlan.kind == "vxlan" and vxlan.alias == end.tunnel.alias:
                kept[device] = vxlan
        return kept

    def _devices_to_set_down(self) -> set[Device]:
        down: set[Device] = set()
        direct = {link.name for link in self.desired.links if link.datapath == "direct"}
        for name, devices in self.wiring.link_devices.items():
            if name in self.link_services and self.link_services[name].down:
                if not devices and name in direct:
                    raise ValueError(f"{name} is declared direct: it has no end in the wire namespace to set down")
                down.update(devices)
        return down

    def _assign_indexes(self) -> None:
        """Assign indexes, patches last, so that the other indexes do not depend on patches."""
        for switch in self.bridges:
            self.bridge_index(switch.name)
        for cable in sorted(self.wiring.cables, key=lambda cable: cable.patch):
            self.index(cable.near)
            self.index(cable.far)
        for device in self.wiring.tunnels:
            self.index(device)

    def existing_interface(self, device: Device) -> Interface | None:
        """Return the existing interface with a device's name, if any."""
        return self.existing.namespaces.get(device[0], NO_CONTENTS).interfaces.get(device[1])

    def kept_in_wire(self) -> dict[Device, Interface]:
        """Return the kept interfaces of the wire namespace."""
        return {device: interface for device, interface in self.kept.items() if device[0] == namespace_names.WIRE}

    def kept_indexes(self) -> set[int]:
        """Return the indexes of the kept interfaces of the wire namespace."""
        return {interface.index for interface in self.kept_in_wire().values()}

    def bridge_index(self, switch: str) -> int:
        """Return the interface index of a switch's bridge."""
        return self.index((namespace_names.WIRE, namespace_names.switch(switch)))

    def switch_index(self, device: Device) -> int:
        """Return the interface index of the switch that a device is to be plugged into; 0: none."""
        switch = self.wiring.plugged.get(device)
        return self.bridge_index(switch) if switch is not None else 0

    def set_up(self, device: Device) -> None:
        """Set a device up, unless it is already up or its link is to be down."""
        if device not in self.up and device not in self.down:
            self.operations.append(SetUp(*device, self.index(device)))
            self.up.add(device)

    def set_down(self, device: Device) -> None:
        """Set a device down."""
        self.operations.append(SetDown(*device, self.index(device)))
        self.up.discard(device)


def is_pair(near: Interface, far: Interface) -> bool:
    """Whether two interfaces are the ends of one veth pair."""
    return near.kind == far.kind == "veth" and near.peer == far.index and far.peer == near.index
