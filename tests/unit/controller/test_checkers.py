"""Checkers accept correct histories, and each rejects a history with one wrong entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocols.mpi.mpi_errors import ERR_NO_MEM, ERR_PROC_FAILED, ERR_TRUNCATE
from testbed.controller.checkers.disturbances import CRASH, CUT, OTHER, OUTAGE, Disturbance
from testbed.controller.checkers.promises import Circumstances, Ending
from testbed.controller.verdict.verdicts import Grade

from tests.unit.controller.histories import MILLISECOND, SECOND, Message, HistoryBuilder, exchange_all, positions_of  # isort: skip

NODES = 3
MESSAGES = st.lists(
    st.builds(
        Message,
        source=st.integers(0, NODES - 1),
        sink=st.integers(0, NODES - 1),
        tag=st.integers(0, 1),
        content=st.sampled_from(["00", "01", "02"]),  # few, so that contents repeat
        any_source=st.booleans(),
        any_tag=st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(MESSAGES)
def test_a_correct_run_passes_its_checks(messages: list[Message]) -> None:
    report = exchange_all(NODES, messages).report()
    assert report.passed
    assert report.checks["nothing lost"].checked == len(messages)
    assert report.checks["order"].checked == len(messages)
    assert not report.ambiguities
    assert not report.findings()


@given(MESSAGES, st.data())
def test_a_receive_that_never_completes_is_reported_as_a_loss(messages: list[Message], data: st.DataObject) -> None:
    history = exchange_all(NODES, messages)
    node, index = data.draw(st.sampled_from(list(positions_of(history.events, "received"))))
    del history.events[node][index]
    report = history.report()
    assert report.failed == ("nothing lost",)
    assert report.checks["nothing lost"].failed == 1


@given(MESSAGES, st.data())
def test_a_duplicated_message_is_found(messages: list[Message], data: st.DataObject) -> None:
    history = exchange_all(NODES, messages)
    repeated = data.draw(st.sampled_from(messages))
    history.complete_receive(
        repeated.sink,
        history.begin_receive(repeated.sink),
        repeated.source,
        repeated.tag,
        repeated.content,
        repeated.size,
    )
    report = history.report()
    assert report.failed == ("nothing twice",)
    assert report.checks["nothing twice"].failed == 1


@given(MESSAGES, st.data())
def test_a_changed_content_is_found(messages: list[Message], data: st.DataObject) -> None:
    history = exchange_all(NODES, messages)
    node, index = data.draw(st.sampled_from(list(positions_of(history.events, "received"))))
    history.events[node][index]["digest"] = "ff"
    report = history.report()
    assert report.failed == ("content",)
    assert report.checks["content"].failed == 1


def test_a_content_that_was_not_sent_is_no_change_of_a_message_sent_after_the_next_received_one() -> None:
    history = HistoryBuilder(2)
    sends = [history.begin_send(0, 1, content=content) for content in ("0a", "0b", "0c")]
    for content in ("ff", "0a", "0b"):
        history.complete_receive(1, history.begin_receive(1), 0, content=content)
    for send in sends:
        history.complete_send(0, send)
    report = history.report()
    assert report.failed == ("nothing twice",)
    assert "that were not sent" in report.checks["nothing twice"].violations[0]


@given(MESSAGES, st.data())
def test_a_message_with_a_wrong_sender_is_found(messages: list[Message], data: st.DataObject) -> None:
    history = exchange_all(
        NODES,
        [Message(message.source, message.sink, message.tag, f"{index:02x}") for index, message in enumerate(messages)],
    )
    node, index = data.draw(st.sampled_from(list(positions_of(history.events, "received"))))
    event = history.events[node][index]
    event["peer"] = (event["peer"] + 1) % NODES
    assert "nothing twice" in history.report().failed or "content" in history.report().failed


def test_swapped_messages_are_reported_as_overtaking() -> None:
    history = exchange_all(
        2, [Message(0, 1, content="0a"), Message(0, 1, content="0b"), Message(0, 1, tag=1, content="0c")]
    )
    (first, second) = [event for event in history.events["n2"] if event["what"] == "received"][:2]
    first["digest"], second["digest"] = second["digest"], first["digest"]
    report = history.report()
    assert report.failed == ("order",)
    assert report.checks["order"].violations == [
        "message 2 of n1 to n2 (context 0, tag 0, 8 bytes; history/n1.jsonl:3) was received before message 1 of n1 to n2 "
        "(context 0, tag 0, 8 bytes; history/n1.jsonl:1), which was sent earlier"
    ]


def test_the_order_is_that_in_which_receives_began() -> None:
    history = HistoryBuilder(2)
    receives = [history.begin_receive(1), history.begin_receive(1)]
    sends = [history.begin_send(0, 1, content="0a"), history.begin_send(0, 1, content="0b")]
    history.complete_receive(1, receives[1], 0, content="0b")
    history.complete_receive(1, receives[0], 0, content="0a")
    for send in sends:
        history.complete_send(0, send)
    assert history.report().passed


def test_messages_under_different_tags_may_overtake() -> None:
    history = HistoryBuilder(2)
    first_send, second_send = history.begin_send(0, 1, tag=1), history.begin_send(0, 1, tag=2)
    history.complete_receive(1, history.begin_receive(1, tag=2), 0, tag=2)
    history.complete_receive(1, history.begin_receive(1, tag=1), 0, tag=1)
    history.complete_send(0, second_send)
    history.complete_send(0, first_send)
    assert history.report().passed


def test_a_message_that_later_ones_overtook_is_lost_even_without_a_waiting_receive() -> None:
    history = HistoryBuilder(2)
    for content in ("0a", "0b"):
        history.complete_send(0, history.begin_send(0, 1, content=content))
    history.complete_receive(1, history.begin_receive(1), 0, content="0b")
    report = history.report()
    assert report.failed == ("nothing lost",)
    assert "though later messages of its channel were" in report.checks["nothing lost"].violations[0]


def test_a_message_that_no_receive_requests_is_not_lost() -> None:
    history = HistoryBuilder(2)
    history.complete_send(0, history.begin_send(0, 1, tag=5))
    history.begin_receive(1, tag=6)
    report = history.report()
    assert report.passed
    assert report.figures["messages that nobody has asked for"] == 1


def test_messages_in_flight_when_a_run_is_aborted_are_not_lost() -> None:
    history = HistoryBuilder(2)
    history.begin_receive(1)
    history.complete_send(0, history.begin_send(0, 1))
    assert history.report(Circumstances(Ending.ABORTED)).passed
    assert history.report(Circumstances(Ending.ABORTED, history.clock + 5 * SECOND)).failed == ("nothing lost",)


def test_frames_held_by_a_dead_process_of_the_testbed_are_no_loss_but_changed_or_duplicated_ones_are() -> None:
    history = HistoryBuilder(3)
    history.begin_receive(1)
    history.complete_send(0, history.begin_send(0, 1))
    history.fail_transfer(0, history.begin_send(0, 2))
    end = history.clock + 60 * SECOND
    outage = Disturbance(OUTAGE, 0)
    assert history.report(Circumstances(Ending.ABORTED, end)).failed == ("nothing lost", "errors")
    report = history.report(Circumstances(Ending.ABORTED, end, [outage]))
    assert report.passed
    assert report.figures["messages that may be lost with a process of the testbed that died"] == 1
    other_node = Disturbance(OUTAGE, 0, nodes=frozenset({"n3"}))
    assert history.report(Circumstances(Ending.ABORTED, end, [other_node])).failed == ("nothing lost",)
    history.complete_receive(1, history.begin_receive(1), 0, content="0c")
    assert history.report(Circumstances(Ending.ABORTED, end, [outage])).failed


def test_an_error_without_a_fault_is_found() -> None:
    history = HistoryBuilder(2)
    history.fail_transfer(0, history.begin_send(0, 1))
    assert history.report().failed == ("errors",)


def test_an_error_is_allowed_by_the_faults_that_explain_it() -> None:
    def failed(disturbance: Disturbance, error_class: int = ERR_PROC_FAILED) -> bool:
        history = HistoryBuilder(3)
        history.fail_transfer(0, history.begin_send(0, 1), error_class)
        return "errors" in history.report(Circumstances(disturbances=[disturbance])).failed

    assert not failed(Disturbance(CUT, 0, SECOND))
    assert not failed(Disturbance(CRASH, 0, SECOND, frozenset({"n2"})))
    assert failed(Disturbance(CRASH, 0, SECOND, frozenset({"n3"}))), "another node's crash"
    assert failed(Disturbance(CUT, SECOND, 2 * SECOND)), "a fault that came later"
    assert failed(Disturbance(OTHER, 0, SECOND)), "a fault that protocols hide"
    assert failed(Disturbance(CUT, 0, SECOND), ERR_NO_MEM), "an error that no fault explains"


def test_in_an_aborted_run_a_program_ended_by_an_allowed_error_explains_its_peers_errors() -> None:
    def failed(ending: Ending, continues: bool = False, dead: str = "n1") -> bool:
        history = HistoryBuilder(3)
        first, second = history.begin_receive(1, 0), history.begin_receive(2, 1)
        history.fail_transfer(1, first)
        history.clock += SECOND  # a busy machine
        history.begin_send(1, 2)  # before it awaits the failed receive
        history.fail_transfer(2, second)
        if continues:
            history.begin_send(1, 2)
        crash = Disturbance(CRASH, 0, nodes=frozenset({dead}))
        return "errors" in history.report(Circumstances(ending, disturbances=[crash])).failed

    assert not failed(Ending.ABORTED)
    assert failed(Ending.DONE), "all programs ended by themselves"
    assert failed(Ending.ABORTED, continues=True), "n2 has handled its error"
    assert failed(Ending.ABORTED, dead="n4"), "no fault allows the first error"


def test_a_message_truncated_to_its_buffer_is_no_loss() -> None:
    history = HistoryBuilder(2)
    receive = history.begin_receive(1, size=4)
    history.complete_send(0, history.begin_send(0, 1, size=8))
    history.fail_transfer(1, receive, ERR_TRUNCATE, peer=0, tag=0, bytes=4)
    assert history.report().passed


def test_a_message_truncated_although_it_fits_is_found() -> None:
    history = HistoryBuilder(2)
    receive = history.begin_receive(1, size=8)
    history.complete_send(0, history.begin_send(0, 1, size=8))
    history.fail_transfer(1, receive, ERR_TRUNCATE, peer=0, tag=0, bytes=8)
    assert "content" in history.report().failed


def test_the_fate_of_returned_messages_is_read_from_their_receivers_history() -> None:
    history = HistoryBuilder(3)
    receives = history.begin_receive(1, source=0), history.begin_receive(2, source=0)
    sends = [history.begin_send(0, 1), history.begin_send(0, 2)]
    unexpected_send = history.begin_send(1, 0)
    history.complete_receive(1, receives[0], 0)
    for send in sends:
        history.fail_transfer(0, send)
    history.fail_transfer(1, unexpected_send)
    report = history.report(Circumstances(disturbances=[Disturbance(CUT, 0)]))
    assert report.passed
    outcomes = {
        ambiguity.message.partition(" (")[0]: (ambiguity.outcome, ambiguity.reason) for ambiguity in report.ambiguities
    }
    assert outcomes == {
        "message 1 of n1 to n2": ("delivered", "to receive 1 of n2 (history/n2.jsonl:1)"),
        "message 2 of n1 to n3": ("not delivered", "receive 1 of n3 (history/n3.jsonl:1) still waits for it"),
        "message 2 of n2 to n1": ("unknown", "n1 has not posted a receive"),
    }


def test_the_messages_of_a_crashed_node_are_unknown() -> None:
    history = HistoryBuilder(2)
    history.begin_receive(1)
    history.complete_send(0, history.begin_send(0, 1))
    history.begin_send(0, 1)
    report = history.report(Circumstances(disturbances=[Disturbance(CRASH, 0, history.clock, frozenset({"n2"}))]))
    assert report.passed
    assert [ambiguity.outcome for ambiguity in report.ambiguities] == ["unknown"]


def test_a_message_and_its_receive_that_both_wait_in_a_stuck_run_violate_progress() -> None:
    history = HistoryBuilder(2)
    history.begin_receive(1)
    history.begin_send(0, 1)
    assert history.report().passed, "a program may abandon both"
    report = history.report(Circumstances(Ending.STUCK))
    assert report.failed == ("progress",)
    assert "until no event was left" in report.checks["progress"].violations[0]
    assert report.ambiguities[0].outcome == "not delivered"


def test_a_sender_that_never_learns_of_the_reception_violates_progress() -> None:
    history = HistoryBuilder(2)
    receive = history.begin_receive(1)
    history.begin_send(0, 1)
    history.complete_receive(1, receive, 0)
    assert history.report().passed
    report = history.report(Circumstances(Ending.STUCK))
    assert report.failed == ("progress",)
    assert report.ambiguities[0].outcome == "delivered"


def test_programs_that_wait_for_unsent_messages_are_no_violation() -> None:
    history = HistoryBuilder(2)
    history.begin_receive(1, tag=1)
    history.begin_send(0, 1, tag=2)
    assert history.report(Circumstances(Ending.STUCK)).passed


def test_in_an_aborted_run_only_operations_beyond_the_bound_violate_progress() -> None:
    history = HistoryBuilder(2)
    history.begin_receive(1)
    history.begin_send(0, 1)
    end = history.clock + 10 * SECOND
    assert history.report(Circumstances(Ending.ABORTED, end, bound=10.0)).passed
    assert history.report(Circumstances(Ending.ABORTED, end + 1, bound=10.0)).failed == ("progress",)
    cut = Disturbance(CUT, 0, history.clock + 5 * SECOND)
    assert history.report(Circumstances(Ending.ABORTED, end, [cut], bound=6.0)).passed, "healed 5 s ago"
    assert history.report(Circumstances(Ending.ABORTED, end, [cut], bound=4.0)).failed == ("progress",)
    assert history.report(Circumstances(Ending.ABORTED, end, [Disturbance(CUT, 0)], bound=4.0)).passed, "still cut"


def test_recovery_is_measured_from_the_end_of_the_fault_and_bounded() -> None:
    history = HistoryBuilder(2)
    receive, send = history.begin_receive(1), history.begin_send(0, 1)
    fault_end = history.clock + MILLISECOND
    history.clock = fault_end + 3 * SECOND - MILLISECOND
    history.complete_receive(1, receive, 0)
    history.complete_send(0, send)
    cut = Disturbance(CUT, 0, fault_end)
    report = history.report(Circumstances(disturbances=[cut], bound=3.5))
    assert report.passed
    assert report.checks["recovery"].checked == 1
    assert report.figures["longest recovery, seconds"] == 3.001
    assert history.report(Circumstances(disturbances=[cut], bound=2.5)).failed == ("recovery",)
    other_node = Disturbance(CUT, 0, fault_end, frozenset({"n3"}))
    assert history.report(Circumstances(disturbances=[other_node], bound=2.5)).checks["recovery"].checked == 0


def test_a_restarted_program_numbers_from_one() -> None:
    history = exchange_all(2, [Message(0, 1, content="0a")])
    for rank in (0, 1):
        history.restart_numbering(rank)
    receive, send = history.begin_receive(1), history.begin_send(0, 1, content="0b")
    history.complete_receive(1, receive, 0, content="0b")
    history.complete_send(0, send)
    assert history.report().passed


def restarted_history() -> tuple[HistoryBuilder, Circumstances]:
    """Return a history in which n2 restarts with a posted receive, and n1's next message is never received."""
    history = HistoryBuilder(2)
    history.begin_receive(1)
    crash = Disturbance(CRASH, history.clock, history.clock + MILLISECOND, frozenset({"n2"}))
    history.restart_numbering(1)
    history.clock += 2 * MILLISECOND
    history.complete_send(1, history.begin_send(1, 1, tag=9))
    return history, Circumstances(Ending.STUCK, disturbances=[crash])


