"""Cables in a plan: making veth pairs and plugging them in, joining them, their hooks and offloads."""

from __future__ import annotations

from collections.abc import Iterable

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.diversions import Diversions
from testbed.cluster.plan.draft import Draft
from testbed.cluster.plan.kernel_operations import (
    AddHook,
    Join,
    MakeCable,
    MakeTunnel,
    Part,
    SetDevice,
    SetOffloads,
)
from testbed.cluster.plan.stages import Stages
from testbed.cluster.plan.switch_ports import SwitchPorts
from testbed.cluster.plan.veth_wiring import Cable, Device
from testbed.kernel.offloads import Offloads


def make_cable(draft: Draft, ports: SwitchPorts, cable: Cable) -> None:
    """Make a cable, or change what differs from the one that is kept."""
    if cable.near not in draft.kept:
        up = cable.near in draft.wiring.made_up and cable.near not in draft.down
        if up:
            draft.up.add(cable.near)
        draft.operations.append(
            MakeCable(
                label=cable.label,
                key=cable.near[0],
                device=cable.near[1],
                index=draft.index(cable.near),
                mac=cable.near_mac,
                switch=draft.switch_index(cable.near),
                up=up,
                peer_key=cable.far[0],
                peer_device=cable.far[1],
                peer_index=draft.index(cable.far),
                peer_mac=cable.far_mac,
                mtu=cable.mtu,
                patch=cable.patch,
                hooks=tuple(draft.index(end) for end in (cable.near, cable.far) if end in draft.wiring.hooked),
            )
        )
        if draft.switch_index(cable.far):
            ports.plug(cable.far)
        return
    for device, mac in ((cable.near, cable.near_mac), (cable.far, cable.far_mac)):
        found = draft.kept[device]
        if device[0] == namespace_names.WIRE and found.master != draft.switch_index(device):
            ports.plug(device)
        new_mtu = cable.mtu if found.mtu != cable.mtu else None
        new_mac = mac if mac and found.mac != mac else None
        if new_mtu is not None or new_mac is not None:
            draft.operations.append(SetDevice(*device, found.index, mtu=new_mtu, mac=new_mac))
    _add_hooks(draft, cable.near, cable.far)


def make_tunnels(draft: Draft, ports: SwitchPorts) -> None:
    """Make the tunnels to other machines, or change what differs from those that are kept."""
    part = draft.wanted.part
    for device, (link, tunnel) in draft.wiring.tunnels.items():
        assert part is not None
        if device not in draft.kept:
            draft.operations.append(MakeTunnel(link, device[1], draft.index(device), part.mtu, tunnel))
            if draft.switch_index(device):
                ports.plug(device)
        else:
            found = draft.kept[device]
            if found.master != draft.switch_index(device):
                ports.plug(device)
            if found.mtu != part.mtu:
                draft.operations.append(SetDevice(*device, found.index, mtu=part.mtu))
        _add_hooks(draft, device)


def _add_hooks(draft: Draft, *devices: Device) -> None:
    """Make missing hooks of ports that are kept, and of tunnels."""
    for device in devices:
        if device not in draft.wiring.hooked:
            continue
        index = draft.index(device)
        if index not in draft.wire.hooks or index in draft.parted:
            draft.operations.append(AddHook(device[1], index))


class Joins:
    """The joins of cables between two nodes, some of which are already made as wanted."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        kept = draft.kept_indexes()
        pairs = [(draft.index(near), draft.index(far)) for _, near, far in draft.wiring.joins]
        outs = draft.wire.redirections
        self._joined = {
            end for a, b in pairs if {a, b} <= kept and outs.get(a) == b and outs.get(b) == a for end in (a, b)
        }

    def part(self, diversions: Diversions, stages: Stages) -> None:
        """Undo unwanted redirections, and remove hooks that nothing needs."""
        draft = self._draft
        wanted = {draft.index(end) for _, *ends in draft.wiring.joins for end in ends}
        wanted |= {draft.index(end) for end in draft.wiring.hooked}
        wanted |= diversions.indexes() | stages.redirecting()
        for device, found in draft.kept_in_wire().items():
            if found.index in self._joined:
                continue
            if found in stages.left:
                stages.unhooked |= {found.index} - wanted
                continue
            if found.index in draft.wire.redirections or (
                found.index in draft.wire.hooks and found.index not in wanted
            ):
                draft.operations.append(Part(device[1], found.index))
                draft.parted.add(found.index)

    def make(self) -> None:
        draft = self._draft
        for label, near, far in draft.wiring.joins:
            if draft.index(near) not in self._joined:
                draft.operations.append(Join(label, near[1], draft.index(near), far[1], draft.index(far)))


class OffloadChanges:
    """The changes of devices' offloads; a GSO frame must not reach what cannot segment it (see `kernel.offloads`).

    Offloads of devices that send towards free ends or modelled switches, and of `whole` devices, are restricted; all
    others use all.
    """

    def __init__(self, draft: Draft, whole: Iterable[Device]) -> None:
        self._draft = draft
        self._wanted: dict[Device, Offloads] = {
            device: Offloads.TCP if gso else Offloads.NONE
            for name, splice in draft.wiring.splices.items()
            for device, gso in zip(splice.senders, draft.link_services[name].gso, strict=True)
        } | dict.fromkeys((*draft.wiring.uplinks, *whole), Offloads.NONE)

    def lower(self) -> None:
        for device, wanted in self._wanted.items():
            taken = self._taken(device)
            if taken is not None and taken > wanted:
                self._draft.operations.append(SetOffloads(*device, self._draft.index(device), wanted))

    def raise_again(self) -> None:
        for device, found in self._draft.kept.items():
            taken, desired = self._taken(device), self._wanted.get(device, Offloads.ALL)
            if found.kind in ("veth", "vxlan") and taken is not None and taken < desired:
                self._draft.operations.append(SetOffloads(*device, found.index, desired))

    def _taken(self, device: Device) -> Offloads | None:
        """A device's current offloads; new devices have all. None if the kernel does not report them."""
        if device not in self._draft.kept:
            return Offloads.ALL
        return self._draft.existing.namespaces[device[0]].offloads.get(self._draft.kept[device].index)
