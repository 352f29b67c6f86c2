"""Reports of a scenario that several machines play together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.controller.checkers.disturbances import CUT, FOREVER, Disturbance
from testbed.controller.scenarios.active import ELSEWHERE
from testbed.controller.scenarios.machine_reports import SpreadScenario, join_events
from testbed.spec.scenario import Scenario

Event = dict[str, Any]
MILLISECOND = 1_000_000
SCENARIO = Scenario.from_toml('[[fault]]\nkind = "down"\non = "n2"\nat = "10ms"\n')


def fault_begins(clock: int, in_force: int, at: int = 10) -> Event:
    return {"event": "fault begins", "fault": "fault[1]", "kind": "down", "what": "down: n2", "at": at, "begun": at,
            "in_force": in_force, "clock": clock}  # fmt: skip


def fault_ends(at: int, counted: Mapping[str, int], reason: str = "", begin: int = 10) -> Event:
    had_effect = any(counted.values())
    return {"event": "fault ends", "fault": "fault[1]", "kind": "down", "what": "down: n2", "begin": begin, "at": at,
            "clock": 1000 + at, "with_the_run": False, "counted": counted, "had_effect": had_effect,
            **({"reason": reason} if reason else {})}  # fmt: skip


def test_a_fault_is_in_force_once_it_is_on_all_machines() -> None:
    (event,) = join_events([[fault_begins(1012, 12)], [fault_begins(1019, 18)], []])
    assert (event["in_force"], event["clock"], event["begun"]) == (18, 1019, 10)


def test_a_fault_with_an_effect_on_one_machine_had_an_effect() -> None:
    first, last = join_events(
        [[fault_ends(20, {"links down": 1}), fault_ends(35, {}, begin=30)], [fault_ends(21, {}, ELSEWHERE)]]
    )
    assert (first["at"], first["counted"], first["had_effect"]) == (21, {"links down": 1}, True)
    assert "reason" not in first
    assert (last["begin"], last["had_effect"]) == (30, False)


def report(*events: Event, remaining: str = "", **disturbance: Any) -> Mapping[str, Any]:
    return {"events": events, "disturbances": [disturbance] if disturbance else [], "remaining": remaining}


def test_a_fault_without_effect_on_any_machine_is_a_note_with_its_reason() -> None:
    events: list[Any] = []
    scenario = SpreadScenario(SCENARIO, 60, events.extend)
    span = 10 * MILLISECOND, 30 * MILLISECOND
    ended = fault_ends(span[1], {}, "no program ran there any more", span[0])
    scenario.add_reports(
        [report(ended, remaining="more to come"), report(fault_ends(span[1], {}, ELSEWHERE, span[0]), remaining="more")]
    )
    assert [event["event"] for event in events] == ["fault ends"]
    assert scenario.notes == [
        "fault[1] (down: n2) had no effect from 10ms to 30ms: no program ran there any more",
        "more to come",
    ]


def test_disturbances_are_those_of_the_last_repetition_on_every_machine() -> None:
    scenario = SpreadScenario(SCENARIO, 60, lambda _events: None)
    reported = {"kind": CUT, "begin": 5, "end": FOREVER, "nodes": ["n2"], "what": "down: n2"}
    scenario.add_reports([report(**reported), report(**{**reported, "begin": 7})])
    expected = [Disturbance(CUT, begin, FOREVER, frozenset({"n2"}), "down: n2") for begin in (5, 7)]
    assert list(scenario.disturbances()) == expected
    scenario.add_reports([report()])
    assert scenario.disturbances() == ()
