"""Ledger of a swarm case of AM-II, kept outside all NICs: the fate of every request, and the check for violations.

Each request is handled once and replied to once, or it is returned to its sender with a true reason. After an
unreachable peer or a restart the outcome may be unknown to the sender; the ledger then counts the actual one. No request
may ever be delivered or handled twice, nor by two incarnations of a NIC.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from protocols.active_messages.am_errors import Status
from protocols.am2.receiver import Delivery
from testbed.controller.conformance.trials import Violation
from tests.sim.am2_swarm_cases import BULK, CROSSBARS, NO_REPLY, Case, Request

if TYPE_CHECKING:
    from tests.sim.am2_swarm_programs import SwarmEndpoint

Name = tuple[int, int]
"""(Node, endpoint)."""

_RETURN_STATUS: Final = {
    "tag": Status.BAD_TAG,
    "endpoint": Status.BAD_ENDPOINT,
    "segment": Status.BAD_SEGMENT,
    "handler": Status.BAD_HANDLER,
}


@dataclass(slots=True)
class RequestFate:
    """Fate of a request.

    tag: of the last sending. handled: incarnations of the destination that handled it. delivered: incarnations whose NIC
    delivered it into a ring. excused: its end may be missing for a known reason. void: its sender has ended.
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
        """Return whether the request has ended for its sender."""
        is_ended = self.replied or self.returned is not None or (self.request.reply_form == NO_REPLY and self.handled)
        return bool(is_ended or self.excused or self.void)


