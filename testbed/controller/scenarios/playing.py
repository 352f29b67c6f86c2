"""A scenario while it is carried out beside a run: its moments come one after the other, each fault's beginning and end is
an event, and what had no effect is noted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from testbed.controller.checkers.disturbances import CRASH, CUT, FOREVER, OTHER, PAUSE, RESET, Disturbance
from testbed.controller.scenarios.active import HOLD, Active, Programs, Stage
from testbed.controller.scenarios.checking import texts_of
from testbed.controller.scenarios.targets import injection_of, touched_nodes
from testbed.controller.scenarios.timeline import Moment, Occurrence, moments, occurrences
from testbed.errors import TestbedError
from testbed.spec.faults import Fault, Impair
from testbed.spec.layout import Layout
from testbed.spec.scenario import Scenario, load
from testbed.spec.slowed_faults import slowed_fault
from testbed.spec.units import format_duration

if TYPE_CHECKING:
    from testbed.cluster.running import RunningCluster
    from testbed.sim.simulation import Simulation
    from testbed.wire.rules import RuleSet

Tell = Callable[..., object]
"""tell(event, **facts): an event of the run."""

_SECOND: Final = 1_000_000_000
_ROUNDED: Final = 1_000_000  # ns; in warnings
_SHOWN: Final = 20  # warnings
_AROUND: Final = 60.0  # s that a repetition may take beside its programs' time
_DISTURBANCES: Final = {
    "crash": CRASH, "restart": CRASH, "reset": RESET, "pause": PAUSE, "down": CUT, "flap": CUT, "partition": CUT,
}  # fmt: skip


class Dilated(NamedTuple):
    """How time is. factor: how many times it is slowed. priced: a profile says what NICs cost."""

    factor: int
    priced: bool


def _nobody(_event: str, **_facts: object) -> None:
    pass


class Playing:
    """One scenario beside a run, anew beside each repetition; implements `executing.Beside`, and tells checkers how it has
    disturbed programs. notes: warnings, complete when it is closed. seed: of the next repetition, for what is drawn by no
    seed of its own."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int = 0,
        seconds: float = 60.0,
        tell: Tell = _nobody,
        dilated: Dilated | None = None,
    ) -> None:
        """seconds: how long a repetition may take. dilated: how time is, where it is; all times are the model's then, but
        for `seconds`. Raises what reading the files that it names does."""
        self.scenario: Final = scenario
        self.seed = seed
        self._seconds = seconds
        self._dilated = dilated
        self._horizon = round(seconds * _SECOND) // (dilated.factor if dilated is not None else 1)
        self._tell = tell
        self._files = texts_of(scenario.faults)
        self._notes: list[str] = []
        self._said: set[str] = set()  # words for what was put in force
        self._moments: list[Moment] = []
        self._next = 0
        self._active: dict[Occurrence, Active] = {}
        self._stage: Stage | None = None
        self._disturbances: list[Disturbance] = []
        self._as_laid: Callable[[Fault], Fault] = lambda fault: fault
        self._layout: Layout
        self._zero = 0  # on the histories' clock
        self._now: Callable[[], int] = lambda: 0
        self._wake: Callable[[int, Callable[[], object]], object] = lambda _when, _act: None

    @property
    def notes(self) -> list[str]:
        """Warnings: what had no effect, what never came."""
        more = len(self._notes) - _SHOWN
        return self._notes if more <= 1 else [*self._notes[:_SHOWN], f"and {more} more faults had no effect"]

    def simulated(self, simulation: Simulation, rules: RuleSet) -> None:
        """See `executing.Beside`."""
        from testbed.controller.scenarios.simulated import SimulatedStage

        stage = SimulatedStage(simulation, rules, self._files)
        loop = simulation.loop
        self._begin(stage, simulation.layout, 0, loop.now, lambda when, act: loop.at(when, lambda _now: act()))

    @contextlib.contextmanager
    def live(self, cluster: RunningCluster, run: Programs) -> Iterator[None]:
        """See `executing.Beside`."""
        if self._dilated is not None:
            self._begin_dilated(cluster, run, self._dilated)
        else:
            from testbed.controller.scenarios.live import LiveStage

            self._begin(
                LiveStage(cluster, run, self._seconds),
                cluster.state.layout,
                run.begun,
                lambda: time.monotonic_ns() - run.begun,
                lambda when, act: run.at(run.begun + when, act),
            )
        try:
            yield
        finally:
            self.close()

    @contextlib.contextmanager
    def prepared(self, cluster: RunningCluster | None, repeat: int = 1) -> Iterator[None]:
        """What is to be ready before programs begin, for so many repetitions. None: in the simulation there is nothing."""
        if cluster is None:
            yield
            return
        from testbed.controller.scenarios.live import hold

        with hold(cluster, self.scenario, (self._seconds + _AROUND) * repeat):
            yield

    def _begin_dilated(self, cluster: RunningCluster, run: Programs, dilated: Dilated) -> None:
        from testbed.controller.scenarios.dilated import DilatedStage
        from testbed.runtime.nodes.run import Run

        assert isinstance(run, Run)  # commands know this machine's time only
        factor, origin = dilated.factor, run.origin
        self._as_laid = partial(slowed_fault, factor=factor)
        self._begin(
            DilatedStage(cluster, run, self._seconds, factor, priced=dilated.priced),
            cluster.state.layout,
            0,
            lambda: (time.monotonic_ns() - origin) // factor,
            lambda when, act: run.at(origin + when * factor, act),
        )

    def heeds(self, note: str) -> bool:
        """Whether a note of the verdict says more than what events and our own notes tell better: that faults were put in
        force and lifted, and which of a fault's rules met nothing on one link."""
        what = note.removeprefix("in the span, inject: ").removeprefix("in the span, heal: ")
        return HOLD not in note and what not in self._said

    def close(self) -> None:
        """The programs have ended: what is in force is lifted. Nothing happens when that has been done. Raises the first
        TestbedError that lifting met, when all has been tried."""
        if self._stage is None:
            return
        self._stage = None
        errors: list[TestbedError] = []
        for one in list(self._active.values()):
            try:
                self._end(one, over=True)
            except TestbedError as error:
                errors.append(error)
        left = [moment for moment in self._moments[self._next :] if moment.begins and not moment.occurrence.goes_on]
        if left:
            count = "1 fault has" if len(left) == 1 else f"{len(left):,} faults have"
            first = left[0].occurrence
            self._notes.append(
                f"{self.scenario.name} goes on after the run, which ended after {_rounded(self._now())}: {count} never "
                f"come, first {first.name} at {format_duration(first.begin)} ({first.fault.what})"
            )
        if errors:
            raise errors[0]

    def disturbances(self) -> Sequence[Disturbance]:
        """Of the repetition that is over: see `checkers.runs.Disturbing`."""
        return tuple(self._disturbances)

    def _begin(
        self,
        stage: Stage,
        layout: Layout,
        zero: int,
        now: Callable[[], int],
        wake: Callable[[int, Callable[[], object]], object],
    ) -> None:
        found = occurrences(self.scenario, layout, self.seed, self._horizon)
        self._next, self._layout, self._zero = 0, layout, zero
        self._disturbances.clear()
        self._moments = moments(found)
        self._stage, self._now, self._wake = stage, now, wake
        self._await()

    def _await(self) -> None:
        """The next moment."""
        if self._next < len(self._moments):
            self._wake(self._moments[self._next].when, self._act)

    def _act(self) -> None:
        """Carry out what is due: all that is to happen at one time goes together."""
        if self._stage is None:
            return
        due = self._moments[self._next].when
        while self._next < len(self._moments) and self._moments[self._next].when == due:
            moment = self._moments[self._next]
            self._next += 1
            one = moment.occurrence
            if moment.begins:
                begun = self._now()
                self._said.add(one.fault.what)
                laid = injection_of(self._as_laid(one.fault), self._layout)
                rules = laid.rules if laid is not None else ()
                self._said.update(f"the rule {text!r} has never matched a frame" for _, text in rules)
                self._active[one] = self._stage.begin(one)
                self._tell(
                    "fault begins", fault=one.name, kind=one.fault.kind, what=one.fault.what, at=one.begin, begun=begun,
                    in_force=self._now(),
                )  # fmt: skip
            elif one in self._active:
                self._end(self._active[one], over=False)
        self._await()

    def _end(self, active: Active, *, over: bool) -> None:
        one = active.occurrence
        del self._active[one]
        fault, zero = one.fault, self._zero
        nodes = frozenset(touched_nodes(self._layout, fault))
        until = FOREVER if over else zero + self._now()
        self._disturbances.append(Disturbance(_disturbance(fault), zero + one.begin, until, nodes, fault.what))
        counts, ended = {}, self._now()
        try:
            counts = dict(active.counted())
        finally:
            active.lift(over)
        moved = active.moved(counts)
        self._tell(
            "fault ends", fault=one.name, kind=one.fault.kind, what=one.fault.what, at=ended, with_the_run=over,
            counted=counts, had_effect=moved,
        )  # fmt: skip
        if not moved:
            why = (
                active.reason
                or ", ".join(f"{name}: {count}" for name, count in counts.items())
                or "nothing was counted"
            )
            self._notes.append(
                f"{one.name} ({one.fault.what}) had no effect from {_rounded(one.begin)} to {_rounded(ended)}: {why}"
            )


def _disturbance(fault: Fault) -> str:
    """What it is to checkers."""
    if isinstance(fault, Impair):
        return CUT if fault.loss == 1 else OTHER
    return _DISTURBANCES.get(fault.kind, OTHER)


def scenario_of(given: Scenario | str | Path) -> Scenario:
    """A scenario, or the one in a file. Raises what loading does."""
    return given if isinstance(given, Scenario) else load(given)


def _rounded(nanoseconds: int) -> str:
    """For people: to a millisecond, where it is longer than some."""
    if nanoseconds < 10 * _ROUNDED:
        return format_duration(nanoseconds)
    return format_duration(round(nanoseconds / _ROUNDED) * _ROUNDED)
