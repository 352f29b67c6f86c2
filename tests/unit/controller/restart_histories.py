"""Histories with restarts, losses and errors: each is a function that asserts the checkers' verdict.

Mutants of the checkers are looked for with them, too.
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.mpi.mpi_errors import ERR_PROC_FAILED
from testbed.controller.checkers.check_report import Report
from testbed.controller.checkers.disturbances import CRASH, OTHER, Disturbance
from testbed.controller.checkers.promises import Circumstances, Ending

from tests.unit.controller.histories import MILLISECOND, SECOND, HistoryBuilder  # isort: skip

LOST = "nothing lost"


class RestartHistory(HistoryBuilder):
    """A history whose programs may be restarted."""

    def __init__(self, nodes: int = 2) -> None:
        super().__init__(nodes)
        self.disturbances: list[Disturbance] = []

    def restart(self, rank: int) -> None:
        """End a rank's program and start it again 2 ms later."""
        restart_time = self.clock
        self.clock += 2 * MILLISECOND
        self._counts[rank] = 0
        self.disturbances.append(Disturbance(CRASH, restart_time, self.clock, frozenset({f"n{rank + 1}"})))

    def deliver(self, source: int, sink: int, content: str, tag: int = 0) -> None:
        """Deliver a message and report its completion to the sender."""
        receive = self.begin_receive(sink, source, tag)
        send = self.begin_send(source, sink, tag, content)
        self.received(sink, receive, source, tag, content)
        self.sent(source, send)

    def acknowledged(self, source: int, sink: int, content: str, tag: int = 0) -> None:
        """Report a message as sent that is never delivered."""
        self.sent(source, self.begin_send(source, sink, tag, content))

    def judged(self, ending: Ending = Ending.DONE, after: int = 0, settled: bool = True) -> Report:
        """after: nanoseconds between its last event and the run's end."""
        return self.report(Circumstances(ending, self.clock + after, self.disturbances, settled=settled))


def a_sender_that_is_restarted_sends_the_same_again_and_one_of_both_comes() -> None:
    history = RestartHistory()
    receive = history.begin_receive(1)
    history.begin_send(0, 1, content="0a")  # on its way when the program ends
    history.restart(0)
    send = history.begin_send(0, 1, content="0a")
    history.received(1, receive, 0, content="0a")
    history.sent(0, send)
    history.deliver(0, 1, "0b")
    assert history.judged().passed


def what_came_before_the_restart_is_not_taken_for_what_was_sent_after_it() -> None:
    history = RestartHistory()
    receive = history.begin_receive(1)
    history.begin_send(0, 1, content="0a")
    history.received(1, receive, 0, content="0a")  # its sender dies before it is notified
    history.restart(0)
    history.deliver(0, 1, "0a")
    history.deliver(0, 1, "0b")
    report = history.judged()
    assert report.passed
    assert report.checks["order"].checked == 3


def a_message_between_the_two_says_which_of_them_came() -> None:
    """0a, 0b, 0a: the second comes, so that the first 0a must be the previous incarnation's, though that was never
    completed."""
    history = RestartHistory()
    receives = history.begin_receive(1), history.begin_receive(1)
    history.begin_send(0, 1, content="0a")
    history.begin_send(0, 1, content="0b")
    history.received(1, receives[0], 0, content="0a")
    history.received(1, receives[1], 0, content="0b")
    history.restart(0)
    history.deliver(0, 1, "0a")
    assert history.judged().passed


def a_receiver_takes_with_it_what_it_had_and_the_same_is_sent_again() -> None:
    history = RestartHistory()
    history.begin_receive(1)
    history.acknowledged(0, 1, "0a")
    history.restart(1)
    history.deliver(0, 1, "0a")
    history.deliver(0, 1, "0b")
    assert history.judged().passed


def of_the_same_message_before_and_after_a_crash_the_one_before_is_gone() -> None:
    """Two restarts: a message that is lost with the first is none of those that came between both."""
    history = RestartHistory()
    history.deliver(0, 1, "0a")
    history.begin_receive(1)
    history.acknowledged(0, 1, "0a")
    history.restart(1)
    history.deliver(0, 1, "0a")
    history.deliver(0, 1, "0b")
    history.deliver(0, 1, "0a")
    history.restart(1)
    history.deliver(0, 1, "0c")
    assert history.judged().passed


def what_is_behind_a_send_of_a_program_that_ended_then_may_be_lost_with_it() -> None:
    history = RestartHistory()
    history.deliver(0, 1, "0a")
    history.acknowledged(0, 1, "0b")
    history.restart(0)
    history.deliver(0, 1, "0a")
    history.begin_receive(1)
    assert history.judged(Ending.STUCK).passed


def what_was_lost_before_a_restart_stays_lost() -> None:
    for rank in (0, 1):
        history = RestartHistory()
        history.acknowledged(0, 1, "0a")
        history.deliver(0, 1, "0b")
        history.restart(rank)
        history.deliver(0, 1, "0c")
        assert history.judged().failed == (LOST,)


def what_is_lost_after_a_restart_is_lost() -> None:
    for rank in (0, 1):
        history = RestartHistory()
        history.deliver(0, 1, "0a")
        history.restart(rank)
        history.deliver(0, 1, "0a")
        history.acknowledged(0, 1, "0b")
        history.deliver(0, 1, "0c")
        assert history.judged().failed == (LOST,)


def of_messages_that_repeat_one_that_is_lost_is_counted_once() -> None:
    history = RestartHistory()
    for life in range(3):
        for _ in range(4):
            history.deliver(0, 1, "0a")
        if life < 2:
            history.restart(0)
    history.acknowledged(0, 1, "0a")
    history.deliver(0, 1, "0a")
    history.begin_receive(1)
    assert history.judged(Ending.STUCK).checks[LOST].failed == 1


