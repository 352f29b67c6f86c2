"""Faults where time is dilated: at their moments of the model's time, those of links slowed as the links are. What makes a
node or a NIC slower or stand still is done to its model: the node process itself must not be late for that."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from testbed.cluster.injections import Injection
from testbed.controller.scenarios.active import GONE, NOTHING_PRICED, Active
from testbed.controller.scenarios.live import LiveStage
from testbed.controller.scenarios.targets import injection_of
from testbed.controller.scenarios.timeline import Occurrence
from testbed.runtime.nodes.model_faults import Burn, ModelFault, Resume, Slowed, Stand, Unburn
from testbed.spec.faults import Cpu, Fault, Incast, Pause, Slow, Traffic
from testbed.spec.slowed_faults import slowed_fault

if TYPE_CHECKING:
    from testbed.cluster.running import RunningCluster
    from testbed.runtime.nodes.run import Run


class DilatedStage(LiveStage):
    """Implements `active.Stage`."""

    def __init__(self, cluster: RunningCluster, run: Run, seconds: float, factor: int, *, priced: bool) -> None:
        """seconds: as for `LiveStage`, of this machine. factor: how many times time is slowed. priced: a profile says what
        NICs cost."""
        super().__init__(cluster, run, seconds)
        self._nodes: Final = run
        self._factor = factor
        self._priced = priced
        self._standing: Counter[str] = Counter()  # pauses in force on each node

    def begin(self, occurrence: Occurrence) -> Active:
        fault = occurrence.fault
        if isinstance(fault, Slow):
            reason = "" if self._priced else NOTHING_PRICED
            return self._bend(occurrence, Slowed(fault.factor), Slowed(1), counts=self._priced, reason=reason)
        if isinstance(fault, Cpu):
            return self._bend(occurrence, Burn(fault.share), Unburn(fault.share))
        if isinstance(fault, Pause):
            return self._stand(occurrence)
        return super().begin(occurrence)

    def _injection(self, fault: Fault) -> Injection | None:
        injection = injection_of(slowed_fault(fault, self._factor), self._layout)
        return (
            replace(injection, what=fault.what) if injection is not None else None
        )  # in the words of who asked for it

    def _rate(self, fault: Traffic | Incast) -> int:
        slowed = slowed_fault(fault, self._factor)
        assert isinstance(slowed, Traffic | Incast)
        return slowed.rate

    def _moment(self, when: int) -> int:
        return self._nodes.origin + when * self._factor

    def _bend(
        self, occurrence: Occurrence, begin: ModelFault, end: ModelFault, *, counts: bool = True, reason: str = ""
    ) -> Active:
        names = self._running(occurrence.fault)
        for name in names:
            self._nodes.bend(name, begin)

        def lift(over: bool) -> None:
            for name in names:
                if not over and not self._nodes.has_ended(name):
                    self._nodes.bend(name, end)

        bent = {"nodes": len(names) if counts else 0}
        return Active(occurrence, lambda: bent, lift, reason=reason or ("" if names else GONE))

    def _stand(self, occurrence: Occurrence) -> Active:
        names = self._running(occurrence.fault)
        self._standing.update(names)
        for name in names:
            self._nodes.bend(name, Stand(occurrence.end))

        def lift(over: bool) -> None:
            self._standing.subtract(names)
            for name in names:
                if not over and not self._standing[name] and not self._nodes.has_ended(name):
                    self._nodes.bend(name, Resume())

        still = {"nodes": len(names)}
        return Active(occurrence, lambda: still, lift, reason="" if names else GONE)
