"""Player of a scenario beside a run: its moments in order; each fault's beginning and end is an event, and a fault
without effect is noted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from testbed.controller.checkers.disturbances import CRASH, CUT, FOREVER, OTHER, PAUSE, RESET, Disturbance
from testbed.controller.scenarios.active import HOLD, Active, Programs, Stage
from testbed.controller.scenarios.feasibility import texts_of
from testbed.controller.scenarios.moments import Moment, Occurrence, moments, occurrences
from testbed.controller.scenarios.targets import injection_of, touched_nodes
from testbed.errors import TestbedError
from testbed.spec.fault_models import Fault, Impair
from testbed.spec.layout import Layout
from testbed.spec.scenario import Scenario, load, slow_fault
from testbed.spec.units import format_duration

if TYPE_CHECKING:
    from testbed.cluster.running_cluster import RunningCluster
    from testbed.fates.rules import RuleSet
    from testbed.sim.simulation import Simulation

Tell = Callable[..., object]
"""tell(event, **facts): record an event of the run."""

_SECOND: Final = 1_000_000_000
_ROUNDED: Final = 1_000_000  # ns; in warnings
_MAX_SHOWN: Final = 20  # warnings
_AROUND: Final = 60.0  # s that a repetition may take beside its programs' time
_DISTURBANCES: Final = {
    "crash": CRASH, "restart": CRASH, "reset": RESET, "pause": PAUSE, "down": CUT, "flap": CUT, "partition": CUT,
}  # fmt: skip


class Dilated(NamedTuple):
    """Dilation of time. factor: how much it is slowed. priced: a profile prices NICs."""

    factor: int
    priced: bool


class MachinePart(NamedTuple):
    """One machine's part of a run on several, of which each plays the scenario. layout: of the complete cluster. number:
    of the scenario's first injection, the same on all machines."""

    layout: Layout
    number: int


def _ignore(_event: str, **_facts: object) -> None:
    pass