def one_failed_receive_explains_one_lost_message() -> None:
    history = RestartHistory(3)
    history.disturbances.append(Disturbance(CRASH, 0, history.clock, frozenset({"n3"})))
    failed = history.begin_receive(1)
    history.failed(1, failed, ERR_PROC_FAILED)
    history.disturbances.append(Disturbance(CRASH, 0, 0, frozenset({"n2"})))
    for content in ("0a", "0b"):
        history.acknowledged(0, 1, content)
    history.deliver(0, 1, "0c")
    assert history.judged().checks[LOST].failed == 2, "the receive had failed before they were sent"
    history = RestartHistory(3)
    history.disturbances.append(Disturbance(CRASH, 0, 0, frozenset({"n2"})))
    failed = history.begin_receive(1)
    for content in ("0a", "0b"):
        history.acknowledged(0, 1, content)
    history.failed(1, failed, ERR_PROC_FAILED)
    history.deliver(0, 1, "0c")
    assert history.judged().checks[LOST].failed == 1


def receives_that_failed_are_given_to_the_messages_that_need_them() -> None:
    """The second message fits the first receive only, and the first one both."""
    history = RestartHistory()
    history.disturbances.append(Disturbance(CRASH, 0, 0, frozenset({"n2"})))
    receives = history.begin_receive(1), history.begin_receive(1, tag=1)
    history.acknowledged(0, 1, "0a", tag=1)
    history.acknowledged(0, 1, "0b", tag=2)
    for receive in receives:
        history.failed(1, receive, ERR_PROC_FAILED)
    history.deliver(0, 1, "0c", tag=1)
    history.deliver(0, 1, "0d", tag=2)
    assert history.judged().passed


def a_receive_that_fails_for_no_reason_explains_nothing() -> None:
    history = RestartHistory()
    receive = history.begin_receive(1)
    history.acknowledged(0, 1, "0a")
    history.failed(1, receive, ERR_PROC_FAILED)
    history.deliver(0, 1, "0b")
    assert history.judged(Ending.ABORTED).failed == (LOST, "errors")


def a_lost_message_is_told_where_another_error_has_ended_the_run() -> None:
    history = RestartHistory(3)
    history.acknowledged(0, 1, "0a")
    history.deliver(0, 1, "0b")
    history.disturbances.append(Disturbance(CRASH, history.clock, nodes=frozenset({"n3"})))
    history.failed(0, history.begin_send(0, 2), ERR_PROC_FAILED)
    assert history.judged(Ending.ABORTED, settled=False).failed == (LOST,)


def a_receive_that_waits_when_the_network_has_come_to_rest_has_lost_its_message() -> None:
    history = RestartHistory(3)
    history.begin_receive(1)
    history.acknowledged(0, 1, "0a")
    history.failed(0, history.begin_send(0, 2), ERR_PROC_FAILED)
    history.disturbances.append(Disturbance(CRASH, 0, nodes=frozenset({"n3"})))
    assert history.judged(Ending.ABORTED, after=2 * SECOND).failed == (LOST,)
    history.disturbances.append(Disturbance(OTHER, 0))  # a loss by chance, lifted with the run
    assert history.judged(Ending.ABORTED, after=2 * SECOND).failed == (LOST,)


def a_receiver_that_computes_is_no_proof_of_a_loss() -> None:
    history = RestartHistory()
    history.begin_receive(1)
    history.acknowledged(0, 1, "0a")
    assert history.judged(Ending.ABORTED, after=5 * SECOND, settled=False).passed
    history.clock += 5 * SECOND
    history.deliver(0, 1, "0b", tag=1)
    assert history.judged(Ending.ABORTED, settled=False).failed == (LOST,), "it has heard of another one since"


def a_receive_that_its_program_has_left_behind_is_no_proof_of_a_loss() -> None:
    history = RestartHistory()
    history.begin_receive(1)
    history.acknowledged(0, 1, "0a")
    report = history.judged(settled=False)
    assert report.passed
    assert report.figures["messages that may have been on their way when the run was over"] == 1


def a_long_message_may_still_come_into_a_receive_that_was_begun_before_others() -> None:
    history = RestartHistory()
    history.begin_receive(1)
    history.sent(0, history.begin_send(0, 1, content="0a", size=4000))
    history.deliver(0, 1, "0b")
    assert history.judged(Ending.ABORTED, settled=False).passed
    assert history.judged(Ending.STUCK).failed == (LOST,)


SCENARIOS: tuple[Callable[[], None], ...] = (
    a_sender_that_is_restarted_sends_the_same_again_and_one_of_both_comes,
    what_came_before_the_restart_is_not_taken_for_what_was_sent_after_it,
    a_message_between_the_two_says_which_of_them_came,
    a_receiver_takes_with_it_what_it_had_and_the_same_is_sent_again,
    of_the_same_message_before_and_after_a_crash_the_one_before_is_gone,
    what_is_behind_a_send_of_a_program_that_ended_then_may_be_lost_with_it,
    what_was_lost_before_a_restart_stays_lost,
    what_is_lost_after_a_restart_is_lost,
    of_messages_that_repeat_one_that_is_lost_is_counted_once,
    one_failed_receive_explains_one_lost_message,
    receives_that_failed_are_given_to_the_messages_that_need_them,
    a_receive_that_fails_for_no_reason_explains_nothing,
    a_lost_message_is_told_where_another_error_has_ended_the_run,
    a_receive_that_waits_when_the_network_has_come_to_rest_has_lost_its_message,
    a_receiver_that_computes_is_no_proof_of_a_loss,
    a_receive_that_its_program_has_left_behind_is_no_proof_of_a_loss,
    a_long_message_may_still_come_into_a_receive_that_was_begun_before_others,
)
