"""Ownership marks on kernel objects, readable even if the cluster's state is lost.

The mark is the alias of the loopback interface of every namespace of a cluster::

    netns-testbed 1 CLUSTER KEY lasting|held BOOT:PIDNS:PID:START

KEY is the node's name, or "." for the wire namespace. A *lasting* cluster stays until it is taken down; its owner is
the process that made it, which may have ended. A *held* cluster belongs to a process and ends with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.cluster.plan import namespace_names
from testbed.kernel.processes import Identity

_SIGN = "netns-testbed 1"
_WIRE = "."


@dataclass(frozen=True, slots=True)
class Mark:
    """The parsed mark."""

    cluster: str
    key: str
    lasting: bool
    owner: Identity

    def __str__(self) -> str:
        kind = "lasting" if self.lasting else "held"
        return f"{_SIGN} {self.cluster} {self.key or _WIRE} {kind} {self.owner}"

    @classmethod
    def parse(cls, alias: str) -> Mark | None:
        """Parse the output of str(); None for an alias that is not a mark."""
        if not alias.startswith(f"{_SIGN} "):
            return None
        try:
            cluster, key, kind, owner = alias.removeprefix(_SIGN).split()
            return cls(cluster, namespace_names.WIRE if key == _WIRE else key, kind == "lasting", Identity.parse(owner))
        except ValueError:
            return None
