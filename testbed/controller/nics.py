"""Shared NICs of a cluster that is up, for scripts and tests that attach to them::

    with share_nics(cluster, functions=2):
        ...  # 'testbed exec n1 -- python my.py', twice: each has a function of n1's NIC to itself

A function of EMP's is a NIC of its own to all others; processes that share an AM-II NIC have endpoints of their own there.
Either way each process has a rank: those of a node's follow one another, node by node.

The agents are looked after as the relay is: `testbed status` shows them, the cluster's steward starts one again that dies,
and they end with the cluster, with the block, or with the process whose block it is, however that dies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from testbed.cluster import sharing
from testbed.cluster.running import RunningCluster
from testbed.cluster.shared_nics import SharedNics
from testbed.cluster.state import Store
from testbed.controller.running import protocol_of
from testbed.kernel import processes


class StandingNics:
    """All of a cluster's, while they are shared."""

    def __init__(self, store: Store, cluster: str, nics: SharedNics) -> None:
        self._store = store
        self._cluster = cluster
        self._nics = nics

    def tend(self, until: int) -> None:
        """See to it that the agents are looked after, until this descriptor can be read. Raises NotFoundError when the
        cluster is taken down, ConflictError when somebody else has ended the sharing."""
        sharing.tend(self._store, self._cluster, self._nics, until)

    def agents(self) -> dict[str, int]:
        """By node, the process that has its NIC now; none while one is being started again."""
        state = self._store.read(self._cluster)
        said = sharing.reports(self._store, state) if state is not None else {}
        return {node: one["pid"] for node, one in said.items() if one is not None}


@contextmanager
def share_nics(
    cluster: RunningCluster, protocol: str = "emp", *, functions: int = 1, spin: int = 0
) -> Iterator[StandingNics]:
    """Share every node's first NIC until the end of the block: an agent each, which is started again if it dies.

    functions: how many host processes a node may have. spin: nanoseconds that agents look for something before sleeping.
    Raises UnsupportedError for a protocol that cannot be shared, ConflictError where the NICs are shared already,
    KernelError where one cannot be had.
    """
    protocol_of(protocol, "live")
    store, nics = Store(), SharedNics(protocol, functions, spin, processes.identity())
    sharing.share(store, cluster.name, nics)
    try:
        yield StandingNics(store, cluster.name, nics)
    finally:
        sharing.stop(store, cluster.name, nics)
