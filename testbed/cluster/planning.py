"""The plan: wanted layout + what the kernel has -> the kernel operations that lead from one to the other, in order.

Pure: it touches nothing. What is there is judged by what the kernel reports, not by what was once recorded: somebody
may have removed a link by hand, or an earlier change may have been killed half-way. The wire namespace is ours alone and
is made exact; in a node's namespace only the NICs of the layout, their addresses and the static routes are ours.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.cluster import names
from testbed.cluster.operations import (
    AddAddress,
    AddForwarding,
    AddRoute,
    ForgetLearned,
    Join,
    MakeCable,
    MakeNamespace,
    MakeSwitch,
    Operation,
    Part,
    RemoveAddress,
    RemoveDevice,
    RemoveForwarding,
    RemoveNamespace,
    RemoveRoute,
    SetDevice,
    SetLimits,
    SetPort,
    SetRouting,
    SetSurroundings,
    SetUp,
)
from testbed.cluster.wiring import Cable, Device, Wiring
from testbed.kernel.survey import Contents, Interface
from testbed.spec.layout import Layout, Nic, Node, Switch

# Which veth ends belong together is seen by their telling each other's index. So the indexes in the wire namespace are
# none that a node has, and the two ends of a direct link have indexes that occur nowhere else in the cluster. The first
# hundred of every namespace are left to the kernel, which makes interfaces of its own where tunnel modules are loaded.
FIRST_NODE_INDEX = 101
FIRST_WIRE_INDEX = 1001
FIRST_DIRECT_INDEX = 1_000_001

# The kernel's own interfaces in a new namespace; they cannot be removed.
_KERNELS_OWN = {"ipip", "sit", "gre", "gretap", "erspan", "vti", "ip6tnl", "ip6gre", "ip6gretap", "ip6erspan", "vti6"}

_NOTHING = Contents()


@dataclass(frozen=True, slots=True)
class Existing:
    """What is there: the contents of each namespace by its key, the limits in force by node, and what an earlier layout
    recorded: the NICs (in a node, only these and the wanted ones are ours) and the nodes."""

    namespaces: Mapping[str, Contents] = field(default_factory=dict)
    limits: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    nics: frozenset[Device] = frozenset()
    nodes: Mapping[str, Node] = field(default_factory=dict)


def plan(wanted: Layout, existing: Existing) -> list[Operation]:
    """The operations that turn what exists into what is wanted; none when they are equal."""
    return _Planner(wanted, existing).plan()


class _Planner:
    def __init__(self, wanted: Layout, existing: Existing) -> None:
        self.wanted = wanted
        self.existing = existing
        self.wiring = Wiring(wanted)
        self.wire = existing.namespaces.get(names.WIRE, _NOTHING)
        self.operations: list[Operation] = []
        self.kept = self._intact()
        self.replugged: set[str] = set()  # kept wire-side devices whose port settings are the kernel's defaults again
        self.indexes = {device: interface.index for device, interface in self.kept.items()}
        taken = {
            key: [interface.index for interface in contents.interfaces.values()]
            for key, contents in existing.namespaces.items()
        }
        self.next_index = {
            key: max((index for index in indexes if index < FIRST_DIRECT_INDEX), default=0) + 1
            for key, indexes in taken.items()
        }
        cables = [cable for cable in self.wiring.cables if cable.near[0] != names.WIRE]
        self.direct = {end for cable in cables for end in (cable.near, cable.far)}
        self.next_direct_index = max(
            (index + 1 for indexes in taken.values() for index in indexes if index >= FIRST_DIRECT_INDEX),
            default=FIRST_DIRECT_INDEX,
        )
        self.rerouted = False  # whether frames now take other ways than the switches have learned

    def plan(self) -> list[Operation]:
        self._retire()
        self._make_namespaces()
        for switch in self.wanted.switches:
            self._make_switch(switch)
        for cable in self.wiring.cables:
            self._make_cable(cable)
        for join in self.wiring.joins:
            self._join(*join)
        # A port that stops flooding does so before another begins: the ports that flood never form a cycle.
        changes = [change for switch in self.wanted.switches for change in self._port_changes(switch)]
        changes.sort(key=lambda change: change.flooding)
        self.operations += changes
        for switch in self.wanted.switches:
            self._set_forwarding(switch)
        self._forget_learned()
        for device in self.wiring.wire_devices:
            self._set_up(device)
        for node in self.wanted.nodes:
            self._configure(node)
        return self.operations

    def _found(self, device: Device) -> Interface | None:
        return self.existing.namespaces.get(device[0], _NOTHING).interfaces.get(device[1])

    def _index(self, device: Device) -> int:
        """The index of a device, kept or yet to be made; one that is made anew gets its old index back."""
        if device not in self.indexes:
            self.indexes[device] = self._new_index(device)
        return self.indexes[device]

    def _new_index(self, device: Device) -> int:
        old = self._found(device)
        key = device[0]
        if device in self.direct:
            if old is not None and old.index >= FIRST_DIRECT_INDEX:
                return old.index
            self.next_direct_index += 1
            return self.next_direct_index - 1
        if old is not None and old.index < FIRST_DIRECT_INDEX:
            return old.index
        first = FIRST_NODE_INDEX if key else FIRST_WIRE_INDEX
        index = max(self.next_index.get(key, 0), first)
        self.next_index[key] = index + 1
        return index

    # What stays and what goes

    def _intact(self) -> dict[Device, Interface]:
        """The interfaces of the wanted layout that are there: switches, and cables with both ends."""
        kept = {}
        for switch in self.wanted.switches:
            device = (names.WIRE, names.switch(switch.name))
            found = self._found(device)
            if found is not None and found.kind == "bridge":
                kept[device] = found
        for cable in self.wiring.cables:
            near, far = self._found(cable.near), self._found(cable.far)
            if near is not None and far is not None and _paired(near, far):
                kept[cable.near] = near
                kept[cable.far] = far
        return kept

    def _retire(self) -> None:
        nodes = {node.name for node in self.wanted.nodes}
        ours = self.existing.nics | {(node.name, nic.name) for node in self.wanted.nodes for nic in node.nics}
        wire_indexes = {interface.index for interface in self.wire.interfaces.values()}
        for name, interface in self.wire.interfaces.items():
            if name == "lo" or interface.kind in _KERNELS_OWN or (names.WIRE, name) in self.kept:
                continue
            self.operations.append(RemoveDevice(names.WIRE, name, interface.index))
            if interface.kind == "veth" and interface.peer in wire_indexes:
                self.rerouted = True
        for key, name in sorted(ours):
            nic = self._found((key, name))
            if nic is None or (key, name) in self.kept or key not in nodes:
                continue
            wire_end = self.wire.interfaces.get(names.far_end(key, name))
            if wire_end is None or not _paired(nic, wire_end):  # otherwise it goes with its other end
                self.operations.append(RemoveDevice(key, name, nic.index))
        for key in self.existing.namespaces:
            if key != names.WIRE and key not in nodes:
                self.operations.append(RemoveNamespace(key))

    # What has to come

    def _make_namespaces(self) -> None:
        for key in [names.WIRE, *(node.name for node in self.wanted.nodes)]:
            if key not in self.existing.namespaces:
                self.operations.append(MakeNamespace(key))
        for node in self.wanted.nodes:
            found = self.existing.namespaces.get(node.name)
            self._set_routing(node, found)
            limits = (node.cpu_share, node.memory)
            if limits != self.existing.limits.get(node.name, (0.0, 0)):
                self.operations.append(SetLimits(node.name, *limits))
            before = self.existing.nodes.get(node.name, node)
            if found is not None and _surroundings(before) != _surroundings(node):
                self.operations.append(SetSurroundings(node.name))

    def _set_routing(self, node: Node, found: Contents | None) -> None:
        if len(node.nics) < 2:  # it has nowhere to route to, whatever its namespace inherited from the machine
            return
        for version in (4, 6):
            wished = node.forwards and (version == 4 or _has_ipv6(node))
            # A new namespace may have inherited the machine's own setting, of IPv4 only.
            if wished != (version in found.routing) if found is not None else wished or version == 4:
                self.operations.append(SetRouting(node.name, version, wished))

    def _make_switch(self, switch: Switch) -> None:
        device = (names.WIRE, names.switch(switch.name))
        if device not in self.kept:
            self.operations.append(
                MakeSwitch(switch.name, device[1], self._index(device), names.switch_mac(switch.name))
            )
        elif not self.kept[device].up:
            self.operations.append(SetUp(*device, self._index(device)))

    def _make_cable(self, cable: Cable) -> None:
        switch = self._switch_index(cable.near)
        if cable.near not in self.kept:
            self.operations.append(
                MakeCable(
                    label=cable.label,
                    key=cable.near[0],
                    device=cable.near[1],
                    index=self._index(cable.near),
                    mac=cable.near_mac,
                    switch=switch,
                    up=cable.near not in self.wiring.planned_ports,
                    peer_key=cable.far[0],
                    peer_device=cable.far[1],
                    peer_index=self._index(cable.far),
                    peer_mac=cable.far_mac,
                    mtu=cable.mtu,
                )
            )
            if far_switch := self._switch_index(cable.far):
                self._plug(cable.far, far_switch)
            return
        for device, mac in ((cable.near, cable.near_mac), (cable.far, cable.far_mac)):
            found = self.kept[device]
            if device[0] == names.WIRE and found.master != self._switch_index(device):
                self._plug(device, self._switch_index(device))
            new_mtu = cable.mtu if found.mtu != cable.mtu else None
            new_mac = mac if mac and found.mac != mac else None
            if new_mtu is not None or new_mac is not None:
                self.operations.append(SetDevice(*device, found.index, mtu=new_mtu, mac=new_mac))

    def _switch_index(self, device: Device) -> int:
        """The index of the switch that a device is to be plugged into, 0 for none."""
        switch = self.wiring.plugged.get(device)
        return self._index((names.WIRE, names.switch(switch))) if switch is not None else 0

    def _plug(self, device: Device, switch: int) -> None:
        index = self._index(device)
        if index in self.wire.redirections and device in self.kept:
            self.operations.append(Part(device[1], index))
        self.operations.append(SetDevice(*device, index, switch=switch))
        self.replugged.add(device[1])
        self.rerouted = self.rerouted or device in self.kept

    def _join(self, label: str, one: Device, other: Device) -> None:
        a, b = self._index(one), self._index(other)
        redirections = {index: out for index, out in self.wire.redirections.items() if index in (a, b)}
        if one in self.kept and other in self.kept and redirections == {a: b, b: a}:
            return
        for device, index in ((one, a), (other, b)):
            if device in self.kept and index in redirections:
                self.operations.append(Part(device[1], index))
        self.operations.append(Join(label, one[1], a, other[1], b))

    def _port_changes(self, switch: Switch) -> list[SetPort]:
        changes = []
        for number, device in self.wiring.ports[switch.name].items():
            wished = (switch.learns, switch.learns or number in switch.tree)
            if wished != self._port_settings(device):
                changes.append(SetPort(device[1], self._index(device), *wished))
        return changes

    def _set_forwarding(self, switch: Switch) -> None:
        bridge = self._index((names.WIRE, names.switch(switch.name)))
        ports = {number: self._index(device) for number, device in self.wiring.ports[switch.name].items()}
        table = {mac: ports[number] for mac, number in switch.forwarding.items()}
        names_of = {self._index(device): device for device in self.wiring.ports[switch.name].values()}
        for (found_bridge, mac), port in self.wire.forwarding.items():
            if found_bridge == bridge and mac not in table and port in names_of and self._undisturbed(names_of[port]):
                self.operations.append(RemoveForwarding(switch.name, port, mac))
        for mac, port in table.items():
            if self.wire.forwarding.get((bridge, mac)) != port or not self._undisturbed(names_of[port]):
                self.operations.append(AddForwarding(switch.name, names_of[port][1], port, mac))

    def _forget_learned(self) -> None:
        """Where links went elsewhere, what switches learned before would lead frames astray until it is five minutes old."""
        if not self.rerouted:
            return
        for switch in self.wanted.switches:
            device = (names.WIRE, names.switch(switch.name))
            if switch.learns and device in self.kept:
                self.operations.append(ForgetLearned(switch.name, self._index(device)))

    def _undisturbed(self, device: Device) -> bool:
        """Whether the plan leaves a port plugged in as it was, so that its settings and entries hold."""
        return device in self.kept and device[1] not in self.replugged

    def _port_settings(self, device: Device) -> tuple[bool, bool]:
        if self._undisturbed(device):
            return self.kept[device].learning, self.kept[device].flooding
        return True, True

    def _set_up(self, device: Device) -> None:
        found = self.kept.get(device)
        up = found.up if found is not None else device in self.wiring.made_up
        if not up:
            self.operations.append(SetUp(*device, self._index(device)))

    def _configure(self, node: Node) -> None:
        """Addresses and routes; an interface comes up before its routes, which the kernel refuses otherwise."""
        contents = self.existing.namespaces.get(node.name, _NOTHING)
        wanted_routes = {(route.destination, route.via) for route in node.routes}
        for destination, via in sorted(contents.routes - wanted_routes):
            self.operations.append(RemoveRoute(node.name, destination, via))
        moved = False  # a vanishing address takes the routes over its network with it
        for nic in node.nics:
            device = (node.name, nic.name)
            index = self._index(device)
            kept = device in self.kept
            had = contents.addresses.get(index, frozenset()) if kept else frozenset()
            wanted = _addresses(node, nic)
            obsolete = had - set(wanted)
            moved = moved or not kept or bool(obsolete)
            for address in sorted(obsolete):
                self.operations.append(RemoveAddress(*device, index, address))
            if any(":" not in address for address in obsolete):
                # An IPv4 address can take with it those that came later in the same network (its "secondaries").
                had = frozenset(address for address in had if ":" in address)
            for address in wanted:
                if address not in had:
                    self.operations.append(AddAddress(*device, index, address))
            self._set_up(device)
            moved = moved or not (kept and self.kept[device].up)
        for route in node.routes:
            if moved or (route.destination, route.via) not in contents.routes:
                self.operations.append(AddRoute(node.name, route.destination, route.via))


def _has_ipv6(node: Node) -> bool:
    return any(":" in address for nic in node.nics for address in nic.addresses)


def _addresses(node: Node, nic: Nic) -> tuple[str, ...]:
    """What a NIC is to have. A router of IPv6 has link-local addresses too (RFC 4291, appendix A): the kernel asks for the
    neighbours that it forwards to from no other, and asks nobody when there is none."""
    if not node.forwards or not any(":" in address for address in nic.addresses):
        return nic.addresses
    mac = bytes.fromhex(nic.mac.replace(":", ""))
    identifier = bytes([mac[0] ^ 2, *mac[1:3], 0xFF, 0xFE, *mac[3:]])
    return (*nic.addresses, f"{ipaddress.IPv6Address(bytes([0xFE, 0x80, *bytes(6)]) + identifier)}/64")


def _surroundings(node: Node) -> tuple[object, ...]:
    """What programs in a node find that is no kernel object."""
    return node.cpus, dict(node.environment), dict(node.files)


def _paired(one: Interface, other: Interface) -> bool:
    return one.kind == other.kind == "veth" and one.peer == other.index and other.peer == one.index
