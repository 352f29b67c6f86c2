"""Faults of a run, from its events, in seconds since the start of its programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.json_text import INTEGER_LIMIT


@dataclass(frozen=True, slots=True)
class FaultPeriod:
    """A period in which a fault was in force. name: path in the scenario. what: description. begin, end: seconds since the
    start of the programs; end is None if the fault lasted until the end of the run. counted: counters of its effects."""

    name: str
    kind: str
    what: str
    begin: float
    end: float | None
    counted: Mapping[str, int]
    had_effect: bool


@dataclass(frozen=True, slots=True)
class Repetition:
    """Faults of one repetition. zero: clock of rows and histories at the start of its programs, in ns; None if
    unknown."""

    number: int
    zero: int | None
    faults: tuple[FaultPeriod, ...]


def repetitions(events: Iterable[Mapping[str, Any]], *, virtual: bool) -> list[Repetition]:
    """Return the repetitions in order, at least one. virtual: the run was a simulation, whose clock begins at 0."""
    events_of: list[list[Mapping[str, Any]]] = []
    for event in events:
        if event.get("event") == "repetition begins":
            events_of.append([])
        elif event.get("event") in ("fault begins", "fault ends") and events_of and _is_valid(event):
            events_of[-1].append(event)
    return [
        _repetition(number, repetition_events, virtual) for number, repetition_events in enumerate(events_of or [[]], 1)
    ]


def _is_valid(event: Mapping[str, Any]) -> bool:
    """Whether the event's times and counters have valid types; in a damaged file they may not."""
    times = [event.get(key, 0) for key in ("clock", "at", "in_force")]
    counters = event.get("counted", {})
    return (
        all(isinstance(time, int) and abs(time) < INTEGER_LIMIT for time in times)
        and ("at" in event or event.get("event") == "fault begins")
        and isinstance(counters, dict)
        and all(isinstance(count, int | float) for count in counters.values())
    )


def _repetition(number: int, events: list[Mapping[str, Any]], virtual: bool) -> Repetition:
    zero = 0 if virtual else None
    active: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    ended: list[FaultPeriod] = []
    for event in events:
        key = str(event.get("fault", "")), str(event.get("what", ""))
        if event["event"] == "fault begins":
            active.setdefault(key, []).append(event)
            if zero is None and "in_force" in event:  # the same time on both clocks
                zero = int(event["clock"]) - int(event["in_force"])
        elif active.get(key):
            end_event = event if not event.get("with_the_run") else None
            ended.append(_fault_period(active[key].pop(0), event, end_event))
    for remaining in active.values():
        ended += [_fault_period(fault, {}, None) for fault in remaining]
    return Repetition(number, zero, tuple(sorted(ended, key=lambda fault: fault.begin)))


def _fault_period(
    begins: Mapping[str, Any], ends: Mapping[str, Any], end_event: Mapping[str, Any] | None
) -> FaultPeriod:
    begin = begins.get("in_force", begins.get("at", 0)) / 1e9
    end = None if end_event is None else max(begin, end_event["at"] / 1e9)
    return FaultPeriod(
        str(begins.get("fault", "")), str(begins.get("kind", "")), str(begins.get("what", "")), begin, end,
        ends.get("counted", {}), bool(ends.get("had_effect", True)),
    )  # fmt: skip
