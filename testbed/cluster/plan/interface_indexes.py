"""Interface indexes of a cluster: the indexes of existing devices, and unused indexes for new devices.

The planner takes two veth interfaces for a pair if each reports the other's index. So that this is unambiguous, an index
of the wire namespace does not occur in a node, and the indexes of a direct link's ends are unique in the cluster. The first
hundred indexes of every namespace are reserved for interfaces that the kernel creates when tunnel modules are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from testbed.cluster.plan.veth_wiring import Device
from testbed.kernel.rtnl_dump import Contents, Interface

FIRST_NODE_INDEX = 101
FIRST_WIRE_INDEX = 1001
FIRST_DIRECT_INDEX = 1_000_001


class InterfaceIndexes:
    """The index of each device of a cluster.

    namespaces: contents of the existing namespaces, by key. kept: devices that are not recreated. direct: the ends of links
    from NIC to NIC.
    """

    def __init__(
        self, namespaces: Mapping[str, Contents], kept: Mapping[Device, Interface], direct: Set[Device]
    ) -> None:
        self._namespaces = namespaces
        self._direct = direct
        self._indexes = {device: interface.index for device, interface in kept.items()}
        used = {
            key: [interface.index for interface in contents.interfaces.values()] for key, contents in namespaces.items()
        }
        self._next = {
            key: max((index for index in indexes if index < FIRST_DIRECT_INDEX), default=0) + 1
            for key, indexes in used.items()
        }
        self._next_direct = max(
            (index + 1 for indexes in used.values() for index in indexes if index >= FIRST_DIRECT_INDEX),
            default=FIRST_DIRECT_INDEX,
        )

    def index_of(self, device: Device) -> int:
        """Return the index of an existing or new device. A recreated device keeps its index if that is in its range."""
        if device not in self._indexes:
            self._indexes[device] = self._new(device)
        return self._indexes[device]

    def _new(self, device: Device) -> int:
        key, name = device
        contents = self._namespaces.get(key)
        existing = contents.interfaces.get(name) if contents is not None else None
        if device in self._direct:
            if existing is not None and existing.index >= FIRST_DIRECT_INDEX:
                return existing.index
            self._next_direct += 1
            return self._next_direct - 1
        if existing is not None and existing.index < FIRST_DIRECT_INDEX:
            return existing.index
        index = max(self._next.get(key, 0), FIRST_NODE_INDEX if key else FIRST_WIRE_INDEX)
        self._next[key] = index + 1
        return index
