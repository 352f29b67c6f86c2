"""A scenario of a run on several machines: each machine injects its faults (see `machine_injector`); this module joins the
reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from testbed.controller.checkers.disturbances import FOREVER, Disturbance
from testbed.controller.scenarios.active import ELSEWHERE
from testbed.controller.scenarios.player import FAULT_BEGINS, FAULT_ENDS, ScenarioPlayer, no_effect_warning, shorten
from testbed.spec.layout_json import to_json
from testbed.spec.scenario import Scenario

if TYPE_CHECKING:
    from testbed.cluster.running_cluster import RunningCluster
    from testbed.machines.spread_faults import SpreadState

Event = Mapping[str, Any]


def report_of(player: ScenarioPlayer, events: Sequence[Event], clock_offset: int) -> Mapping[str, object]:
    """Return the report on a closed player of one machine, for JSON: its events and disturbances on the run's clock, and its
    warning on faults that did not begin (`remaining`; empty: all began). events: those that the player recorded.
    clock_offset: nanoseconds by which the run's clock is ahead of this machine's."""
    disturbances = [
        {**asdict(disturbance), "nodes": sorted(disturbance.nodes), "begin": disturbance.begin + clock_offset,
         "end": disturbance.end if disturbance.end == FOREVER else disturbance.end + clock_offset}
        for disturbance in player.disturbances()
    ]  # fmt: skip
    events = [{**event, "clock": event["clock"] + clock_offset} for event in events]
    return {"events": events, "disturbances": disturbances, "remaining": player.remaining}


class SpreadScenario:
    """One scenario of a run on several machines. notes: warnings on faults that had no effect or did not begin. seed: set by
    the run, as for `ScenarioPlayer`, but unused: the machines get the seed from the plan of each repetition. Implements
    `checkers.runs.DisturbanceSource`."""

    def __init__(self, scenario: Scenario, seconds: float, record_events: Callable[[list[Event]], object]) -> None:
        """seconds: maximum duration of a repetition. record_events: called once for each repetition, with the joined events
        of its faults."""
        self.seed = 0
        self._scenario: Final = scenario
        self._seconds = seconds
        self._record_events = record_events
        self._without_effect: list[str] = []
        self._remaining: list[str] = []  # warnings on faults that did not begin
        self._disturbances: list[Disturbance] = []

    @property
    def notes(self) -> list[str]:
        return [*shorten(self._without_effect), *self._remaining]

    def is_new_note(self, note: str) -> bool:  # noqa: ARG002  the players on the machines have filtered their notes
        return True

    def prepared(
        self,
        cluster: RunningCluster | None,  # noqa: ARG002
        repeat: int = 1,  # noqa: ARG002
    ) -> AbstractContextManager[object]:
        return nullcontext()

    def close(self) -> None:
        """Do nothing: each machine closes its own player."""

    def request(self, state: SpreadState) -> Mapping[str, object]:
        """Return the arguments from which each machine makes its player: see `runs.machine_part`."""
        return {
            "toml": self._scenario.to_toml(),
            "seconds": self._seconds,
            "layout": to_json(state.layout),
            "number": state.issued + 1,
        }

    def disturbances(self) -> Sequence[Disturbance]:
        """Return the disturbances of the last repetition, as each machine reported them: one of several machines is in it
        several times."""
        return tuple(self._disturbances)

    def add_reports(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Add the machines' reports of a repetition: join and record the events, collect the disturbances, and keep the
        warnings: one for each fault without effect, and the first machine's on faults that did not begin."""
        reports = list(reports)
        self._disturbances = [
            Disturbance(**{**disturbance, "nodes": frozenset(disturbance["nodes"])})
            for report in reports
            for disturbance in report["disturbances"]
        ]
        events = list(join_events([report["events"] for report in reports]))
        self._record_events(events)
        for event in events:
            if event["event"] == FAULT_ENDS and not event["had_effect"]:
                span, reason = (event["begin"], event["at"]), event.get("reason", "")
                warning = no_effect_warning(event["fault"], event["what"], span, event["counted"], reason)
                self._without_effect.append(warning)
        self._remaining += [report["remaining"] for report in reports if report["remaining"]][:1]


def join_events(machine_events: Iterable[Sequence[Event]]) -> Iterator[Event]:
    """Yield one event for each beginning and end of a fault, in the order of time. machine_events: the events that each
    machine recorded. A fault is in force once it is in force on all machines, has ended once it has ended on all, and had an
    effect if it had one on any; its counters are added up."""
    events_by_fault: dict[tuple[str, str, int], list[Event]] = defaultdict(list)
    for events in machine_events:
        for event in events:
            begin = event["at"] if event["event"] == FAULT_BEGINS else event["begin"]
            events_by_fault[event["event"], event["fault"], begin].append(event)
    for event in sorted(map(_join, events_by_fault.values()), key=lambda event: int(event["clock"])):
        yield event


def _join(events: Sequence[Event]) -> Event:
    if events[0]["event"] == FAULT_BEGINS:
        latest = max(events, key=lambda event: int(event["in_force"]))
        return {**latest, "begun": min(event["begun"] for event in events)}
    latest = max(events, key=lambda event: int(event["at"]))
    counted: dict[str, int] = defaultdict(int)
    for event in events:
        for name, count in event["counted"].items():
            counted[name] += count
    reasons = dict.fromkeys(event["reason"] for event in events if event.get("reason", ELSEWHERE) != ELSEWHERE)
    had_effect = any(event["had_effect"] for event in events)
    return {
        **{key: value for key, value in latest.items() if key != "reason"},
        "with_the_run": any(event["with_the_run"] for event in events),
        "counted": dict(counted),
        "had_effect": had_effect,
        **({"reason": ", ".join(reasons)} if reasons and not had_effect else {}),
    }