class ScenarioPlayer:
    """One scenario beside a run, restarted with each repetition; implements `execution.Beside` and
    `checkers.runs.Disturbing`. notes: warnings, complete when it is closed. remaining: that on faults that never came. seed:
    of the next repetition, for random parts without a seed of their own."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int = 0,
        seconds: float = 60.0,
        tell: Tell = _ignore,
        dilated: Dilated | None = None,
        part: MachinePart | None = None,
    ) -> None:
        """seconds: that a repetition may take. dilated: how time is dilated, if it is; then all times but `seconds` are
        the model's. part: what this machine has of a run on several. Raises the errors of reading the files that it
        names."""
        self.scenario: Final = scenario
        self.seed = seed
        self._seconds = seconds
        self._dilated = dilated
        self._part = part
        self._horizon = round(seconds * _SECOND) // (dilated.factor if dilated is not None else 1)
        self._tell = tell
        self._files = texts_of(scenario.faults)
        self._notes: list[str] = []
        self.remaining = ""
        self._said: set[str] = set()  # descriptions of faults that were put in force
        self._moments: list[Moment] = []
        self._next = 0
        self._active: dict[Occurrence, Active] = {}
        self._stage: Stage | None = None
        self._disturbances: list[Disturbance] = []
        self._as_laid: Callable[[Fault], Fault] = lambda fault: fault
        self._layout: Layout
        self._zero: Callable[[], int] = lambda: 0  # of a scenario's times, on the histories' clock
        self._now: Callable[[], int] = lambda: 0
        self._wake: Callable[[int, Callable[[], object]], object] = lambda _when, _act: None

    @property
    def notes(self) -> list[str]:
        """Warnings on faults that had no effect or never came."""
        return [*shortened(self._notes), *filter(None, [self.remaining])]

    def simulated(self, simulation: Simulation, rules: RuleSet) -> None:
        """See `execution.Beside`."""
        from testbed.controller.scenarios.simulated import SimulatedStage

        stage = SimulatedStage(simulation, rules, self._files)
        loop = simulation.loop
        self._begin(stage, simulation.layout, lambda: 0, loop.now, lambda when, act: loop.at(when, lambda _now: act()))
        self._await()

    @contextlib.contextmanager
    def live(self, cluster: RunningCluster, run: Programs) -> Iterator[None]:
        """See `execution.Beside`."""
        if self._dilated is not None:
            self._begin_dilated(cluster, run, self._dilated)
        else:
            self._begin(
                self._live_stage(cluster, run),
                self._part.layout if self._part is not None else cluster.state.layout,
                lambda: run.begun,
                lambda: max(0, time.monotonic_ns() - run.begun),
                run.at,
            )
        try:
            self._begin_with_the_programs()
            yield
        finally:
            self.close()

    def _live_stage(self, cluster: RunningCluster, run: Programs) -> Stage:
        if self._part is None:
            from testbed.controller.scenarios.live import LiveStage

            return LiveStage(cluster, run, self._seconds)
        from testbed.controller.scenarios.machine_stage import MachineStage

        return MachineStage(cluster, run, self._seconds, self._part.layout, self._part.number)

    @contextlib.contextmanager
    def prepared(self, cluster: RunningCluster | None, repeat: int = 1) -> Iterator[None]:
        """Prepare the cluster before programs begin, for `repeat` repetitions. None: the simulation needs no
        preparation."""
        if cluster is None:
            yield
            return
        from testbed.controller.scenarios.live import hold

        layout, number = self._part or (cluster.state.layout, 0)
        with hold(cluster, self.scenario, (self._seconds + _AROUND) * repeat, layout, number):
            yield

    def _begin_dilated(self, cluster: RunningCluster, run: Programs, dilated: Dilated) -> None:
        from testbed.controller.scenarios.dilated_player import DilatedStage
        from testbed.runtime.nodes.node_run import Run

        assert isinstance(run, Run)  # commands know this machine's time only
        factor = dilated.factor
        self._as_laid = partial(slow_fault, factor=factor)
        self._begin(
            DilatedStage(cluster, run, self._seconds, factor, priced=dilated.priced),
            cluster.state.layout,
            lambda: 0,
            lambda: max(0, time.monotonic_ns() - run.begun) // factor,
            lambda when, act: run.at(when * factor, act),
        )

    def heeds(self, note: str) -> bool:
        """Whether a note of the verdict adds to the events and our own notes. These already say which faults were put
        in force and lifted, and which of a fault's rules matched nothing on a link."""
        what = note.removeprefix("in the span, inject: ").removeprefix("in the span, heal: ")
        return HOLD not in note and what not in self._said

    def close(self) -> None:
        """Lift all faults in force when the programs have ended; may be repeated. Raises the first TestbedError of
        lifting when all have been tried."""
        if self._stage is None:
            return
        self._stage = None
        errors: list[TestbedError] = []
        for active in list(self._active.values()):
            try:
                self._end(active, run_ended=True)
            except TestbedError as error:
                errors.append(error)
        remaining = [
            moment for moment in self._moments[self._next :] if moment.begins and not moment.occurrence.goes_on
        ]
        if remaining:
            count = "1 fault has" if len(remaining) == 1 else f"{len(remaining):,} faults have"
            first = remaining[0].occurrence
            self.remaining = (
                f"{self.scenario.name} goes on after the run, which ended after {_rounded(self._now())}: {count} never "
                f"come, first {first.name} at {format_duration(first.begin)} ({first.fault.what})"
            )
        if errors:
            raise errors[0]

    def disturbances(self) -> Sequence[Disturbance]:
        """Return the disturbances of the last repetition: see `checkers.runs.Disturbing`."""
        return tuple(self._disturbances)

    def _begin(
        self,
        stage: Stage,
        layout: Layout,
        zero: Callable[[], int],
        now: Callable[[], int],
        wake: Callable[[int, Callable[[], object]], object],
    ) -> None:
        found = occurrences(self.scenario, layout, self.seed, self._horizon)
        self._next, self._layout, self._zero = 0, layout, zero
        self._disturbances.clear()
        self._moments = moments(found)
        self._stage, self._now, self._wake = stage, now, wake

    def _begin_with_the_programs(self) -> None:
        """Put the faults of links that begin at time 0 in force, before the programs begin: they concern the first frame,
        as in the simulation. Schedule the others."""
        for moment in [moment for moment in self._moments if moment.when == 0 and moment.begins]:
            if injection_of(self._as_laid(moment.occurrence.fault), self._layout) is not None:
                self._moments.remove(moment)
                self._start_fault(moment.occurrence)
        self._await()

    def _await(self) -> None:
        """Schedule the next moment."""
        if self._next < len(self._moments):
            self._wake(self._moments[self._next].when, self._act)

    def _act(self) -> None:
        """Carry out all moments that are due at this time."""
        if self._stage is None:
            return
        due = self._moments[self._next].when
        while self._next < len(self._moments) and self._moments[self._next].when == due:
            moment = self._moments[self._next]
            self._next += 1
            occurrence = moment.occurrence
            if moment.begins:
                self._start_fault(occurrence)
            elif occurrence in self._active:
                self._end(self._active[occurrence], run_ended=False)
        self._await()

    def _start_fault(self, occurrence: Occurrence) -> None:
        assert self._stage is not None
        started = self._now()
        self._said.add(occurrence.fault.what)
        laid = injection_of(self._as_laid(occurrence.fault), self._layout)
        rules = laid.rules if laid is not None else ()
        self._said.update(f"the rule {text!r} has never matched a frame" for _, text in rules)
        self._active[occurrence] = self._stage.begin(occurrence)
        self._tell(
            "fault begins", fault=occurrence.name, kind=occurrence.fault.kind, what=occurrence.fault.what,
            at=occurrence.begin, begun=started, in_force=self._now(),
        )  # fmt: skip

    def _end(self, active: Active, *, run_ended: bool) -> None:
        occurrence = active.occurrence
        del self._active[occurrence]
        fault, zero = occurrence.fault, self._zero()
        nodes = frozenset(touched_nodes(self._layout, fault))
        until = FOREVER if run_ended else zero + self._now()
        self._disturbances.append(Disturbance(_disturbance(fault), zero + occurrence.begin, until, nodes, fault.what))
        counts, ended = {}, self._now()
        try:
            counts = dict(active.counted())
        finally:
            active.lift(run_ended)
        moved = active.moved(counts)
        self._tell(
            "fault ends", fault=occurrence.name, kind=fault.kind, what=fault.what, begin=occurrence.begin, at=ended,
            with_the_run=run_ended, counted=counts, had_effect=moved, **({"reason": active.reason} if active.reason else {}),
        )  # fmt: skip
        if not moved:
            self._notes.append(no_effect(occurrence.name, fault.what, (occurrence.begin, ended), counts, active.reason))


