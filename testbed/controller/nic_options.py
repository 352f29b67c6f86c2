"""Shared NICs of a running cluster, for scripts and tests that attach to them::

    with share_nics(cluster, functions=2):
        ...  # 'testbed exec n1 -- python my.py', twice: each has a function of n1's NIC to itself

A function of EMP's is a separate NIC to all peers; processes that share an AM-II NIC have endpoints of their own there.
Either way each process has a rank: those of a node are consecutive, node by node.

The agents are supervised as the relay is: `testbed status` shows them, the cluster's supervisor restarts one that dies,
and they end with the cluster, with the block, or with the process that runs the block, however that dies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from testbed.cluster.records.state import SharedNics, Store
from testbed.cluster.running_cluster import RunningCluster
from testbed.cluster.services import nic_sharing
from testbed.controller.runs.runner import protocol_of
from testbed.kernel import processes
from testbed.registry import DEFAULT_PROTOCOL


class StandingNics:
    """The NICs of a cluster while they are shared."""

    def __init__(self, store: Store, cluster: str, nics: SharedNics) -> None:
        self._store = store
        self._cluster = cluster
        self._nics = nics

    def tend(self, until: int) -> None:
        """Supervise the agents until this descriptor is readable. Raises NotFoundError when the cluster is taken down,
        ConflictError when another process has ended the sharing."""
        nic_sharing.keep_supervised(self._store, self._cluster, self._nics, until)

    def agents(self) -> dict[str, int]:
        """Return, by node, the ID of the process that has its NIC now; without nodes whose agent is being restarted."""
        state = self._store.read(self._cluster)
        reports = nic_sharing.reports(self._store, state) if state is not None else {}
        return {node: report["pid"] for node, report in reports.items() if report is not None}


@contextmanager
def share_nics(
    cluster: RunningCluster, protocol: str = DEFAULT_PROTOCOL, *, functions: int = 1, spin: int = 0
) -> Iterator[StandingNics]:
    """Share every node's first NIC until the end of the block: an agent each, restarted if it dies.

    functions: how many host processes a node may have. spin: nanoseconds for which agents poll before sleeping. Raises
    UnsupportedError for a protocol that cannot be shared, ConflictError where the NICs are shared already, KernelError
    where a NIC cannot be opened.
    """
    protocol_of(protocol, "live")
    store, nics = Store(), SharedNics(protocol, functions, spin, processes.identity())
    nic_sharing.share(store, cluster.name, nics)
    try:
        yield StandingNics(store, cluster.name, nics)
    finally:
        nic_sharing.stop(store, cluster.name, nics)
