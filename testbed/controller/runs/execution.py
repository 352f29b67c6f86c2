"""Plan and result of one repetition of a workload, common to namespaces and the simulation."""

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
from protocols.mpi.mpi_errors import MPIError
from testbed.controller.runs.folders import RepetitionFiles
from testbed.controller.runs.lost_messages import record_message_counts, record_undelivered
from testbed.controller.verdict.verdicts import Verdict
from testbed.errors import DescriptionError, Problem, TestbedError, UnsupportedError
from testbed.packages import offered_protocols
from testbed.runtime.journal import UnbufferedLines
from testbed.runtime.nodes.control_channel import encode
from testbed.runtime.shared.workers import ReceiveQueues
from testbed.runtime.sockets.protocol import is_lossy
from testbed.spec.kinds import Kind
from testbed.spec.layout import End, Layout
from testbed.spec.layout import Node as LaidOutNode
from testbed.spec.placement import Rank, ranks_of
from testbed.spec.problems import join_alternatives
from testbed.workloads.active_messages.request_history import RequestHistory
from testbed.workloads.form import Clock, Node
from testbed.workloads.history import HistoryDevice
from testbed.workloads.lookup import Chosen

if TYPE_CHECKING:
    from protocols.core.firmware import Host
    from testbed.cluster.running_cluster import RunningCluster
    from testbed.controller.checkers.check_report import Report
    from testbed.controller.verdict.machine_outages import MachineLostError
    from testbed.fates.rules import RuleSet
    from testbed.runtime.nodes.dilated_host import Lateness
    from testbed.runtime.nodes.node_run import Run
    from testbed.sim.simulation import Simulation

_MIN_CONTEXTS = 4
"""Contexts of two communicators: that of the workload, and that of barriers and gathering."""


ProgressCallback = Callable[[str], object]
"""Called with a phrase that describes the current step of a run."""


@runtime_checkable
class Companion(Protocol):
    """Code that acts on a run, such as a scenario of faults. Called at the beginning of each repetition."""

    def simulated(self, simulation: Simulation, rules: RuleSet) -> object:
        """Prepare a simulation before its programs begin: spawn tasks, set timers on its loop, add rules."""
        ...

    def live(self, cluster: RunningCluster, run: Run) -> AbstractContextManager[object]:
        """Act on a run from just before its programs begin until they have ended, which ends the block."""
        ...


@runtime_checkable
class Closable(Protocol):
    """A companion that is closed when the programs have ended, before the network is idle."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a repetition. chosen: the workload. seed: seed of random numbers; links have that of the
    layout. timeout: seconds. patience: seconds without progress, see `Run.wait`; in namespaces only. history:
    whether histories are written. capture: whether the simulation writes frames. profile: costs of NICs and hosts in
    simulated and dilated runs; profiles: by node, for nodes with another profile. dilate: factor by which time is
    slowed, or 0. request: the run's request, from which other machines make their plans. ahead: nanoseconds by which
    the run's clock is ahead of this machine's, in runs on several machines. shared: whether NICs are shared, in
    namespaces. queues: receive queues of shared NICs. ranks: ranks of the run, by number."""

    chosen: Chosen
    protocol: NicProtocol
    seed: int
    timeout: float
    patience: float | None = None
    history: bool = False
    capture: bool = False
    companions: Sequence[Companion] = ()
    on_progress: ProgressCallback | None = None
    profile: Profile = IDEAL
    profiles: Mapping[str, Profile] = field(default_factory=dict, kw_only=True)
    shared: bool = field(default=False, kw_only=True)
    queues: ReceiveQueues = field(default_factory=ReceiveQueues, kw_only=True)
    ranks: tuple[Rank, ...] = field(default=(), kw_only=True)
    request: Mapping[str, object] = field(default_factory=dict, kw_only=True)
    ahead: int = field(default=0, kw_only=True)
    dilate: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The ranks' names, in order."""
        return tuple([rank.name for rank in self.ranks])

    @property
    def is_priced(self) -> bool:
        """Whether any node's NIC or host takes time."""
        return not all(profile.is_zero_cost for profile in (self.profile, *self.profiles.values()))


