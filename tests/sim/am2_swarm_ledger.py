"""Ledger of a swarm case of AM-II, kept outside all NICs: the fate of every request, and which fates are violations.

Each request is handled once and replied to once, or it comes back to its sender, with a reason that is true. Where a NIC has
taken another one for unreachable, or has restarted, that cannot be: there the truth is looked up, and counted. But no
request is ever delivered or handled twice, not by two lives of a NIC either.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from protocols.active_messages.am_errors import Status
from protocols.am2.receiver import Delivery
from testbed.controller.conformance.trials import Violation
from tests.sim.am2_swarm_cases import BULK, NOTHING, Case, Request

if TYPE_CHECKING:
    from tests.sim.am2_swarm_programs import SwarmEndpoint

Name = tuple[int, int]
"""A node, and an endpoint of it."""

_COMES_BACK: Final = {
    "tag": Status.BAD_TAG,
    "endpoint": Status.BAD_ENDPOINT,
    "segment": Status.BAD_SEGMENT,
    "handler": Status.BAD_HANDLER,
}


@dataclass(slots=True)
class RequestFate:
    """Fate of a request.

    tag: tag of the sending. handled: incarnations of its destination that handled it. delivered: into a ring, as the NIC
    reports, by which incarnations. excused: there is a reason for its missing end. void: its sender is gone.
    """

    request: Request
    is_sent: bool = False
    tag: int = 0
    handled: list[int] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)
    replied: int = 0
    returned: Status | None = None
    excused: bool = False
    void: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the request has ended as far as its sender can learn."""
        ended = self.replied or self.returned is not None or (self.request.answer == NOTHING and self.handled)
        return bool(ended or self.excused or self.void)


