"""Check what an active-message protocol guarantees to programs, in the histories of all nodes.

- nothing twice: a request's handler is called at most once, also across restarts of its node, only at the endpoint to which
  the request was sent, and only if it was sent.
- content: handler, arguments and data are those that were sent (by digests).
- replies: a reply is the one that the handler of its request made.
- one end: a request ends once, by a reply or by its return.
- errors: the reason of a return is correct. A request that is returned as unreachable may have been handled, and a
  disturbance, or the end of the remote endpoint or program, must explain it. A request that its program abandoned may have
  been handled. A request that is returned for any other reason was not handled. A reply is returned only if a disturbance
  explains it, or its request has ended.
- progress: a request ends while both its endpoints exist and handle messages.
- recovery: after a disturbance has ended, a reply arrives within a bound.

Messages are not ordered, so order is not checked. A message that had arrived when a program ended, and was not handled,
is no violation: each life of a program records the number of such messages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from testbed.controller.checkers.check_report import Ambiguity, Check, Report
from testbed.controller.checkers.disturbances import CRASH, CUT, OUTAGE, PAUSE, RESET
from testbed.controller.checkers.promises import CONTENT, ERRORS, PROGRESS, RECOVERY, TWICE, Circumstances, Ending
from testbed.controller.checkers.request_records import (
    NEVER,
    Endpoint,
    Handling,
    ProgramLife,
    Request,
    RequestEnd,
    RequestRecords,
)

REPLIES, ONE_END = "replies", "one end"
UNITS: Final = {
    TWICE: "requests", CONTENT: "requests", REPLIES: "replies", ONE_END: "requests", ERRORS: "returned messages",
    PROGRESS: "requests", RECOVERY: "requests",
}  # fmt: skip
UNREACHABLE: Final = "unreachable"
ABANDONED: Final = "abandoned"
"""Reasons for a return after which a request may have been handled. Abandoned: the sender's own program gave the request
up."""

_UNREACHABLE_KINDS: Final = (CRASH, PAUSE, RESET, CUT, OUTAGE)
"""Kinds of disturbances that make a node unreachable."""
_SECOND: Final = 1_000_000_000


def check_requests(records: RequestRecords, circumstances: Circumstances | None = None) -> Report:
    """Check one repetition."""
    checker = _RequestChecker(records, circumstances or Circumstances())
    for request in records.requests.values():
        checker.check_handlings(request)
        checker.check_ends(request)
        checker.check_returns(request)
        checker.check_recovery(request)
    checker.check_progress()
    return checker.report()


class _RequestChecker:
    """Checks of one repetition, in progress."""

    def __init__(self, records: RequestRecords, circumstances: Circumstances) -> None:
        self._records = records
        self._circumstances = circumstances
        self._end = max(records.last_time, circumstances.end)
        self._checks = {name: Check(name, unit) for name, unit in UNITS.items()}
        self._ambiguities: list[Ambiguity] = []
        self._figures: Counter[str] = Counter()
        self._longest_recovery = -1
        self._by_reply: defaultdict[str, list[Request]] = defaultdict(list)  # handled requests, by digest of the reply
        for request in records.requests.values():
            for handling in request.handlings:
                if handling.reply is not None:
                    self._by_reply[handling.reply.digest].append(request)

    def report(self) -> Report:
        figures: dict[str, float] = dict(self._figures)
        if self._longest_recovery >= 0:
            figures["longest recovery, seconds"] = self._longest_recovery / _SECOND
        return Report(self._checks, tuple(self._ambiguities), figures)

    def check_handlings(self, request: Request) -> None:
        """Check the calls of a request's handler."""
        twice, content = self._checks[TWICE], self._checks[CONTENT]
        twice.checked += 1
        first = request.handlings[0] if request.handlings else None
        if first is None:
            return
        if request.sent is None:
            twice.add_violation(f"{request} was handled by {self._format(first)}")
            return
        for handling in request.handlings[1:]:
            twice.add_violation(
                f"{request} was handled by {self._format(first)}, and again by {self._format(handling)}"
            )
        for handling in request.handlings:
            content.checked += 1
            if handling.endpoint != request.destination:
                twice.add_violation(f"{request} was handled by {self._format(handling)}, to which it was not sent")
            if handling.request.digest != request.sent.digest:
                content.add_violation(
                    f"{request} was received by {self._format(handling)} with different content, "
                    f"{handling.request.size} bytes"
                )

    def check_ends(self, request: Request) -> None:
        """Check that a request has at most one end, and that its reply was made by its handler."""
        check = self._checks[ONE_END]
        check.checked += 1
        if len(request.ends) > 1:
            ends = " and ".join(f"{_format_end(end)} ({end.location})" for end in request.ends)
            check.add_violation(f"{request} has {len(request.ends)} ends: {ends}")
        for end in request.ends:
            if end.reply is not None:
                self._check_reply(request, end)

    def _check_reply(self, request: Request, end: RequestEnd) -> None:
        check, reply = self._checks[REPLIES], end.reply
        assert reply is not None
        check.checked += 1
        digests = [handling.reply.digest for handling in request.handlings if handling.reply is not None]
        if reply.digest in digests and end.endpoint == request.destination:
            return
        if not request.handlings:
            clause = "though its handler was not called"
        elif not digests:
            clause = "though its handler had not replied"
        elif reply.digest in digests:
            clause = f"from endpoint {end.endpoint[1]} of {self._node(end.endpoint)}"
        else:
            clause = f"which is not the reply of {self._format(request.handlings[0])}"
        other_request = next((other for other in self._by_reply[reply.digest] if other is not request), None)
        if other_request is not None and reply.digest not in digests:
            clause += f"; it is the reply to {other_request}"
        check.add_violation(f"{request} got a reply ({end.location}), {clause}")

    def check_returns(self, request: Request) -> None:
        """Check that the request and its replies, where they were returned, were returned for a correct reason."""
        check = self._checks[ERRORS]
        handled = request.handlings[0] if request.handlings else None
        for end in request.ends:
            if not end.error:
                continue
            check.checked += 1
            is_explained = self._is_explained(request.destination, request.name.node, end.time)
            if end.error not in (UNREACHABLE, ABANDONED) and handled is not None:
                check.add_violation(
                    f"{request} was returned as {end.error} ({end.location}), and handled by {self._format(handled)}"
                )
            elif end.error == UNREACHABLE and not is_explained:
                also = f" and handled by {self._format(handled)}," if handled is not None else ""
                check.add_violation(
                    f"{request} was returned as {end.error} ({end.location}),{also} and no fault explains it"
                )
            elif end.error in (UNREACHABLE, ABANDONED):
                self._add_ambiguity(request, f"returned as {end.error}")
        for handling in request.handlings:
            if handling.reply_returned == NEVER:
                continue
            check.checked += 1
            sender = request.name.node, request.name.endpoint
            has_ended = request.void_at <= handling.reply_returned or any(end.error for end in request.ends)
            if not has_ended and not self._is_explained(sender, handling.endpoint[0], handling.reply_returned):
                check.add_violation(
                    f"the reply of {self._format(handling)} to {request} was returned, and no fault explains it"
                )

    def _is_explained(self, remote: Endpoint, local: int, time: int) -> bool:
        """Whether a disturbance, or the end of the remote endpoint or program, explains that node `local` could not reach
        the endpoint at a time."""
        rank = remote[0]
        if not 0 <= rank < len(self._records.names):
            return True  # there is no such node
        nodes = self._records.names[local], self._records.names[rank]
        if any(
            disturbance.kind in _UNREACHABLE_KINDS and disturbance.begin <= time and disturbance.affects(*nodes)
            for disturbance in self._circumstances.disturbances
        ):
            return True
        if any(life.ended <= time for life in self._records.lives[rank]):
            return True
        return any(when <= time for when in self._records.freed.get(remote, ()))

    def _add_ambiguity(self, request: Request, notification: str) -> None:
        """Add an ambiguity for a request whose sender does not know whether it was handled."""
        if request.handlings:
            self._ambiguities.append(
                Ambiguity(str(request), notification, "delivered", f"handled by {self._format(request.handlings[0])}")
            )
            return
        lives = self._lives(request)
        if lives and all(life.is_graceful and not life.unhandled for life in lives):
            reason = f"{request.receiver} has not handled it"
            self._ambiguities.append(Ambiguity(str(request), notification, "not delivered", reason))
        else:
            reason = f"{request.receiver} may have ended before it handled the request"
            self._ambiguities.append(Ambiguity(str(request), notification, "unknown", reason))

    def _lives(self, request: Request) -> list[ProgramLife]:
        rank = request.destination[0]
        return self._records.lives[rank] if 0 <= rank < len(self._records.lives) else []

    def check_progress(self) -> None:
        """Check that the requests without an end have not waited too long."""
        check = self._checks[PROGRESS]
        unhandled_requests, unhandled_answers = self._unhandled(0), self._unhandled(1)
        for request in self._records.requests.values():
            check.checked += 1
            sent = request.sent
            if sent is None or request.ends or request.void_at < self._end:
                continue
            if self._circumstances.ending is Ending.DONE and request.handlings:
                self._figures["requests handled whose reply had not come when the programs ended"] += 1
                continue
            self._add_ambiguity(request, "nothing when the run ended")
            sender = request.name.node, request.name.endpoint
            unhandled, endpoint = (
                (unhandled_answers, sender) if request.handlings else (unhandled_requests, request.destination)
            )
            if unhandled[endpoint] > 0:
                unhandled[endpoint] -= 1  # the message may be one that had arrived
                continue
            if not self._may_judge(request):
                continue
            since = max(sent.time, self._last_healing(request, self._end))
            sentence = f"{request} was handled, and its sender was not notified" if request.handlings else (
                f"{request} was neither handled nor returned"
            )  # fmt: skip
            if self._circumstances.ending is Ending.STUCK:
                check.add_violation(f"{sentence} until no event was left")
            elif self._end - since > self._circumstances.bound * _SECOND:
                check.add_violation(f"{sentence} for {(self._end - since) / _SECOND:.3g} s")

    def _unhandled(self, index: int) -> Counter[Endpoint]:
        """Return the numbers of messages that programs left unhandled, by endpoint. index: 0: requests, 1: answers."""
        return Counter({
            (rank, endpoint): counts[index]
            for rank, lives in enumerate(self._records.lives)
            if lives
            for endpoint, counts in lives[-1].unhandled.items()
        })  # fmt: skip

    def _may_judge(self, request: Request) -> bool:
        """Whether both programs are known to have run, undisturbed, until the run was stuck or aborted."""
        if self._circumstances.ending is Ending.DONE:
            return False
        sides = self._records.lives[request.name.node], self._lives(request)
        if not all(lives and lives[-1].is_graceful and lives[-1].ended >= self._circumstances.end for lives in sides):
            return False
        nodes = request.sender, request.receiver
        return not any(
            disturbance.affects(*nodes) and disturbance.end > self._end
            for disturbance in self._circumstances.disturbances
        )

    def check_recovery(self, request: Request) -> None:
        """Check the time from the end of the last disturbance to the reply."""
        if request.sent is None or not request.ends or request.ends[0].error:
            return
        ended = request.ends[0].time
        healed = self._last_healing(request, ended)
        if healed < request.sent.time:
            return
        check, bound = self._checks[RECOVERY], self._circumstances.bound
        check.checked += 1
        self._longest_recovery = max(self._longest_recovery, ended - healed)
        if ended - healed > bound * _SECOND:
            check.add_violation(
                f"{request} was replied to {(ended - healed) / _SECOND:.3g} s after the fault had ended; at most "
                f"{bound:g} s are allowed"
            )

    def _last_healing(self, request: Request, until: int) -> int:
        """Return the end of the last disturbance that affected a request and ended by `until`; -1 if there is none."""
        return max(
            (
                disturbance.end
                for disturbance in self._circumstances.disturbances
                if disturbance.end <= until and disturbance.affects(request.sender, request.receiver)
            ),
            default=-1,
        )

    def _format(self, handling: Handling) -> str:
        return f"endpoint {handling.endpoint[1]} of {self._node(handling.endpoint)} ({handling.request.location})"

    def _node(self, endpoint: Endpoint) -> str:
        rank, names = endpoint[0], self._records.names
        return names[rank] if 0 <= rank < len(names) else f"node {rank}"


def _format_end(end: RequestEnd) -> str:
    return f"returned as {end.error}" if end.error else "replied to"
