"""Host programs on NICs of a cluster that is up.

::

    with agents(cluster, emp.plug(), emp.ETHERTYPE, {"n1": ping, "n2": pong}) as run:
        print(run.wait(10).results["n1"])
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from protocols.core.firmware import Adapter, Plug
from protocols.core.split_memory import SplitDriver
from testbed.cluster.access import node_programs
from testbed.cluster.faults.injections import BOTH
from testbed.cluster.plan.veth_wiring import Device, Wiring
from testbed.cluster.records.ownership import temporary_directory
from testbed.cluster.records.state import State, Store, end_message, shared_devices
from testbed.cluster.running_cluster import RunningCluster
from testbed.controller.cluster_check import baseline
from testbed.controller.verdict.counter_snapshots import CounterSnapshot
from testbed.controller.verdict.outcomes import JudgedOutcome, judge_outcome
from testbed.errors import ConflictError, NotFoundError
from testbed.kernel.offloads import Offloads
from testbed.kernel.processes import Identity
from testbed.runtime.nodes.node_run import Run
from testbed.runtime.nodes.run_orders import Dilation, NodeModel, NodePlacement, Program, RunOrders
from testbed.runtime.relay import orders as relay_orders
from testbed.runtime.shared.workers import ReceiveQueues
from testbed.spec.layout import Layout
from testbed.spec.placement import Rank, addresses_of, first_local_ranks, nodes_of, one_rank_per_node

SPIN = 50_000
"""Nanoseconds for which node processes poll for a frame before they sleep, if processors outnumber processes."""

LOCK_TIMEOUT = 30.0
"""Seconds to wait for another command to release the cluster's lock."""


def mtus_of(layout: Layout, ranks: Sequence[Rank]) -> dict[bytes, tuple[str, int]]:
    """Return the name and MTU of each rank, by MAC address."""
    mtus = {node.name: node.nics[0].mtu for node in layout.nodes if node.nics}
    addresses = addresses_of(layout, ranks)
    return {
        address: (rank.name, mtus[rank.node])
        for address, rank in zip(addresses, ranks, strict=True)
        if rank.node in mtus
    }


@dataclass(frozen=True, slots=True)
class Placement:
    """Ranks of a run, and their NICs. ranks: if empty, each node has one rank, which has the node's name and is numbered in
    the order of the description. split_driver: split driver of shared NICs, whose firmware runs in an agent process.
    share_all: also share the NIC of a single rank, which is inline otherwise. queues: receive queues of shared NICs."""

    ranks: Sequence[Rank] = ()
    split_driver: SplitDriver | None = None
    share_all: bool = False
    queues: ReceiveQueues = field(default_factory=ReceiveQueues)


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
    placement: Placement | None = None,
    on_ready: Callable[[Run], object] | None = None,
) -> Iterator[JudgedRun]:
    """Run programs, by rank, on the first NIC of their nodes until the end of the block; each process also runs the NIC's
    firmware, unless the NIC is shared.

    placement: placement of ranks on nodes, and sharing of NICs. spin: nanoseconds to poll before sleeping; by default SPIN
    if there are fewer processes than processors, otherwise 0. cpus: rank -> processor that its process is pinned to. logs:
    directory for output of the programs; by default a temporary one, removed at the end of the block. dilation: slows the
    run, on a cluster with equally slowed links (`testbed.spec.dilation`). on_ready: called when all NICs are up and before
    any program begins. Raises NotFoundError for an unknown node or one without a NIC, ConflictError if the NICs are shared
    for other scripts, and the errors of `Run`.
    """
    state, store = cluster.state, Store()
    if state.nics is not None and ethertype and programs:
        raise ConflictError(
            f"process {state.nics.owner.pid} shares the NICs of cluster {cluster.name} for scripts that attach: end it "
            "first, since two firmwares would answer each frame"
        )
    placement = placement or Placement()
    layout = state.layout.with_all_nodes
    ranks = placement.ranks or one_rank_per_node(layout)
    for name in programs.keys() - {rank.name for rank in ranks}:
        node_programs.node_of(state, name)
    node_placements = _node_placements(
        cluster, store, [rank for rank in ranks if rank.name in programs], ranks, placement.share_all
    )
    node_placements = [replace(place, cpu=(cpus or {}).get(place.name, -1)) for place in node_placements]
    if dilation is not None:
        node_placements = _with_models(node_placements, ranks, state.layout, dilation)
    if spin is None:
        processes = len(node_placements) + len({place.node_name for place in node_placements if place.functions})
        spin = SPIN if processes < len(os.sched_getaffinity(0)) else 0
    numbers = {rank.name: rank.number for rank in ranks}
    offloads_at_end = partial(locked_offloads, store, cluster.name)
    mtus = mtus_of(layout, ranks) if len({place.adapter.mtu for place in node_placements}) > 1 else {}
    orders = RunOrders(
        plug, ethertype, tuple(node_placements), dict(programs), numbers, spin, offloads_at_end, dilation,
        placement.split_driver, mtus, placement.queues,
    )  # fmt: skip
    before = baseline(cluster)
    with nullcontext(Path(logs).absolute()) if logs else temporary_directory("logs") as directory:
        directory.mkdir(parents=True, exist_ok=True)
        with (
            _open_pidfd(state.holder) as holder_pidfd,
            JudgedRun(orders, directory, store.directory(cluster.name), cluster.name, before, on_ready) as run,
        ):
            if holder_pidfd >= 0 and state.holder is not None:
                run.watch_holder(holder_pidfd, end_message(state.name, state.holder))
            yield run


