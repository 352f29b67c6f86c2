"""Histories with restarts, losses and errors: each function builds one and asserts the checkers' verdict.

They also have to detect the mutants of the checkers.
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
        self.restart_numbering(rank)
        self.disturbances.append(Disturbance(CRASH, restart_time, self.clock, frozenset({f"n{rank + 1}"})))

    def deliver(self, source: int, sink: int, content: str, tag: int = 0) -> None:
        """Deliver a message and report its completion to the sender."""
        receive = self.begin_receive(sink, source, tag)
        send = self.begin_send(source, sink, tag, content)
        self.complete_receive(sink, receive, source, tag, content)
        self.complete_send(source, send)

    def send_undelivered(self, source: int, sink: int, content: str, tag: int = 0) -> None:
        """Report a message as sent that is never delivered."""
        self.complete_send(source, self.begin_send(source, sink, tag, content))

    def check(self, ending: Ending = Ending.DONE, after: int = 0, settled: bool = True) -> Report:
        """Check the history. after: nanoseconds between its last event and the end of the run."""
        return self.report(Circumstances(ending, self.clock + after, self.disturbances, settled=settled))


def a_restarted_sender_repeats_a_message_and_one_copy_arrives() -> None:
    history = RestartHistory()
    receive = history.begin_receive(1)
    history.begin_send(0, 1, content="0a")  # in flight when the program ends
    history.restart(0)
    send = history.begin_send(0, 1, content="0a")
    history.complete_receive(1, receive, 0, content="0a")
    history.complete_send(0, send)
    history.deliver(0, 1, "0b")
    assert history.check().passed


def a_message_received_before_a_restart_does_not_match_a_send_after_it() -> None:
    history = RestartHistory()
    receive = history.begin_receive(1)
    history.begin_send(0, 1, content="0a")
    history.complete_receive(1, receive, 0, content="0a")  # its sender dies before it is notified
    history.restart(0)
    history.deliver(0, 1, "0a")
    history.deliver(0, 1, "0b")
    report = history.check()
    assert report.passed
    assert report.checks["order"].checked == 3


def the_order_shows_which_of_two_equal_messages_arrived() -> None:
    """0a, 0b, 0a: 0b arrives second, so that the first 0a is that of the previous incarnation, which never learned of it."""
    history = RestartHistory()
    receives = history.begin_receive(1), history.begin_receive(1)
    history.begin_send(0, 1, content="0a")
    history.begin_send(0, 1, content="0b")
    history.complete_receive(1, receives[0], 0, content="0a")
    history.complete_receive(1, receives[1], 0, content="0b")
    history.restart(0)
    history.deliver(0, 1, "0a")
    assert history.check().passed


def a_restarted_receiver_loses_its_messages_and_one_is_repeated() -> None:
    history = RestartHistory()
    history.begin_receive(1)
    history.send_undelivered(0, 1, "0a")
    history.restart(1)
    history.deliver(0, 1, "0a")
    history.deliver(0, 1, "0b")
    assert history.check().passed


def of_two_equal_messages_the_one_before_a_crash_is_lost() -> None:
    """Two restarts: the message lost in the first is none of those received between both."""
    history = RestartHistory()
    history.deliver(0, 1, "0a")
    history.begin_receive(1)
    history.send_undelivered(0, 1, "0a")
    history.restart(1)
    history.deliver(0, 1, "0a")
    history.deliver(0, 1, "0b")
    history.deliver(0, 1, "0a")
    history.restart(1)
    history.deliver(0, 1, "0c")
    assert history.check().passed


def the_last_messages_of_a_program_may_be_lost_with_it() -> None:
    history = RestartHistory()
    history.deliver(0, 1, "0a")
    history.send_undelivered(0, 1, "0b")
    history.restart(0)
    history.deliver(0, 1, "0a")
    history.begin_receive(1)
    assert history.check(Ending.STUCK).passed


def a_restart_does_not_excuse_an_earlier_loss() -> None:
    for rank in (0, 1):
        history = RestartHistory()
        history.send_undelivered(0, 1, "0a")
        history.deliver(0, 1, "0b")
        history.restart(rank)
        history.deliver(0, 1, "0c")
        assert history.check().failed == (LOST,)


def a_restart_does_not_excuse_a_later_loss() -> None:
    for rank in (0, 1):
        history = RestartHistory()
        history.deliver(0, 1, "0a")
        history.restart(rank)
        history.deliver(0, 1, "0a")
        history.send_undelivered(0, 1, "0b")
        history.deliver(0, 1, "0c")
        assert history.check().failed == (LOST,)


def a_loss_among_equal_messages_is_counted_once() -> None:
    history = RestartHistory()
    for life in range(3):
        for _ in range(4):
            history.deliver(0, 1, "0a")
        if life < 2:
            history.restart(0)
    history.send_undelivered(0, 1, "0a")
    history.deliver(0, 1, "0a")
    history.begin_receive(1)
    assert history.check(Ending.STUCK).checks[LOST].failed == 1


def one_failed_receive_explains_one_lost_message() -> None:
    history = RestartHistory(3)
    history.disturbances.append(Disturbance(CRASH, 0, history.clock, frozenset({"n3"})))
    failed = history.begin_receive(1)
    history.fail_transfer(1, failed, ERR_PROC_FAILED)
    history.disturbances.append(Disturbance(CRASH, 0, 0, frozenset({"n2"})))
    for content in ("0a", "0b"):
        history.send_undelivered(0, 1, content)
    history.deliver(0, 1, "0c")
    assert history.check().checks[LOST].failed == 2, "the receive had failed before they were sent"
    history = RestartHistory(3)
    history.disturbances.append(Disturbance(CRASH, 0, 0, frozenset({"n2"})))
    failed = history.begin_receive(1)
    for content in ("0a", "0b"):
        history.send_undelivered(0, 1, content)
    history.fail_transfer(1, failed, ERR_PROC_FAILED)
    history.deliver(0, 1, "0c")
    assert history.check().checks[LOST].failed == 1


def failed_receives_are_assigned_to_the_messages_that_need_them() -> None:
    """Messages 0a and 0b: 0a matches both receives, 0b only the first."""
    history = RestartHistory()
    history.disturbances.append(Disturbance(CRASH, 0, 0, frozenset({"n2"})))
    receives = history.begin_receive(1), history.begin_receive(1, tag=1)
    history.send_undelivered(0, 1, "0a", tag=1)
    history.send_undelivered(0, 1, "0b", tag=2)
    for receive in receives:
        history.fail_transfer(1, receive, ERR_PROC_FAILED)
    history.deliver(0, 1, "0c", tag=1)
    history.deliver(0, 1, "0d", tag=2)
    assert history.check().passed


def a_receive_that_no_fault_failed_explains_nothing() -> None:
    history = RestartHistory()
    receive = history.begin_receive(1)
    history.send_undelivered(0, 1, "0a")
    history.fail_transfer(1, receive, ERR_PROC_FAILED)
    history.deliver(0, 1, "0b")
    assert history.check(Ending.ABORTED).failed == (LOST, "errors")


def a_loss_is_reported_although_another_error_ended_the_run() -> None:
    history = RestartHistory(3)
    history.send_undelivered(0, 1, "0a")
    history.deliver(0, 1, "0b")
    history.disturbances.append(Disturbance(CRASH, history.clock, nodes=frozenset({"n3"})))
    history.fail_transfer(0, history.begin_send(0, 2), ERR_PROC_FAILED)
    assert history.check(Ending.ABORTED, settled=False).failed == (LOST,)


def a_receive_that_still_waits_on_an_idle_network_proves_a_loss() -> None:
    history = RestartHistory(3)
    history.begin_receive(1)
    history.send_undelivered(0, 1, "0a")
    history.fail_transfer(0, history.begin_send(0, 2), ERR_PROC_FAILED)
    history.disturbances.append(Disturbance(CRASH, 0, nodes=frozenset({"n3"})))
    assert history.check(Ending.ABORTED, after=2 * SECOND).failed == (LOST,)
    history.disturbances.append(Disturbance(OTHER, 0))  # random loss until the end of the run
    assert history.check(Ending.ABORTED, after=2 * SECOND).failed == (LOST,)


def a_waiting_receive_of_a_program_that_computes_proves_no_loss() -> None:
    history = RestartHistory()
    history.begin_receive(1)
    history.send_undelivered(0, 1, "0a")
    assert history.check(Ending.ABORTED, after=5 * SECOND, settled=False).passed
    history.clock += 5 * SECOND
    history.deliver(0, 1, "0b", tag=1)
    assert history.check(Ending.ABORTED, settled=False).failed == (LOST,), "it received another message since"


def an_abandoned_receive_proves_no_loss() -> None:
    history = RestartHistory()
    history.begin_receive(1)
    history.send_undelivered(0, 1, "0a")
    report = history.check(settled=False)
    assert report.passed
    assert report.figures["messages that may have been on their way when the run was over"] == 1


def a_long_message_may_arrive_after_a_later_short_one() -> None:
    history = RestartHistory()
    history.begin_receive(1)
    history.complete_send(0, history.begin_send(0, 1, content="0a", size=4000))
    history.deliver(0, 1, "0b")
    assert history.check(Ending.ABORTED, settled=False).passed
    assert history.check(Ending.STUCK).failed == (LOST,)


SCENARIOS: tuple[Callable[[], None], ...] = (
    a_restarted_sender_repeats_a_message_and_one_copy_arrives,
    a_message_received_before_a_restart_does_not_match_a_send_after_it,
    the_order_shows_which_of_two_equal_messages_arrived,
    a_restarted_receiver_loses_its_messages_and_one_is_repeated,
    of_two_equal_messages_the_one_before_a_crash_is_lost,
    the_last_messages_of_a_program_may_be_lost_with_it,
    a_restart_does_not_excuse_an_earlier_loss,
    a_restart_does_not_excuse_a_later_loss,
    a_loss_among_equal_messages_is_counted_once,
    one_failed_receive_explains_one_lost_message,
    failed_receives_are_assigned_to_the_messages_that_need_them,
    a_receive_that_no_fault_failed_explains_nothing,
    a_loss_is_reported_although_another_error_ended_the_run,
    a_receive_that_still_waits_on_an_idle_network_proves_a_loss,
    a_waiting_receive_of_a_program_that_computes_proves_no_loss,
    an_abandoned_receive_proves_no_loss,
    a_long_message_may_arrive_after_a_later_short_one,
)
