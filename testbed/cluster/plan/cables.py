"""Cables in a plan: veth pairs and tunnels, joins, hooks and offloads."""

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
    """Make a cable, or change the differing settings of a kept one."""
    if cable.near not in draft.kept:
        up = cable.near in draft.wiring.initially_up and cable.near not in draft.down
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
        if device[0] == namespace_names.WIRE and draft.kept[device].master != draft.switch_index(device):
            ports.plug(device)
        _change_settings(draft, device, cable.mtu, mac)
    _add_hooks(draft, cable.near, cable.far)


def make_tunnels(draft: Draft, ports: SwitchPorts) -> None:
    """Make the tunnels to other machines, or change the differing settings of kept ones."""
    tunnels = draft.wiring.tunnels
    draft.operations += [  # all together: the executor makes them in one batch
        MakeTunnel(end.label, *device, draft.index(device), end.mtu, end.tunnel, end.mac)
        for device, end in tunnels.items()
        if device not in draft.kept
    ]
    for device, end in tunnels.items():
        kept = draft.kept.get(device)
        in_wire = device[0] == namespace_names.WIRE
        if in_wire and (kept.master if kept is not None else 0) != draft.switch_index(device):
            ports.plug(device)
        if kept is not None:
            _change_settings(draft, device, end.mtu, end.mac)
        _add_hooks(draft, device)


def _change_settings(draft: Draft, device: Device, mtu: int, mac: str) -> None:
    """Change the differing settings of a kept device. mac: empty: any."""
    interface = draft.kept[device]
    new_mtu = mtu if interface.mtu != mtu else None
    new_mac = mac if mac and interface.mac != mac else None
    if new_mtu is not None or new_mac is not None:
        draft.operations.append(SetDevice(*device, interface.index, mtu=new_mtu, mac=new_mac))


def _add_hooks(draft: Draft, *devices: Device) -> None:
    """Add missing hooks to kept ports and to tunnels."""
    for device in devices:
        if device not in draft.wiring.hooked:
            continue
        index = draft.index(device)
        if index not in draft.wire.hooks or index in draft.parted:
            draft.operations.append(AddHook(device[1], index))


class Joins:
    """Joins of cables between two nodes."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        kept = draft.kept_indexes()
        pairs = [(draft.index(near), draft.index(far)) for _, near, far in draft.wiring.joins]
        outs = draft.wire.redirections
        # Indexes of ends that are joined already
        self._joined = {
            end for a, b in pairs if {a, b} <= kept and outs.get(a) == b and outs.get(b) == a for end in (a, b)
        }

    def part(self, diversions: Diversions, stages: Stages) -> None:
        """Undo obsolete redirections, and remove unneeded hooks."""
        draft = self._draft
        needed = {draft.index(end) for _, *ends in draft.wiring.joins for end in ends}
        needed |= {draft.index(end) for end in draft.wiring.hooked}
        needed |= diversions.indexes() | stages.redirected_indexes()
        for device, interface in draft.kept_in_wire().items():
            if interface.index in self._joined:
                continue
            if interface in stages.redirections_to_remove_last:
                stages.clsact_to_remove |= {interface.index} - needed
                continue
            if interface.index in draft.wire.redirections or (
                interface.index in draft.wire.hooks and interface.index not in needed
            ):
                draft.operations.append(Part(device[1], interface.index))
                draft.parted.add(interface.index)

    def make(self) -> None:
        """Make the missing joins."""
        draft = self._draft
        for label, near, far in draft.wiring.joins:
            if draft.index(near) not in self._joined:
                draft.operations.append(Join(label, draft.index(near), draft.index(far)))


class OffloadChanges:
    """Changes of devices' offloads: GSO frames must not reach an interface that cannot segment them (see `kernel.offloads`).

    Devices that send towards free ends or modelled switches, and devices in `no_gso`, have restricted offloads. All others
    have all offloads.
    """

    def __init__(self, draft: Draft, no_gso: Iterable[Device]) -> None:
        self._draft = draft
        self._restricted: dict[Device, Offloads] = {
            device: Offloads.TCP if gso else Offloads.NONE
            for name, splice in draft.wiring.splices.items()
            for device, gso in zip(splice.senders, draft.link_services[name].gso, strict=True)
        } | dict.fromkeys((*draft.wiring.uplinks, *no_gso), Offloads.NONE)

    def lower(self) -> None:
        """Switch off offloads that devices may not have."""
        for device, desired in self._restricted.items():
            current = self._current(device)
            if current is not None and current > desired:
                self._draft.operations.append(SetOffloads(*device, self._draft.index(device), desired))

    def raise_again(self) -> None:
        """Switch on offloads that kept devices may have again."""
        for device, interface in self._draft.kept.items():
            current, desired = self._current(device), self._restricted.get(device, Offloads.ALL)
            if interface.kind in ("veth", "vxlan") and current is not None and current < desired:
                self._draft.operations.append(SetOffloads(*device, interface.index, desired))

    def _current(self, device: Device) -> Offloads | None:
        """Return a device's current offloads; None if the kernel does not report them. New devices have all offloads."""
        if device not in self._draft.kept:
            return Offloads.ALL
        return self._draft.existing.namespaces[device[0]].offloads.get(self._draft.kept[device].index)
