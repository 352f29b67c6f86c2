"""Repeated snapshots of a cluster: each sample is a snapshot, or the reason why there is none.

The cluster may be taken down and brought up between samples; without a name, the only running cluster is used.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from testbed.cluster.faults.fault_injection import describe_impairments
from testbed.cluster.faults.injections import BOTH, DirectionName, Injection, shorten_rule
from testbed.cluster.plan import namespace_names
from testbed.cluster.records.state import State, Store
from testbed.cluster.records.status import missing, summary
from testbed.errors import KernelError, NotFoundError, TestbedError, reason_of
from testbed.kernel import namespaces, processes
from testbed.observe.format.event_format import FormattedEvent, Tail, format_event
from testbed.observe.live.snapshot import Absent, Direction, Fault, Link, Nic, Node, Program, Snapshot, Switch
from testbed.observe.live.wires import DirectionKey, DirectionTraffic, Wires
from testbed.runtime import event_log
from testbed.spec import layout
from testbed.spec.layout_json import impairment_to_json

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")


class ProcessUsage:
    """Sampler of the processor use of programs."""

    def __init__(self) -> None:
        self._last_ticks: dict[tuple[int, int], int] = {}  # (pid, start time) -> clock ticks used at the last sample

    def sample(self, keys: Mapping[int, str], span: float) -> dict[str, list[Program]]:
        """Return programs by key of their network namespace. keys: keys of the namespaces, by inode. span: seconds since the
        last sample; 0: this is the first."""
        programs: dict[str, list[Program]] = {}
        ticks_now: dict[tuple[int, int], int] = {}
        for pid in processes.all_pids():
            key = keys.get(processes.network_namespace_of(pid))
            if key is None:
                continue
            try:
                with open(f"/proc/{pid}/stat", "rb") as file:
                    text = file.read()
            except OSError:  # the process has ended
                continue
            name = text[text.index(b"(") + 1 : text.rindex(b")")].decode(errors="replace")
            fields = text[text.rindex(b")") + 2 :].split()
            ticks, start_time, pages = int(fields[11]) + int(fields[12]), int(fields[19]), int(fields[21])
            ticks_now[pid, start_time] = ticks
            previous = self._last_ticks.get((pid, start_time), ticks)
            cpu = (ticks - previous) / _TICKS_PER_SECOND / span if span else 0.0
            programs.setdefault(key, []).append(Program(pid, name, cpu, pages * _PAGE_SIZE))
        self._last_ticks = ticks_now
        return programs


MAX_EVENTS: Final = 200
"""Number of events that a snapshot contains; older events are left out."""

_AGENT_COUNTERS: Final = ("dropped", "overflowed", "unsent", "down", "strangers", "refused")
"""Counters that an agent reports besides those of its firmware: lost frames, and rejected host processes."""

AgentReports = Mapping[str, Mapping[str, Any] | None]
"""Reports of the NIC agents, by node; None if an agent does not answer."""


class SnapshotSampler:
    """Sampler of snapshots. `close` closes the files that it keeps open."""

    def __init__(self, store: Store, name: str | None = None) -> None:
        """name: name of the cluster; None: the only cluster that is up."""
        self._store = store
        self._name = name
        self._watched: _WatchedCluster | None = None

    def close(self) -> None:
        if self._watched is not None:
            self._watched.close()
            self._watched = None

    def sample(self, *, agents: bool = True) -> Snapshot | Absent:
        """Take a snapshot. An error is returned as `Absent`; the next sample may succeed. agents: query the agents of shared
        NICs for their counters, which takes longer than the rest."""
        previous = self._watched
        try:
            cluster = self._cluster()
            if previous is None or previous.cluster != cluster or not previous.exists():
                self.close()
                self._watched = _WatchedCluster(self._store, cluster)
            assert self._watched is not None
            return self._watched.sample(agents=agents)
        except (TestbedError, OSError) as error:
            self.close()
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            if previous is None or previous.cluster in self._store.names():
                return Absent(reason)
            taken_down = f"{previous.cluster} has been taken down"
            return Absent(taken_down if self._name is not None else f"{taken_down}; {reason}")

    def _cluster(self) -> str:
        """Return the name of the cluster to sample. The watched cluster is kept while it is up, even if other clusters come
        up."""
        if self._name is None and self._watched is not None and self._watched.exists():
            return self._watched.cluster
        return self._store.existing_name(self._name)


class _WatchedCluster:
    """A watched cluster, from its first sample on."""

    def __init__(self, store: Store, cluster: str) -> None:
        self.cluster: Final = cluster
        self._store = store
        self._path = store.directory(cluster) / "state.json"
        self._directory = os.stat(self._path.parent)
        self._state_stamp: tuple[int, int] = (0, 0)  # inode and mtime of the state's file
        self._state: State | None = None
        self._wires: Wires | None = None
        self._usage = ProcessUsage()
        self._sampled_at = 0
        self._totals: dict[DirectionKey, DirectionTraffic] = {}
        self._impairments: dict[DirectionKey, tuple[str, str]] = {}  # declared and injected, as text
        self._tail = Tail(store.directory(cluster) / event_log.FILE)
        self._events: deque[FormattedEvent] = deque(maxlen=MAX_EVENTS)

    def close(self) -> None:
        self._tail.close()
        if self._wires is not None:
            self._wires.close()

    def exists(self) -> bool:
        """Whether the cluster still exists, and has not been replaced by a new cluster with its name."""
        try:
            return self._path.exists() and os.path.samestat(os.stat(self._path.parent), self._directory)
        except FileNotFoundError:
            return False

    def sample(self, *, agents: bool) -> Snapshot:
        """Take a snapshot. agents: see `SnapshotSampler.sample`. Raises NotFoundError if the cluster is gone, OSError,
        KernelError."""
        state = self._read_state()
        now = time.monotonic_ns()
        wires, totals_now = self._open_wires(state).sample(state)
        span = (now - self._sampled_at) / 1e9 if self._sampled_at else 0.0
        programs = self._usage.sample({inode: key for key, inode in state.inodes.items()}, span)
        directions = {key: self._direction(key, totals, span) for key, totals in totals_now.items()}
        self._sampled_at, self._totals = now, totals_now
        self._events += map(format_event, self._tail.read())
        reports = self._agent_reports(state) if agents else {}
        links = tuple(_link(link, wires[link.name].state, state, directions) for link in state.layout.links)
        return Snapshot(
            state.name,
            state.origin,
            time.time_ns(),
            max(0.0, time.time() - state.created),
            span,
            summary(state.layout),
            state.phase,
            _warning(state, self._path.parent, [node for node, report in reports.items() if report is None]),
            tuple(_nodes(state, links, programs, reports)),
            links,
            tuple(_fault(injection, now) for injection in state.injected),
            tuple(programs.get(namespace_names.WIRE, ())),
            tuple(self._events),
            tuple(Switch(switch.name, switch.kind) for switch in state.layout.switches),
        )

    def _read_state(self) -> State:
        """Return the cluster's state; its file is read only if it has changed."""
        status = os.stat(self._path)
        stamp = status.st_ino, status.st_mtime_ns
        if self._state is None or stamp != self._state_stamp:
            state = self._store.read(self.cluster)
            if state is None:
                raise NotFoundError(f"cluster {self.cluster} has been taken down")
            if self._wires is not None and not self._wires.has_namespaces_of(state):
                self._wires.close()
                self._wires, self._sampled_at = None, 0
            self._state, self._state_stamp = state, stamp
            self._impairments = dict(_impairments(state))
        return self._state

    def _open_wires(self, state: State) -> Wires:
        if self._wires is None:
            if namespace_names.WIRE not in state.namespaces:
                raise KernelError(f"cluster {self.cluster} is being created")
            # The names of a rootless cluster's namespaces are files in the holder's mount namespace.
            is_hidden = state.namespaces[namespace_names.WIRE].startswith(f"{namespaces.NAMES}/")
            holder = state.holder.pid if state.holder is not None and is_hidden else 0
            if holder and state.abandoned:
                raise NotFoundError(f"cluster {self.cluster} is gone: 'testbed gc' removes what is left of it")
            self._wires = Wires(state, self._path.parent, holder)
        return self._wires

    def _agent_reports(self, state: State) -> AgentReports:
        if state.nics is None:
            return {}
        from testbed.cluster.services.nic_sharing import read_reports  # imports the protocols

        return read_reports(self._store, state)

    def _direction(self, key: DirectionKey, now: DirectionTraffic, span: float) -> Direction:
        previous = self._totals.get(key, now)
        drops, previous_drops = sum(now.dropped.values()), sum(previous.dropped.values())
        declared, injected = self._impairments.get(key, ("", ""))
        return Direction(
            now.frames,
            now.bytes,
            _rate(previous.frames, now.frames, span),
            8 * _rate(previous.bytes, now.bytes, span),
            now.dropped,
            _rate(previous_drops, drops, span),
            now.fates,
            declared,
            injected,
        )


