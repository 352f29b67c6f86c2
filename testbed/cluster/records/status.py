"""Status of a running cluster: nodes, switches and links, with the kernel's counters.

Counters are read in the wire namespace, where all links of a cluster end: one dump suffices for a hundred nodes. Only the
NICs of direct links are read in their nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any

from testbed.cluster.faults.injections import BOTH, in_force, is_down
from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.link_services import UNIMPAIRED
from testbed.cluster.plan.veth_wiring import wire_ends
from testbed.cluster.records.state import State, Store
from testbed.errors import NotFoundError
from testbed.fates.fate_counters import CAUSES
from testbed.kernel import namespaces, processes, userns
from testbed.kernel.netlink import RouteSocket
from testbed.kernel.rtnl_dump import Interface, by_name, interface_named, interfaces
from testbed.lazy_dataclass import dataclass
from testbed.runtime import event_log
from testbed.runtime.supervision import are_all_running, running_supervisor
from testbed.spec.layout import Impairment, Layout, Link


@dataclass(frozen=True, slots=True)
class DirectionCounters:
    """Counters of one direction of a link since it was made."""

    frames: int = 0
    bytes: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """Status of a link.

    exists: whether both ends exist. up: whether both are up. forward: counters of the direction from end a to end b.
    backward: those from b to a. forward_impairment, backward_impairment: the declared impairments overlaid with the
    injected ones; `UNIMPAIRED` for a link that nothing impairs.
    """

    link: Link
    exists: bool
    up: bool
    forward: DirectionCounters = DirectionCounters()
    backward: DirectionCounters = DirectionCounters()
    datapath: str = "direct"
    forward_impairment: Impairment = UNIMPAIRED
    backward_impairment: Impairment = UNIMPAIRED


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """Status of a node. exists: whether its namespace exists. programs: pids of its programs. agent: of a shared NIC."""

    name: str
    exists: bool
    programs: tuple[int, ...]
    agent: AgentStatus | None = None


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """Status of the agent of a shared NIC. pid: 0 if it does not answer. hosts: function -> pid of the attached process.
    lost: number of frames not read in time or not sent."""

    pid: int = 0
    hosts: Mapping[int, int] = field(default_factory=dict)
    lost: int = 0


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Status of a cluster. missing: a message for each required process that does not run, and for each machine that does
    not answer."""

    state: State
    nodes: tuple[NodeStatus, ...]
    links: tuple[LinkStatus, ...]
    missing: tuple[str, ...] = ()


def status(state: State) -> ClusterStatus:
    """Read the status of a running cluster, which must be in the user's default store. NotFoundError if it has ended."""
    if state.end_reason:
        raise NotFoundError(state.end_reason)
    interfaces_by_key = _read_interfaces(state)
    programs = _programs_by_node(state)
    agents = _agent_statuses(state) if state.nics is not None else {}
    agent_pids = {agent.pid for agent in agents.values()}
    return ClusterStatus(
        state,
        tuple(
            NodeStatus(
                node.name,
                state.has_namespace(node.name),
                tuple(pid for pid in programs.get(node.name, ()) if pid not in agent_pids),
                agents.get(node.name),
            )
            for node in state.layout.nodes
        ),
        _with_modelled_links(
            state,
            [
                _with_impairments(state, _link_status(*link_and_ends, interfaces_by_key))
                for link_and_ends in zip(state.layout.links, wire_ends(state.layout), strict=True)
            ],
        ),
        tuple(missing(state, Store().directory(state.name))),
    )


def needs_supervisor(state: State) -> bool:
    """Whether the cluster needs a supervisor: for a relay, agents, timed injections, or machines to watch."""
    timed = any(injection.until for injection in state.injected)
    return "relay" in state.datapaths.values() or state.nics is not None or timed or state.has_tunnels


def missing(state: State, directory: Path) -> list[str]:
    """Return a message for each required process that does not run, and for each machine of a spread cluster that does not
    answer. directory: the cluster's."""
    messages = []
    if "relay" in state.datapaths.values() and not are_all_running(directory, "relay"):
        messages.append("its relay is GONE, and links that it should carry pass nothing: 'testbed up' starts it again")
    if state.nics is not None and not are_all_running(directory, "nic"):
        messages.append("the agents of its NICs are GONE, and no program can attach: 'testbed up' starts them again")
    if needs_supervisor(state) and not running_supervisor(directory):
        messages.append(
            "its supervisor is GONE: timed injections are not healed, and nothing restarts a relay or an agent that "
            "dies: 'testbed up' starts it again"
        )
    return [*messages, *_unreachable(state, directory)]


