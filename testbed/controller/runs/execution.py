"""Plan and result of one execution of a workload, common to namespaces and the simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from protocols.active_messages.am_interface import ActiveMessages
from protocols.active_messages.observer import Observable
from protocols.core.profile import IDEAL, Profile
from protocols.core.protocol import Protocol as NicProtocol
from protocols.mpi.comm import Comm
from protocols.mpi.device import Device
from testbed.controller.runs.folders import Part, record_undelivered
from testbed.controller.verdict.verdicts import Verdict
from testbed.errors import DescriptionError, Problem, TestbedError, UnsupportedError
from testbed.packages import offered_protocols
from testbed.runtime.journal import UnbufferedLines
from testbed.runtime.nodes.control_channel import packed
from testbed.runtime.shared.workers import ReceiveQueues
from testbed.runtime.sockets.protocol import is_lossy
from testbed.spec.kinds import Kind
from testbed.spec.layout import End, Layout
from testbed.spec.layout import Node as LaidOutNode
from testbed.spec.placement import Rank, ranks_of
from testbed.spec.problems import joined
from testbed.workloads.active_messages.request_history import RequestHistory
from testbed.workloads.form import Clock, Node
from testbed.workloads.history import HistoryDevice
from testbed.workloads.lookup import Chosen

if TYPE_CHECKING:
    from protocols.core.firmware import Host
    from testbed.cluster.running_cluster import RunningCluster
    from testbed.controller.checkers.check_report import Report
    from testbed.fates.rules import RuleSet
    from testbed.runtime.nodes.dilated_host import Lateness
    from testbed.runtime.nodes.node_run import Run
    from testbed.sim.simulation import Simulation

_CONTEXTS = 4
"""Contexts of two communicators: the workload's, and that of barriers and gathering."""


Follow = Callable[[str], object]
"""Called with a phrase on what a run is doing."""


@runtime_checkable
class Beside(Protocol):
    """Companion of running programs, such as a scenario of faults. Called at the beginning of each repetition."""

    def simulated(self, simulation: Simulation, rules: RuleSet) -> object:
        """Prepare a simulation whose programs are about to begin: spawn tasks, set timers on its loop, add rules."""
        ...

    def live(self, cluster: RunningCluster, run: Run) -> AbstractContextManager[object]:
        """Act beside programs that are about to begin; they have ended at the end of the block."""
        ...


@runtime_checkable
class Closable(Protocol):
    """A companion of programs that ends with them, before the network comes to rest."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of an execution. timeout: seconds for a repetition. patience: seconds without progress, see `Run.wait`;
    live only. history: whether to write one. capture: whether the simulation writes frames. follow: progress callback.
    profile: costs of NICs and hosts in the simulation and where time is dilated; profiles: by node, of those with others.
    dilate: the factor, or 0. asked: the run's request, by which another machine makes its plan. ahead: nanoseconds that
    the run's clock is ahead of this machine's, where the run is on several. shared: whether NICs are shared, in
    namespaces. queues: of these. ranks: the programs, by number."""

    chosen: Chosen
    protocol: NicProtocol
    seed: int
    timeout: float
    patience: float | None = None
    history: bool = False
    capture: bool = False
    beside: Sequence[Beside] = ()
    follow: Follow | None = None
    profile: Profile = IDEAL
    profiles: Mapping[str, Profile] = field(default_factory=dict, kw_only=True)
    shared: bool = field(default=False, kw_only=True)
    queues: ReceiveQueues = field(default_factory=ReceiveQueues, kw_only=True)
    ranks: tuple[Rank, ...] = field(default=(), kw_only=True)
    asked: Mapping[str, object] = field(default_factory=dict, kw_only=True)
    ahead: int = field(default=0, kw_only=True)
    dilate: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The ranks' names, in order."""
        return tuple([rank.name for rank in self.ranks])

    @property
    def is_priced(self) -> bool:
        """Whether any node's NIC or host takes time."""
        return not all(profile.is_free for profile in (self.profile, *self.profiles.values()))


@dataclass(frozen=True, slots=True)
class Execution:
    """Result of one repetition. results, counted (the firmware's counters): by rank, which has its node's name where it is
    the only one. checks: the checkers' report on
    its history, where checks were asked for. used: where a profile prices them, the use of a node's parts, by node and
    part: jobs, busy_ns (the sum of their costs), waited_ns, and the share of time in which the part was busy; of a core also
    the nanoseconds by cause, as compute_ns. switches:
    of modelled switches, by name: frames dropped or truncated there, by cause; in namespaces also stops, how often NICs
    at them were sent STOP. lateness: by node, of its frames where time is dilated."""

    results: Mapping[str, Any]
    counted: Mapping[str, Mapping[str, int]]
    verdict: Verdict
    checks: Report | None = None
    used: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    lateness: Mapping[str, Lateness] = field(default_factory=dict)
    switches: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class TimeIsUpError(TestbedError):
    """A run exceeded its timeout."""


