"""What a cluster's emulator and the machine say of themselves at one instant; two such accounts tell of a span.

Read from outside, by reading only: the relay's report, the loss classifiers' counters, what the kernel says of its backlog
and of who waited for a processor.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from testbed.cluster import carrying, names
from testbed.cluster.state import State, Store
from testbed.cluster.wiring import free_ends
from testbed.errors import KernelError
from testbed.kernel import loss_classifier, namespaces, softnet, userns
from testbed.kernel.loss_classifier import Counters
from testbed.kernel.survey import by_name, interfaces

_PROCESSORS: Final = Path("/proc/stat")
_STEAL: Final = 7  # in /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal
_COUNTED: Final = 8  # what follows is in the first two already


@dataclass(frozen=True, slots=True)
class Account:
    """clock: monotonic nanoseconds. relay: its report; None where none runs, or it does not answer. backlog: frames that
    the kernel dropped because too many waited, on the whole machine, by processor. stolen, ticks: processor time that the
    hypervisor took, of how much. waited: nanoseconds for which each of the relay's processes was ready and had none, by
    process number. loads: nanoseconds of processor time likewise. classifiers: of (link, direction). agents: of shared
    NICs, by node, what each says; None where it does not answer."""

    clock: int
    relay: Mapping[str, Any] | None = None
    backlog: Mapping[int, int] = field(default_factory=dict)
    stolen: int = 0
    ticks: int = 0
    waited: Mapping[int, int] = field(default_factory=dict)
    loads: Mapping[int, int] = field(default_factory=dict)
    classifiers: Mapping[tuple[str, str], Counters] = field(default_factory=dict)
    agents: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)


def account(store: Store, state: State) -> Account:
    """Take it now."""
    relay = None
    if "relay" in state.datapaths.values():
        with contextlib.suppress(KernelError):  # it does not answer: then it does not carry either
            relay = carrying.report(store, state)
    stolen, ticks = _processors(_PROCESSORS.read_text())
    processes = [one["pid"] for one in relay["processes"]] if relay is not None else []
    loads = {program.pid: scheduled(program.pid)[0] for one in state.injected for program in one.programs}
    return Account(
        time.monotonic_ns(),
        relay,
        softnet.drops(),
        stolen,
        ticks,
        {pid: scheduled(pid)[1] for pid in processes},
        loads,
        _classifiers(state),
        _agents(store, state),
    )


def _agents(store: Store, state: State) -> Mapping[str, Mapping[str, Any] | None]:
    if state.nics is None:
        return {}
    from testbed.cluster.sharing import reports  # with all that sharing needs, which most clusters do not

    return reports(store, state)


def _processors(text: str) -> tuple[int, int]:
    """Stolen and all ticks of all processors."""
    ticks = [int(word) for word in text.splitlines()[0].split()[1 : 1 + _COUNTED]]
    return (ticks[_STEAL] if len(ticks) > _STEAL else 0), sum(ticks)


def scheduled(pid: int) -> tuple[int, int]:
    """For how long a process ran, and for how long it was ready and waited, in nanoseconds; 0 when that is not known."""
    with contextlib.suppress(OSError, ValueError):
        ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return int(ran), int(waited)
    return 0, 0


def _classifiers(state: State) -> dict[tuple[str, str], Counters]:
    """As root only: without root there are none."""
    links = [link for link, datapath in state.datapaths.items() if datapath == "tc"]
    path = state.namespaces.get(names.WIRE, "")
    if not links or not userns.is_root() or not os.path.exists(path):
        return {}
    found = {}
    namespace = namespaces.open_path(path)
    try:
        indices = {name: one.index for name, one in by_name(interfaces(namespace.route)).items()}
        for link in links:
            for direction, end in zip(("forward", "backward"), free_ends(state.layout, link), strict=True):
                if end not in indices:
                    raise KernelError(f"{link} has lost its free end {end}: 'testbed up' puts it right")
                counters = loss_classifier.read_counters(namespace.route, indices[end])
                if counters is not None:
                    found[link, direction] = counters
    finally:
        namespace.close()
    return found
