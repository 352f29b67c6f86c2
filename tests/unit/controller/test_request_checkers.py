"""Checkers of active messages: what a history with nothing wrong holds, and the one event that breaks each promise."""

from __future__ import annotations

import pytest

from testbed.controller.checkers.disturbances import CRASH, CUT, Disturbance
from testbed.controller.checkers.promises import Circumstances, Ending
from testbed.runtime.journal import BrokenFileError
from tests.unit.controller.request_histories import MILLISECOND, RECEIVER, SECOND, SENDER, RequestEvents

CUT_OFF = Circumstances(disturbances=(Disturbance(CUT, 0, 5 * MILLISECOND, frozenset({"n2"})),))
STUCK = Circumstances(Ending.STUCK)


@pytest.fixture
def told() -> RequestEvents:
    """Two requests, each with its reply."""
    told = RequestEvents()
    told.exchange(1, "a1", "b1")
    told.exchange(2, "a2", "b2")
    return told


def test_requests_that_are_handled_and_replied_to_are_right(told: RequestEvents) -> None:
    report = told.report()
    assert report.passed
    assert report.messages == report.checks["replies"].checked == report.checks["content"].checked == 2


def test_a_request_that_is_handled_twice_is_told_with_both_places(told: RequestEvents) -> None:
    told.handled(2, "a2")
    report = told.report()
    assert report.failed == ("nothing twice",)
    assert report.checks["nothing twice"].violations == [
        "request 2 of endpoint 0 of n1 to endpoint 0 of n2 (4 bytes; history/n1.jsonl:4) was handled by endpoint 0 of n2 "
        "(history/n2.jsonl:4), and again by endpoint 0 of n2 (history/n2.jsonl:6)"
    ]


def test_a_later_life_of_the_receiver_must_not_handle_it_again(told: RequestEvents) -> None:
    told.restart(RECEIVER)
    told.handled(1, "a1")
    crashed = Circumstances(disturbances=(Disturbance(CRASH, 0, SECOND, frozenset({"n2"})),))
    assert told.report(crashed).failed == ("nothing twice",)


def test_a_request_that_nobody_sent_is_not_handled(told: RequestEvents) -> None:
    told.handled(3)
    assert told.report().failed == ("nothing twice",)


def test_a_request_is_handled_where_it_was_sent_to(told: RequestEvents) -> None:
    told.request(3, endpoint=1)
    told.handled(3, endpoint=0)
    assert told.report().failed == ("nothing twice",)


def test_a_request_comes_with_the_content_that_it_was_sent_with(told: RequestEvents) -> None:
    told.request(3, "a3")
    told.handled(3, "a4")
    assert told.report().failed == ("content",)


def test_the_reply_to_another_request_is_named(told: RequestEvents) -> None:
    told.request(3, "a3")
    told.handled(3, "a3")
    told.reply(3, "b3")
    told.replied(3, "b2")
    report = told.report()
    assert report.failed == ("replies",)
    assert "it is the reply to request 2 of endpoint 0 of n1" in report.checks["replies"].violations[0]


def test_a_reply_to_a_request_that_was_not_handled_is_found(told: RequestEvents) -> None:
    told.request(3)
    told.replied(3, "b3")
    assert told.report().failed == ("replies",)


def test_a_request_that_was_replied_to_is_not_returned_as_well(told: RequestEvents) -> None:
    told.returned(2)
    assert told.report(CUT_OFF).failed == ("one end",)


def test_a_request_is_returned_and_handled_only_where_a_fault_explains_it(told: RequestEvents) -> None:
    told.request(3)
    told.handled(3)
    told.reply(3)
    told.returned(3)
    report = told.report()
    assert report.failed == ("errors",)
    assert "and no fault explains it" in report.checks["errors"].violations[0]
    explained = told.report(CUT_OFF)
    assert explained.passed
    assert [doubt.outcome for doubt in explained.ambiguities] == ["delivered"]


