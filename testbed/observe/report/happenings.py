"""What went wrong on purpose during a run, and when: faults from its events, in seconds since its programs began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Happening:
    """A fault while it was in force. name: its place in the scenario. what: in words. begin, end: seconds since the programs
    began; end is None where it was in force until the run was over. counted: what it did."""

    name: str
    kind: str
    what: str
    begin: float
    end: float | None
    counted: Mapping[str, int]
    had_effect: bool


@dataclass(frozen=True, slots=True)
class Repetition:
    """One execution's faults. zero: the clock of rows and histories when its programs began, in ns; None where no event
    tells it."""

    number: int
    zero: int | None
    happenings: tuple[Happening, ...]


def repetitions(events: Iterable[Mapping[str, Any]], *, virtual: bool) -> list[Repetition]:
    """In their order; one at least. virtual: the run was a simulation, whose clock begins with 0."""
    found: list[list[Mapping[str, Any]]] = []
    for event in events:
        if event.get("event") == "repetition begins":
            found.append([])
        elif event.get("event") in ("fault begins", "fault ends") and found:
            found[-1].append(event)
    return [_repetition(number, some, virtual) for number, some in enumerate(found or [[]], 1)]


def _repetition(number: int, events: list[Mapping[str, Any]], virtual: bool) -> Repetition:
    zero = 0 if virtual else None
    under_way: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    ended: list[Happening] = []
    for event in events:
        key = str(event.get("fault", "")), str(event.get("what", ""))
        if event["event"] == "fault begins":
            under_way.setdefault(key, []).append(event)
            if zero is None and "in_force" in event:  # the same moment on both clocks
                zero = int(event["clock"]) - int(event["in_force"])
        elif under_way.get(key):
            over = event if not event.get("with_the_run") else None
            ended.append(_happening(under_way[key].pop(0), event, over))
    for some in under_way.values():
        ended += [_happening(one, {}, None) for one in some]
    return Repetition(number, zero, tuple(sorted(ended, key=lambda one: one.begin)))


def _happening(begins: Mapping[str, Any], told: Mapping[str, Any], over: Mapping[str, Any] | None) -> Happening:
    begin = begins.get("in_force", begins.get("at", 0)) / 1e9
    end = None if over is None else max(begin, over["at"] / 1e9)
    return Happening(
        str(begins.get("fault", "")), str(begins.get("kind", "")), str(begins.get("what", "")), begin, end,
        told.get("counted", {}), bool(told.get("had_effect", True)),
    )  # fmt: skip
