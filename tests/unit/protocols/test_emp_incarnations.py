"""EMP's NICs restart at random moments, with frames of all incarnations in flight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.core.completion import Completion
from protocols.core.firmware import FIRST
from protocols.emp.host import ANY_SOURCE, ANY_TAG, EmpError, ReceiveResult
from tests.unit.protocols.emp_dialogue import TIME_AS_INCARNATION, hosts, joined_nics

MAX_SIZE = 4000


@dataclass
class SentMessage:
    """A sent message. Times are numbers of events. arrivals: of all incarnations of the destination."""

    source: int
    incarnation: int
    arrivals: list[int] = field(default_factory=list)
    completed_at: int | None = None
    failed: bool = False


class RestartingNics:
    """NICs whose hosts keep four receives posted and send to one another."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.wires, _ = joined_nics(
            self.random.choice([2, 3]), incarnation=self.random.choice([FIRST, FIRST, TIME_AS_INCARNATION])
        )
        self.count = len(self.wires.agents)
        self.sent: list[SentMessage] = []
        self._in_flight: list[tuple[int, bytes]] = []
        self._event_count = 0
        self._round = 0
        for number in range(self.count):
            self._post_receives(number)

    def run(self) -> None:
        loss = self.random.choice([0, 0.05, 0.3])
        for _ in range(150):
            if self.random.random() < 0.6:
                self._send(self.random.randrange(self.count), self.random.randrange(self.count))
            if self.random.random() < 0.03:
                number = self.random.randrange(self.count)
                self.wires.restart(number)
                self._post_receives(number)
            self._deliver(loss, 15)
            if self.random.random() < 0.3:
                self.wires.tick()
        # A NIC is notified of a peer's restart only by a frame of the peer: let all pairs communicate.
        for source in range(self.count):
            for destination in range(self.count):
                self._send(source, destination)
        for _ in range(2000):
            if not self._deliver(0, 1) and not self.wires.tick():
                return
        raise AssertionError(self.wires.pending_work())

    def _send(self, source: int, destination: int) -> None:
        message = SentMessage(source, self.wires.incarnations[source])
        number = len(self.sent).to_bytes(4, "big")
        size = self.random.choice([4, 1000, MAX_SIZE])
        self.sent.append(message)

        def on_completion(completion: Completion[ReceiveResult]) -> None:
            self._event_count += 1
            try:
                completion.result()
                message.completed_at = self._event_count
            except EmpError:
                message.failed = True

        content = (number * (size // 4))[:size]
        hosts(self.wires)[source].post_send(destination, 0, content).add_callback(on_completion)

    def _post_receives(self, number: int) -> None:
        for _ in range(4):
            self._make_post(number)()

    def _make_post(self, number: int) -> Callable[[], None]:
        host = hosts(self.wires)[number]

        def post() -> None:
            buffer = bytearray(MAX_SIZE)

            def on_completion(completion: Completion[ReceiveResult]) -> None:
                self._event_count += 1
                try:
                    envelope = completion.result()
                except EmpError:
                    pass  # its sender has restarted
                else:
                    message = self.sent[int.from_bytes(buffer[:4], "big")]
                    assert buffer[: envelope.length] == buffer[:4] * (envelope.length // 4), (
                        "a buffer has the data of one message"
                    )
                    assert envelope.source == message.source
                    message.arrivals.append(self._event_count)
                post()

            host.post_receive(ANY_SOURCE, ANY_TAG, buffer).add_callback(on_completion)

        return post

    def _deliver(self, loss: float, delay: int) -> bool:
        self._round += 1
        for number in range(self.count):
            for frame in self.wires.take(number):
                for _ in range(2 if self.random.random() < loss else 1):
                    if self.random.random() >= loss:
                        self._in_flight.append((self._round + self.random.randrange(delay), frame))
        due_frames = [frame for time, frame in self._in_flight if time <= self._round]
        self._in_flight = [(time, frame) for time, frame in self._in_flight if time > self._round]
        for frame in due_frames:
            self.wires.deliver(frame)
        return bool(due_frames or self._in_flight)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_no_message_is_received_twice_or_lost_silently_when_nics_restart(seed: int) -> None:
    nics = RestartingNics(seed)
    nics.run()
    for message in nics.sent:
        assert len(message.arrivals) <= 1, "at most one incarnation of a NIC receives a message, and once"
        if message.completed_at is not None:
            assert message.arrivals, "a completed message was received"
            assert message.arrivals[0] < message.completed_at, "it was received before its completion"
        elif message.incarnation == nics.wires.incarnations[message.source]:
            assert message.failed, "each send of a host that has not restarted completes or fails"
    for number, host in enumerate(hosts(nics.wires)):
        assert host.free_descriptors == 640 - 4
        assert host.pinned == 4
        assert len(host.pending_work()) == 4, number
