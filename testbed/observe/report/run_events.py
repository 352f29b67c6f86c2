"""Faults of a run, from its events, in seconds since the start of its programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.json_text import INTEGER_LIMIT


@dataclass(frozen=True, slots=True)
class FaultPeriod:
    """A period in which a fault was in force. name: path of the fault in the scenario. what: its description. begin, end:
    seconds since the start of the programs; end is None if the fault lasted until the end of the run. counted: counters of
    its effects. had_effect: whether it affected anything."""

    name: str
    kind: str
    what: str
    begin: float
    end: float | None
    counted: Mapping[str, int]
    had_effect: bool


@dataclass(frozen=True, slots=True)
class Repetition:
    """Faults of one repetition. zero: time of the clock of rows and histories at the start of the programs, ns; None if
    unknown."""

    number: int
    zero: int | None
    faults: tuple[FaultPeriod, ...]


def repetitions(events: Iterable[Mapping[str, Any]], *, virtual: bool) -> list[Repetition]:
    """Return the repetitions in order, at least one. virtual: whether the run was a simulation, whose clock begins at 0."""
    fault_events: list[list[Mapping[str, Any]]] = []  # of each repetition
    for event in events:
        if event.get("event") == "repetition begins":
            fault_events.append([])
        elif event.get("event") in ("fault begins", "fault ends") and fault_events and _is_valid(event):
            fault_events[-1].append(event)
    return [_repetition(number, own_events, virtual) for number, own_events in enumerate(fault_events or [[]], 1)]


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
            if zero is None and "in_force" in event:  # the time of `clock`, since the start of the programs
                zero = int(event["clock"]) - int(event["in_force"])
        elif active.get(key):
            ended.append(_fault_period(active[key].pop(0), event, is_open=bool(event.get("with_the_run"))))
    for remaining in active.values():
        ended += [_fault_period(begin_event, {}, is_open=True) for begin_event in remaining]
    return Repetition(number, zero, tuple(sorted(ended, key=lambda fault: fault.begin)))


def _fault_period(begin_event: Mapping[str, Any], end_event: Mapping[str, Any], *, is_open: bool) -> FaultPeriod:
    """Make the period of a fault. is_open: the fault lasted until the end of the run."""
    begin = begin_event.get("in_force", begin_event.get("at", 0)) / 1e9
    end = None if is_open else max(begin, end_event["at"] / 1e9)
    return FaultPeriod(
        str(begin_event.get("fault", "")), str(begin_event.get("kind", "")), str(begin_event.get("what", "")), begin, end,
        end_event.get("counted", {}), bool(end_event.get("had_effect", True)),
    )  # fmt: skip
