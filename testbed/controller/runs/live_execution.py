"""A workload on NICs in namespaces."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from protocols.core.firmware import Host
from testbed.cluster.running_cluster import RunningCluster
from testbed.controller.runs.agents import Placement, agents
from testbed.controller.runs.execution import Execution, Plan, run_rank
from testbed.controller.runs.folders import Part
from testbed.controller.verdict.accounts import switch_counts, switch_counts_since
from testbed.engine.tasks import Task, Work
from testbed.runtime.nodes.dilated_host import Lateness
from testbed.runtime.nodes.node_run import Run
from testbed.runtime.nodes.run_orders import Dilation, ProgramNode
from testbed.runtime.sockets.protocol import KernelProtocol
from testbed.spec.layout import Layout
from testbed.spec.placement import Rank

_SHARE: Final = 2
"""Percent of a figure that lateness may amount to."""

_SHORT: Final = 20_000
"""Nanoseconds: about the shortest figure of the emulated systems, the one-way time of a short message."""


def live(cluster: RunningCluster, plan: Plan, part: Part) -> Execution:
    """Run the workload on all nodes of a cluster that is up, or of this machine's part of one.

    Raises ProgramError with the node's name and a traceback, NodeDiedError, and StuckError where programs have not
    ended within plan.timeout, or made no progress for plan.patience.
    """
    layout = cluster.state.layout
    names, protocol = plan.names, plan.protocol
    addresses = [node.address for node in layout.everywhere.nodes]
    here = {node.name for node in layout.nodes}
    if plan.history:
        part.history.mkdir(exist_ok=True)

    clock = ModelClock if plan.dilate else partial(WallClock, ahead=plan.ahead)

    async def rank(endpoint: Host, here: ProgramNode) -> object:
        if isinstance(protocol, KernelProtocol):
            await protocol.connect(endpoint, here.loop, addresses)
        return await run_rank(
            plan, part, names, here.number, endpoint, clock(here), here.starts, here.departure_callbacks.append
        )

    programs = {placed.name: rank for placed in plan.ranks if placed.node in here}
    dilation = Dilation(plan.dilate, plan.profile, plan.profiles, protocol.steering) if plan.dilate else None
    spin = 0 if isinstance(protocol, KernelProtocol) else None
    cpus, unbound = bindings(layout, plan.ranks) if not plan.dilate else ({}, ())
    before = switch_counts(cluster)
    companions = contextlib.ExitStack()

    def begin_companions(run: Run) -> None:
        for beside in plan.beside:
            companions.enter_context(beside.live(cluster, run))

    with companions, agents(
        cluster, protocol.plug, protocol.ethertype_of(layout.framings()), programs, spin=spin, logs=part.logs,
        placement=Placement(plan.ranks, protocol.split_driver, everywhere=plan.shared, queues=plan.queues),
        dilation=dilation, cpus=cpus, on_ready=begin_companions,
    ) as run:  # fmt: skip
        with companions:  # they end before the programs' processes do
            outcome = run.wait(plan.timeout, patience=plan.patience)
        counted: Mapping[str, Mapping[str, int]] = {name: report.counted for name, report in outcome.reports.items()}
    switches = switch_counts_since(before, switch_counts(cluster))
    if not plan.dilate:
        told = replace(outcome.verdict, notes=(*outcome.verdict.notes, *unbound))
        return Execution(outcome.results, counted, told, switches=switches)
    counted = {name: counts for report in outcome.reports.values() for name, counts in report.ranks.items()}
    used = {name: report.usage for name, report in outcome.reports.items()}
    late = {name: report.lateness for name, report in outcome.reports.items() if report.lateness is not None}
    notes = [*outcome.verdict.notes, *late_notes(late.values(), plan.dilate)]
    if not plan.is_priced:
        notes.append("no profile: NICs and hosts take no time, only links do; --profile names one")
    told = replace(outcome.verdict, notes=tuple(notes))
    return Execution(outcome.results, counted, told, used=used, lateness=late, switches=switches)


def bindings(layout: Layout, ranks: Iterable[Rank]) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """Return the processors of this machine to which ranks are bound, by rank, and a sentence on those that are not. A
    node's cores are the processors of its `cpus`; of other nodes they are processors of this machine, in order, each of
    one node. Ranks of a node whose description names no cores are free."""
    machine = sorted(os.sched_getaffinity(0))
    named = {cpu for node in layout.nodes for cpu in node.cpus}
    left = [cpu for cpu in machine if cpu not in named]
    cores: dict[str, list[int]] = {}
    free = []
    for node in layout.nodes:
        cpus = [cpu for cpu in node.cpus if cpu in machine] if node.cpus else left
        if node.cores and node.cores <= len(cpus):
            cores[node.name] = cpus[: node.cores]
            left = left if node.cpus else left[node.cores :]
        elif node.cores:
            free.append(node.name)
    bound = {rank.name: cores[rank.node][rank.core] for rank in ranks if rank.node in cores}
    if not free:
        return bound, ()
    names = ", ".join(dict.fromkeys(free))
    return bound, (f"more cores are described of {names} than processors are here: their programs run on any",)


class WallClock:
    """A node's `Clock`. ahead: nanoseconds to add to this machine's."""

    __slots__ = ("_loop", "cpu", "now", "sleep", "spawn")

    def __init__(self, here: ProgramNode, ahead: int = 0) -> None:
        self._loop = here.loop
        self.now = time.monotonic_ns if not ahead else lambda: time.monotonic_ns() + ahead
        self.cpu = time.process_time_ns
        self.sleep = here.loop.sleep
        self.spawn = here.loop.spawn

    async def compute(self, nanoseconds: int) -> None:
        """Spin for this much of our own processor time: other processes do not shorten the work."""
        used = time.thread_time_ns
        end = used() + nanoseconds
        while used() < end:
            pass


class ModelClock:
    """A node's `Clock` where time is dilated: a program continues once its core has done what it asked for."""

    __slots__ = ("_adopt", "_loop", "_model", "compute", "now")

    def __init__(self, here: ProgramNode) -> None:
        assert here.model is not None
        self._loop = here.loop
        self._model = here.model
        self._adopt = here.adopt
        self.now = here.model.reached
        self.compute = here.model.compute

    def spawn(self, work: Work[object], name: str) -> Task[object]:
        task = self._loop.spawn(work, name)
        self._adopt(task)
        return task

    def cpu(self) -> int:
        return self._model.core.busy

    async def sleep(self, nanoseconds: int) -> None:
        await self._loop.sleep_until(self.now() + nanoseconds)


def late_notes(late: Iterable[Lateness], factor: int) -> tuple[str, ...]:
    """Say what lateness means for figures, in a sentence."""
    late = list(late)
    worst = max((one.p99 for one in late), default=0)
    if not worst:
        return ()
    half = max(one.p50 for one in late)
    needed = -(-worst * factor // (_SHARE * _SHORT // 100))
    return (
        f"of the frames 50 % crossed up to {half:,} ns of the model's time late, 99 % up to {worst:,} ns: figures above "
        f"{worst * 100 // _SHARE:,} ns are true to {_SHARE} %; with --dilate {needed} those above {_SHORT:,} ns would be",
    )