class Ledger:
    """Ledger of all requests of a case.

    incarnations: number of each node's incarnation, from 1 on. tags: current tags of the endpoints. offsets: of bulk data
    in the destination's segment, and of bulk replies in the sender's; segment_sizes: bytes of each endpoint's segment.
    unclear: unknown outcomes, by kind.
    """

    def __init__(self, case: Case) -> None:
        self.case: Final = case
        self.fates: Final = [RequestFate(request) for request in case.requests]
        self.endpoints: Final[dict[Name, SwarmEndpoint]] = {}
        self.incarnations: Final = [1] * case.nodes
        self.tags: Final[dict[Name, int]] = {}
        self.freed: Final[set[Name]] = set()
        self.unclear: Final[Counter[str]] = Counter()
        self.offsets: Final[list[tuple[int, int]]] = []
        self.segment_sizes: Final[Counter[Name]] = Counter()
        self._numbers: dict[Delivery, int] = {}
        self._replies: Counter[int] = Counter()
        for request in case.requests:
            remote, replier = (request.sink, request.endpoint), (request.source, request.origin)
            capacity = self.segment_sizes[remote]
            self.segment_sizes[remote] += request.size if request.form == BULK else 0
            self.offsets.append((capacity, self.segment_sizes[replier]))
            self.segment_sizes[replier] += request.reply_size if request.reply_form == BULK else 0

    # Events

    def on_send(self, number: Delivery, serial: int, tag: int) -> None:
        """Record a request before it is sent, as a NIC may deliver it at once."""
        self._numbers[number] = serial
        self.fates[serial].tag = tag

    def on_not_sent(self, number: Delivery) -> None:
        del self._numbers[number]

    def on_delivery(self, delivery: Delivery) -> None:
        """Record that a NIC has put a message into an endpoint's ring."""
        serial = self._numbers.get(delivery._replace(is_reply=False))
        if serial is None:
            raise Violation(f"delivered, but not sent: {delivery}")
        fate = self.fates[serial]
        if delivery.is_reply:
            self._replies[serial] += 1
            if not fate.delivered or (self._replies[serial] > 1 and not self.case.restarts):
                raise Violation(f"{describe_fate(serial, fate)}: {self._replies[serial]} replies are delivered")
            return
        remote = (fate.request.sink, fate.request.endpoint)
        if fate.delivered:
            raise Violation(f"{describe_fate(serial, fate)} is delivered twice")
        fate.delivered.append(self.incarnations[remote[0]])
        if fate.request.defect in ("tag", "endpoint", "segment") or self.tags[remote] != fate.tag:
            raise Violation(
                f"{describe_fate(serial, fate)} is delivered under tag {fate.tag} where it is {self.tags[remote]}"
            )

    def on_handled(self, serial: int, receiver: Name) -> RequestFate:
        """Record a call of a request's handler."""
        fate = self.fates[serial]
        if (fate.request.sink, fate.request.endpoint) != receiver or fate.request.defect:
            raise Violation(f"{describe_fate(serial, fate)} is handled by endpoint {receiver[1]} of node {receiver[0]}")
        if fate.handled:
            raise Violation(f"{describe_fate(serial, fate)} is handled twice")
        if fate.returned not in (None, Status.UNREACHABLE):
            raise Violation(f"{describe_fate(serial, fate)} is handled after it was returned")
        fate.handled.append(self.incarnations[receiver[0]])
        if fate.request.reply_form == NO_REPLY:
            sender = None if fate.void else self.endpoints.get((fate.request.source, fate.request.origin))
            if sender is not None:
                sender.end(serial)
        return fate

    def on_replied(self, serial: int) -> RequestFate:
        """Record a call of a reply's handler."""
        fate = self.fates[serial]
        fate.replied += 1
        if fate.replied > 1 or not fate.handled:
            raise Violation(f"{describe_fate(serial, fate)} is replied to for the {fate.replied}. time")
        if fate.returned is not None:
            raise Violation(f"{describe_fate(serial, fate)} is replied to after it was returned")
        return fate

    def on_request_returned(self, serial: int, status: Status) -> None:
        """Record a returned request."""
        fate = self.fates[serial]
        if fate.returned is not None or fate.replied:
            raise Violation(f"{describe_fate(serial, fate)} is returned: {status.name}")
        fate.returned = status
        if status is Status.UNREACHABLE:
            self.unclear["returned, delivered" if fate.delivered else "returned, not delivered"] += 1
        self._check_returned(serial, fate, status)

    def on_reply_returned(self, serial: int, status: Status) -> None:
        """Record a returned reply: the requester may never learn of it."""
        fate = self.fates[serial]
        origin = (fate.request.source, fate.request.origin)
        if not (self.case.may_be_unreachable or origin in self.freed):
            raise Violation(f"{describe_fate(serial, fate)}: its reply is returned: {status.name}")
        self.unclear["replies returned"] += 1
        self._excuse(serial, fate)

    def _check_returned(self, serial: int, fate: RequestFate, status: Status) -> None:
        remote = (fate.request.sink, fate.request.endpoint)
        if status is Status.UNREACHABLE:
            is_true = self.case.may_be_unreachable or remote in self.freed
        else:
            is_true = not fate.handled and (not fate.delivered or status is Status.BAD_HANDLER)
            if status is Status.BAD_TAG:
                is_true &= bool(self.case.tag_change) or fate.request.defect == "tag"
            elif status is Status.BAD_ENDPOINT:
                is_notified_later = self.incarnations[remote[0]] > 1 and bool(
                    self.case.doorbell_cost
                )  # after a restart of the NIC
                is_true &= remote in self.freed or is_notified_later or fate.request.defect == "endpoint"
            else:
                is_true &= bool(fate.request.defect) and status is _RETURN_STATUS[fate.request.defect]
        if not is_true:
            raise Violation(f"{describe_fate(serial, fate)} is returned: {status.name}")

    # Ends

    def on_restart(self, node: int) -> None:
        """Record a NIC's restart: requests of its programs are void, and requests to them may never end."""
        self.incarnations[node] += 1
        for serial, fate in enumerate(self.fates):
            if fate.is_sent and fate.request.source == node:
                fate.void = True
            elif fate.is_sent and fate.request.sink == node and not fate.is_over:
                self._excuse(serial, fate)

    def on_freed(self, name: Name) -> None:
        """Record that an endpoint was freed."""
        self.freed.add(name)
        for fate in self.fates:
            request = fate.request
            if fate.is_sent and (request.source, request.origin) == name:
                fate.void = True

    def _excuse(self, serial: int, fate: RequestFate) -> None:
        """Excuse a request whose end its sender may never learn."""
        fate.excused = True
        if not fate.void:
            self.endpoints[fate.request.source, fate.request.origin].excuse(serial)

    def check(self) -> None:
        """Check every request after the end of the case. Raises Violation."""
        for serial, fate in enumerate(self.fates):
            if not fate.is_sent or fate.void:
                continue
            if fate.returned is not None:
                continue
            if fate.excused:
                has_ended = fate.replied or (fate.handled and fate.request.reply_form == NO_REPLY)
                if not (has_ended or fate.delivered):
                    raise Violation(f"{describe_fate(serial, fate)} is lost")
                if not has_ended and self.case.shape != CROSSBARS:  # there, the run ends before the keepalive
                    raise Violation(f"{describe_fate(serial, fate)} has not ended, though its peer was reachable again")
                self.unclear["end unknown to the sender"] += not has_ended
            elif fate.request.defect or not fate.handled or fate.replied != (fate.request.reply_form != NO_REPLY):
                raise Violation(f"{describe_fate(serial, fate)} has not ended")


def describe_fate(serial: int, fate: RequestFate) -> str:
    request = fate.request
    defect = f", wrong {request.defect}" if request.defect else ""
    return (
        f"request {serial} ({request.form}, {request.size}, of {request.source}.{request.origin} "
        f"to {request.sink}.{request.endpoint}{defect}; "
        f"handled {fate.handled}, replied {fate.replied}, returned {fate.returned}, delivered {fate.delivered})"
    )
