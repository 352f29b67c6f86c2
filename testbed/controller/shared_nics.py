"""Shared NICs of a running cluster, for scripts and tests that attach to them::

    with share_nics(cluster, functions=2):
        ...  # 'testbed exec n1 -- python my.py', twice: each process attaches to a function of n1's NIC

To its peers, a function of an EMP NIC is a separate NIC. Processes that share an AM-II NIC each have endpoints of their
own on it. In both cases each process has a rank; the ranks of a node are consecutive, in the order of nodes.

An agent process runs the firmware of each NIC. `testbed status` shows the agents, and the cluster's supervisor restarts
those that die. They end with the cluster, with the block, or with the process that runs the block, even if it is killed.
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


class NicSharing:
    """Sharing of a cluster's NICs, until it is stopped."""

    def __init__(self, store: Store, cluster: str, nics: SharedNics) -> None:
        self._store = store
        self._cluster = cluster
        self._nics = nics

    def supervise(self, until: int) -> None:
        """Supervise the agents until the file descriptor `until` is readable. Raises NotFoundError when the cluster is taken
        down, ConflictError when another process has ended the sharing."""
        nic_sharing.keep_supervised(self._store, self._cluster, self._nics, until)

    def agent_pids(self) -> dict[str, int]:
        """Return the process IDs of the agents by node, without agents that are being restarted."""
        state = self._store.read(self._cluster)
        reports = nic_sharing.read_reports(self._store, state) if state is not None else {}
        return {node: report["pid"] for node, report in reports.items() if report is not None}


@contextmanager
def share_nics(
    cluster: RunningCluster, protocol: str = DEFAULT_PROTOCOL, *, functions: int = 1, spin: int = 0
) -> Iterator[NicSharing]:
    """Share every node's first NIC until the end of the block. An agent runs for each NIC, and is restarted if it dies.

    functions: maximum number of host processes of a node. spin: nanoseconds for which agents poll before sleeping. Raises
    UnsupportedError for a protocol whose NICs cannot be shared, ConflictError if the NICs are shared already, KernelError
    if a NIC cannot be opened.
    """
    protocol_of(protocol, "live")
    store, nics = Store(), SharedNics(protocol, functions, spin, processes.identity())
    nic_sharing.share(store, cluster.name, nics)
    try:
        yield NicSharing(store, cluster.name, nics)
    finally:
        nic_sharing.stop(store, cluster.name, nics)
