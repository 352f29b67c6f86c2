"""EMP's NICs restart at random moments, with frames of all incarnations in flight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.core.completion import Completion
from protocols.core.firmware import FIRST
from protocols.emp.host import ANY_SOURCE, ANY_TAG, EmpError, Received
from tests.unit.protocols.emp_dialogue import A_TIME, hosts, joined_nics

ROOM = 4000


@dataclass
class Sent:
    """Sent message. Times are numbers of events; `came`: arrivals at any incarnation of the destination."""

    source: int
    incarnation: int
    came: list[int] = field(default_factory=list)
    done: int | None = None
    failed: bool = False


class Lives:
    """NICs whose hosts keep four receives posted and send to one another."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.wires, _ = joined_nics(self.random.choice([2, 3]), incarnation=self.random.choice([FIRST, FIRST, A_TIME]))
        self.count = len(self.wires.agents)
        self.sent: list[Sent] = []
        self._flying: list[tuple[int, bytes]] = []
        self._happened = 0
        self._round = 0
        for number in range(self.count):
            self._listen(number)

    def run(self) -> None:
        loss = self.random.choice([0, 0.05, 0.3])
        for _ in range(150):
            if self.random.random() < 0.6:
                self._send(self.random.randrange(self.count), self.random.randrange(self.count))
            if self.random.random() < 0.03:
                number = self.random.randrange(self.count)
                self.wires.restart(number)
                self._listen(number)
            self._carry(loss, 15)
            if self.random.random() < 0.3:
                self.wires.tick()
        # Who is told nothing by a peer that has restarted cannot know of it.
        for source in range(self.count):
            for destination in range(self.count):
                self._send(source, destination)
        for _ in range(2000):
            if not self._carry(0, 1) and not self.wires.tick():
                return
        raise AssertionError(self.wires.waiting())

    def _send(self, source: int, destination: int) -> None:
        sent = Sent(source, self.wires.incarnations[source])
        name = len(self.sent).to_bytes(4, "big")
        size = self.random.choice([4, 1000, ROOM])
        self.sent.append(sent)

        def over(completion: Completion[Received]) -> None:
            self._happened += 1
            try:
                completion.result()
                sent.done = self._happened
            except EmpError:
                sent.failed = True

        content = (name * (size // 4))[:size]
        hosts(self.wires)[source].post_send(destination, 0, content).add_callback(over)

    def _listen(self, number: int) -> None:
        for _ in range(4):
            self._receiver(number)()

    def _receiver(self, number: int) -> Callable[[], None]:
        host = hosts(self.wires)[number]

        def post() -> None:
            buffer = bytearray(ROOM)

            def over(completion: Completion[Received]) -> None:
                self._happened += 1
                try:
                    received = completion.result()
                except EmpError:
                    pass  # its sender has restarted
                else:
                    sent = self.sent[int.from_bytes(buffer[:4], "big")]
                    assert buffer[: received.length] == buffer[:4] * (received.length // 4), "no two messages are mixed"
                    assert received.source == sent.source
                    sent.came.append(self._happened)
                post()

            host.post_receive(ANY_SOURCE, ANY_TAG, buffer).add_callback(over)

        return post

    def _carry(self, loss: float, delay: int) -> bool:
        self._round += 1
        for number in range(self.count):
            for frame in self.wires.take(number):
                for _ in range(2 if self.random.random() < loss else 1):
                    if self.random.random() >= loss:
                        self._flying.append((self._round + self.random.randrange(delay), frame))
        due = [frame for when, frame in self._flying if when <= self._round]
        self._flying = [one for one in self._flying if one[0] > self._round]
        for frame in due:
            self.wires.give(frame)
        return bool(due or self._flying)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_however_nics_start_again_no_message_is_received_twice_and_none_is_lost_unsaid(seed: int) -> None:
    lives = Lives(seed)
    lives.run()
    for sent in lives.sent:
        assert len(sent.came) <= 1, "of all incarnations of a NIC, one receives a message, and once"
        if sent.done is not None:
            assert sent.came, "what is done has been received"
            assert sent.came[0] < sent.done, "and is not received any more"
        elif sent.incarnation == lives.wires.incarnations[sent.source]:
            assert sent.failed, "a host that is still there knows what became of it"
    for number, host in enumerate(hosts(lives.wires)):
        assert host.free == 640 - 4
        assert host.pinned == 4
        assert len(host.waiting()) == 4, number
