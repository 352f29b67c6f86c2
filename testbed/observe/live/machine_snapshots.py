"""Snapshots of a cluster that is spread over machines: each machine's worker samples its part, and the parts are merged.

The data on a direction of a link between machines is that of the machine where the direction ends: that machine applies the
link's impairments.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from testbed.cluster.records.state import Store
from testbed.cluster.records.status import format_size
from testbed.errors import TestbedError
from testbed.machines.remote_workers import WorkerLostError, try_call_each
from testbed.machines.spread import Workers
from testbed.observe.format.event_format import FormattedEvent
from testbed.observe.live.snapshot import Absent, Direction, Fault, Link, Nic, Node, Program, Snapshot, Switch
from testbed.observe.live.snapshots import MAX_EVENTS, SnapshotSampler


class PartSamplers:
    """Samplers of the parts of clusters in a machine's worker, by name of the cluster. A context manager that closes them on
    exit."""

    def __init__(self) -> None:
        self._samplers: dict[str, SnapshotSampler] = {}

    def __enter__(self) -> PartSamplers:
        return self

    def __exit__(self, *_: object) -> None:
        for sampler in self._samplers.values():
            sampler.close()

    def sample(self, name: str, agents: bool) -> object:
        """Take a snapshot of a part; return it as plain data, or a sentence if there is no cluster to show. Rates cover the
        time since the last call."""
        if name not in self._samplers:
            self._samplers[name] = SnapshotSampler(Store(), name)
        snapshot = self._samplers[name].sample(agents=agents)
        return snapshot.why if isinstance(snapshot, Absent) else asdict(snapshot)


class SpreadSampler:
    """Sampler of snapshots of all machines together. The loss of a machine stays in the warnings of all later snapshots."""

    def __init__(self, running: Workers, name: str) -> None:
        self._running = dict(running)
        self._name = name
        self._lost: dict[str, str] = {}

    def sample(self, *, agents: bool = True) -> Snapshot | Absent:
        """Take a snapshot, as `SnapshotSampler.sample` does."""
        names, with_agents = dict.fromkeys(self._running, self._name), dict.fromkeys(self._running, agents)
        replies = try_call_each(self._running, "sample", name=names, agents=with_agents)
        parts: dict[str, Snapshot] = {}
        reasons: list[str] = []
        for machine, reply in replies.items():
            if isinstance(reply, WorkerLostError):
                self._running.pop(machine).close()
                self._lost[machine] = str(reply)
            elif isinstance(reply, TestbedError | str):
                reasons.append(f"machine {machine}: {reply}")
            else:
                parts[machine] = from_json(reply)
        if not parts:
            return Absent("; ".join([*self._lost.values(), *reasons]))
        return merge_snapshots(parts, list(self._lost.values()))


def merge_snapshots(parts: Mapping[str, Snapshot], lost: Sequence[str] = ()) -> Snapshot:
    """Merge the snapshots of a cluster's parts, by machine. lost: sentences on machines that are lost."""
    first = next(iter(parts.values()))
    links = _links(parts)
    nodes = tuple(
        replace(node, nics=tuple(_with_directions(nic, node.name, links) for nic in node.nics))
        for part in parts.values()
        for node in part.nodes
    )
    switches = tuple(switch for part in parts.values() for switch in part.switches)
    warnings = [*lost, *(f"machine {machine}: {part.warning}" for machine, part in parts.items() if part.warning)]
    events = [
        replace(event, where=f"{event.where} on {machine}" if event.where else f"on {machine}")
        for machine, part in parts.items()
        for event in part.events
    ]
    phases = [part.phase for part in parts.values()]
    return Snapshot(
        first.cluster,
        first.origin,
        time.time_ns(),
        max(part.age for part in parts.values()),
        max(part.span for part in parts.values()),
        f"{format_size(len(nodes), len(switches), len(links))} on {', '.join(parts)}",
        next((phase for phase in phases if phase != "up"), "up"),
        "; ".join(warnings),
        nodes,
        tuple(links.values()),
        _faults(parts.values()),
        tuple(carrier for part in parts.values() for carrier in part.carriers),
        tuple(sorted(events, key=lambda event: event.time)[-MAX_EVENTS:]),
        switches,
    )


def _links(parts: Mapping[str, Snapshot]) -> dict[str, Link]:
    """Return all links by name, with each direction from the machine where it ends. A link that is down at one end is
    down."""
    links: dict[str, Link] = {}
    for part in parts.values():
        local_owners = {*(node.name for node in part.nodes), *(switch.name for switch in part.switches)}
        for link in part.links:
            merged = links.get(link.name)
            if merged is not None:
                state = link.state if merged.state == "up" else merged.state
                forward, backward = (
                    (link.forward, merged.backward)
                    if _owner(link.b) in local_owners
                    else (merged.forward, link.backward)
                )
                link = replace(merged, state=state, forward=forward, backward=backward)
            links[link.name] = link
    return links


def _owner(end: str) -> str:
    return end.partition(":")[0]


def _with_directions(nic: Nic, node: str, links: Mapping[str, Link]) -> Nic:
    """Return a NIC with the directions of its merged link."""
    if nic.link not in links:
        return nic
    link = links[nic.link]
    is_a = link.a == f"{node}:{nic.name}"
    out, back = (link.forward, link.backward) if is_a else (link.backward, link.forward)
    return replace(nic, out=out, back=back)


def _faults(parts: Iterable[Snapshot]) -> tuple[Fault, ...]:
    faults: dict[int, Fault] = {}
    for part in parts:
        for fault in part.faults:
            merged = faults.get(fault.number, fault)
            faults[fault.number] = replace(merged, links=tuple(sorted({*merged.links, *fault.links})))
    return tuple(faults[number] for number in sorted(faults))


def from_json(data: Mapping[str, Any]) -> Snapshot:
    """Make a snapshot from the plain data of `dataclasses.asdict`."""
    return Snapshot(
        **{
            **data,
            "nodes": tuple(_node(node) for node in data["nodes"]),
            "links": tuple(Link(**{**link, **_directions(link, "forward", "backward"), "tags": tuple(link["tags"])})
                           for link in data["links"]),
            "faults": tuple(Fault(**{**fault, "links": tuple(fault["links"])}) for fault in data["faults"]),
            "carriers": tuple(Program(**carrier) for carrier in data["carriers"]),
            "events": tuple(FormattedEvent(**event) for event in data["events"]),
            "switches": tuple(Switch(**switch) for switch in data["switches"]),
        }
    )  # fmt: skip


def _node(data: Mapping[str, Any]) -> Node:
    nics = tuple(
        Nic(**{**nic, **_directions(nic, "out", "back"), "addresses": tuple(nic["addresses"])}) for nic in data["nics"]
    )
    programs = tuple(Program(**program) for program in data["programs"])
    return Node(data["name"], data["state"], nics, programs, tuple(data["tags"]))


def _directions(data: Mapping[str, Any], *keys: str) -> dict[str, Direction]:
    return {key: Direction(**data[key]) for key in keys}
