"""What both modes have in common: what one execution of a workload is told, and what comes of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from protocols.core.profile import IDEAL, Profile
from protocols.core.protocol import Protocol as NicProtocol
from protocols.mpi.comm import Comm
from protocols.mpi.device import Device
from testbed.controller.folders import Part
from testbed.controller.verdicts import Verdict
from testbed.errors import DescriptionError, Problem, TestbedError, UnsupportedError
from testbed.runtime.journal import Trail
from testbed.runtime.nodes.channel import packed
from testbed.runtime.sockets.protocol import is_lossy
from testbed.spec.layout import End, Layout
from testbed.spec.layout import Node as LaidOutNode
from testbed.workloads.finding import Chosen
from testbed.workloads.form import Clock, Node
from testbed.workloads.history import HistoryDevice

if TYPE_CHECKING:
    from protocols.core.firmware import Host
    from testbed.cluster.running import RunningCluster
    from testbed.controller.checkers.report import Report
    from testbed.runtime.nodes.dilated import Lateness
    from testbed.runtime.nodes.run import Run
    from testbed.sim.simulation import Simulation
    from testbed.wire.rules import RuleSet

_CONTEXTS = 4
"""Two communicators: the workload's, and that of barriers and gathering."""


Follow = Callable[[str], object]
"""Told in a phrase what a run is at."""


class Beside(Protocol):
    """What happens while programs run, such as a scenario of faults. It is told of each repetition's beginning."""

    def simulated(self, simulation: Simulation, rules: RuleSet) -> object:
        """Programs are about to begin. What shall happen is spawned or set on its loop; rules that it adds are in force."""
        ...

    def live(self, cluster: RunningCluster, run: Run) -> AbstractContextManager[object]:
        """Programs have begun; at the end of the block they have ended."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """timeout: seconds for a repetition. patience: seconds without progress, see `Run.wait`; live only. history: whether one
    is written. capture: whether the simulation writes frames. follow: is told what it is at, now and then. profile: what
    NICs and hosts cost in the simulation, and where time is dilated. dilate: how many times, or 0.
    shared: whether NICs are, in namespaces."""

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
    shared: bool = field(default=False, kw_only=True)
    dilate: int = 0


@dataclass(frozen=True, slots=True)
class Execution:
    """Of one repetition. results, counted (the firmware's counters): by node. checks: what checkers have found in its
    history, where they were asked. used: where a profile prices them, how the parts of a node were used, by node and part:
    jobs, busy_ns (the sum of their costs), waited_ns, and the share of the time in which it was busy.
    switches: Myrinet's, by name: the frames that did not go on there, or not whole, by cause; in namespaces also stops, how
    often NICs at them were told STOP.
    lateness: by node, of its frames where time is dilated."""

    results: Mapping[str, Any]
    counted: Mapping[str, Mapping[str, int]]
    verdict: Verdict
    checks: Report | None = None
    used: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    lateness: Mapping[str, Lateness] = field(default_factory=dict)
    switches: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class TimeIsUpError(TestbedError):
    """A run has taken longer than it may."""


def names_of(layout: Layout, chosen: Chosen, protocol: NicProtocol) -> tuple[str, ...]:
    """The nodes by rank. Raises UnsupportedError where one has no NIC, or a NIC that speaks raw Ethernet and that no frame
    of the others' reaches, or whose frames Myrinet's switches cannot forward; DescriptionError where there are too few."""
    for node in layout.nodes:
        if not node.nics:
            raise UnsupportedError(f"node {node.name} has no NIC: a workload runs on all nodes of a cluster")
    if not protocol.routed and (routed := layout.routed()):
        raise UnsupportedError(
            f"node {min(routed)} is at a switch of Myrinet's, which goes by the source routes of frames: this protocol's "
            "have none; AM-II's have (--protocol am2)"
        )
    if protocol.ethertype and (beyond := _beyond(layout)):
        first, other = (f"{node.name}:{node.nics[0].name}" for node in (layout.nodes[0], beyond))
        raise UnsupportedError(
            f"no frame gets from {first} to {other}: a NIC's firmware has its node's first NIC, and these are in different "
            f"networks; join them by switches, or use a protocol of the kernel's (tcp), which is routed"
        )
    if len(layout.nodes) < chosen.least:
        found = f"{len(layout.nodes)} node" + ("s" if len(layout.nodes) != 1 else "")
        raise DescriptionError(layout.name, [Problem("", found, f"at least {chosen.least} for workload {chosen.name}")])
    return tuple(node.name for node in layout.nodes)


def _beyond(layout: Layout) -> LaidOutNode | None:
    """A node whose first NIC is in another layer-2 network than the first node's."""
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


async def one_rank(
    plan: Plan, part: Part, names: Sequence[str], number: int, host: Host, clock: Clock, starts: int = 1
) -> object:
    """What runs on a node: the workload between its NIC's host library and the files of its repetition. starts: how often
    it has been started. Raises TestbedError for a protocol with too few contexts."""
    name = names[number]
    tell = partial(_numbered, part) if part.number else part.rows.write
    if plan.chosen.native is not None:
        result = await plan.chosen.native(host, Node(name, names, plan.seed, clock, None, tell, starts=starts))
        packed("done", result)
        return result
    device = plan.protocol.device(host)
    if device.contexts < _CONTEXTS:
        raise UnsupportedError(f"the protocol has {device.contexts} contexts; {_CONTEXTS} are needed")
    history = Trail(part.history / f"{name}.jsonl")
    if plan.history:  # of barriers, too: a protocol owes them the same
        device = cast(Device, HistoryDevice(device, clock.now, history.write))
    node = Node(name, names, plan.seed, clock, Comm(device, 1), tell, lossy=is_lossy(plan.protocol), starts=starts)
    try:
        result = await plan.chosen.rank(Comm(device), node)
    finally:
        history.close()
    packed("done", result)  # in the simulation, too, which would let a result pass that namespaces refuse
    return result


def _numbered(part: Part, row: Mapping[str, object]) -> None:
    part.rows.write({"repeat": part.number, **row})
