"""Messages of Open-MX between the endpoints of a test, and their invariants.

Each message states its direction and number. Under all faults a direction's messages are received at most once, unchanged,
and in order; a message whose send succeeded has been received.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from protocols.openmx.endpoint import Endpoint
from protocols.openmx.mx_names import MATCH_NONE, Status
from protocols.openmx.mx_requests import Request
from protocols.openmx.partners import Partner
from tests.unit.protocols.openmx_pair import pattern

Direction = tuple[int, int]
"""Numbers of two endpoints of a test: source, sink."""
ANY_SOURCE: Final = -1
HEADER_SIZE: Final = 4
"""Bytes of a message's header: its direction and number."""


class Sent(NamedTuple):
    """A send. number: in its direction. statuses: its final status, once it is known."""

    number: int
    statuses: list[Status]


class Posted(NamedTuple):
    """A receive. source: the endpoint whose messages it matches, or ANY_SOURCE."""

    source: int
    request: Request
    buffer: bytearray


def message(direction: Direction, number: int, size: int) -> bytes:
    return bytes((*direction, number >> 8, number & 0xFF)) + pattern(size)[HEADER_SIZE:]


class Ledger:
    """All sends and receives. max_size: bytes of the longest message."""

    def __init__(self, max_size: int) -> None:
        self.max_size: Final = max_size
        self.sent: Final[dict[Direction, list[Sent]]] = {}
        self.posted: Final[dict[int, list[Posted]]] = {}

    def send(self, end: Endpoint, partner: Partner, direction: Direction, size: int, *, synchronous: bool) -> Request:
        """Send the next message of a direction; its buffer is overwritten as soon as the send is done."""
        earlier_sends = self.sent.setdefault(direction, [])
        data = bytearray(message(direction, len(earlier_sends), size))
        request, statuses = (end.issend if synchronous else end.isend)([data], partner, direction[0]), list[Status]()
        request.on_arrival = statuses.append
        if request.is_settled:
            statuses.append(request.result().status)
        request.add_callback(lambda _: data.__setitem__(slice(None), bytes(len(data))))
        earlier_sends.append(Sent(len(earlier_sends), statuses))
        return request

    def receive(self, end: Endpoint, sink: int, source: int = ANY_SOURCE) -> Request:
        """Post a receive for the next message of a source."""
        buffer = bytearray(self.max_size)
        mask = 0 if source == ANY_SOURCE else MATCH_NONE
        request = end.irecv(buffer, max(source, 0), mask)
        self.posted.setdefault(sink, []).append(Posted(source, request, buffer))
        return request

    def received(self, sink: int) -> dict[Direction, list[int]]:
        """Return the numbers of the messages that an endpoint has received, in the order of its receives. AssertionError if
        one is changed."""
        numbers: dict[Direction, list[int]] = {}
        for source, request, buffer in self.posted.get(sink, ()):
            if not request.done or request.result().status is not Status.SUCCESS:
                continue
            length = request.result().length
            direction, number = (buffer[0], buffer[1]), buffer[2] << 8 | buffer[3]
            assert direction[1] == sink, f"endpoint {sink} has received a message for {direction[1]}"
            assert source in (ANY_SOURCE, direction[0]), (
                f"{direction}: message {number} matched a receive for endpoint {source}"
            )
            assert bytes(buffer[:length]) == message(direction, number, length), (
                f"{direction}: message {number} is changed"
            )
            numbers.setdefault(direction, []).append(number)
        return numbers

    def check(self, is_complete: bool, may_err: Callable[[Direction], bool]) -> None:
        """Check the invariants; raise AssertionError for a violation. is_complete: nothing may be missing. may_err:
        whether a direction's sends may succeed whose messages were not received."""
        for sink in {sink for _, sink in self.sent}:
            received = self.received(sink)
            for direction, numbers in received.items():
                assert numbers == sorted(set(numbers)), f"{direction}: received twice or out of order: {numbers}"
            for direction, sent in self.sent.items():
                if direction[1] == sink:
                    self._check_arrived(direction, sent, received.get(direction, []), is_complete, may_err(direction))

    @staticmethod
    def _check_arrived(
        direction: Direction, sent: list[Sent], numbers: list[int], is_complete: bool, may_err: bool
    ) -> None:
        arrived = [entry.number for entry in sent if entry.statuses == [Status.SUCCESS]]
        lost_numbers = Counter(arrived) - Counter(numbers)
        assert not lost_numbers or may_err, f"{direction}: sent successfully, but not received: {sorted(lost_numbers)}"
        assert not is_complete or numbers == list(range(len(sent))), (
            f"{direction}: of {len(sent)} messages only {numbers} were received"
        )
