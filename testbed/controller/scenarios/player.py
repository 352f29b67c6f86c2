"""Player of a scenario during a run, which begins and ends the faults at their times. Each begin and end is recorded as an
event of the run, and each fault without effect as a note."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from testbed.controller.checkers.disturbances import CRASH, CUT, FOREVER, OTHER, PAUSE, RESET, Disturbance
from testbed.controller.scenarios.active import HOLD, ActiveFault, FaultInjector, Programs
from testbed.controller.scenarios.feasibility import texts_of
from testbed.controller.scenarios.targets import injection_of, touched_nodes
from testbed.controller.scenarios.timeline import Occurrence, TimelineEvent, occurrences_of, timeline_events
from testbed.errors import TestbedError
from testbed.spec.fault_models import Fault, Impair
from testbed.spec.layout import Layout
from testbed.spec.scenario import Scenario, load, slow_fault
from testbed.spec.units import format_duration

if TYPE_CHECKING:
    from testbed.cluster.running_cluster import RunningCluster
    from testbed.fates.rules import RuleSet
    from testbed.sim.simulation import Simulation

FAULT_BEGINS, FAULT_ENDS = "fault begins", "fault ends"
"""Events of a run."""

RecordEvent = Callable[..., object]
"""record_event(event, **facts): record an event of the run."""

_SECOND: Final = 1_000_000_000
_ROUNDING: Final = 1_000_000  # ns, of times in notes
_MAX_SHOWN: Final = 20  # notes
_EXTRA_SECONDS: Final = 60.0  # of a repetition, before and after its programs
_DISTURBANCE_KINDS: Final = {
    "crash": CRASH, "restart": CRASH, "reset": RESET, "pause": PAUSE, "down": CUT, "flap": CUT, "partition": CUT,
}  # fmt: skip


class Dilated(NamedTuple):
    """Dilation of time. factor: dilation factor. is_priced: whether NICs have costs in the profile."""

    factor: int
    is_priced: bool


class MachinePart(NamedTuple):
    """One machine's part of a run on several machines, each of which plays the scenario. layout: layout of the complete
    cluster. number: number of the injection that holds links for the scenario, the same on all machines; those of the
    faults follow."""

    layout: Layout
    number: int


def _ignore(_event: str, **_facts: object) -> None:
    pass


class ScenarioPlayer:
    """Player of one scenario, which starts again with each repetition. Implements `execution.Companion` and
    `checkers.runs.DisturbanceSource`. notes: warnings, complete after `close`. remaining: the warning on faults that did
    not begin. seed: seed of the next repetition, for random parts without a seed of their own."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int = 0,
        seconds: float = 60.0,
        record_event: RecordEvent = _ignore,
        dilated: Dilated | None = None,
        part: MachinePart | None = None,
    ) -> None:
        """seconds: maximum duration of a repetition, in real time. dilated: dilation of time, if any; all other times are
        model times then. part: this machine's part of a run on several machines. Raises the errors of reading the files
        that the scenario names."""
        self.scenario: Final = scenario
        self.seed = seed
        self._seconds = seconds
        self._dilated = dilated
        self._part = part
        self._horizon = round(seconds * _SECOND) // (dilated.factor if dilated is not None else 1)
        self._record_event = record_event
        self._files = texts_of(scenario.faults)
        self._notes: list[str] = []
        self.remaining = ""
        self._recorded: set[str] = set()  # descriptions of faults that were put in force
        self._timeline: list[TimelineEvent] = []
        self._next = 0
        self._active: dict[Occurrence, ActiveFault] = {}
        self._injector: FaultInjector | None = None
        self._disturbances: list[Disturbance] = []
        self._slowed: Callable[[Fault], Fault] = lambda fault: fault
        self._layout: Layout
        self._origin: Callable[[], int] = lambda: 0  # of a scenario's times, on the histories' clock
        self._now: Callable[[], int] = lambda: 0
        self._call_at: Callable[[int, Callable[[], object]], object] = lambda _when, _act: None

    @property
    def notes(self) -> list[str]:
        """Warnings on faults that had no effect or did not begin."""
        return [*shorten(self._notes), *filter(None, [self.remaining])]

    def simulated(self, simulation: Simulation, rules: RuleSet) -> None:
        """See `execution.Companion`."""
        from testbed.controller.scenarios.simulated import SimulatedInjector

        injector = SimulatedInjector(simulation, rules, self._files)
        loop = simulation.loop
        self._begin(
            injector, simulation.layout, lambda: 0, loop.now, lambda when, act: loop.at(when, lambda _now: act())
        )
        self._schedule_next()

    @contextlib.contextmanager
    def live(self, cluster: RunningCluster, run: Programs) -> Iterator[None]:
        """See `execution.Companion`."""
        if self._dilated is not None:
            self._begin_dilated(cluster, run, self._dilated)
        else:
            self._begin(
                self._live_injector(cluster, run),
                self._part.layout if self._part is not None else cluster.state.layout,
                lambda: run.start_time,
                lambda: max(0, time.monotonic_ns() - run.start_time),
                run.at,
            )
        try:
            self._begin_initial_faults()
            yield
        finally:
            self.close()

    def _live_injector(self, cluster: RunningCluster, run: Programs) -> FaultInjector:
        if self._part is None:
            from testbed.controller.scenarios.live import LiveInjector

            return LiveInjector(cluster, run, self._seconds)
        from testbed.controller.scenarios.machine_injector import MachineInjector

        return MachineInjector(cluster, run, self._seconds, self._part.layout, self._part.number)

    @contextlib.contextmanager
    def prepared(self, cluster: RunningCluster | None, repeat: int = 1) -> Iterator[None]:
        """Prepare a cluster for `repeat` repetitions, before programs begin. cluster: None in the simulation, which needs no
        preparation."""
        if cluster is None:
            yield
            return
        from testbed.controller.scenarios.live import hold

        layout, number = self._part or (cluster.state.layout, 0)
        with hold(cluster, self.scenario, (self._seconds + _EXTRA_SECONDS) * repeat, layout, number):
            yield

    def _begin_dilated(self, cluster: RunningCluster, run: Programs, dilated: Dilated) -> None:
        from testbed.controller.scenarios.dilated_player import DilatedInjector
        from testbed.runtime.nodes.node_run import Run

        assert isinstance(run, Run)  # commands run in real time
        factor = dilated.factor
        self._slowed = partial(slow_fault, factor=factor)
        self._begin(
            DilatedInjector(cluster, run, self._seconds, factor, is_priced=dilated.is_priced),
            cluster.state.layout,
            lambda: 0,
            lambda: max(0, time.monotonic_ns() - run.start_time) // factor,
            lambda when, act: run.at(when * factor, act),
        )

    def is_new_note(self, note: str) -> bool:
        """Whether a note of the verdict adds to the events and notes of the player, which already name the faults that were
        put in force and lifted, and the rules that matched no frame."""
        description = note.removeprefix("in the span, inject: ").removeprefix("in the span, heal: ")
        return HOLD not in note and description not in self._recorded

    def close(self) -> None:
        """Lift all faults in force when the programs have ended; a second call has no effect. If a fault cannot be lifted,
        lift the others, and then raise the first TestbedError."""
        if self._injector is None:
            return
        self._injector = None
        errors: list[TestbedError] = []
        for active in list(self._active.values()):
            try:
                self._end_fault(active, run_ended=True)
            except TestbedError as error:
                errors.append(error)
        remaining = [
            event for event in self._timeline[self._next :] if event.is_begin and not event.occurrence.is_unbounded
        ]
        if remaining:
            count = "1 fault has" if len(remaining) == 1 else f"{len(remaining):,} faults have"
            first = remaining[0].occurrence
            self.remaining = (
                f"{self.scenario.name} is longer than the run, which ended after {_round_time(self._now())}: {count} not "
                f"begun, first {first.name} at {format_duration(first.begin)} ({first.fault.what})"
            )
        if errors:
            raise errors[0]

    def disturbances(self) -> Sequence[Disturbance]:
        """Return the disturbances of the last repetition: see `checkers.runs.DisturbanceSource`."""
        return tuple(self._disturbances)

    def _begin(
        self,
        injector: FaultInjector,
        layout: Layout,
        origin: Callable[[], int],
        now: Callable[[], int],
        call_at: Callable[[int, Callable[[], object]], object],
    ) -> None:
        """Begin a repetition. origin: returns the zero of the scenario's times on the histories' clock, nanoseconds. now:
        returns the current time, nanoseconds since that zero. call_at: schedules a call at such a time."""
        self._next, self._layout, self._origin = 0, layout, origin
        self._disturbances.clear()
        self._timeline = timeline_events(occurrences_of(self.scenario, layout, self.seed, self._horizon))
        self._injector, self._now, self._call_at = injector, now, call_at

    def _begin_initial_faults(self) -> None:
        """Put the faults of links that begin at time 0 in force before the programs begin, so that they affect the first
        frame, as in the simulation. Schedule the others."""
        for event in [event for event in self._timeline if event.when == 0 and event.is_begin]:
            if injection_of(self._slowed(event.occurrence.fault), self._layout) is not None:
                self._timeline.remove(event)
                self._begin_fault(event.occurrence)
        self._schedule_next()

    def _schedule_next(self) -> None:
        """Schedule the next event."""
        if self._next < len(self._timeline):
            self._call_at(self._timeline[self._next].when, self._play_due)

    def _play_due(self) -> None:
        """Begin and end all faults that are due at this time."""
        if self._injector is None:
            return
        due = self._timeline[self._next].when
        while self._next < len(self._timeline) and self._timeline[self._next].when == due:
            event = self._timeline[self._next]
            self._next += 1
            occurrence = event.occurrence
            if event.is_begin:
                self._begin_fault(occurrence)
            elif occurrence in self._active:
                self._end_fault(self._active[occurrence], run_ended=False)
        self._schedule_next()

    def _begin_fault(self, occurrence: Occurrence) -> None:
        assert self._injector is not None
        started = self._now()
        self._recorded.add(occurrence.fault.what)
        injection = injection_of(self._slowed(occurrence.fault), self._layout)
        rules = injection.rules if injection is not None else ()
        self._recorded.update(f"the rule {text!r} has never matched a frame" for _, text in rules)
        self._active[occurrence] = self._injector.begin(occurrence)
        self._record_event(
            FAULT_BEGINS, fault=occurrence.name, kind=occurrence.fault.kind, what=occurrence.fault.what,
            at=occurrence.begin, begun=started, in_force=self._now(),
        )  # fmt: skip

    def _end_fault(self, active: ActiveFault, *, run_ended: bool) -> None:
        occurrence = active.occurrence
        del self._active[occurrence]
        fault, origin = occurrence.fault, self._origin()
        nodes = frozenset(touched_nodes(self._layout, fault))
        end = FOREVER if run_ended else origin + self._now()
        self._disturbances.append(
            Disturbance(_disturbance_kind(fault), origin + occurrence.begin, end, nodes, fault.what)
        )
        counts, ended = {}, self._now()
        try:
            counts = dict(active.read_counts())
        finally:
            active.lift(run_ended)
        had_effect = active.had_effect(counts)
        self._record_event(
            FAULT_ENDS, fault=occurrence.name, kind=fault.kind, what=fault.what, begin=occurrence.begin, at=ended,
            with_the_run=run_ended, counted=counts, had_effect=had_effect,
            **({"reason": active.reason} if active.reason else {}),
        )  # fmt: skip
        if not had_effect:
            span = (occurrence.begin, ended)
            self._notes.append(no_effect_warning(occurrence.name, fault.what, span, counts, active.reason))


