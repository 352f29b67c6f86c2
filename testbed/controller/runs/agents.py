"""Host programs on NICs of a cluster that is up::

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
from testbed.cluster.access import node_programs as in_nodes
from testbed.cluster.faults.injections import BOTH
from testbed.cluster.plan.veth_wiring import Device, Wiring
from testbed.cluster.records.ownership import temporary_directory
from testbed.cluster.records.state import State, Store, end_message, shared_devices
from testbed.cluster.running_cluster import RunningCluster
from testbed.controller.cluster_check import baseline
from testbed.controller.verdict.accounts import Account
from testbed.controller.verdict.outcomes import JudgedOutcome, judge_outcome
from testbed.errors import ConflictError, NotFoundError
from testbed.kernel.offloads import Offloads
from testbed.kernel.processes import Identity
from testbed.runtime.nodes.node_run import Run
from testbed.runtime.nodes.run_orders import Dilation, NodeModel, NodePlacement, Program, RunOrders
from testbed.runtime.relay import orders as relay_orders
from testbed.runtime.shared.workers import ReceiveQueues
from testbed.spec.layout import Layout
from testbed.spec.placement import Rank, addresses_of, hosts_of, one_each

SPIN = 50_000
"""Nanoseconds for which node processes poll for a frame before they sleep, where processors are to spare."""

LOCK_TIMEOUT = 30.0
"""Seconds to wait for another command that works on the cluster."""


def mtus_of(layout: Layout, ranks: Sequence[Rank]) -> dict[bytes, tuple[str, int]]:
    """Return every rank's name and MTU, by its MAC address."""
    mtus = {node.name: node.nics[0].mtu for node in layout.nodes if node.nics}
    addresses = addresses_of(layout, ranks)
    return {
        address: (rank.name, mtus[rank.node])
        for address, rank in zip(addresses, ranks, strict=True)
        if rank.node in mtus
    }


@dataclass(frozen=True, slots=True)
class Placement:
    """Ranks of a run, and their NICs. ranks: empty: each node has one, with the node's name and its place in the
    description as its number. split_driver: of the NICs that several ranks share, whose firmware runs in a process of its
    own. everywhere: a NIC of a single rank is shared, too, and not inline. queues: of shared NICs."""

    ranks: Sequence[Rank] = ()
    split_driver: SplitDriver | None = None
    everywhere: bool = False
    queues: ReceiveQueues = field(default_factory=ReceiveQueues)


def all_shared(split_driver: SplitDriver) -> Placement:
    """Place one rank on each node, whose NIC is shared all the same."""
    return Placement(split_driver=split_driver, everywhere=True)


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
    """Run programs, by rank, each beside the firmware of its node's first NIC, until the end of the block.

    placement: of ranks on nodes, and how they share NICs. spin: nanoseconds to poll before sleeping; by default 0, unless
    there are fewer processes than processors. cpus: rank -> the processor that its process is bound to. logs: a
    directory for what the programs print; by default a temporary one that is removed with the block. table: thresholds
    of the verdict. dilation: how the run is slowed, on a cluster whose links are (`testbed.spec.dilation`). on_ready: called
    when all NICs are up and no program has begun. Raises NotFoundError for an unknown node or one without a NIC,
    ConflictError where the NICs are shared with others, and the errors of `Run`.
    """
    state, store = cluster.state, Store()
    if state.nics is not None and ethertype and programs:
        raise ConflictError(
            f"the NICs of cluster {cluster.name} are shared by process {state.nics.owner.pid}, for scripts that attach: two "
            "firmwares would answer each frame"
        )
    placed = placement or Placement()
    everywhere = state.layout.everywhere
    ranks = placed.ranks or one_each(everywhere)
    for name in programs.keys() - {rank.name for rank in ranks}:
        in_nodes.node_of(state, name)
    places = _places(cluster, store, [rank for rank in ranks if rank.name in programs], ranks, placed.everywhere)
    places = [replace(place, cpu=(cpus or {}).get(place.name, -1)) for place in places]
    if dilation is not None:
        places = _modelled(places, ranks, state.layout, dilation)
    if spin is None:
        processes = len(places) + len({place.node_name for place in places if place.functions})
        spin = SPIN if processes < len(os.sched_getaffinity(0)) else 0
    numbers = {rank.name: rank.number for rank in ranks}
    offloads_then = partial(offloading, store, cluster.name)
    mtus = mtus_of(everywhere, ranks) if len({place.adapter.mtu for place in places}) > 1 else {}
    orders = RunOrders(
        plug, ethertype, tuple(places), dict(programs), numbers, spin, offloads_then, dilation,
        placed.split_driver, mtus, placed.queues,
    )  # fmt: skip
    before = baseline(cluster)
    with nullcontext(Path(logs).absolute()) if logs else temporary_directory("logs") as directory:
        directory.mkdir(parents=True, exist_ok=True)
        with (
            _holding(state.holder) as holder,
            JudgedRun(orders, directory, store.directory(cluster.name), cluster.name, before, on_ready) as run,
        ):
            if holder >= 0 and state.holder is not None:
                run.watch_holder(holder, end_message(state.name, state.holder))
            yield run


def _places(
    cluster: RunningCluster, store: Store, chosen: Sequence[Rank], ranks: Sequence[Rank], shared: bool
) -> list[NodePlacement]:
    """Return where the chosen ranks run. ranks: all. shared: whether a NIC is shared even with a single rank. Raises
    NotFoundError for a node without a NIC."""
    state = cluster.state
    everywhere = state.layout.everywhere
    nodes = {node.name: node for node in everywhere.nodes}
    addresses, hosts = addresses_of(everywhere, ranks), hosts_of(ranks)
    # Of other machines' links and the network between machines nothing is known.
    routed, ordered = state.layout.routed(), state.layout.part is None and state.layout.keeps_order()
    adapters: defaultdict[str, list[Adapter]] = defaultdict(list)
    for rank in ranks:
        if nics := nodes[rank.node].nics:
            adapters[rank.node].append(
                Adapter(rank.number, addresses, nics[0].mtu, routed=rank.node in routed, ordered=ordered, hosts=hosts)
            )
    places = []
    for rank in chosen:
        own, nics = adapters[rank.node], nodes[rank.node].nics
        if not nics:
            raise NotFoundError(f"node {rank.node} of cluster {cluster.name} has no NIC")
        context = in_nodes.node_context(store, state, rank.node)
        functions = tuple(own) if shared or len(own) > 1 else ()
        place = NodePlacement(rank.name, context, nics[0].name, own[rank.function], node=rank.node)
        places.append(replace(place, function=rank.function, functions=functions))
    return places


def _modelled(
    places: Sequence[NodePlacement], ranks: Sequence[Rank], layout: Layout, dilation: Dilation
) -> list[NodePlacement]:
    """Return a place for each node, whose process has the node's model with these ranks."""
    chosen = {place.name: place.adapter for place in places}
    modelled = []
    for node in layout.nodes:
        own = [rank for rank in ranks if rank.node == node.name and rank.name in chosen]
        if own:
            place = next(place for place in places if place.name == own[0].name)
            adapters = tuple([chosen[rank.name] for rank in own])
            model = NodeModel(node, dilation.profile_of(node.name), tuple(own), adapters)
            modelled.append(replace(place, name=node.name, functions=(), model=model))
    return modelled


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
        orders: RunOrders,
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
    another command holds the lock for more than LOCK_TIMEOUT.
    """
    with store.locked(cluster, LOCK_TIMEOUT):
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