@dataclass(frozen=True, slots=True)
class Execution:
    """Result of one repetition. results, counters (of the firmware): by rank; a node's only rank has the node's name.
    checks: the checkers' report on the histories, if checks were requested. usage: use of a node's processors, buses and
    cores, by node and part, where a profile gives them costs: jobs, busy_ns (the sum of their costs), waited_ns, and the
    share of time in which the part was busy; for a core also nanoseconds by cause, such as compute_ns. switches: counters
    of modelled switches, by name: frames dropped or truncated, by cause; in namespaces also stops, the number of STOPs
    sent to NICs. lateness: lateness of frames, by node, in dilated runs. lost: the loss of a machine when all programs had
    ended, which makes the run invalid."""

    results: Mapping[str, Any]
    counters: Mapping[str, Mapping[str, int]]
    verdict: Verdict
    checks: Report | None = None
    usage: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    lateness: Mapping[str, Lateness] = field(default_factory=dict)
    switches: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    lost: MachineLostError | None = None


class RunTimeoutError(TestbedError):
    """A simulation exceeded its timeout in real time."""


def check_layout(layout: Layout, chosen: Chosen, protocol: NicProtocol) -> None:
    """Check that a workload can run on all nodes. Raises UnsupportedError if a node has no NIC, if its frames cannot reach
    the other nodes by raw Ethernet, if networks cannot forward them, or if nodes cannot have several ranks;
    DescriptionError for too few ranks."""
    for node in layout.nodes:
        if not node.nics:
            raise UnsupportedError(f"node {node.name} has no NIC: a workload runs on all nodes of a cluster")
    lacking = {name: kind for name, kind in layout.framed_nodes().items() if kind.framing not in protocol.framings}
    if lacking:
        first = min(lacking)
        raise UnsupportedError(
            f"the network of node {first} is {lacking[first].title}, which forwards by {lacking[first].framing}: "
            f"frames of this protocol have none{_alternatives(lacking[first])}"
        )
    if not protocol.uses_kernel_sockets and (unreachable := _unreachable_node(layout)):
        first, second = (f"{node.name}:{node.nics[0].name}" for node in (layout.nodes[0], unreachable))
        raise UnsupportedError(
            f"no frame gets from {first} to {second}: firmware runs on the first NIC of a node, and these are in different "
            f"networks; connect them by switches, or use a kernel protocol (tcp), which is routed"
        )
    ranks = ranks_of(layout)
    if len(ranks) < chosen.least:
        unit = "node" if len(ranks) == len(layout.nodes) else "rank"
        number = f"{len(ranks)} {unit}" + ("s" if len(ranks) != 1 else "")
        raise DescriptionError(
            layout.name, [Problem("", number, f"at least {chosen.least} for workload {chosen.name}")]
        )
    if len(ranks) > len(layout.nodes):
        _check_several_ranks(layout, protocol)


def _check_several_ranks(layout: Layout, protocol: NicProtocol) -> None:
    """Check that nodes may have several ranks. Raises UnsupportedError."""
    if protocol.uses_kernel_sockets:
        raise UnsupportedError(
            "several ranks on a node share the firmware of its NIC, and kernel protocols have none: use one rank per node"
        )
    framed = {
        name: kind for name, kind in layout.framed_nodes().items() if kind.framing not in protocol.function_framings
    }
    if framed:
        first = min(framed)
        raise UnsupportedError(
            f"the network of node {first} forwards by {framed[first].framing}, which select a NIC and not one of its "
            f"functions: use one rank per node"
        )


def _alternatives(kind: Kind) -> str:
    """Name the protocols whose frames can cross such switches, for an error message."""
    names = [protocol.name for protocol in offered_protocols() if kind.name in protocol.fabrics]
    return f"; use one of {join_alternatives(names, 'or')} (--protocol {names[0]})" if names else ""


