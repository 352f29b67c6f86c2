"""Random sends between nodes whose NICs restart and whose wires are cut: MPI on AM-II may lose messages then.

Invariants: no message arrives twice, changed or ahead of an earlier one; whatever is begun ends, or waits for a message
that may still come; and when all faults are over and all losses known, every node can send to every other.
"""

from __future__ import annotations

from hypothesis import event, given
from hypothesis import strategies as st

from protocols.am2.settings import MILLISECOND, SECOND, Settings
from protocols.core.completion import Completion
from protocols.mpi import ANY_SOURCE, ERR_PROC_FAILED
from protocols.mpi.device import ReceiveCompletion
from protocols.mpi.mpi_errors import Envelope, MPIError
from tests.unit.protocols.am2_mpi_nodes import Nodes, failure

COUNT = 3
SIZES = [8, 33, 500, 4000, 20_000, 150_000]
Step = tuple[str, int, int, int]

node = st.integers(0, COUNT - 1)
send = st.tuples(st.just("send"), node, node, st.sampled_from(SIZES))
rest = [
    st.tuples(st.just("go on"), st.integers(1, 6), st.just(0), st.just(0)),
    st.tuples(st.just("elapse"), st.sampled_from([1, 20]), st.just(0), st.just(0)),
    st.tuples(st.just("cut"), st.sampled_from([2, 30, 100, 400]), st.just(0), st.just(0)),
    st.tuples(st.just("deaf"), node, st.sampled_from([2, 30, 100, 400]), st.just(0)),
    st.tuples(st.just("restart"), node, st.just(0), st.just(0)),
]
steps = st.lists(st.one_of(send, send, send, send, rest[0], *rest), min_size=10, max_size=50)


def content(source: int, life: int, number: int, size: int) -> bytes:
    head = bytes([source, life]) + number.to_bytes(2) + size.to_bytes(4)
    return head.ljust(size, bytes([number % 251]))


class Trial:
    """lives: number of each node's incarnation. receives: pending ones of each node with their buffers, in order of
    posting. heard: messages that others have received from each incarnation."""

    def __init__(self, allowed: int) -> None:
        settings = Settings(credits=allowed, retries=3, longest_timeout=20 * MILLISECOND)
        self.nodes = Nodes(COUNT, settings)
        self.lives = [0] * COUNT
        self.numbers = 0
        self.sends: list[tuple[int, int, Completion[Envelope]]] = []
        self.receives: list[dict[int, tuple[ReceiveCompletion, bytearray]]] = [{} for _ in range(COUNT)]
        self.heard: list[dict[tuple[int, int], dict[int, int]]] = [{} for _ in range(COUNT)]
        self.begun = self.lost = self.got = 0
        for node in range(COUNT):
            self.post(node)

    def post(self, node: int) -> None:
        while len(self.receives[node]) < 4:
            self.begun += 1
            self.receives[node][self.begun] = self.nodes.receive(node, ANY_SOURCE, max(SIZES))

    def take(self) -> None:
        """Check the messages received since the last call."""
        for node, receives in enumerate(self.receives):
            for started, (receipt, buffer) in [one for one in receives.items() if one[1][0].done]:
                del receives[started]
                try:
                    source, _, size = receipt.result()
                except MPIError:
                    assert failure(receipt) == ERR_PROC_FAILED
                    self.lost += 1
                    continue
                life, number = buffer[1], int.from_bytes(buffer[2:4])
                assert buffer[:size] == content(source, life, number, size)
                received = self.heard[node].setdefault((source, life), {})
                received[started] = number
                in_order = [received[place] for place in sorted(received)]
                assert in_order == sorted(set(in_order)), "it came twice, or was overtaken"
                self.got += 1
            self.post(node)

    def step(self, what: str, one: int, other: int, size: int) -> None:
        wires = self.nodes.wires
        if what == "send" and one != other:
            self.numbers += 1
            data = content(one, self.lives[one], self.numbers, size)
            self.sends.append((one, self.lives[one], self.nodes.send(one, other, data)))
        elif what == "go on":
            for _ in range(one):
                for number in range(COUNT):
                    for frame in wires.take(number):
                        wires.deliver(frame)
        elif what == "elapse":
            wires.elapse(one * MILLISECOND)
        elif what == "cut":
            self.nodes.drop_all_frames(one * MILLISECOND)
        elif what == "deaf":
            self.nodes.advance(other * MILLISECOND, lambda frame: frame[:6] == wires.addresses[one])
        elif what == "restart":
            self.nodes.restart(one)
            self.lives[one] += 1
            self.receives[one] = {}
            self.heard[one] = {}
        self.take()


@given(steps, st.sampled_from([1, 4]))
def test_lost_messages_are_reported_and_no_message_arrives_twice(all_steps: list[Step], allowed: int) -> None:
    trial = Trial(allowed)
    for step in all_steps:
        trial.step(*step)
    for _ in range(20):  # receives are begun as messages come
        trial.nodes.wires.elapse(SECOND)
        trial.take()
    for index in range(COUNT):
        for other in range(COUNT):
            trial.nodes.send(index, other, b"?", tag=98)  # of which nobody need hear
        trial.nodes.wires.elapse(SECOND)
    for index in range(COUNT):
        for other in range(index):
            trial.nodes.exchange(index, other)
            trial.nodes.exchange(other, index)
    trial.take()
    for node, life, completion in trial.sends:
        if life == trial.lives[node]:
            assert completion.done
    for node in range(COUNT):
        endpoint = trial.nodes.endpoint(node)
        assert len(endpoint._staging._free) + sum(map(len, endpoint._staging._held_back.values())) == 16
        assert not any(pair.queue or pair.sending or pair.arriving or pair.early for pair in endpoint._pairs.values())
    event(f"some lost: {trial.lost > 0}, some received: {trial.got > 0}")
