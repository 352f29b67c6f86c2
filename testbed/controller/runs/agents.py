"""Host programs on NICs of a cluster that is up::

with agents(cluster, emp.plug(), emp.ETHERTYPE, {"n1": ping, "n2": pong}) as run:
    print(run.wait(10).results["n1"])
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from protocols.core.firmware import Adapter, Plug
from protocols.core.split_memory import SplitDriver
from testbed.cluster.access import node_programs as in_nodes
from testbed.cluster.faults.injections import BOTH
from testbed.cluster.plan.veth_wiring import Device, Wiring
from testbed.cluster.records.ownership import temporary_directory
from testbed.cluster.records.state import State, Store, ended, shared_devices
from testbed.cluster.running_cluster import RunningCluster
from testbed.controller.cluster_check import baseline
from testbed.controller.verdict.accounts import Account
from testbed.controller.verdict.outcomes import JudgedOutcome, judge_outcome
from testbed.errors import ConflictError, NotFoundError
from testbed.kernel.offloads import Offloads
from testbed.kernel.processes import Identity
from testbed.runtime.nodes.node_run import Run
from testbed.runtime.nodes.places import Dilation, NodePlacement, Orders, Program
from testbed.runtime.relay import orders as relay_orders
from testbed.spec.layout import Layout

SPIN = 50_000
"""Nanoseconds for which node processes poll for a frame before they sleep, where processors are to spare."""

LOCK_PATIENCE = 30.0
"""Seconds to wait for another command that works on the cluster."""

_NOBODY = bytes(6)  # the address of a node without a NIC


def addresses_of(layout: Layout) -> list[bytes]:
    """Return the MAC address of every node's first NIC, by node number."""
    return [bytes.fromhex(node.nics[0].mac.replace(":", "")) if node.nics else _NOBODY for node in layout.nodes]


def mtus_of(layout: Layout) -> dict[bytes, tuple[str, int]]:
    """Return every node's name and MTU, by the MAC address of its first NIC."""
    return {
        address: (node.name, node.nics[0].mtu)
        for address, node in zip(addresses_of(layout), layout.nodes, strict=True)
        if node.nics
    }


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
    dilation: Dilation | None = None,
    shared: SplitDriver | None = None,
    on_ready: Callable[[Run], object] | None = None,
) -> Iterator[JudgedRun]:
    """Run programs, by node, each beside the firmware of its node's first NIC, until the end of the block.

    A node's number is its place in the description. spin: nanoseconds to poll before sleeping; by default 0, unless
    there are fewer processes than processors. cpus: node -> the processor that its process is bound to. logs: a
    directory for what the programs print; by default a temporary one that is removed with the block. table: thresholds
    of the verdict. dilation: how the run is slowed, on a cluster whose links are (`testbed.spec.dilation`). shared:
    makes a NIC whose firmware runs in a process of its own, instead of plug. on_ready: called when all NICs are up and no
    program has begun. Raises NotFoundError for an unknown node
    or one without a NIC, ConflictError where the NICs are shared with others, and the errors of `Run`.
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
            NodePlacement(
                node.name,
                in_nodes.node_context(store, state, node.name),
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
    mtus = mtus_of(state.layout) if len({place.adapter.mtu for place in places}) > 1 else {}
    orders = Orders(
        plug, ethertype, tuple(places), dict(programs), numbers, spin, offloads_then, dilation, shared, mtus
    )
    before = baseline(cluster)
    with nullcontext(Path(logs).absolute()) if logs else temporary_directory("logs") as directory:
        directory.mkdir(parents=True, exist_ok=True)
        with (
            _holding(state.holder) as holder,
            JudgedRun(orders, directory, store.directory(cluster.name), cluster.name, before, on_ready) as run,
        ):
            if holder >= 0 and state.holder is not None:
                run.end_with(holder, ended(state.name, state.holder))
            yield run


@contextmanager
def _holding(holder: Identity | None) -> Iterator[int]:
    """Hold a pidfd of the process that holds the namespaces; -1 where there is none."""
    if holder is None:
        yield -1
        return
    try:
        handle = os.pidfd_open(holder.pid)
    except ProcessLookupError:  # it has just died; its users report that
        yield -1
        return
    try:
        yield handle
    finally:
        os.close(handle)


class JudgedRun(Run):
    """A run whose outcome comes with a verdict."""

    def __init__(
        self,
        orders: Orders,
        logs: Path,
        events: Path,
        cluster: str,
        before: Account,
        on_ready: Callable[[Run], object] | None = None,
    ) -> None:
        """cluster: its name. before: its account at the beginning of the run. For the rest see `Run`."""
        self._cluster = cluster
        self._before = before
        super().__init__(orders, logs, events, on_ready)

    def wait(self, seconds: float, without: Collection[str] = (), *, patience: float | None = None) -> JudgedOutcome:
        """Wait as `Run.wait` does; also raises NotFoundError where the cluster is gone."""
        outcome = super().wait(seconds, without, patience=patience)
        return judge_outcome(outcome, self.pids, self._cluster, self._before)


@contextmanager
def offloading(store: Store, cluster: str) -> Iterator[Mapping[str, Offloads]]:
    """Hold the cluster's lock and yield the offloads that each node's first NIC may have, by the present state of its
    links.

    Empty while a change of the cluster is half done: the next change sets them right. Raises ConflictError where
    another command holds the lock for more than LOCK_PATIENCE.
    """
    with store.locked(cluster, LOCK_PATIENCE):
        state = store.read(cluster)
        if state is None or state.phase != "up":
            yield {}
            return
        wanted = _offloads_wanted(store, state)
        nodes = [node for node in state.layout.nodes if node.nics]
        yield {node.name: wanted.get((node.name, node.nics[0].name), Offloads.ALL) for node in nodes}


def _offloads_wanted(store: Store, state: State) -> dict[Device, Offloads]:
    """Map devices to their offloads; devices that are missing may use all."""
    shared = dict.fromkeys(shared_devices(state.layout, state.nics), Offloads.NONE)
    wiring = Wiring.of(state.layout, state.datapaths)
    shared |= dict.fromkeys(wiring.uplinks, Offloads.NONE)
    splices = wiring.splices
    if not splices:
        return shared
    from testbed.cluster.plan.datapath_choice import (
        carries_gso,  # imports code that a cluster without impairments does not need
    )

    orders = relay_orders.RelayPaths(store.directory(state.name)).read_orders() or relay_orders.Orders(0)
    carried = {link.name: link for link in orders.links}
    links = {link.name: link for link in state.layout.links}
    found = dict.fromkeys((device for splice in splices.values() for device in splice.senders), Offloads.NONE)
    for name in splices.keys() & carried.keys():
        sides = carried[name].forward, carried[name].backward
        for device, side, direction in zip(splices[name].senders, sides, BOTH, strict=True):
            if carries_gso(state.layout, links[name], direction, side, orders.files):
                found[device] = Offloads.TCP
    return found | shared
