"""Checkers of a message-passing protocol's promises, by the histories of all nodes.

- nothing lost: a message whose send is done is received, if a receive that fits it waits for it, or a later one came,
  however the run ended. For other explanations see `unreceived`.
- nothing twice: no receive gets a message that another receive got, or that was not sent; except on nodes that lost their
  memory of received messages in a crash or reset.
- order: of messages of one sender, receiver, communicator and tag none overtakes another.
- content: received and sent bytes are equal (by digests); only messages that are too long are truncated.
- errors: a transfer fails only where a fault allows it, or the end of a program by such an error: see `disturbances`.
- progress: a message and a receive that fits it do not wait for each other for ever; and a sender whose message was
  received is notified.
- recovery: after a fault has ended, they wait no longer than a bound.
- collective calls: a promise of the programs to each other: see `collective_agreement`.

No violation is reported where the history can be explained: see `lanes` and `alignment`.

A message's content is that at the beginning of its send: a program that changes a buffer during a send violates
content.
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
    consequences,
    healed_before,
    is_allowed,
)
from testbed.controller.checkers.histories import UNDER_WAY, Histories, Receive, Send
from testbed.controller.checkers.lanes import Pairing, match_messages
from testbed.controller.checkers.unreceived import Heard, Restarts, Spare, sort_by_proof

BOUND: Final = 10.0
"""Default seconds in which all transfers continue after a fault: many times the longest pause between two attempts of
any protocol that comes with the testbed."""

LOST, TWICE, ORDER, CONTENT = "nothing lost", "nothing twice", "order", "content"
ERRORS, PROGRESS, RECOVERY = "errors", "progress", "recovery"
UNITS: Final = {
    LOST: "messages", TWICE: "receives", ORDER: "messages", CONTENT: "messages", ERRORS: "transfers",
    PROGRESS: "messages", RECOVERY: "messages",
}  # fmt: skip

_SECOND: Final = 1_000_000_000


class Ending(Enum):
    """How a run ended: all programs ended; no event was left; an error or a timeout ended it."""

    DONE = "done"
    STUCK = "stuck"
    BROKEN_OFF = "broken off"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Circumstances of a run. end: nanoseconds of the history's clock; -1: that of the last event. bound: seconds for
    recovery. slack: seconds that an undisturbed message may take to a receive that waits for it. settled: whether
    programs were notified of all that arrived until the end; false where programs ended with receives pending, or were
    killed."""

    ending: Ending = Ending.DONE
    end: int = -1
    disturbances: Sequence[Disturbance] = ()
    bound: float = BOUND
    slack: float = 1.0
    settled: bool = True


def check_histories(histories: Histories, circumstances: Circumstances = Circumstances()) -> Report:
    """Check one repetition."""
    look = _HistoryCheck(histories, circumstances)
    look.messages()
    look.errors()
    look.progress()
    look.recovery()
    look.agreement()
    return look.report()