def _disturbance_kind(fault: Fault) -> str:
    """Return the checkers' kind of disturbance for a fault."""
    if isinstance(fault, Impair):
        return CUT if fault.loss == 1 else OTHER
    return _DISTURBANCE_KINDS.get(fault.kind, OTHER)


def scenario_of(source: Scenario | str | Path) -> Scenario:
    """Return a scenario, loaded if it is a file. Raises the errors of loading."""
    return source if isinstance(source, Scenario) else load(source)


def no_effect_warning(name: str, what: str, span: tuple[int, int], counts: Mapping[str, int], reason: str) -> str:
    """Return the warning on a fault without effect. span: nanoseconds since the programs began. reason: why it could have
    none, or empty."""
    why = reason or ", ".join(f"{counter}: {count}" for counter, count in counts.items()) or "its counters are 0"
    return f"{name} ({what}) had no effect from {_round_time(span[0])} to {_round_time(span[1])}: {why}"


def shorten(notes: Sequence[str]) -> list[str]:
    """Return warnings on faults without effect: the first _MAX_SHOWN, and the number of the others."""
    more = len(notes) - _MAX_SHOWN
    return list(notes) if more <= 1 else [*notes[:_MAX_SHOWN], f"and {more} more faults had no effect"]


def _round_time(nanoseconds: int) -> str:
    """Format a duration; round it to milliseconds if it is 10 ms or more."""
    if nanoseconds < 10 * _ROUNDING:
        return format_duration(nanoseconds)
    return format_duration(round(nanoseconds / _ROUNDING) * _ROUNDING)