def _unreachable_node(layout: Layout) -> LaidOutNode | None:
    """Find a node whose first NIC is not in the layer-2 network of the first node's first NIC."""
    switches = {switch.name for switch in layout.switches}
    neighbours: defaultdict[End | str, list[End | str]] = defaultdict(list)
    for link in layout.links:
        a, b = (end.owner if end.owner in switches else end for end in (link.a, link.b))
        neighbours[a].append(b)
        neighbours[b].append(a)
    first_nics = {End(node.name, node.nics[0].name): node for node in layout.nodes}
    reached: set[End | str] = set()
    waiting: list[End | str] = []
    waiting += [*first_nics][:1]
    while waiting:
        place = waiting.pop()
        if place not in reached:
            reached.add(place)
            waiting += neighbours[place]
    return next((node for end, node in first_nics.items() if end not in reached), None)


CrashCallback = Callable[[int, bool], object]
"""Called with the number of a rank that has crashed, and whether it will restart."""


def _report_none(_: CrashCallback) -> None:
    """Discard the callback: no crash is reported."""


async def run_rank(
    plan: Plan,
    files: RepetitionFiles,
    names: Sequence[str],
    number: int,
    host: Host,
    clock: Clock,
    starts: int = 1,
    register_crash_callback: Callable[[CrashCallback], object] = _report_none,
) -> object:
    """Run the workload on one rank, with the host library of its NIC. files: for its rows and history. starts: number of
    times that the program has been started, this one included. register_crash_callback: registers a callback for crashed
    ranks. Raises UnsupportedError for a protocol with too few contexts, TestbedError if it connects the ranks first and a
    connection fails, or if the program's result is no plain data or too large, and the program's errors."""
    name = names[number]
    write_row = partial(_write_numbered, files) if files.number else files.rows.write
    history = UnbufferedLines(files.history / f"{name}.jsonl")
    if plan.chosen.native is not None:
        node = Node(name, names, plan.seed, clock, None, write_row, starts=starts)
        return await _run_native(plan, node, host, clock, history)
    device = plan.protocol.device(host)
    if device.contexts < _MIN_CONTEXTS:
        raise UnsupportedError(f"the protocol has {device.contexts} contexts; a workload needs {_MIN_CONTEXTS} or more")
    if starts > 1:
        device.rank_failures.report(
            number, "was restarted, and is not a member of the communicators of its former life"
        )
    register_crash_callback(device.on_crash)
    try:
        await device.connect()
    except MPIError as error:  # the program has not made a call yet
        raise TestbedError(f"the connections before the program have failed: {error}") from error
    if plan.history:  # includes barriers: a protocol must deliver their messages, too
        device = cast(Device, HistoryDevice(device, clock.now, history.write))
    node = Node(name, names, plan.seed, clock, Comm(device, 1), write_row, lossy=is_lossy(plan.protocol), starts=starts)
    on_undelivered = partial(record_undelivered, files.folder, name)
    try:
        result = await plan.chosen.rank(Comm(device), node)
    except Exception:
        device.lost_sends.close(on_undelivered)
        raise
    else:
        device.lost_sends.close(on_undelivered)
        if not plan.history and starts == 1 and not is_lossy(plan.protocol):  # checkers of a history know more
            record_message_counts(files.folder, names, device)
    finally:
        history.close()
    encode("done", result)  # refuses, in the simulation as well, a result that cannot leave a node process
    return result


async def _run_native(plan: Plan, node: Node, host: Host, clock: Clock, lines: UnbufferedLines) -> object:
    """Run a native workload on one rank. lines: file of its history, if histories are written."""
    assert plan.chosen.native is not None
    history = None
    if plan.history:
        assert isinstance(host, Observable), "the protocol declares active messages"
        history = RequestHistory(host, clock.now, lines.write)
    try:
        result = await plan.chosen.native(host, node)
    finally:
        if history is not None:
            history.close()
        lines.close()
        if plan.protocol.active_messages:
            cast(ActiveMessages, host).program_ended()
    encode("done", result)
    return result


def _write_numbered(files: RepetitionFiles, row: Mapping[str, object]) -> None:
    files.rows.write({"repeat": files.number, **row})
