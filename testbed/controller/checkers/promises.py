"""Check what a message-passing protocol guarantees to programs, in the histories of all nodes.

- nothing lost: a message whose send is complete is received, if a matching receive waits for it or a later message of its
  channel was received, however the run ended. `unreceived` lists what explains a missing message instead.
- nothing twice: no receive gets a message that was not sent, or that another receive got; the latter is allowed on a node
  that lost its memory of received messages in a crash or reset.
- order: no message overtakes another one of the same sender, receiver, communicator and tag.
- content: received and sent bytes are equal (by digests); only too long messages are truncated.
- errors: a transfer fails only if its message is too long, or a disturbance excuses the error: see `disturbances`. A
  program that an excused error ended counts as a crash.
- progress: a message and a matching receive do not wait for each other forever, and a sender whose message was received
  is notified.
- recovery: a message that was sent before or during a disturbance is received, and its send completes, within a bound of
  the end of the disturbance and the post of its receive.
- collective calls: all ranks make the same calls: see `collective_agreement`.

No violation is reported if the history has another explanation: see `message_matching` and `alignment`.

The content of a message is that of the buffer at the start of the send: a program that changes the buffer during the send
violates content.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from testbed.controller.checkers.check_report import Ambiguity, Check, Report
from testbed.controller.checkers.collective_agreement import AGREEMENT, check_agreement
from testbed.controller.checkers.disturbances import (
    CRASH,
    OTHER,
    OUTAGE,
    RESET,
    Disturbance,
    is_excused,
    last_healing,
    programs_ended_by_errors,
)
from testbed.controller.checkers.histories import PENDING, Histories, Receive, Send
from testbed.controller.checkers.message_matching import Pairing, match_messages
from testbed.controller.checkers.unreceived import LastNotifications, Restarts, UnmatchedReceives, sort_followed_first

BOUND: Final = 10.0
"""Default bound of recovery, seconds: many times the longest retransmission timeout of the testbed's protocols."""

LOST, TWICE, ORDER, CONTENT = "nothing lost", "nothing twice", "order", "content"
ERRORS, PROGRESS, RECOVERY = "errors", "progress", "recovery"
UNITS: Final = {
    LOST: "messages", TWICE: "receives", ORDER: "messages", CONTENT: "messages", ERRORS: "transfers",
    PROGRESS: "messages", RECOVERY: "messages",
}  # fmt: skip

_SECOND: Final = 1_000_000_000


