"""Checkers on buffered sends, which complete before delivery is known."""

from __future__ import annotations

from testbed.controller.checkers.disturbances import CRASH, RESET, Disturbance
from testbed.controller.checkers.promises import Circumstances, Ending

from tests.unit.controller.histories import SECOND, HistoryBuilder, exchange_all, Message  # isort: skip

CRASHED = Circumstances(Ending.STUCK, disturbances=[Disturbance(CRASH, 0, nodes=frozenset({"n1"}))])


def buffered_send(history: HistoryBuilder) -> int:
    """Begin a receive in n2 and a buffered send to it in n1; return the number of the send."""
    history.begin_receive(1, 0)
    number = history.begin_send(0, 1)
    history.add_event(0, "buffered", n=number)
    return number


def returned_send(history: HistoryBuilder) -> HistoryBuilder:
    """Begin a buffered send that is returned as undelivered; return the history."""
    history.add_event(0, "undelivered", n=buffered_send(history), error="node 1 has restarted", **{"class": 101})
    return history


def test_a_buffered_send_that_completes_is_checked_like_any_other() -> None:
    history = exchange_all(2, [Message(0, 1)])
    history.events["n1"].insert(1, {"clock_ns": 1, "what": "buffered", "n": 1})
    report = history.report()
    assert report.passed
    assert not report.ambiguities


def test_a_buffered_message_that_is_sent_but_not_received_is_lost() -> None:
    history = HistoryBuilder(2)
    history.complete_send(0, buffered_send(history))
    assert history.report().failed == ("nothing lost",)


def test_an_undelivered_message_is_not_lost_but_needs_a_fault_that_explains_it() -> None:
    report = returned_send(HistoryBuilder(2)).report()
    assert report.failed == ("errors",)
    assert "node 1 has restarted), and no fault excuses it" in report.checks["errors"].violations[0]
    reset = Disturbance(RESET, 0, 0, frozenset({"n2"}))
    report = returned_send(HistoryBuilder(2)).report(Circumstances(disturbances=[reset]))
    assert report.passed
    (ambiguity,) = report.ambiguities
    assert (ambiguity.notification, ambiguity.outcome) == (
        "complete, and then failed: node 1 has restarted",
        "not delivered",
    )


def test_an_undelivered_message_that_was_received_is_reported_as_delivered() -> None:
    history = HistoryBuilder(2)
    receive, send = history.begin_receive(1, 0), history.begin_send(0, 1)
    history.add_event(0, "buffered", n=send)
    history.complete_receive(1, receive, 0)
    history.add_event(0, "undelivered", n=send, error="it does not answer", **{"class": 101})
    report = history.report(Circumstances(disturbances=[Disturbance(RESET, 0, 0, frozenset({"n2"}))]))
    assert report.passed
    assert [ambiguity.outcome for ambiguity in report.ambiguities] == ["delivered"]


def test_a_message_whose_sender_has_crashed_is_in_doubt_and_fails_no_check() -> None:
    history = HistoryBuilder(2)
    buffered_send(history)
    report = history.report(CRASHED)
    assert report.passed
    (ambiguity,) = report.ambiguities
    assert (ambiguity.notification, ambiguity.outcome) == (
        "complete, and without a known delivery when the run ended",
        "not delivered",
    )


def test_a_buffered_send_before_a_restart_is_in_doubt() -> None:
    history = HistoryBuilder(2)
    buffered_send(history)
    history.add_event(0, "send", n=1, peer=1, context=0, tag=1, bytes=8, digest="01")
    report = history.report(CRASHED)
    assert report.passed
    assert report.ambiguities[0].notification == "complete, and without a known delivery when its program was restarted"


def test_a_received_message_is_not_in_doubt_although_its_sender_does_not_know_it() -> None:
    history = HistoryBuilder(2)
    receive, send = history.begin_receive(1, 0), history.begin_send(0, 1)
    history.add_event(0, "buffered", n=send)
    history.complete_receive(1, receive, 0)
    report = history.report(Circumstances(Ending.STUCK))
    assert report.passed
    assert not report.ambiguities


def test_a_buffered_message_whose_receive_waits_too_long_violates_progress() -> None:
    history = HistoryBuilder(2)
    buffered_send(history)
    assert history.report(Circumstances(Ending.STUCK)).failed == ("progress",)
    circumstances = Circumstances(Ending.ABORTED, end=history.clock + 20 * SECOND)
    assert history.report(circumstances).failed == ("progress",)
