"""Account of a cluster at one instant: counters of its emulator and of the machine. Two accounts describe a span.

Read from outside, without changing anything: the relay's report, the loss classifiers' counters, the kernel's backlog
drops and the time that processes waited for a processor.
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
from testbed.cluster.services.nic_sharing import reports
from testbed.errors import KernelError
from testbed.kernel import loss_classifier, namespaces, softnet, userns
from testbed.kernel.loss_classifier import Counters
from testbed.kernel.rtnl_dump import by_name, interfaces
from testbed.runtime.relay.orders import DIRECTIONS

_PROCESSORS: Final = Path("/proc/stat")
_STEAL: Final = 7  # in /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal
_COUNTED: Final = 8  # guest and guest_nice follow, which user and nice include


@dataclass(frozen=True, slots=True)
class Account:
    """Counters at one instant.

    clock: monotonic nanoseconds. relay: its report; None where none runs or it does not answer. backlog: by processor,
    frames that the kernel dropped on the whole machine because its input queue was full. stolen, ticks: processor ticks
    taken by the hypervisor, and all ticks. waited: by process ID, nanoseconds for which each relay process was ready to
    run without a processor. loads: by process ID, nanoseconds of processor time of load programs. classifiers: by
    (link, direction). agents: by node, the reports of shared NICs' agents; None for an agent that does not answer.
    """

    clock: int
    relay: Mapping[str, Any] | None = None
    backlog: Mapping[int, int] = field(default_factory=dict)
    stolen: int = 0
    ticks: int = 0
    waited: Mapping[int, int] = field(default_factory=dict)
    loads: Mapping[int, int] = field(default_factory=dict)
    classifiers: Mapping[tuple[str, str], Counters] = field(default_factory=dict)
    agents: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)


def take_account(store: Store, state: State) -> Account:
    """Take an account now."""
    relay = None
    if "relay" in state.datapaths.values():
        with contextlib.suppress(KernelError):  # a relay that does not answer forwards nothing
            relay = relay_client.report(store, state)
    stolen, ticks = _processors(_PROCESSORS.read_text())
    processes = [process["pid"] for process in relay["processes"]] if relay is not None else []
    loads = {program.pid: schedstat(program.pid)[0] for injection in state.injected for program in injection.programs}
    return Account(
        time.monotonic_ns(),
        relay,
        softnet.drops(),
        stolen,
        ticks,
        {pid: schedstat(pid)[1] for pid in processes},
        loads,
        _classifiers(state),
        _agents(store, state),
    )


def _agents(store: Store, state: State) -> Mapping[str, Mapping[str, Any] | None]:
    if state.nics is None:
        return {}

    return reports(store, state)


def _processors(text: str) -> tuple[int, int]:
    """Return the stolen ticks and all ticks, summed over the processors."""
    ticks = [int(word) for word in text.splitlines()[0].split()[1 : 1 + _COUNTED]]
    return (ticks[_STEAL] if len(ticks) > _STEAL else 0), sum(ticks)


def schedstat(pid: int) -> tuple[int, int]:
    """Return how long a process ran and how long it was ready and waited, in nanoseconds; 0, 0 if that is not known."""
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
                    raise KernelError(f"{link} has lost its free end {end}: 'testbed up' puts it right")
                counters = loss_classifier.read_counters(namespace.route, indices[end])
                if counters is not None:
                    by_direction[link, direction] = counters
    finally:
        namespace.close()
    return by_direction


SwitchCounts = Mapping[str, Mapping[str, int]]
"""Counters of modelled switches. By switch: frames dropped or truncated there, by cause; stops, how often NICs at it were
sent STOP."""


def switch_counts(cluster: RunningCluster) -> SwitchCounts:
    """Read the counters of modelled switches; empty where the relay does not answer."""
    layout = cluster.state.layout
    names = layout.modelled()
    report = relay_client.report(Store(), cluster.state) if names else None
    if report is None:
        return {}
    counts = {name: {**counted, "stops": 0} for name, counted in report["switches"].items()}
    for link in layout.links:
        for direction in DIRECTIONS:
            stops = report["links"].get(link.name, {}).get(direction, {}).get("stops", 0)
            if stops:
                counts[(link.b if direction == "forward" else link.a).owner]["stops"] += stops
    return counts


def switch_counts_since(before: SwitchCounts, now: SwitchCounts) -> SwitchCounts:
    """Return the difference of two readings. A restarted relay has counted from 0."""
    counts = {}
    for name, counted in now.items():
        earlier = before.get(name, {})
        risen = {cause: count - earlier.get(cause, 0) for cause, count in counted.items()}
        counts[name] = risen if min(risen.values()) >= 0 else dict(counted)
    return counts