def _rate(previous: int, now: int, span: float) -> float:
    """Return the change of a counter per second; 0 if the counter has restarted, with a new interface."""
    return (now - previous) / span if span and now > previous else 0.0


def _impairments(state: State) -> Iterable[tuple[DirectionKey, tuple[str, str]]]:
    """Yield the declared and the injected impairments of each direction, as text."""
    for link in state.layout.links:
        for direction in BOTH:
            declared: layout.Impairment = getattr(link, direction)
            keys = {key: value for key, value in impairment_to_json(declared).items() if key != "rules"}
            injected = [text for injection in state.injected if (text := _injected(injection, link.name, direction))]
            yield (link.name, direction), (describe_impairments(keys, declared.rules), "; ".join(injected))


def _injected(injection: Injection, link: str, direction: DirectionName) -> str:
    key = (link, direction)
    rules = [shorten_rule(text) for place, text in injection.rules if place == key]
    phrases = [describe_impairments(injection.keys if key in injection.places else {}, rules)]
    phrases += [f"replay of {injection.replay}"] if injection.replay and key in injection.places else []
    phrases += ["down"] if link in injection.down else []
    return ", ".join(phrase for phrase in phrases if phrase)


def _link(link: layout.Link, state: str, cluster: State, directions: Mapping[DirectionKey, Direction]) -> Link:
    forward, backward = (directions.get((link.name, direction), Direction()) for direction in BOTH)
    datapath = cluster.datapaths.get(link.name, "direct")
    return Link(link.name, str(link.a), str(link.b), state, datapath, forward, backward, link.tags)


