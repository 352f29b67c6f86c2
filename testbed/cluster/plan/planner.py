"""The planner: derive the ordered kernel operations that turn the existing kernel state into the wanted layout.

Pure: it performs no I/O. It trusts what the kernel reports, not what was recorded: a link may have been removed by
hand, or an earlier change killed half-way. The wire namespace is managed completely; in a node's namespace, only the
NICs of the layout, their addresses and the static routes are ours.

A link that the relay carries stays in place, and its frames are diverted (see `veth_wiring`). Diverting the frames of a
running link comes last in a plan, after all removals; before it, the executor makes the relay listen at the taps.
Ending a diversion is among the first operations.

A running link is spliced and restored without losing a frame, and its two paths never carry a frame at the same time.
Before frames take the long path, everything on it is ready: patch and stage are up and can send, offloads are off,
disciplines are set, and the redirection is prepared. Then the switch stops flooding to the cable's end, frames that come in
there are redirected to the stage, the switch floods to the patch, and finally it forgets what it learned at the cable's end.
Restoring the short path is among the first operations of a plan, in the same order; then the stage is drained. A change that
replaces a discipline in use takes the short path first. Only flooded frames can be lost, between two of these requests.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.operations import (
    AddAddress,
    AddForwarding,
    AddHook,
    AddRoute,
    AwaitCarrier,
    Divert,
    Drain,
    EndRedirect,
    ForgetLearned,
    ForgetPort,
    Join,
    MakeCable,
    MakeNamespace,
    MakeSwitch,
    Operation,
    Part,
    PrepareRedirect,
    Redirect,
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
    Undivert,
)
from testbed.cluster.plan.treatments import Treatments
from testbed.cluster.plan.veth_wiring import Cable, Detour, Device, Stage, Wiring
from testbed.errors import UnsupportedError
from testbed.kernel.diversion import Diversion
from testbed.kernel.offloads import Offloads
from testbed.kernel.rtnl_dump import Contents, Interface
from testbed.spec.kinds import MAX_BRIDGE_PORTS
from testbed.spec.layout import Layout, Nic, Node, Switch

if TYPE_CHECKING:
    from testbed.cluster.plan.disciplines import Discipline

# Two veth ends belong together if each reports the other's index. So no index of the wire namespace occurs in a node, and
# the indexes of a direct link's ends occur nowhere else in the cluster. The first hundred of every namespace are left to
# the kernel, which makes interfaces of its own where tunnel modules are loaded.
FIRST_NODE_INDEX = 101
FIRST_WIRE_INDEX = 1001
FIRST_DIRECT_INDEX = 1_000_001

# The kernel's own interfaces in a new namespace; they cannot be removed.
_KERNELS_OWN = {"ipip", "sit", "gre", "gretap", "erspan", "vti", "ip6tnl", "ip6gre", "ip6gretap", "ip6erspan", "vti6"}

_NOTHING = Contents()


@dataclass(frozen=True, slots=True)
class Existing:
    """The existing state: the contents of each namespace by key, the limits in force by node, and records of earlier
    changes.

    nics: of earlier layouts; in a node, only these and the wanted ones are ours. nodes, treatments: of the layout
    before.
    """

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
    """The operations that turn the existing state into the wanted one; none if they are equal.

    treatments: of the layout's links. files: path -> text of the tables that their impairments name. whole: devices on
    which no GSO frame may be sent, whatever their links are. Raises ValueError if a link that is declared direct is to
    be treated; UnsupportedError, BrokenFileError and NotFoundError for its datapath or its files.
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
        modelled = wanted.modelled()
        self.bridges = [switch for switch in wanted.switches if switch.name not in modelled]
        self.wiring = Wiring.of(wanted, {name: treatment.datapath for name, treatment in treatments.items()})
        self.wire = existing.namespaces.get(namespace_names.WIRE, _NOTHING)
        self.by_index = {interface.index: interface for interface in self.wire.interfaces.values()}
        self.entries: dict[int, dict[str, int]] = {}  # bridge's index -> MAC -> port's index
        for (bridge, mac), port in self.wire.forwarding.items():
            self.entries.setdefault(bridge, {})[mac] = port
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
        cables = [cable for cable in self.wiring.cables if cable.near[0] != namespace_names.WIRE]
        self.direct = {end for cable in cables for end in (cable.near, cable.far)}
        self.next_direct_index = max(
            (index + 1 for indexes in taken.values() for index in indexes if index >= FIRST_DIRECT_INDEX),
            default=FIRST_DIRECT_INDEX,
        )
        self.switches = {switch.name: switch for switch in self.bridges}
        self.muted = {stage.port for stage in self.wiring.stages.values() if stage.port is not None}
        self.patched = {end for cable in self.wiring.cables if cable.patch for end in (cable.near, cable.far)}
        self.rerouted = False  # whether frames now take other paths than the switches have learned
        self._number()
        self.settings: dict[Device, tuple[bool, bool]] = {}  # of ports, as far as the plan has made them
        self.late_removals: list[RemoveDevice] = []  # of patches: slow in the kernel, so they come last
        self.parted: set[int] = set()  # indexes whose hook is removed
        self.joined = self._joined()
        self.diverted = self._diverted()
        self.left: list[Interface] = []  # what redirects, or is prepared to, until all else is done
        self.unhooked: set[int] = set()  # of these the indexes whose hooks go
        self.disciplines = self._disciplines(files)
        self.staged = self._staged()
        self.ways = {found.index: out for found in self.kept.values() if (out := self.wire.staged.get(found.index))}

    def plan(self) -> list[Operation]:
        self._check_ports()
        self._retire()
        self._make_namespaces()
        for switch in self.bridges:
            self._make_switch(switch)
        self._take_down()
        self._undivert()
        self._open_short_ways()
        self._part()
        self._remove_disciplines()
        for cable in self.wiring.cables:
            self._make_cable(cable)
        # Ports stop flooding before others begin, so that flooding ports never form a cycle.
        for change in sorted(self._port_changes(), key=lambda change: change[1][1]):
            self._set_port(*change)
        for cable in self.wiring.cables:
            if cable.patch:
                self._set_up(cable.near)
                self._set_up(cable.far)
        self._lower_offloads()
        self._set_disciplines()
        for join in self.wiring.joins:
            self._join(*join)
        self._take_long_ways()
        self._forget_learned()
        for device in self.wiring.wire_devices:
            self._set_up(device)
        detours = self.wiring.detours
        running = {name for name, detour in detours.items() if self.kept.keys() >= {*detour.ends}}
        self._divert(detours.keys() - running)
        self._raise_offloads()
        for node in self.wanted.nodes:
            self._configure(node)
        for found in self.left:
            if found.index in self.unhooked:
                self.operations.append(Part(found.name, found.index))
            else:
                self.operations.append(EndRedirect(found.name, found.index))
        self.operations += self.late_removals
        self._await_carriers()
        self._divert(running)
        return self.operations

    def _check_ports(self) -> None:
        for switch, ports in Counter(self.wiring.plugged.values()).items():
            if ports > MAX_BRIDGE_PORTS:
                raise UnsupportedError(
                    f"switch {switch} would have {ports:,} ports, and a bridge has {MAX_BRIDGE_PORTS:,} at most: a link "
                    "that netem or tc carries takes two there, one that the relay carries takes one (--datapath relay)"
                )

    def _found(self, device: Device) -> Interface | None:
        return self.existing.namespaces.get(device[0], _NOTHING).interfaces.get(device[1])

    def _index(self, device: Device) -> int:
        """The index of an existing or new device; a device that is made anew keeps its old index."""
        if device not in self.indexes:
            self.indexes[device] = self._new_index(device)
        return self.indexes[device]

    def _number(self) -> None:
        """Assign indexes, patches last, so that the other indexes do not depend on patches."""
        for switch in self.bridges:
            self._index((namespace_names.WIRE, namespace_names.switch(switch.name)))
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
        """The existing interfaces that match the wanted layout: switches, and cables with both ends."""
        kept = {}
        for switch in self.bridges:
            device = (namespace_names.WIRE, namespace_names.switch(switch.name))
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
        patches = {end for name in self.wire.interfaces for end in _additions(name)}
        idle = {end for key, name in self.kept if key == namespace_names.WIRE for end in _additions(name)}
        for name, interface in self.wire.interfaces.items():
            if name == "lo" or interface.kind in _KERNELS_OWN or (namespace_names.WIRE, name) in self.kept:
                continue
            removal = RemoveDevice(namespace_names.WIRE, name, interface.index)
            if name in idle and (namespace_names.WIRE, name) not in wanted:
                self.late_removals.append(removal)
                continue
            self.operations.append(removal)
            if interface.kind == "veth" and interface.peer in wire_indexes and name not in patches:
                self.rerouted = True
        for key, name in sorted(ours):
            nic = self._found((key, name))
            if nic is None or (key, name) in self.kept or key not in nodes:
                continue
            wire_end = self.wire.interfaces.get(namespace_names.far_end(key, name))
            if wire_end is None or not _paired(nic, wire_end):  # otherwise it is removed with its other end
                self.operations.append(RemoveDevice(key, name, nic.index))
        for key in self.existing.namespaces:
            if key != namespace_names.WIRE and key not in nodes:
                self.operations.append(RemoveNamespace(key))

    # What has to come

    def _make_namespaces(self) -> None:
        for key in [namespace_names.WIRE, *(node.name for node in self.wanted.nodes)]:
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
        if len(node.nics) < 2:  # it cannot route, whatever setting its namespace inherited
            return
        for version in (4, 6):
            wished = node.forwards and (version == 4 or _has_ipv6(node))
            # A new namespace may have inherited the machine's own setting, of IPv4 only.
            if wished != (version in found.routing) if found is not None else wished or version == 4:
                self.operations.append(SetRouting(node.name, version, wished))

    def _make_switch(self, switch: Switch) -> None:
        device = (namespace_names.WIRE, namespace_names.switch(switch.name))
        if device not in self.kept:
            self.operations.append(
                MakeSwitch(switch.name, device[1], self._index(device), namespace_names.switch_mac(switch.name))
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
                    hooks=tuple(self._index(end) for end in (cable.near, cable.far) if end in self.wiring.hooked),
                )
            )
            if far_switch := self._switch_index(cable.far):
                self._plug(cable.far, far_switch)
            return
        for device, mac in ((cable.near, cable.near_mac), (cable.far, cable.far_mac)):
            found = self.kept[device]
            if device[0] == namespace_names.WIRE and found.master != self._switch_index(device):
                self._plug(device, self._switch_index(device))
            new_mtu = cable.mtu if found.mtu != cable.mtu else None
            new_mac = mac if mac and found.mac != mac else None
            if new_mtu is not None or new_mac is not None:
                self.operations.append(SetDevice(*device, found.index, mtu=new_mtu, mac=new_mac))
        self._add_hooks(cable)

    def _add_hooks(self, cable: Cable) -> None:
        """Restore missing hooks of a cable that is kept."""
        for device in (cable.near, cable.far):
            if device not in self.wiring.hooked:
                continue
            index = self._index(device)
            if index not in self.wire.hooks or index in self.parted:
                self.operations.append(AddHook(device[1], index))

    def _switch_index(self, device: Device) -> int:
        """The index of the switch that a device is to be plugged into; 0: none."""
        switch = self.wiring.plugged.get(device)
        return self._index((namespace_names.WIRE, namespace_names.switch(switch))) if switch is not None else 0

    def _plug(self, device: Device, switch: int) -> None:
        index = self._index(device)
        if device in self.kept:
            found = self.kept[device]
            if switch and device in self.up and self._is_trunk(found) and device in self.wiring.planned_ports:
                self._set_down(device)  # until its settings are made: a new port floods
            self.rerouted = self.rerouted or (found.master != switch and device not in self.patched)
        self.operations.append(SetDevice(*device, index, switch=switch))
        self.settings[device] = True, True
        self.replugged.add(device[1])

    def _is_trunk(self, found: Interface) -> bool:
        other = self.by_index.get(found.peer)
        return other is not None and _paired(found, other)

    # The links that the relay carries

    def _diversions(self, detour: Detour) -> dict[int, Diversion]:
        near, far = self._index(detour.near), self._index(detour.far)
        ends = [self._index(end) for end in detour.ends]
        if len(ends) == 1:
            return {ends[0]: Diversion(near, near), near: Diversion(ends[0])}
        return {ends[0]: Diversion(near), ends[1]: Diversion(far)}

    def _diverted(self) -> set[str]:
        """The links that are already diverted as wanted."""
        kept = {found.index for device, found in self.kept.items() if device[0] == namespace_names.WIRE}
        found = set()
        for name, detour in self.wiring.detours.items():
            wanted = self._diversions(detour)
            if wanted.keys() <= kept and all(self.wire.diversions.get(at) == way for at, way in wanted.items()):
                found.add(name)
        return found

    def _undivert(self) -> None:
        """End wrong diversions: first at ports and cables' ends, then at taps, once the relay has nothing left to
        return there."""
        right = {at for name in self.diverted for at in self._diversions(self.wiring.detours[name])}
        wrong: list[Undivert] = [
            Undivert(device[1], found.index, tap=device in self.patched)
            for device, found in self.kept.items()
            if device[0] == namespace_names.WIRE and found.index in self.wire.diversions and found.index not in right
        ]
        wrong.sort(key=lambda operation: operation.tap)
        self.operations += wrong

    def _await_carriers(self) -> None:
        for name in self.wiring.detours.keys() - self.diverted:
            detour = self.wiring.detours[name]
            for device in (detour.near, detour.far):
                if device not in self.down:
                    self.operations.append(AwaitCarrier(device[1], self._index(device)))

    def _divert(self, links: Set[str]) -> None:
        for name in sorted(links - self.diverted):
            detour = self.wiring.detours[name]
            near, far = self._index(detour.near), self._index(detour.far)
            if len(detour.ends) == 1:
                (port,) = detour.ends
                self.operations.append(Divert(port[1], self._index(port), near, far))
            else:
                for end, tap in zip(detour.ends, (near, far), strict=True):
                    self.operations.append(Divert(end[1], self._index(end), tap))

    # What is done to frames between the ends of a link

    def _disciplines(self, files: Mapping[str, str]) -> list[Discipline]:
        if not self.wiring.stages:
            return []
        from testbed.cluster.plan.disciplines import disciplines  # encoders, which an unimpaired cluster does not need

        mtus = {device: cable.mtu for cable in self.wiring.cables for device in (cable.near, cable.far)}
        return [
            wish
            for name, stage in self.wiring.stages.items()
            for wish in disciplines(
                name,
                self.treatments[name],
                self.existing.treatments.get(name),
                stage,
                self._index,
                mtu=mtus[stage.a],
                seed=self.wanted.seed,
                files=files,
            )
        ]

    def _joined(self) -> set[int]:
        """The indexes of devices that are already joined, both ways, as wanted."""
        kept = {found.index for device, found in self.kept.items() if device[0] == namespace_names.WIRE}
        pairs = [(self._index(one), self._index(other)) for _, one, other in self.wiring.joins]
        outs = self.wire.redirections
        return {end for a, b in pairs if {a, b} <= kept and outs.get(a) == b and outs.get(b) == a for end in (a, b)}

    def _part(self) -> None:
        """Undo unwanted redirections, and remove hooks that nothing needs."""
        wanted = {self._index(end) for _, *ends in self.wiring.joins for end in ends}
        wanted |= {self._index(end) for end in self.wiring.hooked}
        wanted |= {at for detour in self.wiring.detours.values() for at in self._diversions(detour)}
        wanted |= {self._index(at) for stage in self.wiring.stages.values() for at, _ in stage.redirections}
        for device, found in self.kept.items():
            if device[0] != namespace_names.WIRE or found.index in self.joined:
                continue
            if found in self.left:
                self.unhooked |= {found.index} - wanted
                continue
            if found.index in self.wire.redirections or (found.index in self.wire.hooks and found.index not in wanted):
                self.operations.append(Part(device[1], found.index))
                self.parted.add(found.index)

    def _join(self, label: str, one: Device, other: Device) -> None:
        if self._index(one) not in self.joined:
            self.operations.append(Join(label, one[1], self._index(one), other[1], self._index(other)))

    def _remove_disciplines(self) -> None:
        """Remove disciplines and classifiers of devices that stay, unless others replace them."""
        losing = {wish.index for wish in self.disciplines if isinstance(wish, SetLoss)}
        queueing = {wish.index for wish in self.disciplines if not isinstance(wish, SetLoss)}
        untouched = losing | self.parted
        for device, found in self.kept.items():
            if device[0] != namespace_names.WIRE:
                continue
            if found.index in self.wire.qdiscs and found.index not in queueing:
                self.operations.append(RemoveQdisc(device[1], found.index))
            if found.index in self.wire.classifiers and found.index not in untouched:
                self.operations.append(RemoveLoss(device[1], found.index))

    def _set_disciplines(self) -> None:
        if self.disciplines:
            from testbed.cluster.plan.disciplines import in_force
        for wish in self.disciplines:
            if not in_force(wish, self.wire) or (isinstance(wish, SetLoss) and wish.index in self.parted):
                self.operations.append(wish)

    # The short path, and the long one by a stage

    def _staged(self) -> set[str]:
        """The links that already take their long path as wanted and whose stages keep their disciplines."""
        kept = {found.index for device, found in self.kept.items() if device[0] == namespace_names.WIRE}
        new = self._new_disciplines()
        found = set()
        for name, stage in self.wiring.stages.items():
            ways = {self._index(at): self._index(out) for at, out in stage.redirections}
            right = ways.keys() <= kept and all(self.wire.staged.get(at) == out for at, out in ways.items())
            if right and self._stands_aside(stage.port) and not new & ways.keys():
                found.add(name)
        return found

    def _stands_aside(self, port: Device | None) -> bool:
        """Whether a cable's end at a switch is plugged in and muted, with its patch plugged in beside it."""
        if port is None:
            return True
        plugged = all(
            device in self.kept and self.kept[device].master == self._switch_index(device)
            for device in (port, self._patch_of(port))
        )
        return plugged and self._port_settings(port) == (False, False)

    def _new_disciplines(self) -> set[int]:
        """The indexes at which a discipline is added, replaced or removed."""
        wishes = {wish.index: wish for wish in self.disciplines if not isinstance(wish, SetLoss)}
        new = self.wire.qdiscs.keys() - wishes.keys()
        if wishes:
            from testbed.cluster.plan.disciplines import changes_in_place

            new |= {index for index, wish in wishes.items() if not changes_in_place(wish, self.wire.qdiscs.get(index))}
        return new

    def _open_short_ways(self) -> None:
        """Return frames to the short path of their links until they take the long path, if they are to."""
        staying = {self._index(at) for name in self.staged for at, _ in self.wiring.stages[name].redirections}
        exits = {  # what has entered a stage, or left the switch for it, goes through
            self._index(at): self._index(out)
            for stage in self.wiring.stages.values()
            for at, out in stage.redirections[: 2 if stage.port is None else 3]
            if out in self.kept
        }
        link_of = {
            end: name
            for name, devices in self.wiring.of_link.items()
            for _, device in devices
            for end in namespace_names.stage(device)
        }
        going = {removal.device for removal in self.late_removals}
        opened = [
            found
            for name, found in self.wire.interfaces.items()
            if (name in going and name not in link_of) or (namespace_names.WIRE, name) in self.kept
            if found.index not in staying
            and (self._plugged_patch(found) or self.wire.staged.get(found.index) not in (None, exits.get(found.index)))
        ]
        # Frames that have left a switch by a patch still take the long path.
        patched = {namespace_names.patch(name)[1] for name in self.wire.interfaces}
        for found in opened:
            if found.name not in patched:
                self._open_short_way(found)
        for end, name in sorted(link_of.items()):
            stage_end = self.wire.interfaces.get(end)
            if stage_end is not None and stage_end.index in self.wire.qdiscs and name not in self.staged:
                self.operations.append(Drain(name, end, stage_end.index))
        redirecting = {self._index(at) for stage in self.wiring.stages.values() for at, _ in stage.redirections}
        for found in opened:
            if found.name in patched and (namespace_names.WIRE, found.name) in self.kept:
                if found.index in redirecting:  # to what is gone
                    self._end_redirection(found)
                else:
                    self.left.append(found)

    def _open_short_way(self, found: Interface) -> None:
        """End the redirection of an interface's frames to a stage. A port's patch works on until no frames reach it."""
        port = namespace_names.WIRE, found.name
        patch = self._plugged_patch(found)
        if patch is None:
            self._end_redirection(found)
            return
        entries = self.entries.get(patch.master, {})
        for mac in [mac for mac, at in entries.items() if at == patch.index and found.master == patch.master]:
            switch = self.by_index[patch.master].name
            self.operations.append(AddForwarding(switch, found.name, found.index, mac))
            entries[mac] = found.index
        self._set_port((namespace_names.WIRE, patch.name), (False, False), patch.index)
        self._end_redirection(found, prepared=True)
        if port not in self.muted:
            self.left.append(found)
        if port in self.wiring.plugged and found.master == self._switch_index(port):
            self._set_port(port, self._settings_of_place(port))
        self.operations.append(ForgetPort(patch.name, patch.index))

    def _plugged_patch(self, found: Interface) -> Interface | None:
        """The patch beside a port, if it is plugged in."""
        patch = self.wire.interfaces.get(namespace_names.patch(found.name)[0])
        return patch if patch is not None and patch.master else None

    def _end_redirection(self, found: Interface, *, prepared: bool = False) -> None:
        if found.index in self.wire.staged:
            self.operations.append(EndRedirect(found.name, found.index, prepared))
        self.ways.pop(found.index, None)

    def _take_long_ways(self) -> None:
        stages = {name: stage for name, stage in self.wiring.stages.items() if name not in self.staged}
        for stage in stages.values():
            self._await_stage(stage)
        for stage in stages.values():
            for at, out in stage.redirections[:2]:
                self._redirect(at, out)
            if stage.port is not None:
                self._redirect(*stage.redirections[2])
                self.operations.append(PrepareRedirect(stage.port[1], self._index(stage.port)))
        for switch in self.bridges:
            self._set_forwarding(switch)
        for stage in stages.values():
            if stage.port is None:
                for at, out in stage.redirections[2:]:
                    self._redirect(at, out)
                continue
            # A sender at the cable's end would receive its own frames as flooded by the patch, and vice versa.
            patch = self._patch_of(stage.port)
            self._set_port(stage.port, self._wished_settings(stage.port))
            self._redirect(*stage.redirections[3], prepared=True)
            self._set_port(patch, self._settings_of_place(patch))
            if stage.port in self.kept and self._settings_of_place(stage.port)[0]:
                self.operations.append(ForgetPort(stage.port[1], self._index(stage.port)))

    def _await_stage(self, stage: Stage) -> None:
        patch = () if stage.port is None else namespace_names.patch(stage.port[1])
        for device in (stage.forward, stage.backward, *((namespace_names.WIRE, end) for end in patch)):
            if device not in self.kept and device not in self.down and device in self.up:
                self.operations.append(AwaitCarrier(device[1], self._index(device)))

    def _redirect(self, at: Device, out: Device, *, prepared: bool = False) -> None:
        if self.ways.get(self._index(at)) != self._index(out):
            self.operations.append(Redirect(at[1], self._index(at), out[1], self._index(out), prepared))

    def _patch_of(self, port: Device) -> Device:
        return namespace_names.WIRE, namespace_names.patch(port[1])[0]

    def _offloads_wanted(self) -> dict[Device, Offloads]:
        """Offloads of devices that send towards free ends or modelled switches, and of agents' devices; all others use
        all."""
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
        """A device's current offloads; new devices have all. None if the kernel does not report them."""
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

    def _port_changes(self) -> list[tuple[Device, tuple[bool, bool]]]:
        """Compute the settings of ports that have to change at this stage of the plan, switch by switch.

        Ports of links that have yet to take the long path are set as if they were not spliced, and their patches stand
        by.
        """
        late = {stage.port for name, stage in self.wiring.stages.items() if name not in self.staged}
        standing_by = {self._patch_of(port) for port in late if port is not None}
        changes: dict[str, list[tuple[Device, tuple[bool, bool]]]] = {switch.name: [] for switch in self.bridges}
        for device, switch in self.wiring.plugged.items():
            wished = self._settings_of_place(device) if device in late else self._wished_settings(device)
            if device in standing_by:
                wished = False, False
            if wished != self._port_settings(device):
                changes[switch].append((device, wished))
        return [change for of_switch in changes.values() for change in of_switch]

    def _wished_settings(self, device: Device) -> tuple[bool, bool]:
        """Learning and flooding of a port. If the kernel carries its link, its patch does both instead."""
        return (False, False) if device in self.muted else self._settings_of_place(device)

    def _settings_of_place(self, device: Device) -> tuple[bool, bool]:
        switch = self.switches[self.wiring.plugged[device]]
        return switch.learns, switch.learns or self.wiring.numbers[device] in switch.tree

    def _set_port(self, device: Device, settings: tuple[bool, bool], index: int = 0) -> None:
        if index or self._port_settings(device) != settings:
            self.settings[device] = settings
            self.operations.append(SetPort(device[1], index or self._index(device), *settings))

    def _set_forwarding(self, switch: Switch) -> None:
        bridge = self._index((namespace_names.WIRE, namespace_names.switch(switch.name)))
        ports = {number: self._index(device) for number, device in self.wiring.ports[switch.name].items()}
        table = {mac: ports[number] for mac, number in switch.forwarding.items()}
        names_of = {self._index(device): device for device in self.wiring.ports[switch.name].values()}
        before = self.entries.get(bridge, {})
        for mac, port in before.items():
            if mac not in table and port in names_of and self._undisturbed(names_of[port]):
                self.operations.append(RemoveForwarding(switch.name, port, mac))
        for mac, port in table.items():
            if before.get(mac) != port or not self._undisturbed(names_of[port]):
                self.operations.append(AddForwarding(switch.name, names_of[port][1], port, mac))

    def _forget_learned(self) -> None:
        """Flush learned addresses if links have moved: stale entries would misdirect frames for five minutes."""
        if not self.rerouted:
            return
        for switch in self.bridges:
            device = (namespace_names.WIRE, namespace_names.switch(switch.name))
            if switch.learns and device in self.kept:
                self.operations.append(ForgetLearned(switch.name, self._index(device)))

    def _undisturbed(self, device: Device) -> bool:
        """Whether the plan leaves a port plugged in, so that its settings and entries stay valid."""
        return device in self.kept and device[1] not in self.replugged

    def _port_settings(self, device: Device) -> tuple[bool, bool]:
        if device in self.kept:
            return self.settings.get(device, (self.kept[device].learning, self.kept[device].flooding))
        return self.settings.get(device, (True, True))

    def _set_up(self, device: Device) -> None:
        if device not in self.up and device not in self.down:
            self.operations.append(SetUp(*device, self._index(device)))
            self.up.add(device)

    def _configure(self, node: Node) -> None:
        """Set addresses and routes. An interface must be up before its routes, or the kernel refuses them."""
        contents = self.existing.namespaces.get(node.name, _NOTHING)
        wanted_routes = {(route.destination, route.via) for route in node.routes}
        for destination, via in sorted(contents.routes - wanted_routes):
            self.operations.append(RemoveRoute(node.name, destination, via))
        moved = False  # removing an address removes the routes over its network
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
                # Removing an IPv4 address can remove later ones of the same network (its "secondaries").
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
    """The addresses of a NIC, including a link-local one on an IPv6 router (RFC 4291, appendix A).

    The kernel sends neighbour solicitations for forwarded packets only from a link-local address.
    """
    if not node.forwards or not any(":" in address for address in nic.addresses):
        return nic.addresses
    mac = bytes.fromhex(nic.mac.replace(":", ""))
    identifier = bytes([mac[0] ^ 2, *mac[1:3], 0xFF, 0xFE, *mac[3:]])
    return (*nic.addresses, f"{ipaddress.IPv6Address(bytes([0xFE, 0x80, *bytes(6)]) + identifier)}/64")


def _surroundings(node: Node) -> tuple[object, ...]:
    """The environment of a node's programs that is no kernel object."""
    return node.cpus, dict(node.environment), dict(node.files)


def _additions(device: str) -> tuple[str, ...]:
    """The additional interfaces that a link may have beside this one while it is impaired."""
    return (*namespace_names.patch(device), *namespace_names.stage(device))


def _paired(one: Interface, other: Interface) -> bool:
    return one.kind == other.kind == "veth" and one.peer == other.index and other.peer == one.index
