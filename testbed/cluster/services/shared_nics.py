"""The sharing of a cluster's NICs, as part of its state.

Every node's first NIC has an agent to which host processes attach; the supervisor keeps it running.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testbed.kernel.processes import Identity

if TYPE_CHECKING:
    from testbed.cluster.plan.veth_wiring import Device
    from testbed.spec.layout import Layout


@dataclass(frozen=True, slots=True)
class SharedNics:
    """How NICs are shared. protocol: of the agents. functions: maximum number of host processes per node. spin:
    nanoseconds that agents poll before they sleep. owner: the process that asked for the sharing, which ends with it.
    """

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
        """Parse the output of `to_json`; KeyError or ValueError for anything else."""
        return cls(data["protocol"], data["functions"], data["spin"], Identity.parse(data["owner"]))


def shared_devices(layout: Layout, nics: SharedNics | None) -> frozenset[Device]:
    """The interfaces used by agents. The kernel must send complete frames on them, as the firmware does."""
    if nics is None:
        return frozenset()
    return frozenset((node.name, node.nics[0].name) for node in layout.nodes if node.nics)
