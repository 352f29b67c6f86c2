"""Outages of machines during a run: the spans without a reply, and their effect on verdict and checkers."""

from __future__ import annotations

from typing import Any

from testbed.cluster.services.machine_watch import REACHABLE, SILENT, UNREACHABLE
from testbed.controller.checkers.disturbances import CUT, FOREVER, OUTAGE
from testbed.controller.verdict.machine_outages import LOST, MachineLostError, MachineOutages, Silence, find_silences
from testbed.controller.verdict.verdicts import Grade
from testbed.errors import FirmwareError

SECOND = 1_000_000_000


def event(name: str, clock: int, **facts: Any) -> dict[str, Any]:
    return {"event": name, "clock": clock, "machine": "b", "address": "10.0.0.2", **facts}


UNREACHABLE_EVENT = event(UNREACHABLE, 12 * SECOND, silent=2 * SECOND)
REACHABLE_EVENT = event(REACHABLE, 15 * SECOND, gap=[100 * SECOND, 105 * SECOND])  # by the other machine's clock
SILENT_EVENT = event(SILENT, 20 * SECOND, gap=[0, SECOND])


def test_a_silence_lasts_from_the_last_reply_to_the_next() -> None:
    assert find_silences([UNREACHABLE_EVENT, REACHABLE_EVENT, SILENT_EVENT], "a") == [
        Silence("b", "10.0.0.2", "a", 10 * SECOND, 15 * SECOND),
        Silence("b", "10.0.0.2", "a", 19 * SECOND, 20 * SECOND),
    ]


def test_a_machine_that_stops_answering_is_silent_until_the_end() -> None:
    assert find_silences([UNREACHABLE_EVENT], "a") == [Silence("b", "10.0.0.2", "a", 10 * SECOND, FOREVER)]


def test_a_machine_that_was_silent_at_the_begin_is_silent_until_it_answers() -> None:
    assert find_silences([REACHABLE_EVENT], "a") == [Silence("b", "10.0.0.2", "a", 10 * SECOND, 15 * SECOND)]


def test_a_finding_states_the_span_and_makes_the_run_invalid() -> None:
    first, open_ended = Silence("b", "10.0.0.2", "a", 3, 5 * SECOND + 3).finding(3), Silence("b", "x", "a", 0, FOREVER)
    assert (first.link, first.measured, first.grade) == ("machine b", 5 * SECOND, Grade.INVALID)
    assert first.reason == (
        "machine b (10.0.0.2) did not answer machine a from 0.00 s to 5.00 s after the repetition began"
    )
    assert open_ended.finding(SECOND).measured is None
    assert (
        open_ended.finding(SECOND).reason
        == "machine b (x) did not answer machine a from 0.00 s after the repetition began"
    )


def test_checkers_treat_a_silence_as_a_cut_and_the_death_of_a_process_as_an_outage() -> None:
    outages = MachineOutages()
    outages.add_events("a", [UNREACHABLE_EVENT, REACHABLE_EVENT, {"event": "relay died", "clock": 7, "pid": 5}])
    cut, outage = outages.disturbances()
    assert (cut.kind, cut.begin, cut.end) == (CUT, 10 * SECOND, 15 * SECOND)
    assert cut.affects("n1")
    assert (outage.kind, outage.begin) == (OUTAGE, 7)


def test_the_possible_cause_of_an_error_names_its_machine() -> None:
    outages = MachineOutages()
    assert list(outages.causes(ValueError())) == []
    outages.add_events("a", [{"event": "relay died", "clock": 7, "pid": 5}])
    machine_lost, relay = outages.causes(MachineLostError({"b": "b is gone"}))
    assert (machine_lost.what, machine_lost.link, machine_lost.reason, machine_lost.grade) == (
        LOST,
        "machine b",
        "b is gone",
        Grade.INVALID,
    )
    assert (relay.what, relay.link) == ("relay gap", "machine a")


def test_the_end_of_an_agent_is_no_cause_of_the_failure_of_its_firmware() -> None:
    outages = MachineOutages()
    outages.add_events("a", [{"event": "NIC agent died", "clock": 7, "pid": 5, "node": "n1"}])
    assert [finding.what for finding in outages.causes(ValueError())] == ["NIC agent gap"]
    assert list(outages.causes(FirmwareError("a descriptor without an owner", 17, "n1"))) == []