class _HistoryCheck:
    """Checks of one run, in progress."""

    def __init__(self, histories: Histories, circumstances: Circumstances) -> None:
        self._histories = histories
        self._how = circumstances
        self._end = max(histories.last, circumstances.end)
        self._causes = list(circumstances.disturbances)  # of errors
        if circumstances.ending is Ending.BROKEN_OFF:
            self._causes += consequences(histories, circumstances.disturbances)
        self._restarts = Restarts(histories, circumstances.disturbances)
        self._pairing: Pairing = match_messages(histories, self._restarts.costs)
        self._checks = {name: Check(name, unit) for name, unit in UNITS.items()}
        self._ambiguous: list[Ambiguity] = []
        self._got = dict((*self._pairing.pairs, *self._pairing.changed))
        self._waiting: list[list[Receive]] = [
            [receive for receive in receives if receive.under_way] for receives in histories.receives
        ]
        self._failed: list[list[Receive]] = [
            [receive for receive in receives if receive.error and receive.source < 0] for receives in histories.receives
        ]
        # Frames lost with a process of the tool that died are no violations.
        self._outages = [disturbance for disturbance in circumstances.disturbances if disturbance.kind == OUTAGE]
        self._figures: dict[str, float] = {}
        self._unwanted: list[Send] = []  # nobody has posted a receive for them

    def report(self) -> Report:
        notes: tuple[str, ...] = ()
        if self._unwanted and self._how.ending is Ending.DONE:
            more = f" and {len(self._unwanted) - 1:,} more" if len(self._unwanted) > 1 else ""
            notes = (f"nobody has received {self._unwanted[0]}{more}",)
        return Report(self._checks, tuple(self._ambiguous), self._figures, notes)

    def messages(self) -> None:
        checks, pairing = self._checks, self._pairing
        checks[LOST].checked = sum(map(len, self._histories.sends))
        checks[TWICE].checked = sum(
            receive.source >= 0 for receives in self._histories.receives for receive in receives
        )
        checks[ORDER].checked = len(pairing.pairs)
        checks[CONTENT].checked = len(pairing.pairs) + len(pairing.changed)
        for send, receive in pairing.twice:
            if any(fault.touches(receive.node) and fault.begin <= receive.ended for fault in self._restarts.faults):
                self._count("came once more to a node that had forgotten them")
            else:
                checks[TWICE].add_violation(f"{send} came once more, to {receive}")
        for receive in pairing.strangers:
            checks[TWICE].add_violation(
                f"{receive} got {receive.came_size} bytes from rank {receive.source}, tag {receive.came_tag}, that were not "
                "sent, or not so often"
            )
        for late, early in pairing.overtaken:
            checks[ORDER].add_violation(f"{early} was received before {late}, which was sent earlier")
        for send, receive in pairing.changed:
            checks[CONTENT].add_violation(f"{send} came to {receive} with another content, {receive.came_size} bytes")
        self._missing()
        for sends in self._histories.sends:
            for send in sends:
                if not send.is_promised and (got := self._got.get(send)) is not None:
                    self._doubt(send, "delivered", f"to {got}")

    def _missing(self) -> None:
        """Judge the messages that were not received: lost, in doubt, or explained."""
        spare = Spare(self._histories, lambda receive: receive.gone or self._is_allowed(receive))
        heard = Heard(self._histories)
        for send, following in sort_by_proof(self._pairing.missing):
            if send.done:
                self._not_received(send, following, spare, heard)
            else:
                self._returned(send, following)

    def _not_received(self, send: Send, following: Receive | None, spare: Spare, heard: Heard) -> None:
        """Judge a message that was sent and not received. following: the receive of the next message of its lane."""
        if any(outage.touches(send.node, send.to) for outage in self._outages):
            self._count("may be lost with a process of the testbed that died")
            return
        explains = self._restarts.explains
        excused = explains(send, following.ended) if following is not None else explains(send)
        receive = spare.claim(send, following) if not excused else None
        if excused or (receive is not None and not receive.under_way):
            self._count("may be lost with a node's memory or a failed receive")
        elif receive is not None:
            if self._has_waited(send, receive, heard):
                self._checks[LOST].add_violation(f"{send} was sent, and {receive} still waits for it")
            else:
                self._count("may have been on their way when the run was over")
        elif following is not None:
            self._checks[LOST].add_violation(f"{send} was sent, and not received, though later ones of its kind were")
        else:
            self._count("nobody has asked for")
            self._unwanted.append(send)

    def _has_waited(self, send: Send, receive: Receive, heard: Heard) -> bool:
        """Whether the message had time to arrive, and its receiver to notice."""
        if self._how.settled and self._how.ending is not Ending.BROKEN_OFF:
            return True
        since = max(send.ended, receive.begun, healed_before(send, self._end, self._how.disturbances))
        if any(
            disturbance.touches(send.node, send.to)
            and disturbance.end > self._end
            and not (self._how.settled and disturbance.kind == OTHER)
            for disturbance in self._how.disturbances
        ):
            return False
        slack, bound = self._how.slack * _SECOND, self._how.bound * _SECOND
        noticed = self._end if self._how.settled else heard.last(receive)
        return noticed - since > slack or self._end - since > bound

    def _returned(self, send: Send, following: Receive | None) -> None:
        """Say what the receiver knows of a message whose send was never done."""
        waiting, failed = _fitting(send, self._waiting), _fitting(send, self._failed)
        if failed is not None:
            self._doubt(send, "unknown", f"{failed} has failed, and may have had it")
        elif self._restarts.forgot(send.to, send.begun):
            self._doubt(send, "unknown", f"{send.to} has forgotten what it had")
        elif following is not None:
            self._doubt(send, "not delivered", "later ones of its kind were received")
        elif waiting is not None:
            self._doubt(send, "not delivered", f"{waiting} still waits for it")
        else:
            self._doubt(send, "unknown", f"{send.to} has not posted a receive")
            if not send.error:
                self._unwanted.append(send)

    def _is_allowed(self, receive: Receive) -> bool:
        """Whether the receive failed and a fault explains it."""
        peer, names = receive.source if receive.source >= 0 else receive.peer, self._histories.names
        peer_name = names[peer] if 0 <= peer < len(names) else ""
        return bool(receive.error) and is_allowed(receive, peer_name, self._causes)

    def _doubt(self, send: Send, truth: str, reason: str) -> None:
        buffered = send.buffered != UNDER_WAY
        end = "its program was started again" if send.gone else "the run was over"
        if send.error:
            reported = f"done, and then that it has failed: {send.error}" if buffered else f"failed: {send.error}"
        else:
            reported = f"done, and not known to have arrived when {end}" if buffered else f"not done when {end}"
        self._ambiguous.append(Ambiguity(str(send), reported, truth, reason))

    def _count(self, what: str) -> None:
        name = f"messages that {what}"
        self._figures[name] = self._figures.get(name, 0) + 1

    def errors(self) -> None:
        check = self._checks[ERRORS]
        check.checked = len(self._histories)
        for sends in self._histories.sends:
            for send in sends:
                if send.error and not is_allowed(send, send.to, self._causes):
                    check.add_violation(f"{send} failed ({send.error}), and no fault allows it")
        for receives in self._histories.receives:
            for receive in receives:
                if receive.error and not self._is_allowed(receive):
                    check.add_violation(f"{receive} failed ({receive.error}), and no fault allows it")

    def progress(self) -> None:
        """Check messages that were under way at the end, each with a receive of its own that fits it."""
        check, ending = self._checks[PROGRESS], self._how.ending
        check.checked = sum(not send.under_way for sends in self._histories.sends for send in sends)
        free = [list(receives) for receives in self._waiting]
        for send in (send for sends in self._histories.sends for send in sends if send.under_way):
            check.checked += 1
            if not 0 <= send.peer < len(free):
                continue
            got = self._got.get(send)
            if got is not None and send.is_promised:
                continue
            if got is not None:
                since, what = got.ended, f"{send} was received by {got}, and its sender was not notified"
            else:
                receive = next((candidate for candidate in free[send.peer] if candidate.fits(send)), None)
                if receive is None:
                    continue
                free[send.peer].remove(receive)
                since, what = (
                    max(send.begun, receive.begun),
                    f"{send} and {receive} fit, and have waited for each other",
                )
            if ending is Ending.DONE or self._disturbed(send):
                continue
            since = max(since, healed_before(send, self._end, self._how.disturbances))
            if ending is Ending.STUCK:
                check.add_violation(f"{what} until nothing could happen any more")
            elif self._end - since > self._how.bound * _SECOND:
                check.add_violation(f"{what} for {(self._end - since) / _SECOND:.3g} s")

    def _disturbed(self, send: Send) -> bool:
        """Whether a fault was in force between its nodes at the end, or its receiver lost its memory."""
        return any(
            disturbance.touches(send.node, send.to)
            and (disturbance.end > self._end or disturbance in self._restarts.faults)
            for disturbance in self._how.disturbances
        )

    def agreement(self) -> None:
        """Compare the ranks' collective calls, where there are any."""
        if not any(self._histories.collectives):
            return
        is_over = self._how.ending is not Ending.BROKEN_OFF
        faults = [fault for fault in self._how.disturbances if fault.kind in (CRASH, RESET)]
        self._checks[AGREEMENT] = check_agreement(
            self._histories, is_over, lambda node: any(fault.touches(node) for fault in faults)
        )

    def recovery(self) -> None:
        check, bound = self._checks[RECOVERY], self._how.bound * _SECOND
        longest = -1
        if self._how.disturbances:
            first = min(disturbance.end for disturbance in self._how.disturbances)
            for send, receive in self._pairing.pairs:
                ended = max(send.ended, receive.ended)
                if ended <= first or not send.done:
                    continue
                healed = healed_before(send, ended, self._how.disturbances)
                since = max(healed, receive.begun)
                if healed < send.begun or since > ended:
                    continue
                check.checked += 1
                longest = max(longest, ended - since)
                if ended - since > bound:
                    check.add_violation(
                        f"{send} was received {(ended - since) / _SECOND:.3g} s after the fault had ended; at most "
                        f"{self._how.bound:g} s are allowed"
                    )
        if longest >= 0:
            self._figures["longest recovery, seconds"] = longest / _SECOND


def _fitting(send: Send, receives: Sequence[Iterable[Receive]]) -> Receive | None:
    """Find a receive that fits the message."""
    if not 0 <= send.peer < len(receives):
        return None
    return next((receive for receive in receives[send.peer] if receive.fits(send)), None)