def _unreachable(state: State, directory: Path) -> Iterator[str]:
    """Return a message for each machine that does not answer and to which the cluster has tunnels."""
    if not state.has_tunnels:
        return
    from testbed.cluster.services.machine_watch import (
        unreachable,  # imports the event loop, which most clusters do not need
    )

    watched = {tunnel.machine for tunnel in state.layout.part.tunnels} if state.layout.part is not None else set()
    events = (event for event in event_log.read(directory) if str(event.get("machine")) in watched)
    for machine, event in unreachable(events).items():
        ago = (time.time_ns() - event["time"] + event["silent"]) / 1e9
        yield f"machine {machine} ({event['address']}) has not answered for {ago:.1f} s: it is down or cut off"


def links(state: State, names: Collection[str]) -> tuple[LinkStatus, ...]:
    """Read the status of the links with these names only; unknown names are ignored."""
    pairs = zip(state.layout.links, wire_ends(state.layout), strict=True)
    ends = [(link, pair) for link, pair in pairs if link.name in names]
    devices: dict[str, set[str]] = {namespace_names.WIRE: {device for _, pair in ends for device in pair}}
    for link, _ in ends:
        if link.datapath == "direct":
            for end in (link.a, link.b):
                devices.setdefault(end.owner, set()).add(end.port)
    interfaces_by_key = _read_namespaces(state, devices.keys(), partial(_read_some, devices))
    statuses = [_with_impairments(state, _link_status(link, pair, interfaces_by_key)) for link, pair in ends]
    return _with_modelled_links(state, statuses)


def _with_impairments(state: State, status: LinkStatus) -> LinkStatus:
    name = status.link.name
    if name not in state.datapaths:
        return status
    forward, backward = [in_force(status.link, direction, state.injected).complete for direction in BOTH]
    return replace(status, datapath=state.datapaths[name], forward_impairment=forward, backward_impairment=backward)


def _with_modelled_links(state: State, statuses: Sequence[LinkStatus]) -> tuple[LinkStatus, ...]:
    """Complete the status of cables between modelled switches, which exist only in the relay."""
    modelled = state.layout.simulated_switches().keys()
    inside = {status.link.name for status in statuses if modelled >= {status.link.a.owner, status.link.b.owner}}
    if not inside:
        return tuple(statuses)
    from testbed.cluster.services.relay_client import (
        report,  # imports the relay's code, which most clusters do not need
    )

    relay_report = report(Store(), state)
    reports = relay_report["links"] if relay_report is not None else {}
    return tuple(
        replace(
            status,
            exists=status.link.name in reports,
            up=status.link.name in reports and not is_down(status.link, state.injected),
            forward=_relay_counters(reports, status.link, "forward"),
            backward=_relay_counters(reports, status.link, "backward"),
        )
        if status.link.name in inside
        else status
        for status in statuses
    )


def _relay_counters(reports: Mapping[str, Any], link: Link, direction: str) -> DirectionCounters:
    counters = reports.get(link.name, {}).get(direction, {}).get("counters")
    if counters is None:
        return DirectionCounters()
    dropped = sum(counters[cause] for cause in CAUSES)
    return DirectionCounters(counters["delivered"], counters["delivered_bytes"], dropped)


def _agent_statuses(state: State) -> dict[str, AgentStatus]:
    from testbed.cluster.services.nic_sharing import (
        read_reports,  # imports the agent's code; most clusters share no NICs
    )

    return {
        node: AgentStatus()
        if report is None
        else AgentStatus(
            report["pid"],
            {int(function): pid for function, pid in report["hosts"].items()},
            report["dropped"] + report["unsent"] + report["overflowed"],
        )
        for node, report in read_reports(Store(), state).items()
    }


InterfacesByKey = Mapping[str, Mapping[str, Interface]]


def _read_interfaces(state: State) -> InterfacesByKey:
    """Read the interfaces of the wire namespace and of nodes with direct links, by key and name."""
    keys = {namespace_names.WIRE} | {
        end.owner for link in state.layout.links if link.datapath == "direct" for end in (link.a, link.b)
    }
    return _read_namespaces(state, keys, lambda _, route: by_name(interfaces(route)))


