"""Messages of Open-MX between the endpoints of a test, and their invariants.

Each message names its direction and number. Whatever happens, a direction's messages are received at most once, unchanged,
and in order; what a send says has arrived has been received.
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
"""The numbers of two endpoints of a test: source, sink."""
ANYONE: Final = -1
HEAD: Final = 4
"""Bytes at a message's beginning that name its direction and number."""


class Sent(NamedTuple):
    """A send. number: in its direction. told: its final status, as soon as it is known."""

    number: int
    told: list[Status]


class Posted(NamedTuple):
    """A receive. source: the endpoint whose messages it matches, or ANYONE."""

    source: int
    request: Request
    buffer: bytearray


def message(direction: Direction, number: int, size: int) -> bytes:
    return bytes((*direction, number >> 8, number & 0xFF)) + pattern(size)[HEAD:]


class Ledger:
    """All sends and receives. largest: bytes of the longest message."""

    def __init__(self, largest: int) -> None:
        self.largest: Final = largest
        self.sent: Final[dict[Direction, list[Sent]]] = {}
        self.posted: Final[dict[int, list[Posted]]] = {}

    def send(self, end: Endpoint, partner: Partner, direction: Direction, size: int, *, synchronous: bool) -> Request:
        """Send the next message of a direction; its memory has other bytes as soon as the send is done."""
        earlier_sends = self.sent.setdefault(direction, [])
        data = bytearray(message(direction, len(earlier_sends), size))
        request, statuses = (end.issend if synchronous else end.isend)([data], partner, direction[0]), list[Status]()
        request.on_arrival = statuses.append
        if request.is_settled:
            statuses.append(request.result().status)
        request.add_callback(lambda _: data.__setitem__(slice(None), bytes(len(data))))
        earlier_sends.append(Sent(len(earlier_sends), statuses))
        return request

    def receive(self, end: Endpoint, sink: int, source: int = ANYONE) -> Request:
        """Post a receive for the next message of a source."""
        buffer = bytearray(self.largest)
        mask = 0 if source == ANYONE else MATCH_NONE
        request = end.irecv(buffer, max(source, 0), mask)
        self.posted.setdefault(sink, []).append(Posted(source, request, buffer))
        return request

    def received(self, sink: int) -> dict[Direction, list[int]]:
        """Return the numbers of the messages that an endpoint has received, in the order of its receives. AssertionError if
        one is changed."""
        samples: dict[Direction, list[int]] = {}
        for source, request, buffer in self.posted.get(sink, ()):
            if not request.done or request.result().status is not Status.SUCCESS:
                continue
            length = request.result().length
            direction, number = (buffer[0], buffer[1]), buffer[2] << 8 | buffer[3]
            assert direction[1] == sink, f"endpoint {sink} has received a message for {direction[1]}"
            assert source in (ANYONE, direction[0]), f"{direction}: message {number} matches another receive"
            assert bytes(buffer[:length]) == message(direction, number, length), (
                f"{direction}: message {number} is changed"
            )
            samples.setdefault(direction, []).append(number)
        return samples

    def check(self, is_complete: bool, may_err: Callable[[Direction], bool]) -> None:
        """is_complete: nothing may be missing. may_err: whether a direction's messages may count as arrived that are not.
        AssertionError."""
        for sink in {sink for _, sink in self.sent}:
            received = self.received(sink)
            for direction, numbers in received.items():
                assert numbers == sorted(set(numbers)), f"{direction}: twice, or out of order: {numbers}"
            for direction, sent in self.sent.items():
                if direction[1] == sink:
                    self._check_arrived(direction, sent, received.get(direction, []), is_complete, may_err(direction))

    @staticmethod
    def _check_arrived(
        direction: Direction, sent: list[Sent], numbers: list[int], is_complete: bool, may_err: bool
    ) -> None:
        arrived = [entry.number for entry in sent if entry.told == [Status.SUCCESS]]
        lost_numbers = Counter(arrived) - Counter(numbers)
        assert not lost_numbers or may_err, (
            f"{direction}: said to have arrived, but not received: {sorted(lost_numbers)}"
        )
        assert not is_complete or numbers == list(range(len(sent))), f"{direction}: lost, of {len(sent)}: {numbers}"