def test_a_fault_elsewhere_or_later_explains_nothing(told: RequestEvents) -> None:
    told.request(3)
    told.returned(3)
    elsewhere = Disturbance(CUT, 0, SECOND, frozenset({"n3"}))
    later = Disturbance(CUT, told.clock + MILLISECOND, SECOND, frozenset({"n2"}))
    assert told.report(Circumstances(disturbances=(elsewhere, later))).failed == ("errors",)


@pytest.mark.parametrize("status", ["bad tag", "bad endpoint", "congestion"])
def test_a_request_that_was_refused_has_not_been_handled(told: RequestEvents, status: str) -> None:
    told.request(3)
    told.returned(3, status)
    assert told.report().passed
    told.handled(3)
    assert told.report(CUT_OFF).failed == ("errors",)


def test_a_request_that_its_program_abandoned_may_have_been_handled(told: RequestEvents) -> None:
    told.request(3)
    told.handled(3)
    told.returned(3, "abandoned")
    report = told.report()
    assert report.passed
    assert [doubt.outcome for doubt in report.ambiguities] == ["delivered"]


def test_the_end_of_an_endpoint_explains_what_is_returned_of_it(told: RequestEvents) -> None:
    told.request(3)
    told.handled(3)
    told.freed(RECEIVER)
    told.returned(3)
    assert told.report().passed


def test_a_reply_comes_back_only_by_a_fault_or_where_nobody_waits_for_it(told: RequestEvents) -> None:
    told.request(3)
    told.handled(3)
    told.reply(3)
    told.reply_returned(3)
    assert told.report().failed == ("errors",)
    assert told.report(CUT_OFF).passed
    told.events["n1"].append({"clock_ns": 0, "what": "freed", "n": 0, "endpoint": 0})
    assert told.report().passed


def test_an_endpoint_number_that_is_used_again_goes_on_counting(told: RequestEvents) -> None:
    told.request(3)
    told.freed(SENDER)
    told.exchange(4)
    assert told.report(STUCK).passed


def test_a_program_that_starts_again_counts_from_the_beginning(told: RequestEvents) -> None:
    told.restart(SENDER)
    told.exchange(1)
    report = told.report()
    assert report.passed
    assert report.messages == 3


def test_a_request_without_an_end_has_waited_where_nothing_could_happen_any_more(told: RequestEvents) -> None:
    told.request(3)
    told.end(SENDER)
    told.end(RECEIVER)
    report = told.report(STUCK)
    assert report.failed == ("progress",)
    assert "was neither handled nor returned" in report.checks["progress"].violations[0]
    assert told.report().passed, "programs that end need not wait"


def test_a_request_that_had_arrived_was_the_programs_to_handle(told: RequestEvents) -> None:
    told.request(3)
    told.end(SENDER)
    told.end(RECEIVER, (0, 1, 0))
    assert told.report(STUCK).passed


def test_a_request_whose_sender_was_told_nothing_has_no_end(told: RequestEvents) -> None:
    told.request(3)
    told.handled(3)
    told.reply(3)
    told.end(SENDER)
    told.end(RECEIVER)
    assert told.report(STUCK).failed == ("progress",)


def test_a_program_that_was_killed_proves_nothing(told: RequestEvents) -> None:
    told.request(3)
    told.end(SENDER)
    assert told.report(STUCK).passed


def test_a_reply_that_comes_too_long_after_a_fault_is_late(told: RequestEvents) -> None:
    told.request(3)
    healed = told.clock
    told.clock += 11 * SECOND
    told.handled(3)
    told.reply(3)
    told.replied(3)
    cut = Disturbance(CUT, 0, healed, frozenset({"n2"}))
    report = told.report(Circumstances(disturbances=(cut,)))
    assert report.failed == ("recovery",)
    assert report.figures["longest recovery, seconds"] > 11


@pytest.mark.parametrize(
    "change", [{"what": "sold"}, {"n": "3"}, {"digest": 7}, {"endpoint": None}], ids=lambda change: next(iter(change))
)
def test_a_damaged_event_is_refused_with_its_line(told: RequestEvents, change: dict[str, object]) -> None:
    told.events["n1"][1] |= change
    with pytest.raises(BrokenFileError, match=r"n1\.jsonl"):
        told.report()
