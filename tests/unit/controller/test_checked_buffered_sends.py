"""Checkers on sends that completed before their delivery was known."""

from __future__ import annotations

from testbed.controller.checkers.disturbances import CRASH, RESET, Disturbance
from testbed.controller.checkers.promises import Circumstances, Ending

from tests.unit.controller.histories import SECOND, HistoryBuilder, exchange_all, Message  # isort: skip

CRASHED = Circumstances(Ending.STUCK, disturbances=[Disturbance(CRASH, 0, nodes=frozenset({"n1"}))])


def buffered(told: HistoryBuilder) -> int:
    """A message of n1 to n2, for which a receive waits."""
    told.begin_receive(1, 0)
    number = told.begin_send(0, 1)
    told.tell(0, "buffered", n=number)
    return number


def returned(told: HistoryBuilder) -> HistoryBuilder:
    told.tell(0, "undelivered", n=buffered(told), error="node 1 has restarted", **{"class": 101})
    return told


def test_a_buffered_send_that_is_sent_is_one_as_others_are() -> None:
    told = exchange_all(2, [Message(0, 1)])
    told.events["n1"].insert(1, {"clock_ns": 1, "what": "buffered", "n": 1})
    report = told.report()
    assert report.passed
    assert not report.ambiguities


def test_one_that_is_sent_and_waited_for_in_vain_is_lost() -> None:
    told = HistoryBuilder(2)
    told.sent(0, buffered(told))
    assert told.report().failed == ("nothing lost",)


def test_one_that_is_undelivered_is_not_lost_but_needs_a_fault_that_explains_it() -> None:
    report = returned(HistoryBuilder(2)).report()
    assert report.failed == ("errors",)
    assert "node 1 has restarted), and no fault excuses it" in report.checks["errors"].violations[0]
    reset = Disturbance(RESET, 0, 0, frozenset({"n2"}))
    report = returned(HistoryBuilder(2)).report(Circumstances(disturbances=[reset]))
    assert report.passed
    (doubt,) = report.ambiguities
    assert (doubt.notification, doubt.outcome) == ("complete, and then failed: node 1 has restarted", "not delivered")


def test_one_that_is_undelivered_and_was_received_is_told_as_delivered() -> None:
    told = HistoryBuilder(2)
    receive, send = told.begin_receive(1, 0), told.begin_send(0, 1)
    told.tell(0, "buffered", n=send)
    told.received(1, receive, 0)
    told.tell(0, "undelivered", n=send, error="it does not answer", **{"class": 101})
    report = told.report(Circumstances(disturbances=[Disturbance(RESET, 0, 0, frozenset({"n2"}))]))
    assert report.passed
    assert [one.outcome for one in report.ambiguities] == ["delivered"]


def test_one_whose_sender_has_crashed_since_is_in_doubt_and_nobody_is_accused() -> None:
    told = HistoryBuilder(2)
    buffered(told)
    report = told.report(CRASHED)
    assert report.passed
    (doubt,) = report.ambiguities
    assert (doubt.notification, doubt.outcome) == (
        "complete, and without a known delivery when the run ended",
        "not delivered",
    )


def test_one_of_a_former_life_is_in_doubt() -> None:
    told = HistoryBuilder(2)
    buffered(told)
    told.tell(0, "send", n=1, peer=1, context=0, tag=1, bytes=8, digest="01")
    report = told.report(CRASHED)
    assert report.passed
    assert report.ambiguities[0].notification == "complete, and without a known delivery when its program was restarted"


def test_one_that_was_received_and_never_known_to_be_is_no_doubt_and_nobody_waits_for_it() -> None:
    told = HistoryBuilder(2)
    receive, send = told.begin_receive(1, 0), told.begin_send(0, 1)
    told.tell(0, "buffered", n=send)
    told.received(1, receive, 0)
    report = told.report(Circumstances(Ending.STUCK))
    assert report.passed
    assert not report.ambiguities


def test_one_for_which_a_receive_waits_for_long_makes_no_progress() -> None:
    told = HistoryBuilder(2)
    buffered(told)
    assert told.report(Circumstances(Ending.STUCK)).failed == ("progress",)
    late = Circumstances(Ending.ABORTED, end=told.clock + 20 * SECOND)
    assert told.report(late).failed == ("progress",)
