"""Checkers of an active-message protocol's promises, by the histories of all nodes.

- nothing twice: a request's handler is called once at most, at the endpoint that it was sent to, and only if it was sent;
  not again by a later life of its node either.
- content: handler, arguments and data are those sent (by digests).
- replies: a reply that comes is the one that the handler of this very request made.
- one end: a request ends once, by a reply or by its return.
- errors: a request is returned for a true reason. Returned as unreachable, it may have been handled as well, and a fault, or
  the end of an endpoint or program there, must explain it; abandoned by its program, it may have been handled; returned
  for any other reason it has not been. A reply is returned only if a fault explains it, or its request has ended.
- progress: a request gets its end: it does not stay without one for ever while both its endpoints exist and handle what
  arrives.
- recovery: after a fault has ended, a reply comes within a bound.

Messages are not ordered, so there is no check of order. What had arrived when a program ended, and was not handled, is no
violation: each life of a program records how much that was.
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
"""The reasons for a return after which a request may have been handled. Abandoned: its own program has given it up."""

_SILENCING: Final = (CRASH, PAUSE, RESET, CUT, OUTAGE)
"""Kinds of disturbances that make a node unreachable."""
_SECOND: Final = 1_000_000_000


def check_requests(records: RequestRecords, circumstances: Circumstances | None = None) -> Report:
    """Check one repetition."""
    check = _RequestCheck(records, circumstances or Circumstances())
    for request in records.requests.values():
        check.handlings(request)
        check.replies(request)
        check.returns(request)
        check.recovery(request)
    check.progress()
    return check.report()


class _RequestCheck:
    """Checks of one run, in progress."""

    def __init__(self, records: RequestRecords, circumstances: Circumstances) -> None:
        self._records = records
        self._how = circumstances
        self._end = max(records.last, circumstances.end)
        self._checks = {name: Check(name, unit) for name, unit in UNITS.items()}
        self._doubts: list[Ambiguity] = []
        self._figures: Counter[str] = Counter()
        self._longest = -1
        self._made: defaultdict[str, list[Request]] = defaultdict(list)  # by digest of a reply, who got it
        for request in records.requests.values():
            for handling in request.handlings:
                if handling.reply is not None:
                    self._made[handling.reply.digest].append(request)

    def report(self) -> Report:
        figures: dict[str, float] = dict(self._figures)
        if self._longest >= 0:
            figures["longest recovery, seconds"] = self._longest / _SECOND
        return Report(self._checks, tuple(self._doubts), figures)

    def handlings(self, request: Request) -> None:
        """Check the calls of a request's handler."""
        twice, content = self._checks[TWICE], self._checks[CONTENT]
        twice.checked += 1
        first = request.handlings[0] if request.handlings else None
        if first is None:
            return
        if request.sent is None:
            twice.add_violation(f"{request} was handled by {self._words(first)}")
            return
        for handling in request.handlings[1:]:
            twice.add_violation(f"{request} was handled by {self._words(first)}, and again by {self._words(handling)}")
        for handling in request.handlings:
            content.checked += 1
            if handling.by != request.destination:
                twice.add_violation(f"{request} was handled by {self._words(handling)}, to which it was not sent")
            if handling.request.digest != request.sent.digest:
                content.add_violation(
                    f"{request} came to {self._words(handling)} with another content, {handling.request.size} bytes"
                )

    def replies(self, request: Request) -> None:
        """Check the ends of a request, and that a reply is its own."""
        check = self._checks[ONE_END]
        check.checked += 1
        if len(request.ends) > 1:
            ends = " and ".join(f"{_format_end(end)} ({end.place})" for end in request.ends)
            check.add_violation(f"{request} has {len(request.ends)} ends: {ends}")
        for end in request.ends:
            if end.reply is not None:
                self._reply(request, end)

    def _reply(self, request: Request, end: RequestEnd) -> None:
        check, reply = self._checks[REPLIES], end.reply
        assert reply is not None
        check.checked += 1
        made = [handling.reply.digest for handling in request.handlings if handling.reply is not None]
        if reply.digest in made and end.by == request.destination:
            return
        if not request.handlings:
            what = "though its handler was not called"
        elif not made:
            what = "though its handler had not replied"
        elif reply.digest in made:
            what = f"from endpoint {end.by[1]} of {self._node(end.by)}"
        else:
            what = f"which is not what {self._words(request.handlings[0])} replied"
        other = next((other for other in self._made[reply.digest] if other is not request), None)
        whose = f"; it is the reply to {other}" if other is not None and reply.digest not in made else ""
        check.add_violation(f"{request} got a reply ({end.place}), {what}{whose}")

    def returns(self, request: Request) -> None:
        """Check that what was returned, of a request and its replies, was returned for a true reason."""
        check = self._checks[ERRORS]
        handled = request.handlings[0] if request.handlings else None
        for end in request.ends:
            if not end.error:
                continue
            check.checked += 1
            is_explained = self._is_explained(request.destination, request.name.node, end.at)
            if end.error not in (UNREACHABLE, ABANDONED) and handled is not None:
                check.add_violation(
                    f"{request} was returned as {end.error} ({end.place}), and handled by {self._words(handled)}"
                )
            elif end.error == UNREACHABLE and not is_explained:
                also = f" and handled by {self._words(handled)}," if handled is not None else ""
                check.add_violation(
                    f"{request} was returned as {end.error} ({end.place}),{also} and no fault explains it"
                )
            elif end.error in (UNREACHABLE, ABANDONED):
                self._doubt(request, f"returned as {end.error}")
        for handling in request.handlings:
            if handling.reply_returned == NEVER:
                continue
            check.checked += 1
            sender = request.name.node, request.name.endpoint
            has_ended = request.void_at <= handling.reply_returned or any(end.error for end in request.ends)
            if not has_ended and not self._is_explained(sender, handling.by[0], handling.reply_returned):
                check.add_violation(
                    f"the reply of {self._words(handling)} to {request} was returned, and no fault explains it"
                )

    def _is_explained(self, remote: Endpoint, local: int, at: int) -> bool:
        """Whether a fault, or the end of an endpoint or program, explains that a node `local` could not reach an endpoint
        at some time."""
        rank = remote[0]
        if not 0 <= rank < len(self._records.names):
            return True  # there is no such node
        nodes = self._records.names[local], self._records.names[rank]
        if any(
            disturbance.kind in _SILENCING and disturbance.begin <= at and disturbance.touches(*nodes)
            for disturbance in self._how.disturbances
        ):
            return True
        if any(life.ended <= at for life in self._records.lives[rank]):
            return True
        return any(when <= at for when in self._records.freed.get(remote, ()))

    def _doubt(self, request: Request, reported: str) -> None:
        """Say what the destination knows of a request whose sender does not know whether it was handled."""
        if request.handlings:
            self._doubts.append(
                Ambiguity(str(request), reported, "delivered", f"handled by {self._words(request.handlings[0])}")
            )
            return
        lives = self._lives(request)
        if lives and all(life.is_graceful and not life.unhandled for life in lives):
            self._doubts.append(Ambiguity(str(request), reported, "not delivered", f"{request.to} has not handled it"))
        else:
            self._doubts.append(
                Ambiguity(str(request), reported, "unknown", f"{request.to} may not have got round to it")
            )

    def _lives(self, request: Request) -> list[ProgramLife]:
        rank = request.destination[0]
        return self._records.lives[rank] if 0 <= rank < len(self._records.lives) else []

    def progress(self) -> None:
        """Check requests without an end."""
        check = self._checks[PROGRESS]
        unhandled, unanswered = self._unhandled(0), self._unhandled(1)
        for request in self._records.requests.values():
            check.checked += 1
            sent = request.sent
            if sent is None or request.ends or request.void_at < self._end:
                continue
            if self._how.ending is Ending.DONE and request.handlings:
                self._figures["requests handled whose reply had not come when the programs ended"] += 1
                continue
            self._doubt(request, "nothing when the run was over")
            sender = request.name.node, request.name.endpoint
            waits, where = (unanswered, sender) if request.handlings else (unhandled, request.destination)
            if waits[where] > 0:
                waits[where] -= 1  # it may be one of those that had arrived
                continue
            if not self._may_judge(request):
                continue
            since = max(sent.at, self._healed(request, self._end))
            what = f"{request} was handled, and its sender was not notified" if request.handlings else (
                f"{request} was neither handled nor returned"
            )  # fmt: skip
            if self._how.ending is Ending.STUCK:
                check.add_violation(f"{what} until nothing could happen any more")
            elif self._end - since > self._how.bound * _SECOND:
                check.add_violation(f"{what} for {(self._end - since) / _SECOND:.3g} s")

    def _unhandled(self, which: int) -> Counter[Endpoint]:
        """Return the numbers of messages that programs left unhandled: 0: requests, 1: answers."""
        return Counter({
            (rank, endpoint): counts[which]
            for rank, lives in enumerate(self._records.lives)
            if lives
            for endpoint, counts in lives[-1].unhandled.items()
        })  # fmt: skip

    def _may_judge(self, request: Request) -> bool:
        """Whether it is known that both programs went on until the run was stuck or broken off, and undisturbed."""
        if self._how.ending is Ending.DONE:
            return False
        sides = self._records.lives[request.name.node], self._lives(request)
        if not all(lives and lives[-1].is_graceful and lives[-1].ended >= self._how.end for lives in sides):
            return False
        nodes = request.sender, request.to
        return not any(
            disturbance.touches(*nodes) and disturbance.end > self._end for disturbance in self._how.disturbances
        )

    def recovery(self, request: Request) -> None:
        if request.sent is None or not request.ends or request.ends[0].error:
            return
        ended = request.ends[0].at
        healed = self._healed(request, ended)
        if healed < request.sent.at:
            return
        check, bound = self._checks[RECOVERY], self._how.bound
        check.checked += 1
        self._longest = max(self._longest, ended - healed)
        if ended - healed > bound * _SECOND:
            check.add_violation(
                f"{request} was replied to {(ended - healed) / _SECOND:.3g} s after the fault had ended; at most "
                f"{bound:g} s are allowed"
            )

    def _healed(self, request: Request, until: int) -> int:
        """Return when the last disturbance of a request ended, of those that ended by `until`; -1: there was none."""
        return max(
            (
                disturbance.end
                for disturbance in self._how.disturbances
                if disturbance.end <= until and disturbance.touches(request.sender, request.to)
            ),
            default=-1,
        )

    def _words(self, handling: Handling) -> str:
        return f"endpoint {handling.by[1]} of {self._node(handling.by)} ({handling.request.place})"

    def _node(self, endpoint: Endpoint) -> str:
        rank, names = endpoint[0], self._records.names
        return names[rank] if 0 <= rank < len(names) else f"node {rank}"


def _format_end(end: RequestEnd) -> str:
    return f"returned as {end.error}" if end.error else "replied to"
