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


def content(source: int, incarnation: int, number: int, size: int) -> bytes:
    head = bytes([source, incarnation]) + number.to_bytes(2) + size.to_bytes(4)
    return head.ljust(size, bytes([number % 251]))


class Trial:
    """incarnations: number of each node's incarnation. receives: pending ones of each node with their buffers, in order of
    posting. heard: messages that others have received from each incarnation."""

    def __init__(self, allowed: int) -> None:
        settings = Settings(credits=allowed, retries=3, longest_timeout=20 * MILLISECOND)
        self.nodes = Nodes(COUNT, settings)
        self.incarnations = [0] * COUNT
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
            for key, (receipt, buffer) in [item for item in receives.items() if item[1][0].done]:
                del receives[key]
                try:
                    source, _, size = receipt.result()
                except MPIError:
                    assert failure(receipt) == ERR_PROC_FAILED
                    self.lost += 1
                    continue
                incarnation, number = buffer[1], int.from_bytes(buffer[2:4])
                assert buffer[:size] == content(source, incarnation, number, size)
                messages = self.heard[node].setdefault((source, incarnation), {})
                messages[key] = number
                in_order = [messages[message_number] for message_number in sorted(messages)]
                assert in_order == sorted(set(in_order)), "it arrived twice, or was overtaken"
                self.got += 1
            self.post(node)

    def step(self, action: str, first: int, second: int, size: int) -> None:
        wires = self.nodes.wires
        if action == "send" and first != second:
            self.numbers += 1
            data = content(first, self.incarnations[first], self.numbers, size)
            self.sends.append((first, self.incarnations[first], self.nodes.send(first, second, data)))
        elif action == "go on":
            for _ in range(first):
                for number in range(COUNT):
                    for frame in wires.take(number):
                        wires.deliver(frame)
        elif action == "elapse":
            wires.elapse(first * MILLISECOND)
        elif action == "cut":
            self.nodes.drop_all_frames(first * MILLISECOND)
        elif action == "deaf":
            self.nodes.advance(second * MILLISECOND, lambda frame: frame[:6] == wires.addresses[first])
        elif action == "restart":
            self.nodes.restart(first)
            self.incarnations[first] += 1
            self.receives[first] = {}
            self.heard[first] = {}
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
        for peer in range(COUNT):
            trial.nodes.send(index, peer, b"?", tag=98)  # which need not arrive
        trial.nodes.wires.elapse(SECOND)
    for index in range(COUNT):
        for peer in range(index):
            trial.nodes.exchange(index, peer)
            trial.nodes.exchange(peer, index)
    trial.take()
    for node, incarnation, completion in trial.sends:
        if incarnation == trial.incarnations[node]:
            assert completion.done
    for node in range(COUNT):
        endpoint = trial.nodes.endpoint(node)
        assert len(endpoint._staging._free) + sum(map(len, endpoint._staging._held_back.values())) == 16
        assert not any(pair.queue or pair.sending or pair.arriving or pair.early for pair in endpoint._pairs.values())
    event(f"some lost: {trial.lost > 0}, some received: {trial.got > 0}")