def _disturbance(fault: Fault) -> str:
    """Return the checkers' kind of disturbance."""
    if isinstance(fault, Impair):
        return CUT if fault.loss == 1 else OTHER
    return _DISTURBANCES.get(fault.kind, OTHER)


def scenario_of(source: Scenario | str | Path) -> Scenario:
    """Return a scenario, loaded if it is a file. Raises the errors of loading."""
    return source if isinstance(source, Scenario) else load(source)


def no_effect(name: str, what: str, span: tuple[int, int], counts: Mapping[str, int], reason: str) -> str:
    """Return the warning on a fault without effect. span: nanoseconds since the programs began. reason: why it could have
    none, or empty."""
    why = reason or ", ".join(f"{counter}: {count}" for counter, count in counts.items()) or "nothing was counted"
    return f"{name} ({what}) had no effect from {_rounded(span[0])} to {_rounded(span[1])}: {why}"


def shortened(notes: Sequence[str]) -> list[str]:
    """Return warnings on faults without effect, of which many are left out."""
    more = len(notes) - _MAX_SHOWN
    return list(notes) if more <= 1 else [*notes[:_MAX_SHOWN], f"and {more} more faults had no effect"]


def _rounded(nanoseconds: int) -> str:
    """Format a duration for people: to a millisecond, if it is 10 ms or more."""
    if nanoseconds < 10 * _ROUNDED:
        return format_duration(nanoseconds)
    return format_duration(round(nanoseconds / _ROUNDED) * _ROUNDED)
