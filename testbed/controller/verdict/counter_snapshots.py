"""Snapshots of a cluster's counters: of its emulator and of the machine. Two snapshots describe a span.

Reading changes nothing. The sources are the relay's report, the counters of the loss classifiers, the backlog drops of the
kernel, and the time for which processes waited for a processor.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.veth_wiring import free_ends
from testbed.cluster.records.state import State, Store
from testbed.cluster.running_cluster import RunningCluster
from testbed.cluster.services import relay_client
from testbed.cluster.services.nic_sharing import read_reports
from testbed.errors import KernelError
from testbed.kernel import loss_classifier, namespaces, softnet, userns
from testbed.kernel.loss_classifier import Counters
from testbed.kernel.rtnl_dump import by_name, interfaces
from testbed.runtime.relay.orders import DIRECTIONS
from testbed.spec.layout import Layout

_PROC_STAT: Final = Path("/proc/stat")
_STEAL: Final = 7  # index: user, nice, system, idle, iowait, irq, softirq, steal
_SUMMED: Final = 8  # columns; guest and guest_nice follow, which user and nice include


@dataclass(frozen=True, slots=True)
class CounterSnapshot:
    """Counters at one instant.

    clock: monotonic nanoseconds. relay: its report; None if none runs or it does not answer. backlog: frames that the kernel
    dropped because its input queue was full, machine-wide, by processor. stolen, ticks: processor ticks taken by the
    hypervisor, and all ticks. ran, waited: nanoseconds for which each relay process ran, and was ready to run without a
    processor, by process ID. loads: nanoseconds of processor time of load programs, by process ID. classifiers: by (link,
    direction). agents: reports of shared NICs' agents, by node; None for an agent that does not answer.
    """

    clock: int
    relay: Mapping[str, Any] | None = None
    backlog: Mapping[int, int] = field(default_factory=dict)
    stolen: int = 0
    ticks: int = 0
    ran: Mapping[int, int] = field(default_factory=dict)
    waited: Mapping[int, int] = field(default_factory=dict)
    loads: Mapping[int, int] = field(default_factory=dict)
    classifiers: Mapping[tuple[str, str], Counters] = field(default_factory=dict)
    agents: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)


def read_counters(store: Store, state: State) -> CounterSnapshot:
    """Read all counters of a cluster now. Raises KernelError if a link has lost its free end."""
    relay = None
    if "relay" in state.datapaths.values():
        with contextlib.suppress(KernelError):  # a relay that does not answer forwards nothing
            relay = relay_client.report(store, state)
    stolen, ticks = _processor_ticks(_PROC_STAT.read_text())
    times = (
        {process["pid"]: read_schedstat(process["pid"]) for process in relay["processes"]} if relay is not None else {}
    )
    loads = {
        program.pid: read_schedstat(program.pid)[0] for injection in state.injected for program in injection.programs
    }
    return CounterSnapshot(
        time.monotonic_ns(),
        relay,
        softnet.read_drops(),
        stolen,
        ticks,
        {pid: ran for pid, (ran, _) in times.items()},
        {pid: waited for pid, (_, waited) in times.items()},
        loads,
        _classifiers(state),
        _agents(store, state),
    )


def _agents(store: Store, state: State) -> Mapping[str, Mapping[str, Any] | None]:
    if state.nics is None:
        return {}
    return read_reports(store, state)


def _processor_ticks(text: str) -> tuple[int, int]:
    """Return the stolen ticks and all ticks, summed over the processors."""
    ticks = [int(word) for word in text.splitlines()[0].split()[1 : 1 + _SUMMED]]
    return (ticks[_STEAL] if len(ticks) > _STEAL else 0), sum(ticks)


def read_schedstat(pid: int) -> tuple[int, int]:
    """Return the nanoseconds for which a process ran, and for which it was ready without a processor; 0, 0 if unknown."""
    with contextlib.suppress(OSError, ValueError):
        ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return int(ran), int(waited)
    return 0, 0


def _classifiers(state: State) -> dict[tuple[str, str], Counters]:
    """Read the counters of all loss classifiers; none without root."""
    links = [link for link, datapath in state.datapaths.items() if datapath == "tc"]
    path = state.namespaces.get(namespace_names.WIRE, "")
    if not links or not userns.is_root() or not os.path.exists(path):
        return {}
    by_direction = {}
    namespace = namespaces.open_path(path)
    try:
        indices = {name: interface.index for name, interface in by_name(interfaces(namespace.route)).items()}
        for link in links:
            for direction, end in zip(("forward", "backward"), free_ends(state.layout, link), strict=True):
                if end not in indices:
                    raise KernelError(f"link {link} has lost its free end {end}: repair the cluster by 'testbed up'")
                counters = loss_classifier.read_counters(namespace.route, indices[end])
                if counters is not None:
                    by_direction[link, direction] = counters
    finally:
        namespace.close()
    return by_direction


SwitchCounts = Mapping[str, Mapping[str, int]]
"""Counters of modelled switches, by switch: frames dropped or truncated, by cause; stops: the number of STOPs sent to
NICs."""


def read_switch_counts(cluster: RunningCluster) -> SwitchCounts:
    """Read the counters of modelled switches; empty if the relay does not answer."""
    layout = cluster.state.layout
    report = relay_client.report(Store(), cluster.state) if layout.simulated_switches() else None
    return switch_counts_of(layout, report) if report is not None else {}


def switch_counts_of(layout: Layout, report: Mapping[str, Any]) -> SwitchCounts:
    """Return the counters of modelled switches in a report of the relay."""
    counts = {name: {**by_cause, "stops": 0} for name, by_cause in report["switches"].items()}
    for link in layout.links:
        for direction in DIRECTIONS:
            owner = (link.b if direction == "forward" else link.a).owner
            if owner in counts:
                counts[owner]["stops"] += report["links"].get(link.name, {}).get(direction, {}).get("stops", 0)
    return counts


def switch_counts_since(before: SwitchCounts, now: SwitchCounts) -> SwitchCounts:
    """Return the difference of two readings; after a restart of the relay, the later reading, as counters began at 0."""
    differences = {}
    for name, by_cause in now.items():
        earlier = before.get(name, {})
        difference = {cause: count - earlier.get(cause, 0) for cause, count in by_cause.items()}
        differences[name] = difference if min(difference.values()) >= 0 else dict(by_cause)
    return differences
