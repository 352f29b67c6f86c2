"""Checkers of active messages accept correct histories, and reject the event that breaks each promise."""

from __future__ import annotations

import pytest

from testbed.controller.checkers.disturbances import CRASH, CUT, Disturbance
from testbed.controller.checkers.promises import Circumstances, Ending
from testbed.runtime.journal import BrokenFileError
from tests.unit.controller.request_histories import MILLISECOND, RECEIVER, SECOND, SENDER, RequestEvents

CUT_OFF = Circumstances(disturbances=(Disturbance(CUT, 0, 5 * MILLISECOND, frozenset({"n2"})),))
STUCK = Circumstances(Ending.STUCK)


@pytest.fixture
def events() -> RequestEvents:
    """Two requests, each with its reply."""
    events = RequestEvents()
    events.exchange(1, "a1", "b1")
    events.exchange(2, "a2", "b2")
    return events


def test_handled_and_replied_requests_pass(events: RequestEvents) -> None:
    report = events.report()
    assert report.passed
    assert report.message_count == report.checks["replies"].checked == report.checks["content"].checked == 2


def test_a_request_that_is_handled_twice_is_reported_with_both_places(events: RequestEvents) -> None:
    events.handled(2, "a2")
    report = events.report()
    assert report.failed == ("nothing twice",)
    assert report.checks["nothing twice"].violations == [
        "request 2 of endpoint 0 of n1 to endpoint 0 of n2 (4 bytes; history/n1.jsonl:4) was handled by endpoint 0 of n2 "
        "(history/n2.jsonl:4), and again by endpoint 0 of n2 (history/n2.jsonl:6)"
    ]


def test_a_later_incarnation_of_the_receiver_must_not_handle_a_request_again(events: RequestEvents) -> None:
    events.restart(RECEIVER)
    events.handled(1, "a1")
    crashed = Circumstances(disturbances=(Disturbance(CRASH, 0, SECOND, frozenset({"n2"})),))
    assert events.report(crashed).failed == ("nothing twice",)


def test_a_handled_request_without_a_send_is_found(events: RequestEvents) -> None:
    events.handled(3)
    assert events.report().failed == ("nothing twice",)


def test_a_request_handled_at_another_endpoint_is_found(events: RequestEvents) -> None:
    events.request(3, endpoint=1)
    events.handled(3, endpoint=0)
    assert events.report().failed == ("nothing twice",)


def test_a_request_with_changed_content_is_found(events: RequestEvents) -> None:
    events.request(3, "a3")
    events.handled(3, "a4")
    assert events.report().failed == ("content",)


def test_a_reply_that_belongs_to_another_request_is_named(events: RequestEvents) -> None:
    events.request(3, "a3")
    events.handled(3, "a3")
    events.reply(3, "b3")
    events.replied(3, "b2")
    report = events.report()
    assert report.failed == ("replies",)
    assert "it is the reply to request 2 of endpoint 0 of n1" in report.checks["replies"].violations[0]


def test_a_reply_to_a_request_that_was_not_handled_is_found(events: RequestEvents) -> None:
    events.request(3)
    events.replied(3, "b3")
    assert events.report().failed == ("replies",)


def test_a_request_that_was_replied_to_must_not_be_returned(events: RequestEvents) -> None:
    events.returned(2)
    assert events.report(CUT_OFF).failed == ("one end",)


def test_a_request_is_returned_and_handled_only_where_a_fault_explains_it(events: RequestEvents) -> None:
    events.request(3)
    events.handled(3)
    events.reply(3)
    events.returned(3)
    report = events.report()
    assert report.failed == ("errors",)
    assert "and no fault explains it" in report.checks["errors"].violations[0]
    explained = events.report(CUT_OFF)
    assert explained.passed
    assert [ambiguity.outcome for ambiguity in explained.ambiguities] == ["delivered"]


