"""Ports of the switches in a plan: plugged devices, their learning and flooding, and forwarding entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import TypeAlias

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.draft import Draft, is_pair
from testbed.cluster.plan.kernel_operations import AddForwarding, FlushLearned, RemoveForwarding, SetDevice, SetPort
from testbed.cluster.plan.veth_wiring import Device
from testbed.errors import UnsupportedError
from testbed.kernel.rtnl_dump import Interface
from testbed.spec.kinds import MAX_BRIDGE_PORTS
from testbed.spec.layout import Switch

PortSettings: TypeAlias = tuple[bool, bool]
"""Whether a switch learns addresses at a port, and whether it floods frames to the port."""


class SwitchPorts:
    """The switches' ports after the operations so far.

    rerouted: whether frames take other paths than the switches have learned.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._wiring = draft.wiring
        self._switches = {switch.name: switch for switch in draft.bridges}
        self._settings: dict[Device, PortSettings] = {}
        self._replugged: set[str] = set()  # names of replugged devices, which have the kernel's default settings again
        self._entries: dict[int, dict[str, int]] = {}
        for (bridge, mac), port in draft.wire.forwarding.items():
            self._entries.setdefault(bridge, {})[mac] = port
        self.rerouted = False

    def check_port_counts(self) -> None:
        """Raise UnsupportedError if a switch would have more ports than a bridge can have."""
        for switch, ports in Counter(self._wiring.plugged.values()).items():
            if ports > MAX_BRIDGE_PORTS:
                raise UnsupportedError(
                    f"switch {switch} would have {ports:,} ports, and a bridge has at most {MAX_BRIDGE_PORTS:,}: a link "
                    "that netem or tc carries takes two ports, one that the relay carries takes one (--datapath relay)"
                )

    def plug(self, device: Device) -> None:
        """Plug a device into the switch of the desired layout, or unplug it if it has none there."""
        draft = self._draft
        index, switch = draft.index(device), draft.switch_index(device)
        if device in draft.kept:
            interface = draft.kept[device]
            if switch and device in draft.up and self._is_trunk(interface) and device in self._wiring.planned_ports:
                draft.set_down(device)  # until its settings are made, since a new port floods
            self.rerouted = self.rerouted or (interface.master != switch and device not in draft.patched)
        draft.operations.append(SetDevice(*device, index, switch=switch))
        self._settings[device] = True, True
        self._replugged.add(device[1])

    def _is_trunk(self, interface: Interface) -> bool:
        """Whether an interface's peer is in the wire namespace, too."""
        peer = self._draft.by_index.get(interface.peer)
        return peer is not None and is_pair(interface, peer)

    def change_settings(self, unused_patches: Set[Device]) -> None:
        """Change the settings of ports. Ports stop flooding before others start, so that flooding ports never form a cycle.

        unused_patches: patches that must not learn yet. A late frame of an earlier long path would make the switch send
        other frames to the patch.
        """
        changes: dict[str, list[tuple[Device, PortSettings]]] = {name: [] for name in self._switches}
        for device, switch in self._wiring.plugged.items():
            desired = (False, False) if device in unused_patches else self.desired_settings(device)
            if desired != self.current_settings(device):
                changes[switch].append((device, desired))
        by_switch = [change for switch_changes in changes.values() for change in switch_changes]
        for device, desired in sorted(by_switch, key=lambda change: change[1][1]):
            self.set_settings(device, desired)

    def desired_settings(self, device: Device) -> PortSettings:
        """Return the settings of a device in the desired layout.

        Frames from a cable whose end has a patch enter the switch by the patch, where their addresses are learned. The
        switch floods only to the cable's end.
        """
        switch = self._switches[self._wiring.plugged[device]]
        if device in self._draft.patched:
            return switch.learns, False
        return switch.learns, switch.learns or self._wiring.port_numbers[device] in switch.tree

    def current_settings(self, device: Device) -> PortSettings:
        """Return the settings of a port after the operations so far."""
        if device in self._draft.kept:
            interface = self._draft.kept[device]
            return self._settings.get(device, (interface.learning, interface.flooding))
        return self._settings.get(device, (True, True))

    def set_settings(self, device: Device, settings: PortSettings, index: int = 0) -> None:
        """Set the settings of a port. index: of a device that is only in an earlier layout; 0: the device is in the desired
        layout."""
        if index or self.current_settings(device) != settings:
            self._settings[device] = settings
            self._draft.operations.append(SetPort(device[1], index or self._draft.index(device), *settings))

    def set_forwarding(self, switch: Switch) -> None:
        """Make a switch's static forwarding entries, and remove obsolete ones."""
        draft = self._draft
        devices = self._wiring.ports[switch.name]
        ports = {number: draft.index(device) for number, device in devices.items()}
        table = {mac: ports[number] for mac, number in switch.forwarding.items()}
        devices_by_index = {draft.index(device): device for device in devices.values()}
        before = self._entries.get(draft.bridge_index(switch.name), {})
        for mac, port in before.items():
            if mac not in table and port in devices_by_index and self._stays_plugged(devices_by_index[port]):
                draft.operations.append(RemoveForwarding(switch.name, port, mac))
        for mac, port in table.items():
            if before.get(mac) != port or not self._stays_plugged(devices_by_index[port]):
                draft.operations.append(AddForwarding(switch.name, devices_by_index[port][1], port, mac))

    def flush_learned(self) -> None:
        """Flush learned addresses if frames were rerouted: stale entries would misdirect frames for five minutes."""
        if not self.rerouted:
            return
        for switch in self._draft.bridges:
            device = (namespace_names.WIRE, namespace_names.switch(switch.name))
            if switch.learns and device in self._draft.kept:
                self._draft.operations.append(FlushLearned(switch.name, self._draft.index(device)))

    def _stays_plugged(self, device: Device) -> bool:
        """Whether a port stays plugged in, so that its settings and entries stay valid."""
        return device in self._draft.kept and device[1] not in self._replugged


def patch_of(port: Device) -> Device:
    """Return the end of a port's patch that is plugged into the switch beside the port."""
    return namespace_names.WIRE, namespace_names.patch(port[1])[0]