def check_layout(layout: Layout, chosen: Chosen, protocol: NicProtocol) -> None:
    """Check that a workload can run on all nodes. Raises UnsupportedError where a node has no NIC, its frames cannot reach
    the others by raw Ethernet, or the switches cannot forward them, and where nodes cannot have several ranks;
    DescriptionError where there are too few."""
    for node in layout.nodes:
        if not node.nics:
            raise UnsupportedError(f"node {node.name} has no NIC: a workload runs on all nodes of a cluster")
    lacking = {name: kind for name, kind in layout.framed().items() if kind.framing not in protocol.framings}
    if lacking:
        first = min(lacking)
        raise UnsupportedError(
            f"node {first} is at a switch of {lacking[first].title}'s, which goes by the {lacking[first].framing} of "
            f"frames: this protocol's have none{_others(lacking[first])}"
        )
    if not protocol.is_kernels and (beyond := _beyond(layout)):
        first, second = (f"{node.name}:{node.nics[0].name}" for node in (layout.nodes[0], beyond))
        raise UnsupportedError(
            f"no frame gets from {first} to {second}: a NIC's firmware has its node's first NIC, and these are in different "
            f"networks; join them by switches, or use a protocol of the kernel's (tcp), which is routed"
        )
    ranks = ranks_of(layout)
    if len(ranks) < chosen.least:
        what = "node" if len(ranks) == len(layout.nodes) else "rank"
        found = f"{len(ranks)} {what}" + ("s" if len(ranks) != 1 else "")
        raise DescriptionError(layout.name, [Problem("", found, f"at least {chosen.least} for workload {chosen.name}")])
    if len(ranks) > len(layout.nodes):
        _check_several_ranks(layout, protocol)


def _check_several_ranks(layout: Layout, protocol: NicProtocol) -> None:
    """Check that nodes may have several ranks. Raises UnsupportedError."""
    if protocol.is_kernels:
        raise UnsupportedError(
            "several ranks on a node share its NIC's firmware, which the kernel's protocols have not"
        )
    framed = {name: kind for name, kind in layout.framed().items() if kind.framing not in protocol.function_framings}
    if framed:
        first = min(framed)
        raise UnsupportedError(
            f"node {first} is at a switch that goes by {framed[first].framing}, which lead to a NIC and not to one of its "
            f"functions: one rank on each node"
        )


def _others(kind: Kind) -> str:
    """Name the protocols that can cross such switches, in words."""
    names = [protocol.name for protocol in offered_protocols() if kind.name in protocol.fabrics]
    return f"; those of {joined(names, 'and')} have (--protocol {names[0]})" if names else ""


def _beyond(layout: Layout) -> LaidOutNode | None:
    """Find a node whose first NIC is in another layer-2 network than the first node's."""
    switches = {switch.name for switch in layout.switches}
    joined: defaultdict[End | str, list[End | str]] = defaultdict(list)
    for link in layout.links:
        a, b = (end.owner if end.owner in switches else end for end in (link.a, link.b))
        joined[a].append(b)
        joined[b].append(a)
    firsts = {End(node.name, node.nics[0].name): node for node in layout.nodes}
    reached: set[End | str] = set()
    waiting: list[End | str] = []
    waiting += [*firsts][:1]
    while waiting:
        place = waiting.pop()
        if place not in reached:
            reached.add(place)
            waiting += joined[place]
    return next((node for end, node in firsts.items() if end not in reached), None)


Departed = Callable[[int], object]
"""Called with a rank that has crashed."""


def _ignore(_: Departed) -> None:
    """Leave the function out: no crash is reported."""


async def run_rank(
    plan: Plan,
    part: Part,
    names: Sequence[str],
    number: int,
    host: Host,
    clock: Clock,
    starts: int = 1,
    on_departures: Callable[[Departed], object] = _ignore,
) -> object:
    """Run the workload on one node, between its NIC's host library and the files of its repetition. starts: how often
    the program has been started. on_departures: called with the function that is to be told of crashed ranks. Raises
    TestbedError for a protocol with too few contexts."""
    name = names[number]
    tell = partial(_numbered, part) if part.number else part.rows.write
    history = UnbufferedLines(part.history / f"{name}.jsonl")
    if plan.chosen.native is not None:
        node = Node(name, names, plan.seed, clock, None, tell, starts=starts)
        return await _run_native(plan, node, host, clock, history)
    device = plan.protocol.device(host)
    if device.contexts < _CONTEXTS:
        raise UnsupportedError(f"the protocol has {device.contexts} contexts; {_CONTEXTS} are needed")
    if starts > 1:
        device.departures.report(number, "was started again, and has no part in the communicators of its former life")
    on_departures(device.departures.report)
    await device.connect()
    if plan.history:  # of barriers, too: a protocol owes them the same
        device = cast(Device, HistoryDevice(device, clock.now, history.write))
    node = Node(name, names, plan.seed, clock, Comm(device, 1), tell, lossy=is_lossy(plan.protocol), starts=starts)
    unable_to_tell = partial(record_undelivered, part.folder, name)
    try:
        result = await plan.chosen.rank(Comm(device), node)
    except Exception:
        device.losses.close(unable_to_tell)
        raise
    else:
        device.losses.close(unable_to_tell)
    finally:
        history.close()
    packed("done", result)  # in the simulation, too, which would let a result pass that namespaces refuse
    return result


async def _run_native(plan: Plan, node: Node, host: Host, clock: Clock, lines: UnbufferedLines) -> object:
    """Run a native workload on one node. lines: of its history, where one is asked for."""
    assert plan.chosen.native is not None
    history = None
    if plan.history:
        assert isinstance(host, Observable), "the protocol says that it has active messages"
        history = RequestHistory(host, clock.now, lines.write)
    try:
        result = await plan.chosen.native(host, node)
    finally:
        if history is not None:
            history.close()
        lines.close()
        if plan.protocol.active_messages:
            cast(ActiveMessages, host).program_ended()
    packed("done", result)
    return result


def _numbered(part: Part, row: Mapping[str, object]) -> None:
    part.rows.write({"repeat": part.number, **row})
