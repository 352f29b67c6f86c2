"""The plan: wanted layout + what the kernel has -> the kernel operations that lead from one to the other, in order.

Pure: it touches nothing. What is there is judged by what the kernel reports, not by what was once recorded: somebody
may have removed a link by hand, or an earlier change may have been killed half-way. The wire namespace is ours alone and
is made exact; in a node's namespace only the NICs of the layout, their addresses and the static routes are ours.

Where a running link is spliced, all that it will need is there and set before its frames take the new way: the patch is
plugged in and up, offloads are off, disciplines stand. Then its old end leaves the switch, and only then are the free
ends joined: at no moment do both ways carry a frame. A link that a process carries is not joined: that process reads the
free ends, and must do so neither before such a plan has been carried out nor after another way has been opened.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

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
    RemoveLoss,
    RemoveNamespace,
    RemoveQdisc,
    RemoveRoute,
    SetDevice,
    SetDown,
    SetLimits,
    SetLoss,
    SetOffloads,
    SetPort,
    SetRouting,
    SetSurroundings,
    SetUp,
)
from testbed.cluster.treatments import Treatments
from testbed.cluster.wiring import Cable, Device, Wiring
from testbed.kernel.offloads import Offloads
from testbed.kernel.survey import Contents, Interface
from testbed.spec.layout import Layout, Nic, Node, Switch

if TYPE_CHECKING:
    from testbed.cluster.disciplines import Discipline

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
    """What is there: the contents of each namespace by its key, the limits in force by node, and what an earlier change
    recorded: the NICs (in a node, only these and the wanted ones are ours), the nodes, and how links were treated."""

    namespaces: Mapping[str, Contents] = field(default_factory=dict)
    limits: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    nics: frozenset[Device] = frozenset()
    nodes: Mapping[str, Node] = field(default_factory=dict)
    treatments: Treatments = field(default_factory=dict)


def plan(
    wanted: Layout,
    existing: Existing,
    treatments: Treatments = MappingProxyType({}),
    files: Mapping[str, str] = MappingProxyType({}),
    whole: frozenset[Device] = frozenset(),
) -> list[Operation]:
    """The operations that turn what exists into what is wanted; none when they are equal.

    treatments: of the layout's links. files: path -> text of the tables that their impairments name. whole: devices on
    which nothing unfinished is to be sent, whatever their links are. ValueError when a link that is declared direct is to be
    treated; UnsupportedError, BrokenFileError and NotFoundError for what its datapath cannot do, or for its files.
    """
    return _Planner(wanted, existing, treatments, files, whole).plan()


class _Planner:
    def __init__(
        self,
        wanted: Layout,
        existing: Existing,
        treatments: Treatments,
        files: Mapping[str, str],
        whole: frozenset[Device],
    ) -> None:
        self.whole = whole
        self.wanted = wanted
        self.existing = existing
        self.treatments = treatments
        self.bridges = [switch for switch in wanted.switches if switch.name not in wanted.crossbars()]
        self.wiring = Wiring(wanted, [name for name, treatment in treatments.items() if treatment.spliced])
        self.wire = existing.namespaces.get(names.WIRE, _NOTHING)
        self.operations: list[Operation] = []
        self.kept = self._intact()
        self.down = self._down()
        self.replugged: set[str] = set()  # kept wire-side devices whose port settings are the kernel's defaults again
        self.up = {device for device, found in self.kept.items() if found.up}  # as far as the plan goes
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
        self.free_ends = {end for splice in self.wiring.splices.values() for end in (splice.a, splice.b)}
        self._number()
        self.late_removals: list[
            RemoveDevice
        ] = []  # of patches: it takes the kernel long, and nobody should wait for it
        self.joins = self._joins()
        self.parted: set[int] = set()  # indexes whose hook is taken away
        self.joined = self._joined()
        self.disciplines = self._disciplines(files)

    def plan(self) -> list[Operation]:
        self._retire()
        self._make_namespaces()
        for switch in self.bridges:
            self._make_switch(switch)
        self._take_down()
        self._part()
        self._remove_disciplines()
        for cable in self.wiring.cables:
            self._make_cable(cable)
        # A port that stops flooding does so before another begins: the ports that flood never form a cycle.
        changes = [change for switch in self.bridges for change in self._port_changes(switch)]
        changes.sort(key=lambda change: change.flooding)
        self.operations += changes
        for cable in self.wiring.cables:
            if cable.patch:
                self._set_up(cable.near)
                self._set_up(cable.far)
        self._lower_offloads()
        self._set_disciplines()
        self._unplug_spliced()
        for join in self.joins:
            self._join(*join)
        for switch in self.bridges:
            self._set_forwarding(switch)
        self._forget_learned()
        for device in self.wiring.wire_devices:
            self._set_up(device)
        self._raise_offloads()
        for node in self.wanted.nodes:
            self._configure(node)
        self.operations += self.late_removals
        return self.operations

    def _found(self, device: Device) -> Interface | None:
        return self.existing.namespaces.get(device[0], _NOTHING).interfaces.get(device[1])

    def _index(self, device: Device) -> int:
        """The index of a device, kept or yet to be made; one that is made anew gets its old index back."""
        if device not in self.indexes:
            self.indexes[device] = self._new_index(device)
        return self.indexes[device]

    def _number(self) -> None:
        """Patches come last: the other indexes are the same with and without them."""
        for switch in self.bridges:
            self._index((names.WIRE, names.switch(switch.name)))
        for cable in sorted(self.wiring.cables, key=lambda cable: cable.patch):
            self._index(cable.near)
            self._index(cable.far)

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
        for switch in self.bridges:
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
        wanted = set(self.wiring.wire_devices)
        patches = {end for name in self.wire.interfaces for end in names.patch(name)}
        idle = {end for key, name in self.kept if key == names.WIRE for end in names.patch(name)}
        for name, interface in self.wire.interfaces.items():
            if name == "lo" or interface.kind in _KERNELS_OWN or (names.WIRE, name) in self.kept:
                continue
            removal = RemoveDevice(names.WIRE, name, interface.index)
            if name in idle and (names.WIRE, name) not in wanted:
                self.late_removals.append(removal)
                continue
            self.operations.append(removal)
            if interface.kind == "veth" and interface.peer in wire_indexes and name not in patches:
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
                    up=self._made_up(cable.near),
                    peer_key=cable.far[0],
                    peer_device=cable.far[1],
                    peer_index=self._index(cable.far),
                    peer_mac=cable.far_mac,
                    mtu=cable.mtu,
                    patch=cable.patch,
                )
            )
            if far_switch := self._switch_index(cable.far):
                self._plug(cable.far, far_switch)
            return
        for device, mac in ((cable.near, cable.near_mac), (cable.far, cable.far_mac)):
            found = self.kept[device]
            if device[0] == names.WIRE and found.master != self._switch_index(device) and device not in self.free_ends:
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
        if device in self.kept:
            found = self.kept[device]
            if switch and device in self.up and self._is_trunk(found) and device in self.wiring.planned_ports:
                self._set_down(device)  # until its settings are made: a new port floods
            self.rerouted = self.rerouted or self._port_before(device) != self._port_after(device)
        patch = self._old_patch(device)
        if switch and patch is not None and patch.master:
            self.operations.append(SetDevice(names.WIRE, patch.name, patch.index, switch=0))
        self.operations.append(SetDevice(*device, index, switch=switch))
        self.replugged.add(device[1])

    def _is_trunk(self, found: Interface) -> bool:
        return any(other.index == found.peer and _paired(found, other) for other in self.wire.interfaces.values())

    def _port_before(self, device: Device) -> int:
        """The switch at whose port a kept device was, itself or by its patch; 0 for none."""
        patch = self._old_patch(device)
        return self.kept[device].master or (patch.master if patch is not None else 0)

    def _old_patch(self, device: Device) -> Interface | None:
        """The plugged end of the patch that a device has had, if it is there."""
        return self.wire.interfaces.get(names.patch(device[1])[0])

    def _port_after(self, device: Device) -> int:
        return self._switch_index(device) or self._switch_index((names.WIRE, names.patch(device[1])[0]))

    # What is done to frames between the ends of a link

    def _joins(self) -> list[tuple[str, Device, Device]]:
        """Links between two nodes, and spliced ones that the kernel carries."""
        spliced = [
            (name, splice.a, splice.b)
            for name, splice in self.wiring.splices.items()
            if self.treatments[name].datapath != "relay"
        ]
        return self.wiring.joins + spliced

    def _disciplines(self, files: Mapping[str, str]) -> list[Discipline]:
        if not self.wiring.splices:
            return []
        from testbed.cluster.disciplines import disciplines  # encoders, which an unimpaired cluster does not need

        mtus = {device: cable.mtu for cable in self.wiring.cables for device in (cable.near, cable.far)}
        return [
            wish
            for name, splice in self.wiring.splices.items()
            for wish in disciplines(
                name,
                self.treatments[name],
                self.existing.treatments.get(name),
                splice,
                self._index,
                mtu=mtus[splice.a],
                seed=self.wanted.seed,
                files=files,
            )
        ]

    def _joined(self) -> set[int]:
        """The indexes of those that are joined, both ways, as they are to be."""
        kept = {found.index for device, found in self.kept.items() if device[0] == names.WIRE}
        pairs = [(self._index(one), self._index(other)) for _, one, other in self.joins]
        outs = self.wire.redirections
        return {end for a, b in pairs if {a, b} <= kept and outs.get(a) == b and outs.get(b) == a for end in (a, b)}

    def _part(self) -> None:
        """Undo redirections that are not to be, and take away hooks that nothing needs."""
        wanted = {self._index(end) for _, *ends in self.joins for end in ends}
        for device, found in self.kept.items():
            if device[0] != names.WIRE or found.index in self.joined:
                continue
            if found.index in self.wire.redirections or (found.index in self.wire.hooks and found.index not in wanted):
                self.operations.append(Part(device[1], found.index))
                self.parted.add(found.index)
        for removal in self.late_removals:
            if removal.index in self.wire.redirections:
                self.operations.append(Part(removal.device, removal.index))

    def _join(self, label: str, one: Device, other: Device) -> None:
        if self._index(one) not in self.joined:
            self.operations.append(Join(label, one[1], self._index(one), other[1], self._index(other)))

    def _remove_disciplines(self) -> None:
        """What stands on a device that stays, and is not to be replaced by another."""
        losing = {wish.index for wish in self.disciplines if isinstance(wish, SetLoss)}
        queueing = {wish.index for wish in self.disciplines if not isinstance(wish, SetLoss)}
        for device, found in self.kept.items():
            if device[0] != names.WIRE:
                continue
            if found.index in self.wire.qdiscs and found.index not in queueing:
                self.operations.append(RemoveQdisc(device[1], found.index))
            if found.index in self.wire.classifiers and found.index not in losing | self.parted:
                self.operations.append(RemoveLoss(device[1], found.index))

    def _set_disciplines(self) -> None:
        if self.disciplines:
            from testbed.cluster.disciplines import in_force
        for wish in self.disciplines:
            if not in_force(wish, self.wire) or (isinstance(wish, SetLoss) and wish.index in self.parted):
                self.operations.append(wish)

    def _unplug_spliced(self) -> None:
        """The old ends of links whose patches are ready leave their switches."""
        for device in sorted(self.free_ends):
            if device in self.kept and self.kept[device].master:
                self._plug(device, 0)

    def _offloads_wanted(self) -> dict[Device, Offloads]:
        """Which unfinished frames those may take that send towards free ends or Myrinet's switches, and those that agents
        have; all others take all."""
        return {
            device: Offloads.TCP if pieces else Offloads.NONE
            for name, splice in self.wiring.splices.items()
            for device, pieces in zip(splice.senders, self.treatments[name].pieces, strict=True)
        } | dict.fromkeys((*self.wiring.uplinks, *self.whole), Offloads.NONE)

    def _lower_offloads(self) -> None:
        for device, wanted in self._offloads_wanted().items():
            taken = self._offloads(device)
            if taken is not None and taken > wanted:
                self.operations.append(SetOffloads(*device, self._index(device), wanted))

    def _raise_offloads(self) -> None:
        wanted = self._offloads_wanted()
        for device, found in self.kept.items():
            taken, wish = self._offloads(device), wanted.get(device, Offloads.ALL)
            if found.kind == "veth" and taken is not None and taken < wish:
                self.operations.append(SetOffloads(*device, found.index, wish))

    def _offloads(self, device: Device) -> Offloads | None:
        """Which unfinished frames a device takes; one that is made takes all. None where the kernel does not tell."""
        if device not in self.kept:
            return Offloads.ALL
        return self.existing.namespaces[device[0]].offloads.get(self.kept[device].index)

    # Links that are down

    def _down(self) -> set[Device]:
        """The wire-side devices of links that are to be down."""
        found: set[Device] = set()
        direct = {link.name for link in self.wanted.links if link.datapath == "direct"}
        for name, devices in self.wiring.of_link.items():
            if name in self.treatments and self.treatments[name].down:
                if not devices and name in direct:
                    raise ValueError(f"{name} is declared direct: it has no end here that could be set down")
                found.update(devices)
        return found

    def _take_down(self) -> None:
        for device in sorted(self.down & self.up):
            self._set_down(device)

    def _set_down(self, device: Device) -> None:
        self.operations.append(SetDown(*device, self._index(device)))
        self.up.discard(device)

    def _made_up(self, device: Device) -> bool:
        if device not in self.wiring.made_up or device in self.down:
            return False
        self.up.add(device)
        return True

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
        for switch in self.bridges:
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
        if device not in self.up and device not in self.down:
            self.operations.append(SetUp(*device, self._index(device)))
            self.up.add(device)

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
