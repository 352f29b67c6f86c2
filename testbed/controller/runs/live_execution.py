"""Execution of a workload on NICs in namespaces."""

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
from testbed.controller.runs.folders import RepetitionFiles
from testbed.controller.verdict.counter_snapshots import read_switch_counts, switch_counts_since
from testbed.engine.coroutines import until
from testbed.engine.tasks import Task, Work
from testbed.runtime.nodes.dilated_host import Lateness
from testbed.runtime.nodes.node_run import Run
from testbed.runtime.nodes.run_orders import Dilation, ProgramNode
from testbed.runtime.sockets.protocol import KernelProtocol
from testbed.spec.layout import Layout
from testbed.spec.placement import Rank

_MAX_LATENESS_PERCENT: Final = 2
"""Maximum share of lateness in a measured time that counts as accurate."""

_SHORT_TIME: Final = 20_000
"""Nanoseconds: one-way time of a short message, about the shortest measured time of the emulated systems."""


def run_live(cluster: RunningCluster, plan: Plan, files: RepetitionFiles) -> Execution:
    """Run the workload on all nodes of a running cluster, or of this machine's part of a spread one.

    Raises ProgramError with the node's name and a traceback, FirmwareError, NodeDiedError, ClusterEndedError, StuckError if
    programs have not ended within plan.timeout or made no progress for plan.patience, and the errors of `agents`.
    """
    layout = cluster.state.layout
    names, protocol = plan.names, plan.protocol
    addresses = [node.address for node in layout.with_all_nodes.nodes]
    local_nodes = {node.name for node in layout.nodes}
    if plan.history:
        files.history.mkdir(exist_ok=True)

    clock = ModelClock if plan.dilate else partial(WallClock, ahead=plan.ahead)

    async def rank_program(host: Host, node: ProgramNode) -> object:
        if isinstance(protocol, KernelProtocol):
            await protocol.connect(host, node.loop, addresses)
        return await run_rank(
            plan, files, names, node.number, host, clock(node), node.starts, node.crash_callbacks.append
        )

    programs = {rank.name: rank_program for rank in plan.ranks if rank.node in local_nodes}
    dilation = Dilation(plan.dilate, plan.profile, plan.profiles, protocol.steering) if plan.dilate else None
    spin = 0 if isinstance(protocol, KernelProtocol) else None
    cpus, pinning_notes = core_pinning(layout, plan.ranks) if not plan.dilate else ({}, ())
    before = read_switch_counts(cluster)
    companions = contextlib.ExitStack()

    def begin_companions(run: Run) -> None:
        for companion in plan.companions:
            companions.enter_context(companion.live(cluster, run))

    with companions, agents(
        cluster, protocol.plug, protocol.ethertype_of(layout.framings()), programs, spin=spin, logs=files.logs,
        placement=Placement(plan.ranks, protocol.split_driver, share_all=plan.shared, queues=plan.queues),
        dilation=dilation, cpus=cpus, on_ready=begin_companions,
    ) as run:  # fmt: skip
        with companions:  # companions end before the node processes
            outcome = run.wait(plan.timeout, patience=plan.patience)
        counters: Mapping[str, Mapping[str, int]] = {name: report.counted for name, report in outcome.reports.items()}
    switches = switch_counts_since(before, read_switch_counts(cluster))
    if not plan.dilate:
        verdict = replace(outcome.verdict, notes=(*outcome.verdict.notes, *pinning_notes))
        return Execution(outcome.results, counters, verdict, switches=switches)
    counters = {name: counts for report in outcome.reports.values() for name, counts in report.ranks.items()}
    usage = {name: report.usage for name, report in outcome.reports.items()}
    lateness = {name: report.lateness for name, report in outcome.reports.items() if report.lateness is not None}
    notes = [*outcome.verdict.notes, *lateness_notes(lateness.values(), plan.dilate)]
    if not plan.is_priced:
        notes.append("no profile is given: NICs and hosts take no time, only links do; --profile selects a profile")
    verdict = replace(outcome.verdict, notes=tuple(notes))
    return Execution(outcome.results, counters, verdict, usage=usage, lateness=lateness, switches=switches)