def _node_placements(
    cluster: RunningCluster, store: Store, chosen: Sequence[Rank], ranks: Sequence[Rank], share_all: bool
) -> list[NodePlacement]:
    """Return the placements of the chosen ranks. ranks: all ranks of the run. share_all: also share the NIC of a single
    rank. Raises NotFoundError for a node without a NIC."""
    state = cluster.state
    layout = state.layout.with_all_nodes
    nodes = {node.name: node for node in layout.nodes}
    addresses, hosts, names = addresses_of(layout, ranks), first_local_ranks(ranks), nodes_of(ranks)
    # Links of other machines and the network between machines may reorder frames.
    routed, ordered = state.layout.source_routed_nodes(), state.layout.part is None and state.layout.keeps_order()
    adapters: defaultdict[str, list[Adapter]] = defaultdict(list)
    for rank in ranks:
        if nics := nodes[rank.node].nics:
            adapters[rank.node].append(
                Adapter(
                    rank.number,
                    addresses,
                    nics[0].mtu,
                    routed=rank.node in routed,
                    ordered=ordered,
                    hosts=hosts,
                    names=names,
                )
            )
    places = []
    for rank in chosen:
        node_adapters, nics = adapters[rank.node], nodes[rank.node].nics
        if not nics:
            raise NotFoundError(f"node {rank.node} of cluster {cluster.name} has no NIC")
        context = node_programs.node_context(store, state, rank.node)
        functions = tuple(node_adapters) if share_all or len(node_adapters) > 1 else ()
        place = NodePlacement(rank.name, context, nics[0].name, node_adapters[rank.function], node=rank.node)
        places.append(replace(place, function=rank.function, functions=functions))
    return places


def _with_models(
    places: Sequence[NodePlacement], ranks: Sequence[Rank], layout: Layout, dilation: Dilation
) -> list[NodePlacement]:
    """Return a placement for each node, whose process runs the node's cost model with these ranks."""
    chosen = {place.name: place.adapter for place in places}
    modelled = []
    for node in layout.nodes:
        node_ranks = [rank for rank in ranks if rank.node == node.name and rank.name in chosen]
        if node_ranks:
            place = next(place for place in places if place.name == node_ranks[0].name)
            adapters = tuple([chosen[rank.name] for rank in node_ranks])
            model = NodeModel(node, dilation.profile_of(node.name), tuple(node_ranks), adapters)
            modelled.append(replace(place, name=node.name, functions=(), model=model))
    return modelled


@contextmanager
def _open_pidfd(process: Identity | None) -> Iterator[int]:
    """Open a pidfd of a process for the block; -1 if there is no process."""
    if process is None:
        yield -1
        return
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:  # the process has just died, which its users report
        yield -1
        return
    try:
        yield pidfd
    finally:
        os.close(pidfd)


class JudgedRun(Run):
    """A run whose outcome comes with a verdict."""

    def __init__(
        self,
        orders: RunOrders,
        logs: Path,
        events: Path,
        cluster: str,
        before: CounterSnapshot,
        on_ready: Callable[[Run], object] | None = None,
    ) -> None:
        """cluster: its name. before: its counters at the beginning of the run. The other arguments are those of `Run`."""
        self._cluster = cluster
        self._before = before
        super().__init__(orders, logs, events, on_ready)

    def wait(self, seconds: float, without: Collection[str] = (), *, patience: float | None = None) -> JudgedOutcome:
        """Wait as `Run.wait` does. Also raises NotFoundError if the cluster is gone."""
        outcome = super().wait(seconds, without, patience=patience)
        return judge_outcome(outcome, self.pids, self._cluster, self._before)


@contextmanager
def locked_offloads(store: Store, cluster: str) -> Iterator[Mapping[str, Offloads]]:
    """Hold the cluster's lock, and yield by node the offloads that its first NIC may use with the current datapaths.

    Empty while a change of the cluster is incomplete; the next change sets the offloads. Raises ConflictError if another
    command holds the lock for more than LOCK_TIMEOUT.
    """
    with store.locked(cluster, LOCK_TIMEOUT):
        state = store.read(cluster)
        if state is None or state.phase != "up":
            yield {}
            return
        permitted = _permitted_offloads(store, state)
        nodes = [node for node in state.layout.nodes if node.nics]
        yield {node.name: permitted.get((node.name, node.nics[0].name), Offloads.ALL) for node in nodes}


def _permitted_offloads(store: Store, state: State) -> dict[Device, Offloads]:
    """Map devices to the offloads that they may use; missing devices may use all."""
    shared = dict.fromkeys(shared_devices(state.layout, state.nics), Offloads.NONE)
    wiring = Wiring.from_datapaths(state.layout, state.datapaths)
    shared |= dict.fromkeys(wiring.uplinks, Offloads.NONE)
    splices = wiring.splices
    if not splices:
        return shared
    from testbed.cluster.plan.datapath_choice import (
        carries_gso,  # its imports are not needed without impairments
    )

    orders = relay_orders.RelayPaths(store.directory(state.name)).read_orders() or relay_orders.Orders(0)
    relayed = {link.name: link for link in orders.links}
    links = {link.name: link for link in state.layout.links}
    permitted = dict.fromkeys((device for splice in splices.values() for device in splice.senders), Offloads.NONE)
    for name in splices.keys() & relayed.keys():
        sides = relayed[name].forward, relayed[name].backward
        for device, side, direction in zip(splices[name].senders, sides, BOTH, strict=True):
            if carries_gso(state.layout, links[name], direction, side, orders.files):
                permitted[device] = Offloads.TCP
    return permitted | shared
