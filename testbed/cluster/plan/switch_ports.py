"""Ports of the switches in a plan: what is plugged in where, its learning and flooding, and forwarding entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.draft import Draft, is_pair
from testbed.cluster.plan.kernel_operations import AddForwarding, ForgetLearned, RemoveForwarding, SetDevice, SetPort
from testbed.cluster.plan.veth_wiring import Device
from testbed.errors import UnsupportedError
from testbed.kernel.rtnl_dump import Interface
from testbed.spec.kinds import MAX_BRIDGE_PORTS
from testbed.spec.layout import Switch


class SwitchPorts:
    """The ports as far as the plan has made them.

    rerouted: whether frames now take other paths than the switches have learned.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._wiring = draft.wiring
        self._switches = {switch.name: switch for switch in draft.bridges}
        self._settings: dict[Device, tuple[bool, bool]] = {}
        self._replugged: set[str] = set()  # kept wire-side devices whose settings are the kernel's defaults again
        self._entries: dict[int, dict[str, int]] = {}
        for (bridge, mac), port in draft.wire.forwarding.items():
            self._entries.setdefault(bridge, {})[mac] = port
        self.rerouted = False

    def check_numbers(self) -> None:
        """Raise UnsupportedError if a switch would have more ports than a bridge can have."""
        for switch, ports in Counter(self._wiring.plugged.values()).items():
            if ports > MAX_BRIDGE_PORTS:
                raise UnsupportedError(
                    f"switch {switch} would have {ports:,} ports, and a bridge has {MAX_BRIDGE_PORTS:,} at most: a link "
                    "that netem or tc carries takes two there, one that the relay carries takes one (--datapath relay)"
                )

    def plug(self, device: Device) -> None:
        """Plug a device into its switch, or unplug it if it has none."""
        draft = self._draft
        index, switch = draft.index(device), draft.switch_index(device)
        if device in draft.kept:
            found = draft.kept[device]
            if switch and device in draft.up and self._is_trunk(found) and device in self._wiring.planned_ports:
                draft.set_down(device)  # until its settings are made: a new port floods
            self.rerouted = self.rerouted or (found.master != switch and device not in draft.patched)
        draft.operations.append(SetDevice(*device, index, switch=switch))
        self._settings[device] = True, True
        self._replugged.add(device[1])

    def _is_trunk(self, found: Interface) -> bool:
        other = self._draft.by_index.get(found.peer)
        return other is not None and is_pair(found, other)

    def change(self, standing_by: Set[Device]) -> None:
        """Make the settings of ports. Ports stop flooding before others begin, so that flooding ports never form a cycle.

        standing_by: patches that do not learn yet: a late frame of an earlier long path would draw others after it.
        """
        changes: dict[str, list[tuple[Device, tuple[bool, bool]]]] = {name: [] for name in self._switches}
        for device, switch in self._wiring.plugged.items():
            wished = (False, False) if device in standing_by else self.settings_of_place(device)
            if wished != self.settings(device):
                changes[switch].append((device, wished))
        in_order = [change for of_switch in changes.values() for change in of_switch]
        for device, wished in sorted(in_order, key=lambda change: change[1][1]):
            self.set(device, wished)

    def settings_of_place(self, device: Device) -> tuple[bool, bool]:
        """Learning and flooding of a device where it is plugged in. Frames that come from a cable's end come in by its
        patch, if it has one, and are learned there; the switch floods to the cable's end alone."""
        switch = self._switches[self._wiring.plugged[device]]
        if device in self._draft.patched:
            return switch.learns, False
        return switch.learns, switch.learns or self._wiring.numbers[device] in switch.tree

    def settings(self, device: Device) -> tuple[bool, bool]:
        """Learning and flooding of a port as far as the plan has made it."""
        if device in self._draft.kept:
            found = self._draft.kept[device]
            return self._settings.get(device, (found.learning, found.flooding))
        return self._settings.get(device, (True, True))

    def set(self, device: Device, settings: tuple[bool, bool], index: int = 0) -> None:
        """Set learning and flooding of a port. index: of a device of an earlier layout."""
        if index or self.settings(device) != settings:
            self._settings[device] = settings
            self._draft.operations.append(SetPort(device[1], index or self._draft.index(device), *settings))

    def set_forwarding(self, switch: Switch) -> None:
        """Make a switch's static forwarding entries."""
        draft = self._draft
        devices = self._wiring.ports[switch.name]
        ports = {number: draft.index(device) for number, device in devices.items()}
        table = {mac: ports[number] for mac, number in switch.forwarding.items()}
        names_of = {draft.index(device): device for device in devices.values()}
        before = self._entries.get(draft.bridge_index(switch.name), {})
        for mac, port in before.items():
            if mac not in table and port in names_of and self._is_undisturbed(names_of[port]):
                draft.operations.append(RemoveForwarding(switch.name, port, mac))
        for mac, port in table.items():
            if before.get(mac) != port or not self._is_undisturbed(names_of[port]):
                draft.operations.append(AddForwarding(switch.name, names_of[port][1], port, mac))

    def flush_learned(self) -> None:
        """Flush learned addresses if links have moved: stale entries would misdirect frames for five minutes."""
        if not self.rerouted:
            return
        for switch in self._draft.bridges:
            device = (namespace_names.WIRE, namespace_names.switch(switch.name))
            if switch.learns and device in self._draft.kept:
                self._draft.operations.append(ForgetLearned(switch.name, self._draft.index(device)))

    def _is_undisturbed(self, device: Device) -> bool:
        """Whether the plan leaves a port plugged in, so that its settings and entries stay valid."""
        return device in self._draft.kept and device[1] not in self._replugged


def patch_of(port: Device) -> Device:
    """The end of a port's patch that is plugged in beside it."""
    return namespace_names.WIRE, namespace_names.patch(port[1])[0]