def _nodes(
    state: State, links: Iterable[Link], programs: Mapping[str, list[Program]], agents: AgentReports
) -> Iterable[Node]:
    by_end = {end: (link, end == link.a) for link in links for end in (link.a, link.b)}
    is_hidden = state.holder is not None and state.namespaces.get(namespace_names.WIRE, "").startswith(
        f"{namespaces.NAMES}/"
    )
    for node in state.layout.nodes:
        exists = is_hidden or namespaces.is_namespace(state.namespaces.get(node.name, ""))
        yield Node(
            node.name,
            "up" if exists else "GONE",
            tuple(
                _nic(nic, by_end.get(f"{node.name}:{nic.name}"), agents.get(node.name) if not number else None)
                for number, nic in enumerate(node.nics)
            ),
            tuple(programs.get(node.name, ())),
            node.tags,
        )


def _nic(nic: layout.Nic, attachment: tuple[Link, bool] | None, report: Mapping[str, Any] | None) -> Nic:
    """Return a NIC. attachment: its link, and whether it is end `a`. report: report of the agent of a shared NIC."""
    counters = (
        {name: report[name] for name in _AGENT_COUNTERS if report[name]} | dict(report["counted"])
        if report is not None
        else {}
    )
    if attachment is None:
        return Nic(nic.name, nic.mac, nic.addresses, "", agent=counters)
    link, is_a = attachment
    out, back = (link.forward, link.backward) if is_a else (link.backward, link.forward)
    return Nic(nic.name, nic.mac, nic.addresses, link.name, out, back, counters)


def _fault(injection: Injection, now: int) -> Fault:
    remaining = max(0.0, (injection.until - now) / 1e9) if injection.until else None
    return Fault(injection.number, injection.what, tuple(sorted(injection.links)), remaining)


def _warning(state: State, directory: Path, silent: Sequence[str]) -> str:
    """Return a sentence on the cluster's main problem, or an empty string. directory: directory of the cluster. silent:
    nodes whose NIC agent does not answer."""
    if state.phase != "up":
        if state.owner.is_alive:
            return f"process {state.owner.pid} is {state.phase} it"
        return f"left {state.phase}: 'testbed {'gc' if state.abandoned else 'up'}' repairs it"
    if missing_parts := missing(state, directory):
        return missing_parts[0]
    if silent:
        names = ", ".join(silent[:4]) + (f" and {len(silent) - 4} more" if len(silent) > 4 else "")
        return f"the agent of a shared NIC does not answer: {names}"
    return ""