class Ledger:
    """Ledger of all requests of a case.

    lives: number of each node's incarnation, from 1 on. tags: present ones of the endpoints. offsets: places of bulk
    data in the destination's segment, and for bulk replies in the sender's; rooms: bytes of each endpoint's segment.
    unclear: outcomes that cannot be known, by kind.
    """

    def __init__(self, case: Case) -> None:
        self.case: Final = case
        self.courses: Final = [RequestFate(request) for request in case.requests]
        self.talkers: Final[dict[Name, SwarmEndpoint]] = {}
        self.lives: Final = [1] * case.nodes
        self.tags: Final[dict[Name, int]] = {}
        self.freed: Final[set[Name]] = set()
        self.unclear: Final[Counter[str]] = Counter()
        self.offsets: Final[list[tuple[int, int]]] = []
        self.rooms: Final[Counter[Name]] = Counter()
        self._numbers: dict[Delivery, int] = {}
        self._replies: Counter[int] = Counter()
        for one in case.requests:
            remote, local = (one.sink, one.endpoint), (one.source, one.origin)
            at = self.rooms[remote]
            self.rooms[remote] += one.size if one.form == BULK else 0
            self.offsets.append((at, self.rooms[local]))
            self.rooms[local] += one.answered if one.answer == BULK else 0

    # What happens.

    def sends(self, number: Delivery, serial: int, tag: int) -> None:
        """Record a request before it is sent, as a NIC may deliver it at once."""
        self._numbers[number] = serial
        self.courses[serial].tag = tag

    def does_not_send(self, number: Delivery) -> None:
        del self._numbers[number]

    def on_delivery(self, delivery: Delivery) -> None:
        """A NIC puts a message into an endpoint's ring."""
        serial = self._numbers.get(delivery._replace(is_reply=False))
        if serial is None:
            raise Violation(f"it is delivered, and was not sent: {delivery}")
        course = self.courses[serial]
        if delivery.is_reply:
            self._replies[serial] += 1
            if not course.delivered or (self._replies[serial] > 1 and not self.case.restarts):
                raise Violation(f"{describe_fate(serial, course)}: {self._replies[serial]} replies are delivered")
            return
        remote = (course.request.sink, course.request.endpoint)
        if course.delivered:
            raise Violation(f"{describe_fate(serial, course)} is delivered twice")
        course.delivered.append(self.lives[remote[0]])
        if course.request.wrong in ("tag", "endpoint", "segment") or self.tags[remote] != course.tag:
            raise Violation(
                f"{describe_fate(serial, course)} is delivered under tag {course.tag} where it is {self.tags[remote]}"
            )

    def handles(self, serial: int, by: Name) -> RequestFate:
        """A request's handler is called."""
        course = self.courses[serial]
        if (course.request.sink, course.request.endpoint) != by or course.request.wrong:
            raise Violation(f"{describe_fate(serial, course)} is handled by endpoint {by[1]} of node {by[0]}")
        if course.handled:
            raise Violation(f"{describe_fate(serial, course)} is handled twice")
        if course.returned not in (None, Status.UNREACHABLE):
            raise Violation(f"{describe_fate(serial, course)} is handled, and has come back")
        course.handled.append(self.lives[by[0]])
        if course.request.answer == NOTHING:
            talker = None if course.void else self.talkers.get((course.request.source, course.request.origin))
            if talker is not None:
                talker.ended(serial)
        return course

    def is_replied(self, serial: int) -> RequestFate:
        """A reply's handler is called."""
        course = self.courses[serial]
        course.replied += 1
        if course.replied > 1 or not course.handled:
            raise Violation(f"{describe_fate(serial, course)} is replied to for the {course.replied}. time")
        if course.returned is not None:
            raise Violation(f"{describe_fate(serial, course)} is replied to, and has come back")
        return course

    def comes_back(self, serial: int, status: Status) -> None:
        """A request does."""
        course = self.courses[serial]
        if course.returned is not None or course.replied:
            raise Violation(f"{describe_fate(serial, course)} comes back: {status.name}")
        course.returned = status
        if status is Status.UNREACHABLE:
            self.unclear["came back, delivered" if course.delivered else "came back, not delivered"] += 1
        self._may_come_back(serial, course, status)

    def reply_comes_back(self, serial: int, status: Status) -> None:
        """Record a returned reply: the requester may never learn of it."""
        course = self.courses[serial]
        local = (course.request.source, course.request.origin)
        if not (self.case.may_lose_touch or local in self.freed):
            raise Violation(f"{describe_fate(serial, course)}: its reply comes back: {status.name}")
        self.unclear["replies came back"] += 1
        self._excuse(serial, course)

    def _may_come_back(self, serial: int, course: RequestFate, status: Status) -> None:
        remote = (course.request.sink, course.request.endpoint)
        if status is Status.UNREACHABLE:
            true = self.case.may_lose_touch or remote in self.freed
        else:
            true = not course.handled and (not course.delivered or status is Status.BAD_HANDLER)
            if status is Status.BAD_TAG:
                true &= bool(self.case.changing) or course.request.wrong == "tag"
            elif status is Status.BAD_ENDPOINT:
                is_told_later = self.lives[remote[0]] > 1 and bool(self.case.priced)  # a NIC that has restarted
                true &= remote in self.freed or is_told_later or course.request.wrong == "endpoint"
            else:
                true &= bool(course.request.wrong) and status is _COMES_BACK[course.request.wrong]
        if not true:
            raise Violation(f"{describe_fate(serial, course)} comes back: {status.name}")

    # What has an end there.

    def starts_again(self, node: int) -> None:
        """Record a NIC's restart: requests of its programs are void, and requests to them may never end."""
        self.lives[node] += 1
        for serial, course in enumerate(self.courses):
            if course.is_sent and course.request.source == node:
                course.void = True
            elif course.is_sent and course.request.sink == node and not course.is_over:
                self._excuse(serial, course)

    def is_freed(self, name: Name) -> None:
        """An endpoint is."""
        self.freed.add(name)
        for course in self.courses:
            one = course.request
            if course.is_sent and (one.source, one.origin) == name:
                course.void = True

    def _excuse(self, serial: int, course: RequestFate) -> None:
        """Excuse a request whose end its sender may never learn."""
        course.excused = True
        if not course.void:
            self.talkers[course.request.source, course.request.origin].excuse(serial)

    def check(self) -> None:
        """Check every request after the end of the case. Raises Violation."""
        for serial, course in enumerate(self.courses):
            if not course.is_sent or course.void:
                continue
            if course.returned is not None:
                continue
            if course.excused:
                if not (course.replied or course.delivered):
                    raise Violation(f"{describe_fate(serial, course)} is lost")
                self.unclear["no end heard of"] += not course.replied
            elif course.request.wrong or not course.handled or course.replied != (course.request.answer != NOTHING):
                raise Violation(f"{describe_fate(serial, course)} has no end")


def describe_fate(serial: int, course: RequestFate) -> str:
    one = course.request
    wrong = f", wrong {one.wrong}" if one.wrong else ""
    return (
        f"request {serial} ({one.form}, {one.size}, of {one.source}.{one.origin} to {one.sink}.{one.endpoint}{wrong}; "
        f"handled {course.handled}, replied {course.replied}, returned {course.returned}, delivered {course.delivered})"
    )