InterfaceReader = Callable[[str, RouteSocket], Mapping[str, Interface]]
"""Function that reads interfaces of a namespace, by name; arguments: the namespace's key, a socket in it."""


def _read_namespaces(state: State, keys: Collection[str], read: InterfaceReader) -> InterfacesByKey:
    """Apply `read` to each of these namespaces."""
    paths = {key: state.namespaces[key] for key in sorted(keys) if key in state.namespaces}
    if (holder := state.mount_holder) is not None:
        return userns.call_inside(holder.pid, partial(_read, paths, read)) if holder.is_alive else {}
    return _read(paths, read)


def _read(paths: Mapping[str, str], read: InterfaceReader) -> InterfacesByKey:
    contents = {}
    for key, path in paths.items():
        if namespaces.is_namespace(path):
            namespace = namespaces.open_path(path)
            try:
                contents[key] = read(key, namespace.route)
            finally:
                namespace.close()
    return contents


def _read_some(devices: Mapping[str, Collection[str]], key: str, route: RouteSocket) -> dict[str, Interface]:
    return {device: interface for device in devices[key] if (interface := interface_named(route, device)) is not None}


def _programs_by_node(state: State) -> dict[str, list[int]]:
    """Return the pids of the programs in each node."""
    keys = {inode: key for key, inode in state.inodes.items()}
    pids: dict[str, list[int]] = {}
    for pid in processes.all_pids():
        key = keys.get(processes.network_namespace_of(pid))
        if key:
            pids.setdefault(key, []).append(pid)
    return pids


def _link_status(link: Link, ends: tuple[str, str], interfaces_by_key: InterfacesByKey) -> LinkStatus:
    """Derive the status of one link.

    The wire-side end of a NIC receives the node's frames; at a switch, it also sends the frames to the node.
    """
    wire = interfaces_by_key.get(namespace_names.WIRE, {})
    if link.datapath == "direct":
        a = interfaces_by_key.get(link.a.owner, {}).get(link.a.port)
        b = interfaces_by_key.get(link.b.owner, {}).get(link.b.port)
        if a is None or b is None:
            return LinkStatus(link, exists=False, up=False)
        return LinkStatus(link, True, a.up and b.up, _received(b), _received(a))
    a, b = (wire.get(end) for end in ends)
    if a is not None and b is not None:
        is_trunk = a.peer == b.index  # one pair between two switches; otherwise two pairs, joined
        forward, backward = (_received(b), _received(a)) if is_trunk else (_received(a), _received(b))
        return LinkStatus(link, True, a.up and b.up, forward, backward)
    if a is not None:  # a is a node, b the switch that its wire-side end is plugged into
        return LinkStatus(link, True, a.up, _received(a), _sent(a))
    if b is not None:
        return LinkStatus(link, True, b.up, _sent(b), _received(b))
    return LinkStatus(link, exists=False, up=False)


def _received(interface: Interface) -> DirectionCounters:
    counters = interface.counters
    return DirectionCounters(counters.rx_packets, counters.rx_bytes, counters.rx_dropped)


def _sent(interface: Interface) -> DirectionCounters:
    counters = interface.counters
    return DirectionCounters(counters.tx_packets, counters.tx_bytes, counters.tx_dropped)


def describe_datapaths(state: State) -> list[str]:
    """Format the datapaths of the impaired links and their approximations as lines: "by relay: n1--s1, n2--s1"."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for link, datapath in state.datapaths.items():
        groups.setdefault((datapath, tuple(state.notes.get(link, ()))), []).append(link)
    lines = []
    for (datapath, notes), names in groups.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        lines.append(f"by {datapath}: {shown}")
        lines += [f"   {note}" for note in notes]
    return lines


def summary(layout: Layout) -> str:
    """Format a layout's size: "4 nodes, 1 switch, 4 links"."""
    return format_size(len(layout.nodes), len(layout.switches), len(layout.links))


def format_size(nodes: int, switches: int, links: int) -> str:
    """Format numbers of nodes, switches and links, without those that are 0."""
    counts = [(nodes, "node"), (switches, "switch"), (links, "link")]
    plural = {"switch": "switches"}
    return ", ".join(f"{n} {word if n == 1 else plural.get(word, word + 's')}" for n, word in counts if n)