def test_a_fault_elsewhere_or_later_explains_nothing(events: RequestEvents) -> None:
    events.request(3)
    events.returned(3)
    other_node = Disturbance(CUT, 0, SECOND, frozenset({"n3"}))
    later_cut = Disturbance(CUT, events.clock + MILLISECOND, SECOND, frozenset({"n2"}))
    assert events.report(Circumstances(disturbances=(other_node, later_cut))).failed == ("errors",)


@pytest.mark.parametrize("status", ["bad tag", "bad endpoint", "congestion"])
def test_a_rejected_request_must_not_be_handled(events: RequestEvents, status: str) -> None:
    events.request(3)
    events.returned(3, status)
    assert events.report().passed
    events.handled(3)
    assert events.report(CUT_OFF).failed == ("errors",)


def test_a_request_that_its_program_abandoned_may_have_been_handled(events: RequestEvents) -> None:
    events.request(3)
    events.handled(3)
    events.returned(3, "abandoned")
    report = events.report()
    assert report.passed
    assert [ambiguity.outcome for ambiguity in report.ambiguities] == ["delivered"]


def test_the_end_of_an_endpoint_explains_its_returned_requests(events: RequestEvents) -> None:
    events.request(3)
    events.handled(3)
    events.freed(RECEIVER)
    events.returned(3)
    assert events.report().passed


def test_a_reply_is_returned_only_by_a_fault_or_without_a_waiting_requester(events: RequestEvents) -> None:
    events.request(3)
    events.handled(3)
    events.reply(3)
    events.reply_returned(3)
    assert events.report().failed == ("errors",)
    assert events.report(CUT_OFF).passed
    events.events["n1"].append({"clock_ns": 0, "what": "freed", "n": 0, "endpoint": 0})
    assert events.report().passed


def test_a_reused_endpoint_number_continues_counting(events: RequestEvents) -> None:
    events.request(3)
    events.freed(SENDER)
    events.exchange(4)
    assert events.report(STUCK).passed


def test_a_restarted_program_counts_from_the_beginning(events: RequestEvents) -> None:
    events.restart(SENDER)
    events.exchange(1)
    report = events.report()
    assert report.passed
    assert report.message_count == 3


def test_a_request_without_an_end_in_a_stuck_run_violates_progress(events: RequestEvents) -> None:
    events.request(3)
    events.end(SENDER)
    events.end(RECEIVER)
    report = events.report(STUCK)
    assert report.failed == ("progress",)
    assert "was neither handled nor returned" in report.checks["progress"].violations[0]
    assert events.report().passed, "programs that end need not wait"


def test_an_arrived_request_that_the_program_did_not_handle_is_no_violation(events: RequestEvents) -> None:
    events.request(3)
    events.end(SENDER)
    events.end(RECEIVER, (0, 1, 0))
    assert events.report(STUCK).passed


def test_a_handled_request_whose_sender_was_not_notified_violates_progress(events: RequestEvents) -> None:
    events.request(3)
    events.handled(3)
    events.reply(3)
    events.end(SENDER)
    events.end(RECEIVER)
    assert events.report(STUCK).failed == ("progress",)


def test_a_killed_program_causes_no_violation(events: RequestEvents) -> None:
    events.request(3)
    events.end(SENDER)
    assert events.report(STUCK).passed


def test_a_reply_beyond_the_bound_after_a_fault_violates_recovery(events: RequestEvents) -> None:
    events.request(3)
    fault_end = events.clock
    events.clock += 11 * SECOND
    events.handled(3)
    events.reply(3)
    events.replied(3)
    cut = Disturbance(CUT, 0, fault_end, frozenset({"n2"}))
    report = events.report(Circumstances(disturbances=(cut,)))
    assert report.failed == ("recovery",)
    assert report.figures["longest recovery, seconds"] > 11


@pytest.mark.parametrize(
    "change", [{"what": "sold"}, {"n": "3"}, {"digest": 7}, {"endpoint": None}], ids=lambda change: next(iter(change))
)
def test_a_damaged_event_is_rejected_with_its_line(events: RequestEvents, change: dict[str, object]) -> None:
    events.events["n1"][1] |= change
    with pytest.raises(BrokenFileError, match=r"n1\.jsonl"):
        events.report()
