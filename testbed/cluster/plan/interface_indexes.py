"""Interface indexes of a cluster: those of the devices that stay, and free ones for new devices.

Two veth ends belong together if each reports the other's index. So no index of the wire namespace occurs in a node, and
the indexes of a direct link's ends occur nowhere else in the cluster. The first hundred of every namespace are left to
the kernel, which makes interfaces of its own where tunnel modules are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from testbed.cluster.plan.veth_wiring import Device
from testbed.kernel.rtnl_dump import Contents, Interface

FIRST_NODE_INDEX = 101
FIRST_WIRE_INDEX = 1001
FIRST_DIRECT_INDEX = 1_000_001


class InterfaceIndexes:
    """The index of each device of a cluster. namespaces: what exists. kept: the devices that stay. direct: the ends of
    links from NIC to NIC."""

    def __init__(
        self, namespaces: Mapping[str, Contents], kept: Mapping[Device, Interface], direct: Set[Device]
    ) -> None:
        self._namespaces = namespaces
        self._direct = direct
        self._of = {device: interface.index for device, interface in kept.items()}
        taken = {
            key: [interface.index for interface in contents.interfaces.values()] for key, contents in namespaces.items()
        }
        self._next = {
            key: max((index for index in indexes if index < FIRST_DIRECT_INDEX), default=0) + 1
            for key, indexes in taken.items()
        }
        self._next_direct = max(
            (index + 1 for indexes in taken.values() for index in indexes if index >= FIRST_DIRECT_INDEX),
            default=FIRST_DIRECT_INDEX,
        )

    def of(self, device: Device) -> int:
        """The index of an existing or new device; a device that is made anew keeps its old index."""
        if device not in self._of:
            self._of[device] = self._new(device)
        return self._of[device]

    def _new(self, device: Device) -> int:
        key, name = device
        contents = self._namespaces.get(key)
        old = contents.interfaces.get(name) if contents is not None else None
        if device in self._direct:
            if old is not None and old.index >= FIRST_DIRECT_INDEX:
                return old.index
            self._next_direct += 1
            return self._next_direct - 1
        if old is not None and old.index < FIRST_DIRECT_INDEX:
            return old.index
        index = max(self._next.get(key, 0), FIRST_NODE_INDEX if key else FIRST_WIRE_INDEX)
        self._next[key] = index + 1
        return index
