"""Host programs on NICs of a cluster that is up::

with agents(cluster, emp.plug(), emp.ETHERTYPE, {"n1": ping, "n2": pong}) as run:
    print(run.wait(10).results["n1"])
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from protocols.core.apart import Apart
from protocols.core.firmware import Adapter, Plug
from testbed.cluster import programs as in_nodes
from testbed.cluster import temporary
from testbed.cluster.running import RunningCluster
from testbed.cluster.sending import offloads_wanted
from testbed.cluster.state import Store
from testbed.controller.accounts import Account
from testbed.controller.checking import baseline
from testbed.controller.outcomes import Judged, judged
from testbed.controller.thresholds import TABLE, Table
from testbed.errors import ConflictError, NotFoundError
from testbed.kernel.offloads import Offloads
from testbed.runtime.nodes.places import Dilation, Orders, Place, Program
from testbed.runtime.nodes.run import Run
from testbed.spec.layout import Layout

SPIN = 50_000
"""Nanoseconds that node processes look for a frame before they sleep, where there are processors to spare."""

LOCK_PATIENCE = 30.0
"""Seconds for another command's work on the cluster to be over."""

_NOBODY = bytes(6)  # the address of a node without a NIC


def addresses_of(layout: Layout) -> list[bytes]:
    """The MAC of every node's first NIC, by node number."""
    return [bytes.fromhex(node.nics[0].mac.replace(":", "")) if node.nics else _NOBODY for node in layout.nodes]


@contextmanager
def agents(
    cluster: RunningCluster,
    plug: Plug,
    ethertype: int,
    programs: Mapping[str, Program],
    *,
    spin: int | None = None,
    cpus: Mapping[str, int] | None = None,
    logs: str | Path = "",
    table: Table = TABLE,
    dilation: Dilation | None = None,
    shared: Apart | None = None,
) -> Iterator[JudgedRun]:
    """Run programs, by node, each beside the firmware of its node's first NIC, until the end of the block.

    A node's number is its place in the description. spin: nanoseconds to spin before sleeping; if not said, none unless
    the processes are fewer than the processors. cpus: node -> the processor that its process is bound to. logs: a
    directory for what the programs print, by default one that vanishes with the block. table: what the run's
    verdict is given by. dilation: how the run is slowed, on a cluster whose links are (`testbed.spec.slowing`). shared: the
    firmware of every NIC is in a process of its own, made by this instead of plug. Raises NotFoundError for a node that
    is not there or has no NIC, ConflictError where the NICs are shared with others, and what `Run` does.
    """
    state, store = cluster.state, Store()
    if state.nics is not None and ethertype and programs:
        raise ConflictError(
            f"the NICs of cluster {cluster.name} are shared by process {state.nics.owner.pid}, for scripts that attach: two "
            "firmwares would answer each frame"
        )
    nodes = state.layout.nodes
    addresses = addresses_of(state.layout)
    routed, ordered = state.layout.routed(), state.layout.keeps_order()
    places = []
    for number, node in enumerate(nodes):
        if node.name not in programs:
            continue
        if not node.nics:
            raise NotFoundError(f"node {node.name} of cluster {cluster.name} has no NIC")
        places.append(
            Place(
                node.name,
                in_nodes.surroundings(store, state, node.name),
                node.nics[0].name,
                Adapter(number, addresses, node.nics[0].mtu, routed=node.name in routed, ordered=ordered),
                (cpus or {}).get(node.name, -1),
            )
        )
    for name in programs:
        in_nodes.node_of(state, name)
    if spin is None:
        processes = len(places) * (2 if shared is not None else 1)
        spin = SPIN if processes < len(os.sched_getaffinity(0)) else 0
    numbers = {node.name: number for number, node in enumerate(nodes)}
    offloads_then = partial(offloading, store, cluster.name)
    orders = Orders(plug, ethertype, tuple(places), dict(programs), numbers, spin, offloads_then, dilation, shared)
    before = baseline(cluster)
    with nullcontext(Path(logs).absolute()) if logs else temporary.directory("logs") as directory:
        directory.mkdir(parents=True, exist_ok=True)
        with JudgedRun(orders, directory, store.directory(cluster.name), cluster.name, before, table) as run:
            yield run


class JudgedRun(Run):
    """A run whose outcome comes with a verdict."""

    def __init__(
        self, orders: Orders, logs: Path, told: Path, cluster: str, before: Account, table: Table = TABLE
    ) -> None:
        """cluster: its name. before: an account of it at the run's beginning. The rest as in `Run`."""
        self._cluster = cluster
        self._before = before
        self._table = table
        super().__init__(orders, logs, told)

    def wait(self, seconds: float, without: Collection[str] = (), *, patience: float | None = None) -> Judged:
        """As `Run.wait`; also raises NotFoundError where the cluster is gone."""
        outcome = super().wait(seconds, without, patience=patience)
        return judged(outcome, self.pids, self._cluster, self._before, self._table)


@contextmanager
def offloading(store: Store, cluster: str) -> Iterator[Mapping[str, Offloads]]:
    """What the nodes' first NICs may have, by links as they are now. Nothing while a change of the cluster is half done: the
    next one puts them right. Raises ConflictError where somebody else is at work on it for too long."""
    with store.locked(cluster, LOCK_PATIENCE):
        state = store.read(cluster)
        if state is None or state.phase != "up":
            yield {}
            return
        wanted = offloads_wanted(store, state)
        nodes = [node for node in state.layout.nodes if node.nics]
        yield {node.name: wanted.get((node.name, node.nics[0].name), Offloads.ALL) for node in nodes}
