"""Faults of a scenario on one machine of several: the machine's share of each injection, and faults of its own nodes.

Every machine draws the same timeline and plays it from the start of its own programs; the machines start within a round
trip of each other. A fault on other machines has no counters here.
"""

from __future__ import annotations

from testbed.cluster.faults.injections import Injection
from testbed.cluster.running_cluster import RunningCluster
from testbed.controller.scenarios.active import ELSEWHERE, ActiveFault, Programs
from testbed.controller.scenarios.live import LiveInjector
from testbed.controller.scenarios.targets import injection_of, senders_of, touched_nodes
from testbed.controller.scenarios.timeline import Occurrence
from testbed.machines.spread_faults import share
from testbed.spec.fault_models import Fault, Incast, Traffic
from testbed.spec.layout import Layout


class MachineInjector(LiveInjector):
    """Injector of faults for one machine's part of a run. Implements `active.FaultInjector`."""

    def __init__(self, cluster: RunningCluster, run: Programs, seconds: float, layout: Layout, number: int) -> None:
        """seconds: as for `LiveInjector`. layout: layout of the complete cluster. number: number after which those of the
        scenario's injections follow, the same on all machines."""
        super().__init__(cluster, run, seconds)
        self._local_layout = self._layout
        self._here = {node.name for node in self._local_layout.nodes}
        self._layout = layout
        self._issued = number

    def begin(self, occurrence: Occurrence) -> ActiveFault:
        fault = occurrence.fault
        touched = {*touched_nodes(self._layout, fault)}
        self._min_number = self._issued + 1
        self._issued += max(1, len(touched))  # a load of several nodes takes an injection for each
        if isinstance(fault, Traffic | Incast):
            touched |= {*senders_of(self._layout, fault)}
        if self._injection(fault) is None and not touched & self._here:
            return ActiveFault(occurrence, dict, lambda _run_ended: None, reason=ELSEWHERE)
        return super().begin(occurrence)

    def _injection(self, fault: Fault) -> Injection | None:
        injection = injection_of(fault, self._layout)
        return share(injection, self._local_layout) if injection is not None else None

    def _touched(self, fault: Fault) -> list[str]:
        return [name for name in super()._touched(fault) if name in self._here]
