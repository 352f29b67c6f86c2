"""Faults of dilated runs, at model times. Faults of links are slowed like the links. Faults that slow or pause a node or a
NIC are applied to its cost model, since pausing the node process would make it late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from testbed.cluster.faults.injections import Injection
from testbed.cluster.running_cluster import RunningCluster
from testbed.controller.scenarios.active import NO_COSTS, NO_PROGRAM, ActiveFault
from testbed.controller.scenarios.live import LiveInjector
from testbed.controller.scenarios.targets import injection_of
from testbed.controller.scenarios.timeline import Occurrence
from testbed.runtime.nodes.node_run import Run
from testbed.runtime.nodes.run_orders import BeginLoad, EndLoad, ModelFault, PauseNic, ResumeNic, SlowNic
from testbed.spec.fault_models import Cpu, Fault, Incast, Pause, Slow, Traffic
from testbed.spec.scenario import slow_fault


class DilatedInjector(LiveInjector):
    """Injector of faults for dilated runs. Implements `active.FaultInjector`."""

    def __init__(self, cluster: RunningCluster, run: Run, seconds: float, factor: int, *, is_priced: bool) -> None:
        """seconds: as for `LiveInjector`, in real time. factor: dilation factor. is_priced: whether NICs have costs."""
        super().__init__(cluster, run, seconds)
        self._node_run: Final = run
        self._factor = factor
        self._is_priced = is_priced
        self._slow_factors: defaultdict[str, list[float]] = defaultdict(list)  # in force, by rank

    def begin(self, occurrence: Occurrence) -> ActiveFault:
        fault = occurrence.fault
        if isinstance(fault, Slow):
            return self._slow(occurrence, fault.factor)
        if isinstance(fault, Cpu):
            share = fault.share
            return self._apply(occurrence, lambda _rank: BeginLoad(share), lambda _rank: EndLoad(share))
        if isinstance(fault, Pause):
            return self._pause(occurrence)
        return super().begin(occurrence)

    def _injection(self, fault: Fault) -> Injection | None:
        injection = injection_of(slow_fault(fault, self._factor), self._layout)
        # The description shows the fault as in the scenario, not as slowed.
        return replace(injection, what=fault.what) if injection is not None else None

    def _rate(self, fault: Traffic | Incast) -> int:
        slowed = slow_fault(fault, self._factor)
        assert isinstance(slowed, Traffic | Incast)
        return slowed.rate

    def _monotonic_time(self, when: int) -> int:
        return self._node_run.start_time + when * self._factor

    def _slow(self, occurrence: Occurrence, factor: float) -> ActiveFault:
        """Slow NICs down; of overlapping faults, the one that began last applies."""
        factors = self._slow_factors

        def begin(rank: str) -> SlowNic:
            factors[rank].append(factor)
            return SlowNic(factor)

        def end(rank: str) -> SlowNic:
            factors[rank].remove(factor)
            return SlowNic(factors[rank][-1] if factors[rank] else 1)

        reason = "" if self._is_priced else NO_COSTS
        return self._apply(occurrence, begin, end, has_effect=self._is_priced, reason=reason)

    def _restart(self, names: Collection[str]) -> None:
        super()._restart(names)
        for name in names:  # the new process has the costs of the profile
            if self._slow_factors[name]:
                self._node_run.apply_model_fault(name, SlowNic(self._slow_factors[name][-1]))

    def _apply(
        self,
        occurrence: Occurrence,
        begin: Callable[[str], ModelFault],
        end: Callable[[str], ModelFault],
        *,
        has_effect: bool = True,
        reason: str = "",
    ) -> ActiveFault:
        """Apply a fault to the cost models of the nodes whose programs run. begin, end: return the orders that begin and end
        it at a rank."""
        names = self._running_ranks(occurrence.fault)
        for name in names:
            self._node_run.apply_model_fault(name, begin(name))

        def lift(run_ended: bool) -> None:
            for name in names:
                order = end(name)
                if not run_ended and not self._node_run.has_ended(name):
                    self._node_run.apply_model_fault(name, order)

        affected = {"nodes": len(names) if has_effect else 0}
        return ActiveFault(occurrence, lambda: affected, lift, reason=reason or ("" if names else NO_PROGRAM))

    def _pause(self, occurrence: Occurrence) -> ActiveFault:
        names = self._running_ranks(occurrence.fault)
        self._pauses.update(names)
        for name in names:
            self._node_run.apply_model_fault(name, PauseNic(occurrence.end))

        def lift(run_ended: bool) -> None:
            self._pauses.subtract(names)
            for name in names:
                if not run_ended and not self._pauses[name] and not self._node_run.has_ended(name):
                    self._node_run.apply_model_fault(name, ResumeNic())

        affected = {"nodes": len(names)}
        return ActiveFault(occurrence, lambda: affected, lift, reason="" if names else NO_PROGRAM)
