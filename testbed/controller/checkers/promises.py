"""The checkers: what a message-passing protocol promises, looked up in the histories of all nodes.

- nothing lost: a message whose send is done is received, if a receive that fits it waits for it, or a later one came.
- nothing twice: no receive gets what another has got, or what nobody has sent; but for nodes that have forgotten what they
  had received, because they crashed or were reset.
- order: of messages of one sender, receiver, communicator and tag none overtakes another.
- content: what is received is what was sent, byte for byte (by digests); only what is too long is cut off.
- errors: a transfer fails only where a fault allows it, see `disturbances`.
- progress: where a message and a receive that fits it wait for each other, they do not wait for ever; and whose message has
  been received is told so.
- recovery: after a fault has ended, they wait no longer than a bound.

A content is that of the moment when the send began: a program that changes a buffer while it is sent is found guilty of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from testbed.controller.checkers.disturbances import CRASH, RESET, Disturbance, allowed, healed_before
from testbed.controller.checkers.histories import Histories, Receive, Send
from testbed.controller.checkers.lanes import Pairing, paired
from testbed.controller.checkers.report import Ambiguity, Check, Report

BOUND: Final = 10.0
"""Seconds in which everything goes on after a fault, if nothing else is said: many times the longest pause between two
attempts of any protocol that comes with the testbed."""

LOST, TWICE, ORDER, CONTENT = "nothing lost", "nothing twice", "order", "content"
ERRORS, PROGRESS, RECOVERY = "errors", "progress", "recovery"
UNITS: Final = {
    LOST: "messages", TWICE: "receives", ORDER: "messages", CONTENT: "messages", ERRORS: "transfers",
    PROGRESS: "messages", RECOVERY: "messages",
}  # fmt: skip

_SECOND: Final = 1_000_000_000


class Ending(Enum):
    """How a run has ended: all programs have; nothing could go on any more; something broke it off."""

    DONE = "done"
    STUCK = "stuck"
    BROKEN_OFF = "broken off"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """of a run. end: nanoseconds of the history's clock; -1: that of the last event. bound: seconds for recovery. slack:
    seconds before the end of a run that was broken off, within which it is not known any more what arrived."""

    ending: Ending = Ending.DONE
    end: int = -1
    disturbances: Sequence[Disturbance] = ()
    bound: float = BOUND
    slack: float = 1.0


def checked(histories: Histories, circumstances: Circumstances = Circumstances()) -> Report:
    """All checks of one repetition."""
    look = _Look(histories, circumstances)
    look.messages()
    look.errors()
    look.progress()
    look.recovery()
    return look.report()


class _Look:
    """At one run."""

    def __init__(self, histories: Histories, circumstances: Circumstances) -> None:
        self._histories = histories
        self._how = circumstances
        self._end = max(histories.last, circumstances.end)
        self._pairing: Pairing = paired(histories)
        self._checks = {name: Check(name, unit) for name, unit in UNITS.items()}
        self._ambiguous: list[Ambiguity] = []
        self._got = dict((*self._pairing.pairs, *self._pairing.changed))
        self._waiting: list[list[Receive]] = [
            [receive for receive in receives if receive.under_way] for receives in histories.receives
        ]
        self._vain = [list(receives) for receives in self._waiting]
        """Those of them that are not known to wait for what is lost."""
        self._failed: list[list[Receive]] = [
            [receive for receive in receives if receive.error and receive.source < 0] for receives in histories.receives
        ]
        # Nodes that have forgotten, or taken with them, what they had received.
        self._forgetful = [one for one in circumstances.disturbances if one.kind in (CRASH, RESET)]
        self._figures: dict[str, float] = {}

    def report(self) -> Report:
        return Report(self._checks, tuple(self._ambiguous), self._figures)

    def messages(self) -> None:
        checks, pairing = self._checks, self._pairing
        checks[LOST].checked = sum(map(len, self._histories.sends))
        checks[TWICE].checked = sum(
            receive.source >= 0 for receives in self._histories.receives for receive in receives
        )
        checks[ORDER].checked = len(pairing.pairs)
        checks[CONTENT].checked = len(pairing.pairs) + len(pairing.changed)
        for send, receive in pairing.twice:
            if any(one.touches(receive.node) and one.begin <= receive.ended for one in self._forgetful):
                self._count("came once more to a node that had forgotten them")
            else:
                checks[TWICE].violated(f"{send} came once more, to {receive}")
        for receive in pairing.strangers:
            checks[TWICE].violated(
                f"{receive} got {receive.came_size} bytes from rank {receive.source}, tag {receive.came_tag}, that were not "
                "sent, or not so often"
            )
        for late, early in pairing.overtaken:
            checks[ORDER].violated(f"{early} was received before {late}, which was sent earlier")
        for send, receive in pairing.changed:
            checks[CONTENT].violated(f"{send} came to {receive} with another content, {receive.came_size} bytes")
        for send in pairing.missing:
            self._missing(send)
        for sends in self._histories.sends:
            for send in sends:
                if not send.done and (got := self._got.get(send)) is not None:
                    self._doubt(send, "delivered", f"to {got}")

    def _missing(self, send: Send) -> None:
        """A message that nobody has received: lost, or in doubt, or never asked for."""
        passed = send in self._pairing.passed
        waiting = _fitting(send, self._vain if send.done else self._waiting)
        failed = _fitting(send, self._failed)
        forgotten = any(one.touches(send.to) and one.end >= send.begun for one in self._forgetful)
        if not send.done:
            if failed is not None:
                self._doubt(send, "unknown", f"{failed} has failed, and may have had it")
            elif forgotten:
                self._doubt(send, "unknown", f"{send.to} has forgotten what it had")
            elif passed:
                self._doubt(send, "not delivered", "later ones of its kind were received")
            elif waiting is not None:
                self._doubt(send, "not delivered", f"{waiting} still waits for it")
            else:
                self._doubt(send, "unknown", f"{send.to} has not asked for it")
            return
        late = self._how.ending is Ending.BROKEN_OFF and self._end - send.ended < self._how.slack * _SECOND
        if forgotten or failed is not None:
            self._count("may be lost with a node's memory or a failed receive")
        elif passed:
            self._checks[LOST].violated(f"{send} was sent, and not received, though later ones of its kind were")
        elif waiting is None:
            self._count("nobody has asked for")
        elif late:
            self._count("may have been on their way when the run was broken off")
        else:
            self._vain[send.peer].remove(waiting)
            self._checks[LOST].violated(f"{send} was sent, and {waiting} still waits for it")

    def _doubt(self, send: Send, truth: str, why: str) -> None:
        told = f"failed: {send.error}" if send.error else "not done when the run was over"
        if send.gone:
            told = "not done when its program was started again"
        self._ambiguous.append(Ambiguity(str(send), told, truth, why))

    def _count(self, what: str) -> None:
        name = f"messages that {what}"
        self._figures[name] = self._figures.get(name, 0) + 1

    def errors(self) -> None:
        check, names = self._checks[ERRORS], self._histories.names
        check.checked = len(self._histories)
        for sends in self._histories.sends:
            for send in sends:
                if send.error and not allowed(send, send.to, self._how.disturbances):
                    check.violated(f"{send} failed ({send.error}), and no fault allows it")
        for receives in self._histories.receives:
            for receive in receives:
                peer = receive.source if receive.source >= 0 else receive.peer
                who = names[peer] if 0 <= peer < len(names) else ""
                if receive.error and not allowed(receive, who, self._how.disturbances):
                    check.violated(f"{receive} failed ({receive.error}), and no fault allows it")

    def progress(self) -> None:
        """Of messages that were still under way at the end, each with a receive of its own that fits it."""
        check, ending = self._checks[PROGRESS], self._how.ending
        check.checked = sum(not send.under_way for sends in self._histories.sends for send in sends)
        free = [list(receives) for receives in self._waiting]
        for send in (send for sends in self._histories.sends for send in sends if send.under_way):
            check.checked += 1
            if not 0 <= send.peer < len(free):
                continue
            got = self._got.get(send)
            if got is not None:
                since, what = got.ended, f"{send} was received by {got}, and its sender was not told"
            else:
                receive = next((one for one in free[send.peer] if one.fits(send)), None)
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
                check.violated(f"{what} until nothing could happen any more")
            elif self._end - since > self._how.bound * _SECOND:
                check.violated(f"{what} for {(self._end - since) / _SECOND:.3g} s")

    def _disturbed(self, send: Send) -> bool:
        """Whether a fault was still in force on its way at the end, or its receiver has forgotten all."""
        return any(
            one.touches(send.node, send.to) and (one.end > self._end or one in self._forgetful)
            for one in self._how.disturbances
        )

    def recovery(self) -> None:
        check, bound = self._checks[RECOVERY], self._how.bound * _SECOND
        longest = -1
        if self._how.disturbances:
            first = min(one.end for one in self._how.disturbances)
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
                    check.violated(
                        f"{send} was received {(ended - since) / _SECOND:.3g} s after the fault had ended; at most "
                        f"{self._how.bound:g} s are allowed"
                    )
        if longest >= 0:
            self._figures["longest recovery, seconds"] = longest / _SECOND


def _fitting(send: Send, receives: Sequence[Iterable[Receive]]) -> Receive | None:
    """One of the receives that may get it."""
    if not 0 <= send.peer < len(receives):
        return None
    return next((receive for receive in receives[send.peer] if receive.fits(send)), None)