def core_pinning(layout: Layout, ranks: Iterable[Rank]) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """Return the processor of this machine that each rank is pinned to, by rank, and a note on nodes whose ranks cannot be
    pinned. A node's cores are its `cpus`; nodes without `cpus` get the other processors, in order, each processor for one
    node. Ranks of a node without cores in its description are not pinned."""
    machine = sorted(os.sched_getaffinity(0))
    reserved = {cpu for node in layout.nodes for cpu in node.cpus}
    free_cpus = [cpu for cpu in machine if cpu not in reserved]
    cores: dict[str, list[int]] = {}
    unpinned = []
    for node in layout.nodes:
        cpus = [cpu for cpu in node.cpus if cpu in machine] if node.cpus else free_cpus
        if node.cores and node.cores <= len(cpus):
            cores[node.name] = cpus[: node.cores]
            free_cpus = free_cpus if node.cpus else free_cpus[node.cores :]
        elif node.cores:
            unpinned.append(node.name)
    pinned = {rank.name: cores[rank.node][rank.core] for rank in ranks if rank.node in cores}
    if not unpinned:
        return pinned, ()
    names = ", ".join(dict.fromkeys(unpinned))
    return pinned, (f"{names}: not enough free processors for the configured cores; their programs are not pinned",)


class WallClock:
    """A node's `Clock`, this machine's monotonic clock plus `ahead` nanoseconds."""

    __slots__ = ("_loop", "cpu", "now", "sleep", "spawn")

    def __init__(self, node: ProgramNode, ahead: int = 0) -> None:
        self._loop = node.loop
        self.now = time.monotonic_ns if not ahead else lambda: time.monotonic_ns() + ahead
        self.cpu = time.process_time_ns
        self.sleep = node.loop.sleep
        self.spawn = node.loop.spawn

    async def compute(self, nanoseconds: int) -> None:
        """Spin until this thread has used this much CPU time; time of other processes does not count."""
        cpu_time = time.thread_time_ns
        end = cpu_time() + nanoseconds
        while cpu_time() < end:
            pass


class ModelClock:
    """A node's `Clock` in dilated runs: a program continues when its modelled core has done the requested work."""

    __slots__ = ("_adopt", "_loop", "_model", "compute", "now")

    def __init__(self, node: ProgramNode) -> None:
        assert node.model is not None
        self._loop = node.loop
        self._model = node.model
        self._adopt = node.adopt
        self.now = node.model.program_time
        self.compute = node.model.compute

    def spawn(self, work: Work[object], name: str) -> Task[object]:
        task = self._loop.spawn(work, name)
        self._adopt(task)
        return task

    def cpu(self) -> int:
        return self._model.core.busy

    async def sleep(self, nanoseconds: int) -> None:
        await until(self.now() + nanoseconds)


def lateness_notes(lateness: Iterable[Lateness], factor: int) -> tuple[str, ...]:
    """Return at most one note on how lateness limits the accuracy of measured times. lateness: of each node. factor:
    dilation factor."""
    of_nodes = list(lateness)
    p99 = max((node_lateness.p99 for node_lateness in of_nodes), default=0)
    if not p99:
        return ()
    p50 = max(node_lateness.p50 for node_lateness in of_nodes)
    needed_factor = -(-p99 * factor // (_MAX_LATENESS_PERCENT * _SHORT_TIME // 100))
    note = (
        f"frames were late by up to {p50:,} ns of model time (median) and {p99:,} ns (99th percentile): measured times "
        f"above {p99 * 100 // _MAX_LATENESS_PERCENT:,} ns are accurate to {_MAX_LATENESS_PERCENT}%"
    )
    if needed_factor > factor:
        note += f"; with --dilate {needed_factor}, those above {_SHORT_TIME:,} ns would be"
    return (note,)
