"""Who a kernel object belongs to: written on the object itself, so that it can be read when the state is lost.

Every namespace of a cluster has it as the alias of its loopback interface::

    netns-testbed 1 CLUSTER KEY lasting|held BOOT:PIDNS:PID:START

KEY is the node's name, or "." for the wire namespace. A *lasting* cluster stays until it is taken down; its owner is the
process that made it and may have ended. A *held* one belongs to a process and ends with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.cluster import names
from testbed.kernel.processes import Identity

_SIGN = "netns-testbed 1"
_WIRE = "."


@dataclass(frozen=True, slots=True)
class Mark:
    """What the alias says."""

    cluster: str
    key: str
    lasting: bool
    owner: Identity

    def __str__(self) -> str:
        kind = "lasting" if self.lasting else "held"
        return f"{_SIGN} {self.cluster} {self.key or _WIRE} {kind} {self.owner}"

    @classmethod
    def parse(cls, alias: str) -> Mark | None:
        """The inverse of str(); None for an alias that is not one of ours."""
        if not alias.startswith(f"{_SIGN} "):
            return None
        try:
            cluster, key, kind, owner = alias.removeprefix(_SIGN).split()
            return cls(cluster, names.WIRE if key == _WIRE else key, kind == "lasting", Identity.parse(owner))
        except ValueError:
            return None
