"""Outages of the testbed's own processes, read from a cluster's events."""

from __future__ import annotations

from typing import Any

from testbed.controller.verdict.outages import InvalidRunError, find_outages
from testbed.controller.verdict.verdicts import Grade, verdict_of

MS = 1_000_000


def event(name: str, clock: int, **facts: Any) -> dict[str, Any]:
    return {"event": name, "clock": clock, **facts}


RELAY_EVENTS = [
    event("relay died", 5, pid=7, code=-9),
    event("relay restarted", 9, pid=8, gap=[100 * MS, 140 * MS], lost=3, also_lost="what it held"),
]


def test_a_death_and_its_restart_are_one_outage() -> None:
    (outage,) = find_outages(RELAY_EVENTS)
    assert (outage.process, outage.begin, outage.gap) == ("relay", 5, 40 * MS)
    assert outage.reason.startswith(
        "the relay (process 7) died by signal 9 and was restarted 40 ms later; 3 frames were lost"
    )
    assert "counters of rules (nth, first, every) and chance continue" in outage.reason
    finding = outage.finding()
    assert (finding.what, finding.measured, finding.grade) == ("relay gap", 40 * MS, Grade.INVALID)
    assert outage.disturbance().affects("n1", "n2")


def test_a_service_that_was_not_restarted_is_an_outage_without_an_end() -> None:
    (outage,) = find_outages(RELAY_EVENTS[:1])
    assert (outage.gap, outage.finding().measured) == (0, None)


def test_an_agents_outage_is_that_of_its_node() -> None:
    events = [event("NIC agent died", 1, node="n1", pid=5), event("NIC agent died", 2, node="n2", pid=6)]
    first, second = find_outages([*events, event("NIC agent restarted", 3, node="n2", pid=9, gap=[0, 5])])
    assert (first.node, first.gap) == ("n1", 0)
    assert (second.node, second.gap) == ("n2", 5)
    assert second.reason == "the NIC agent of n2 (process 6) died and was restarted 5e-06 ms later"
    assert not second.disturbance().affects("n1")


def test_events_before_the_run_and_harmless_events_are_no_outages() -> None:
    assert find_outages(RELAY_EVENTS, since=10) == []
    assert find_outages([event("relay behind", 1), event("inject", 2), event("node process died", 3, pid=4)]) == []


def test_an_invalid_run_shows_the_reason_and_then_its_result_once() -> None:
    verdict = verdict_of([outage.finding() for outage in find_outages(RELAY_EVENTS)])
    assert str(InvalidRunError(verdict, ValueError("no more"))).endswith("\nit ended with: no more")
    reason = verdict.findings[0].reason
    assert str(InvalidRunError(verdict, ValueError(reason))) == f"the run is invalid: {reason}"
    assert InvalidRunError(verdict, ValueError()).exit_code == 9
