"""Faults of a run, from its events, in seconds since its programs began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.json_text import MAX_INTEGER


@dataclass(frozen=True, slots=True)
class FaultPeriod:
    """A fault while it was in force. name: its place in the scenario. what: as text. begin, end: seconds since the
    programs began; end is None where it lasted until the end of the run. counted: its effects."""

    name: str
    kind: str
    what: str
    begin: float
    end: float | None
    counted: Mapping[str, int]
    had_effect: bool


@dataclass(frozen=True, slots=True)
class Repetition:
    """Faults of one execution. zero: the clock of rows and histories when its programs began, in ns; None if no event
    tells."""

    number: int
    zero: int | None
    faults: tuple[FaultPeriod, ...]


def repetitions(events: Iterable[Mapping[str, Any]], *, virtual: bool) -> list[Repetition]:
    """Read the repetitions in order; at least one. virtual: the run was a simulation, whose clock begins at 0."""
    events_of: list[list[Mapping[str, Any]]] = []
    for event in events:
        if event.get("event") == "repetition begins":
            events_of.append([])
        elif event.get("event") in ("fault begins", "fault ends") and events_of and _is_valid(event):
            events_of[-1].append(event)
    return [_repetition(number, some_events, virtual) for number, some_events in enumerate(events_of or [[]], 1)]


def _is_valid(event: Mapping[str, Any]) -> bool:
    """Whether the event's times and counts are valid: a damaged file may have anything there."""
    times = [event.get(key, 0) for key in ("clock", "at", "in_force")]
    counted = event.get("counted", {})
    return (
        all(isinstance(time, int) and abs(time) < MAX_INTEGER for time in times)
        and ("at" in event or event.get("event") == "fault begins")
        and isinstance(counted, dict)
        and all(isinstance(time, int | float) for time in counted.values())
    )


def _repetition(number: int, events: list[Mapping[str, Any]], virtual: bool) -> Repetition:
    zero = 0 if virtual else None
    under_way: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    ended: list[FaultPeriod] = []
    for event in events:
        key = str(event.get("fault", "")), str(event.get("what", ""))
        if event["event"] == "fault begins":
            under_way.setdefault(key, []).append(event)
            if zero is None and "in_force" in event:  # one moment on both clocks
                zero = int(event["clock"]) - int(event["in_force"])
        elif under_way.get(key):
            over = event if not event.get("with_the_run") else None
            ended.append(_fault_period(under_way[key].pop(0), event, over))
    for unended in under_way.values():
        ended += [_fault_period(fault, {}, None) for fault in unended]
    return Repetition(number, zero, tuple(sorted(ended, key=lambda fault: fault.begin)))


def _fault_period(begins: Mapping[str, Any], ends: Mapping[str, Any], over: Mapping[str, Any] | None) -> FaultPeriod:
    begin = begins.get("in_force", begins.get("at", 0)) / 1e9
    end = None if over is None else max(begin, over["at"] / 1e9)
    return FaultPeriod(
        str(begins.get("fault", "")), str(begins.get("kind", "")), str(begins.get("what", "")), begin, end,
        ends.get("counted", {}), bool(ends.get("had_effect", True)),
    )  # fmt: skip