class Ending(Enum):
    """Kind of a run's end. DONE: all programs ended. STUCK: a simulation had no event left, and programs waited. ABORTED: an
    error or a timeout ended the run, also a `StuckError` of a live run."""

    DONE = "done"
    STUCK = "stuck"
    ABORTED = "broken off"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Circumstances of a run. end: nanoseconds of the history's clock; -1: time of the last event. bound: bound of
    recovery, seconds. slack: maximum time, in seconds, that an undisturbed message takes to a receive that waits for it.
    settled: whether programs were notified of all messages that had arrived by the end; False if they may have ended with
    pending receives or been killed."""

    ending: Ending = Ending.DONE
    end: int = -1
    disturbances: Sequence[Disturbance] = ()
    bound: float = BOUND
    slack: float = 1.0
    settled: bool = True


def check_histories(histories: Histories, circumstances: Circumstances = Circumstances()) -> Report:
    """Check one repetition."""
    checker = _HistoryChecker(histories, circumstances)
    checker.check_messages()
    checker.check_errors()
    checker.check_progress()
    checker.check_recovery()
    checker.check_agreement()
    return checker.report()


class _HistoryChecker:
    """Checks of one repetition, in progress."""

    def __init__(self, histories: Histories, circumstances: Circumstances) -> None:
        self._histories = histories
        self._circumstances = circumstances
        self._end = max(histories.last_time, circumstances.end)
        self._causes = list(circumstances.disturbances)  # of errors
        if circumstances.ending is Ending.ABORTED:
            self._causes += programs_ended_by_errors(histories, circumstances.disturbances)
        self._restarts = Restarts(histories, circumstances.disturbances)
        self._pairing: Pairing = match_messages(histories, self._restarts.costs)
        self._checks = {name: Check(name, unit) for name, unit in UNITS.items()}
        self._ambiguities: list[Ambiguity] = []
        self._receive_of = dict((*self._pairing.pairs, *self._pairing.changed))
        self._waiting_receives: list[list[Receive]] = [
            [receive for receive in receives if receive.is_pending] for receives in histories.receives
        ]
        self._failed_receives: list[list[Receive]] = [
            [receive for receive in receives if receive.error and receive.source < 0] for receives in histories.receives
        ]
        # Frames lost by an outage of the testbed's own processes are no violations.
        self._outages = [disturbance for disturbance in circumstances.disturbances if disturbance.kind == OUTAGE]
        self._figures: dict[str, float] = {}
        self._unreceived: list[Send] = []  # without a posted receive

    def report(self) -> Report:
        notes: tuple[str, ...] = ()
        if self._unreceived and self._circumstances.ending is Ending.DONE:
            more = f" and {len(self._unreceived) - 1:,} more" if len(self._unreceived) > 1 else ""
            notes = (f"no receive was posted for {self._unreceived[0]}{more}",)
        return Report(self._checks, tuple(self._ambiguities), self._figures, notes)

    def check_messages(self) -> None:
        """Check loss, duplicates, order and content."""
        checks, pairing = self._checks, self._pairing
        checks[LOST].checked = sum(map(len, self._histories.sends))
        checks[TWICE].checked = sum(
            receive.source >= 0 for receives in self._histories.receives for receive in receives
        )
        checks[ORDER].checked = len(pairing.pairs)
        checks[CONTENT].checked = len(pairing.pairs) + len(pairing.changed)
        for send, receive in pairing.duplicates:
            if any(fault.affects(receive.node) and fault.begin <= receive.ended for fault in self._restarts.faults):
                self._count("came once more to a node that had forgotten them")
            else:
                checks[TWICE].add_violation(f"{send} was received again, by {receive}")
        for receive in pairing.unsent:
            checks[TWICE].add_violation(
                f"{receive} got {receive.received_size} bytes from rank {receive.source}, tag {receive.received_tag}, that "
                "were not sent, or were sent less often than received"
            )
        for overtaken, overtaking in pairing.overtaken:
            checks[ORDER].add_violation(f"{overtaking} was received before {overtaken}, which was sent earlier")
        for send, receive in pairing.changed:
            checks[CONTENT].add_violation(
                f"{send} was received by {receive} with different content, {receive.received_size} bytes"
            )
        self._check_missing()
        for sends in self._histories.sends:
            for send in sends:
                if not send.is_promised and (received := self._receive_of.get(send)) is not None:
                    self._add_ambiguity(send, "delivered", f"to {received}")

    def _check_missing(self) -> None:
        """Judge the messages that were not received: lost, explained, or, if their sends did not complete, ambiguous."""
        unmatched = UnmatchedReceives(self._histories, lambda receive: receive.abandoned or self._is_excused(receive))
        notifications = LastNotifications(self._histories)
        for send, following in sort_followed_first(self._pairing.missing):
            if send.is_complete:
                self._check_complete_send(send, following, unmatched, notifications)
            else:
                self._check_incomplete_send(send, following)

    def _check_complete_send(
        self, send: Send, following: Receive | None, unmatched: UnmatchedReceives, notifications: LastNotifications
    ) -> None:
        """Judge a message whose send completed and that was not received. following: see `Pairing.missing`."""
        if any(outage.affects(send.node, send.receiver) for outage in self._outages):
            self._count("may be lost with a process of the testbed that died")
            return
        explains = self._restarts.explains
        is_explained = explains(send, following.ended) if following is not None else explains(send)
        receive = unmatched.claim(send, following) if not is_explained else None
        if is_explained or (receive is not None and not receive.is_pending):
            self._count("may be lost with a node's memory or a failed receive")
        elif receive is not None:
            if self._has_waited(send, receive, notifications):
                self._checks[LOST].add_violation(f"{send} was sent, and {receive} still waits for it")
            else:
                self._count("may have been on their way when the run was over")
        elif following is not None:
            self._checks[LOST].add_violation(
                f"{send} was sent, and not received, though later messages of its channel were"
            )
        else:
            self._count("nobody has asked for")
            self._unreceived.append(send)

    def _has_waited(self, send: Send, receive: Receive, notifications: LastNotifications) -> bool:
        """Whether there was enough time for the message to arrive and for the notification of its receiver."""
        if self._circumstances.settled and self._circumstances.ending is not Ending.ABORTED:
            return True
        since = max(send.ended, receive.started, last_healing(send, self._end, self._circumstances.disturbances))
        if any(
            disturbance.affects(send.node, send.receiver)
            and disturbance.end > self._end
            and not (self._circumstances.settled and disturbance.kind == OTHER)
            for disturbance in self._circumstances.disturbances
        ):
            return False
        slack, bound = self._circumstances.slack * _SECOND, self._circumstances.bound * _SECOND
        last_notification = self._end if self._circumstances.settled else notifications.time(receive)
        return last_notification - since > slack or self._end - since > bound

    def _check_incomplete_send(self, send: Send, following: Receive | None) -> None:
        """Add an ambiguity for a message that was not received and whose send did not complete. following: see
        `Pairing.missing`."""
        waiting, failed = _matching(send, self._waiting_receives), _matching(send, self._failed_receives)
        if failed is not None:
            self._add_ambiguity(send, "unknown", f"{failed} failed, and may have received it")
        elif self._restarts.lost_memory(send.receiver, send.started):
            self._add_ambiguity(send, "unknown", f"{send.receiver} lost its memory")
        elif following is not None:
            self._add_ambiguity(send, "not delivered", "later messages of its channel were received")
        elif waiting is not None:
            self._add_ambiguity(send, "not delivered", f"{waiting} still waits for it")
        else:
            self._add_ambiguity(send, "unknown", f"{send.receiver} has not posted a receive")
            if not send.error:
                self._unreceived.append(send)

    def _is_excused(self, receive: Receive) -> bool:
        """Whether the receive failed and a disturbance excuses it."""
        peer, names = receive.source if receive.source >= 0 else receive.peer, self._histories.names
        peer_name = names[peer] if 0 <= peer < len(names) else ""
        return bool(receive.error) and is_excused(receive, peer_name, self._causes)

    def _add_ambiguity(self, send: Send, outcome: str, reason: str) -> None:
        buffered = send.buffered != PENDING
        end = "its program was restarted" if send.abandoned else "the run ended"
        if send.error:
            notification = f"complete, and then failed: {send.error}" if buffered else f"failed: {send.error}"
        else:
            notification = (
                f"complete, and without a known delivery when {end}" if buffered else f"incomplete when {end}"
            )
        self._ambiguities.append(Ambiguity(str(send), notification, outcome, reason))

    def _count(self, clause: str) -> None:
        """Count a message in the figure "messages that" `clause`."""
        name = f"messages that {clause}"
        self._figures[name] = self._figures.get(name, 0) + 1

    def check_errors(self) -> None:
        """Check that disturbances excuse all errors."""
        check = self._checks[ERRORS]
        check.checked = len(self._histories)
        for sends in self._histories.sends:
            for send in sends:
                if send.error and not is_excused(send, send.receiver, self._causes):
                    check.add_violation(f"{send} failed ({send.error}), and no fault excuses it")
        for receives in self._histories.receives:
            for receive in receives:
                if receive.error and not self._is_excused(receive):
                    check.add_violation(f"{receive} failed ({receive.error}), and no fault excuses it")

    def check_progress(self) -> None:
        """Check that no send that was pending at the end waited too long: together with a matching receive, each of which
        counts for one message, or for the notification of a message that was received."""
        check, ending = self._checks[PROGRESS], self._circumstances.ending
        check.checked = sum(not send.is_pending for sends in self._histories.sends for send in sends)
        waiting = [list(receives) for receives in self._waiting_receives]
        for send in (send for sends in self._histories.sends for send in sends if send.is_pending):
            check.checked += 1
            if not 0 <= send.peer < len(waiting):
                continue
            received = self._receive_of.get(send)
            if received is not None and send.is_promised:
                continue
            if received is not None:
                since, sentence = received.ended, f"{send} was received by {received}, and its sender was not notified"
            else:
                receive = next((candidate for candidate in waiting[send.peer] if candidate.matches(send)), None)
                if receive is None:
                    continue
                waiting[send.peer].remove(receive)
                since, sentence = (
                    max(send.started, receive.started),
                    f"{send} and {receive} match, and have waited for each other",
                )
            if ending is Ending.DONE or self._is_disturbed(send):
                continue
            since = max(since, last_healing(send, self._end, self._circumstances.disturbances))
            if ending is Ending.STUCK:
                check.add_violation(f"{sentence} until no event was left")
            elif self._end - since > self._circumstances.bound * _SECOND:
                check.add_violation(f"{sentence} for {(self._end - since) / _SECOND:.3g} s")

    def _is_disturbed(self, send: Send) -> bool:
        """Whether a disturbance of the sender's or receiver's node lasted at the end of the run, or was a crash or reset at
        any time."""
        return any(
            disturbance.affects(send.node, send.receiver)
            and (disturbance.end > self._end or disturbance in self._restarts.faults)
            for disturbance in self._circumstances.disturbances
        )

    def check_agreement(self) -> None:
        """Compare the ranks' collective calls, if there are any."""
        if not any(self._histories.collectives):
            return
        is_over = self._circumstances.ending is not Ending.ABORTED
        faults = [fault for fault in self._circumstances.disturbances if fault.kind in (CRASH, RESET)]
        self._checks[AGREEMENT] = check_agreement(
            self._histories, is_over, lambda node: any(fault.affects(node) for fault in faults)
        )

    def check_recovery(self) -> None:
        """Check how long messages took after the last disturbance. Of the messages that were sent before it ended, measure
        from its end, or from the later post of the receive, to the end of the transfer on both sides."""
        check, bound = self._checks[RECOVERY], self._circumstances.bound * _SECOND
        longest = -1
        if self._circumstances.disturbances:
            first = min(disturbance.end for disturbance in self._circumstances.disturbances)
            for send, receive in self._pairing.pairs:
                ended = max(send.ended, receive.ended)
                if ended <= first or not send.is_complete:
                    continue
                healed = last_healing(send, ended, self._circumstances.disturbances)
                since = max(healed, receive.started)
                if healed < send.started or since > ended:
                    continue
                check.checked += 1
                longest = max(longest, ended - since)
                if ended - since > bound:
                    check.add_violation(
                        f"{send} took {(ended - since) / _SECOND:.3g} s, from the end of the fault or the later post of "
                        f"its receive; at most {self._circumstances.bound:g} s are allowed"
                    )
        if longest >= 0:
            self._figures["longest recovery, seconds"] = longest / _SECOND


def _matching(send: Send, receives: Sequence[Iterable[Receive]]) -> Receive | None:
    """Return the first matching receive at the message's receiver; None if there is none. receives: by rank."""
    if not 0 <= send.peer < len(receives):
        return None
    return next((receive for receive in receives[send.peer] if receive.matches(send)), None)