def test_transfers_of_an_earlier_incarnation_are_not_awaited() -> None:
    history, circumstances = restarted_history()
    history.complete_send(0, history.begin_send(0, 1))
    history.begin_send(0, 1)
    report = history.report(circumstances)
    assert report.passed
    assert report.figures["messages that nobody has asked for"] == 2


def test_a_node_that_has_lost_its_state_may_receive_a_message_again() -> None:
    history, circumstances = restarted_history()
    send = history.begin_send(0, 1)
    history.complete_receive(1, history.begin_receive(1), 0)
    history.complete_receive(1, history.begin_receive(1), 0)
    history.complete_send(0, send)
    assert history.report(circumstances).passed
    assert history.report().failed == ("nothing twice",)


def test_failed_checks_are_described_and_make_the_verdict_failed() -> None:
    history = exchange_all(2, [Message(0, 1, content=f"{number:02x}") for number in range(40)])
    for node, index in list(positions_of(history.events, "received")):
        history.events[node][index]["digest"] = "ff"
    report = history.report()
    assert [(finding.what, finding.measured, finding.grade) for finding in report.findings()] == [
        ("content", 40, Grade.FAILED)
    ]
    assert "content: 40 of 40 messages FAILED" in report.to_text()
    assert "  and 30 more" in report.to_text()
    assert "order: holds for 0 messages" in report.to_text()
