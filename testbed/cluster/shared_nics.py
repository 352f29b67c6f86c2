"""That the NICs of a cluster are shared, and how: a part of its state. Every node's first NIC has an agent then, for host
processes that attach to it; the steward keeps it running."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.cluster.wiring import Device
from testbed.kernel.processes import Identity
from testbed.spec.layout import Layout


@dataclass(frozen=True, slots=True)
class SharedNics:
    """protocol: what they speak. functions: how many host processes a node may have. spin: nanoseconds that agents look for
    something before they sleep. owner: whose wish it is; it ends with that process."""

    protocol: str
    functions: int
    spin: int
    owner: Identity

    def to_json(self) -> dict[str, object]:
        return {
            "protocol": self.protocol, "functions": self.functions, "spin": self.spin, "owner": str(self.owner),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SharedNics:
        """The inverse; KeyError or ValueError for what no `to_json` wrote."""
        return cls(data["protocol"], data["functions"], data["spin"], Identity.parse(data["owner"]))


def shared_devices(layout: Layout, nics: SharedNics | None) -> frozenset[Device]:
    """The interfaces that agents have: what the kernel sends on these is whole, as the firmware's frames are."""
    if nics is None:
        return frozenset()
    return frozenset((node.name, node.nics[0].name) for node in layout.nodes if node.nics)
