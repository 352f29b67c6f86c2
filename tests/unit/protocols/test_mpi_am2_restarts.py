"""Random sends between nodes whose NICs restart and whose wires are cut, in which MPI on AM-II may lose messages.

Invariants: no message arrives twice, changed or ahead of an earlier one; every transfer completes, fails, or waits for a
message that may still arrive; after the faults every node can send to every other.
"""

from __future__ import annotations

from hypothesis import event, given
from hypothesis import strategies as st

from protocols.am2.settings import MILLISECOND, SECOND, Settings
from protocols.core.completion import Completion
from protocols.mpi import ANY_SOURCE, ERR_PROC_FAILED
from protocols.mpi.device import ReceiveCompletion
from protocols.mpi.mpi_errors import Envelope, MPIError
from tests.unit.protocols.am2_mpi_nodes import Nodes, error_class_of

COUNT = 3
SIZES = [8, 33, 500, 4000, 20_000, 150_000]
Step = tuple[str, int, int, int]

node = st.integers(0, COUNT - 1)
send = st.tuples(st.just("send"), node, node, st.sampled_from(SIZES))
faults = [
    st.tuples(st.just("deliver"), st.integers(1, 6), st.just(0), st.just(0)),
    st.tuples(st.just("elapse"), st.sampled_from([1, 20]), st.just(0), st.just(0)),
    st.tuples(st.just("cut"), st.sampled_from([2, 30, 100, 400]), st.just(0), st.just(0)),
    st.tuples(st.just("isolate"), node, st.sampled_from([2, 30, 100, 400]), st.just(0)),
    st.tuples(st.just("restart"), node, st.just(0), st.just(0)),
]
steps = st.lists(st.one_of(send, send, send, send, faults[0], *faults), min_size=10, max_size=50)


def content(source: int, incarnation: int, number: int, size: int) -> bytes:
    header = bytes([source, incarnation]) + number.to_bytes(2) + size.to_bytes(4)
    return header.ljust(size, bytes([number % 251]))


class Trial:
    """incarnations: number of each node's incarnation. receives: pending ones of each node with their buffers, in order of
    posting. received: messages that each node has received of each incarnation of a peer."""

    def __init__(self, credits_per_peer: int) -> None:
        settings = Settings(credits=credits_per_peer, retries=3, longest_timeout=20 * MILLISECOND)
        self.nodes = Nodes(COUNT, settings)
        self.incarnations = [0] * COUNT
        self.sent_count = 0
        self.sends: list[tuple[int, int, Completion[Envelope]]] = []
        self.receives: list[dict[int, tuple[ReceiveCompletion, bytearray]]] = [{} for _ in range(COUNT)]
        self.received: list[dict[tuple[int, int], dict[int, int]]] = [{} for _ in range(COUNT)]
        self.receive_count = self.lost_count = self.received_count = 0
        for node in range(COUNT):
            self.post(node)

    def post(self, node: int) -> None:
        while len(self.receives[node]) < 4:
            self.receive_count += 1
            self.receives[node][self.receive_count] = self.nodes.receive(node, ANY_SOURCE, max(SIZES))

    def check_received(self) -> None:
        """Check the messages received since the last call."""
        for node, receives in enumerate(self.receives):
            for key, (receive, buffer) in [item for item in receives.items() if item[1][0].done]:
                del receives[key]
                try:
                    source, _, size = receive.result()
                except MPIError:
                    assert error_class_of(receive) == ERR_PROC_FAILED
                    self.lost_count += 1
                    continue
                incarnation, number = buffer[1], int.from_bytes(buffer[2:4])
                assert buffer[:size] == content(source, incarnation, number, size)
                messages = self.received[node].setdefault((source, incarnation), {})
                messages[key] = number
                in_order = [messages[message_number] for message_number in sorted(messages)]
                assert in_order == sorted(set(in_order)), "a message arrived twice, or was overtaken"
                self.received_count += 1
            self.post(node)

    def step(self, action: str, first: int, second: int, size: int) -> None:
        wires = self.nodes.wires
        if action == "send" and first != second:
            self.sent_count += 1
            data = content(first, self.incarnations[first], self.sent_count, size)
            self.sends.append((first, self.incarnations[first], self.nodes.send(first, second, data)))
        elif action == "deliver":
            for _ in range(first):
                for number in range(COUNT):
                    wires.deliver_from(number)
        elif action == "elapse":
            wires.elapse(first * MILLISECOND)
        elif action == "cut":
            self.nodes.drop_all_frames(first * MILLISECOND)
        elif action == "isolate":
            self.nodes.advance(second * MILLISECOND, lambda frame: frame[:6] == wires.addresses[first])
        elif action == "restart":
            self.nodes.restart(first)
            self.incarnations[first] += 1
            self.receives[first] = {}
            self.received[first] = {}
        self.check_received()


@given(steps, st.sampled_from([1, 4]))
def test_lost_messages_are_reported_and_no_message_arrives_twice(
    steps_taken: list[Step], credits_per_peer: int
) -> None:
    trial = Trial(credits_per_peer)
    for step in steps_taken:
        trial.step(*step)
    for _ in range(20):  # `check_received` posts the next receives
        trial.nodes.wires.elapse(SECOND)
        trial.check_received()
    for index in range(COUNT):
        for peer in range(COUNT):
            trial.nodes.send(index, peer, b"?", tag=98)  # may be lost
        trial.nodes.wires.elapse(SECOND)
    for index in range(COUNT):
        for peer in range(index):
            trial.nodes.exchange(index, peer)
            trial.nodes.exchange(peer, index)
    trial.check_received()
    for node, incarnation, completion in trial.sends:
        if incarnation == trial.incarnations[node]:
            assert completion.done
    for node in range(COUNT):
        endpoint = trial.nodes.endpoint(node)
        assert len(endpoint._staging._free) + sum(map(len, endpoint._staging._held_back.values())) == 16
        assert not any(pair.queue or pair.sending or pair.arriving or pair.early for pair in endpoint._pairs.values())
    event(f"some lost: {trial.lost_count > 0}, some received: {trial.received_count > 0}")
