"""Faults of a scenario on one machine of several: of an injection its share, of nodes those that are here.

Every machine draws the same timeline and plays it from when its own programs begin, which is within a round trip of the
others. Faults on other machines count nothing here.
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
        """seconds: as for `LiveInjector`. layout: layout of the complete cluster. number: below those of the scenario's
        injections, which are the same on all machines."""
        super().__init__(cluster, run, seconds)
        self._part = self._layout
        self._here = {node.name for node in self._part.nodes}
        self._layout = layout
        self._issued = number

    def begin(self, occurrence: Occurrence) -> ActiveFault:
        fault = occurrence.fault
        touched = {*touched_nodes(self._layout, fault)}
        self._least = self._issued + 1
        self._issued += max(1, len(touched))  # a load of several nodes is as many injections
        if isinstance(fault, Traffic | Incast):
            touched |= {*senders_of(self._layout, fault)}
        if self._injection(fault) is None and not touched & self._here:
            return ActiveFault(occurrence, dict, lambda _run_ended: None, reason=ELSEWHERE)
        return super().begin(occurrence)

    def _injection(self, fault: Fault) -> Injection | None:
        injection = injection_of(fault, self._layout)
        return share(injection, self._part) if injection is not None else None

    def _touched(self, fault: Fault) -> list[str]:
        return [name for name in super()._touched(fault) if name in self._here]
