"""SSAM between two nodes: windows, held replies, lost and duplicated cells, restarts, and forbidden calls in handlers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.l2 import Ether

from protocols.active_messages.am_errors import RuleError
from protocols.atm.cell import CELL, ETHERNET, HEADER, PAYLOAD, Circuit, circuit, circuit_of, header
from protocols.atm.fields import ETHERTYPE
from protocols.atm.frames import Cell
from protocols.core.completion import Completion
from protocols.core.host_work import ANYWHERE, ZERO_COST_WORK
from protocols.ssam import cells
from protocols.ssam.cells import (
    ACKNOWLEDGEMENT,
    BYTES,
    DATA,
    INTRODUCTION,
    LONG,
    REPLY,
    REQUEST,
    SEQUENCE_NUMBERS,
    Message,
    crc10,
    unpack,
    with_crc,
)
from protocols.ssam.frames import Ssam
from protocols.ssam.host import Reply, Returned, ReturnedError
from protocols.ssam.sba100 import (
    BATCH,
    CELL_CALL,
    CELL_READ,
    READ_CALL,
    READ_TRAP,
    SLOT_SIZE,
    WRITE_CALL,
    WRITE_READ_TRAP,
    Process,
    TrapError,
)
from protocols.ssam.settings import MAX_WINDOW, Settings
from tests.unit.protocols import ssam_walks
from tests.unit.protocols.mutants import Mutant, find
from tests.unit.protocols.ssam_messages import fields_of, write_payload
from tests.unit.protocols.ssam_mutants import WALKED
from tests.unit.protocols.ssam_pair import ADDRESSES, COUNT, ECHO, ECHOED, TIMEOUT, Node, Pair, kind_of, run

# Cells.


def test_the_check_is_aal34s_crc_10() -> None:
    """The remainder of a payload with its check is 0; x^10 leaves the generator without its leading term."""
    assert crc10((1 << 10).to_bytes(PAYLOAD, "big")) == 0x233
    payload = with_crc(bytes(range(PAYLOAD - 2)) + b"\xb0\0")
    assert crc10(payload) == 0
    for bit in range(8 * PAYLOAD):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        assert crc10(damaged) != 0


@given(st.binary(min_size=PAYLOAD, max_size=PAYLOAD))
def test_the_check_is_the_remainder_of_the_payloads_bits(payload: bytes) -> None:
    remainder = int.from_bytes(payload, "big")
    for power in range(8 * PAYLOAD - 1, 9, -1):
        if remainder >> power & 1:
            remainder ^= 0x633 << power - 10
    assert crc10(payload) == remainder


messages = st.builds(
    Message,
    st.sampled_from([REQUEST, REPLY]),
    st.integers(0, 255),
    st.integers(0, 63),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=DATA),
)


@given(
    st.builds(Message, st.just(BYTES), st.integers(0, 255), st.integers(0, 63), st.just(0), st.binary(max_size=LONG))
)
def test_a_cell_of_a_long_message_has_data_in_place_of_a_handler(message: Message) -> None:
    buffer = bytearray(PAYLOAD)
    write_payload(buffer, 0, message)
    assert fields_of(unpack(with_crc(buffer))) == fields_of(message)


@given(messages)
def test_a_written_message_is_read_unchanged_and_equals_scapys_layer(message: Message) -> None:
    buffer = bytearray(b"\xff" * 3 * SLOT_SIZE)
    write_payload(buffer, SLOT_SIZE, message)
    assert set(buffer[:SLOT_SIZE] + buffer[SLOT_SIZE + PAYLOAD :]) == {0xFF}, "nothing outside of it is written"
    payload = with_crc(buffer[SLOT_SIZE : SLOT_SIZE + PAYLOAD])
    assert fields_of(unpack(payload)) == fields_of(message)
    layer = Ssam(
        kind=message.kind, session=message.session, number=message.number, handler=message.handler,
        data=message.data, length=len(message.data) + 4,
    )  # fmt: skip
    assert bytes(layer) == payload
    dissected = Ether(bytes(Ether(type=ETHERTYPE)) + header(Circuit(0, 40)) + payload)
    assert (dissected[Cell].vci, dissected[Ssam].handler, dissected[Ssam].number) == (
        40,
        message.handler,
        message.number,
    )


@given(st.binary(min_size=PAYLOAD, max_size=PAYLOAD))
def test_any_payload_is_decoded_or_rejected(payload: bytes) -> None:
    message = unpack(payload)
    min_size = 0 if payload[0] >> 6 == BYTES else 4
    assert (message is None) == (crc10(payload) != 0 or not min_size <= payload[-2] >> 2 <= LONG)


# Requests and replies.


def test_a_request_runs_its_handler_and_the_reply_runs_its_own() -> None:
    pair = Pair()
    first, second = pair.nodes
    run(first.library.request(1, ECHO, b"forty bytes at most"))
    pair.settle()
    assert first.echoed == [b"forty bytes at most"]
    assert second.counters()["handled"] == first.counters()["replies"] == 1
    assert first.library.pending_work() == second.library.pending_work() == []


def test_a_request_without_a_reply_is_acknowledged() -> None:
    pair = Pair()
    run(pair.nodes[0].library.request(1, COUNT, b"x"))
    pair.settle()
    assert pair.nodes[1].counted == [b"x"]
    assert pair.nodes[0].counters()["acknowledged"] == 1


def test_a_node_may_send_to_itself() -> None:
    pair = Pair()
    run(pair.nodes[0].library.request(0, ECHO, b"self"))
    pair.nodes[0].library.handle_all()
    assert pair.nodes[0].echoed == [b"self"]
    assert not pair.nodes[0].outgoing


def deliver_without_polls(pair: Pair) -> None:
    """Deliver all cells to the interfaces, while no program polls."""
    while any(node.outgoing for node in pair.nodes):
        for node, peer in (pair.nodes, pair.nodes[::-1]):
            while node.outgoing:
                peer.device.receive(0, node.outgoing.popleft())


def test_a_request_handles_the_cells_that_have_arrived_before_it() -> None:
    """Section 3.1.1: the network is polled every time a message is sent."""
    pair = Pair()
    first, second = pair.nodes
    run(first.library.request(1, COUNT, b"first"))
    pair.settle()
    run(first.library.request(1, COUNT, b"second"))
    deliver_without_polls(pair)
    assert second.counted == [b"first"]
    run(second.library.request(0, COUNT))
    assert second.counted == [b"first", b"second"]


@pytest.mark.parametrize("interrupts", [False, True])
def test_with_interrupts_handlers_run_when_a_cell_arrives_without_a_poll(interrupts: bool) -> None:
    pair = Pair(settings=Settings(interrupts=interrupts))
    first, second = pair.nodes
    run(first.library.request(1, ECHO, b"x"))
    deliver_without_polls(pair)
    assert first.echoed == ([b"x"] if interrupts else [])
    assert second.counters().get("handled", 0) == interrupts


def test_the_window_stops_a_sender_until_answers_arrive() -> None:
    pair = Pair(settings=Settings(window=4))
    library = pair.nodes[0].library
    assert [library.try_request(1, COUNT, bytes((number,))) for number in range(6)] == [True] * 4 + [False] * 2
    pending = library.request(1, COUNT, b"\4")
    awaited = pending.send(None)
    assert isinstance(awaited, Completion)
    pair.settle()
    assert awaited.done
    run(pending)
    pair.settle()
    assert pair.nodes[1].counted == [bytes((number,)) for number in range(5)]


def test_a_lost_request_is_resent_as_soon_as_the_next_one_has_arrived() -> None:
    lost_frames: list[bytes] = []

    def lose_once(frame: bytes) -> bool:
        if kind_of(frame) == REQUEST and frame[ETHERNET + HEADER + 6] == 1 and not lost_frames:
            lost_frames.append(frame)
            return True
        return False

    pair = Pair(lose_once)
    for number in range(4):
        assert pair.nodes[0].library.try_request(1, COUNT, bytes((number,)))
    pair.settle()
    assert pair.nodes[1].counted == [bytes((number,)) for number in range(4)]
    assert pair.nodes[0].counters()["hurried"] == 1
    assert "resent" not in pair.nodes[0].counters(), "no timeout was needed"


@pytest.mark.parametrize("kind", [REPLY, ACKNOWLEDGEMENT])
def test_a_duplicate_request_is_answered_with_the_held_answer_and_not_handled_again(kind: int) -> None:
    """Section 3.3.1: a duplicate may mean that the reply was lost."""
    lost_frames: list[bytes] = []

    def lose_once(frame: bytes) -> bool:
        if kind_of(frame) == kind and not lost_frames:
            lost_frames.append(frame)
            return True
        return False

    pair = Pair(lose_once)
    first, second = pair.nodes
    run(first.library.request(1, ECHO if kind == REPLY else COUNT, b"once"))
    pair.settle(timeouts=3)
    assert second.counters()["handled"] == 1
    assert second.counters()["answered_again"] == 1
    assert first.echoed + second.counted == [b"once"]
    assert first.library.pending_work() == []


def test_answers_are_held_for_their_own_requests_over_many_windows() -> None:
    """Slots of answers are reused only for requests whose sender has received all earlier answers."""
    pair = Pair(settings=Settings(window=32))
    first = pair.nodes[0]
    for number in range(100):
        run(first.library.request(1, ECHO, bytes((number,))))
        pair.settle()
    assert not first.outgoing
    assert first.echoed == [bytes((number,)) for number in range(100)]


@pytest.mark.parametrize("first", [0, 100])
def test_every_request_is_handled_once_and_in_order_whatever_is_lost_or_duplicated(first: int) -> None:
    for seed in range(first, first + 60):
        ssam_walks.trial(seed)


@pytest.mark.requires("interpreted")
@pytest.mark.parametrize("mutant", WALKED, ids=str)
def test_random_walks_find(mutant: Mutant) -> None:
    assert find(mutant, ssam_walks.trial, 1_000, 200).cases


# Restarts and silent nodes.


def test_requests_to_a_node_that_has_restarted_are_returned_and_the_next_ones_reach_it() -> None:
    pair = Pair()
    returned_messages: list[Returned] = []
    pair.nodes[0].library.on_returned = returned_messages.append
    run(pair.nodes[0].library.request(1, COUNT, b"before"))
    pair.settle()
    pair.is_lost = lambda _: True
    run(pair.nodes[0].library.request(1, COUNT, b"in flight"))
    pair.settle()
    pair.is_lost = lambda _: False
    pair.restart(1)
    pair.settle(timeouts=3)
    assert [(message.node, message.data) for message in returned_messages] == [(1, b"in flight")]
    run(pair.nodes[0].library.request(1, COUNT, b"after"))
    pair.settle()
    assert pair.nodes[1].counted == [b"after"]


def test_late_cells_of_a_restarted_sender_are_dropped() -> None:
    pair = Pair()
    pair.is_lost = lambda frame: kind_of(frame) == REQUEST
    run(pair.nodes[0].library.request(1, COUNT, b"old"))
    pair.settle()
    late_cells = list(pair.nodes[0].outgoing)
    pair.restart(0)
    pair.is_lost = lambda _: False
    run(pair.nodes[0].library.request(1, COUNT, b"new"))
    pair.settle()
    for frame in late_cells:
        pair.nodes[1].device.receive(0, frame)
    pair.settle(timeouts=2)
    assert pair.nodes[1].counted == [b"new"]


def test_a_silent_node_is_given_up_and_reached_again_when_it_answers() -> None:
    pair = Pair(settings=Settings(give_up=3))
    library = pair.nodes[0].library
    run(library.request(1, COUNT, b"1"))
    pair.settle()
    pair.is_lost = lambda _: True
    run(library.request(1, COUNT, b"lost"))
    pair.settle(timeouts=8)
    assert library.pending_work() == []
    with pytest.raises(ReturnedError, match=r"a request to handler 3 of node 1 was returned: .* not answered"):
        library.try_request(1, COUNT, b"2")
    pair.is_lost = lambda _: False
    run(library.request(1, COUNT, b"2"))
    pair.settle(timeouts=3)
    assert pair.nodes[1].counted == [b"1", b"2"]


def test_timeouts_double_while_nothing_is_answered() -> None:
    pair = Pair(lambda _: True)
    node = pair.nodes[0]
    run(node.library.request(1, COUNT, b"x"))
    timeouts = []
    for _ in range(6):
        assert node.device.deadline is not None
        timeouts.append(node.device.deadline - node.now)
        node.now = node.device.deadline
        node.device.on_timer(node.now)
    assert timeouts[0] == TIMEOUT
    assert timeouts[-1] > 2 * TIMEOUT
    assert all(later <= 2 * earlier for earlier, later in pairwise(timeouts))


# The interface and the kernel.


def test_cells_that_overrun_the_input_fifo_are_counted_and_resent() -> None:
    pair = Pair(settings=Settings(input_fifo=5, window=8))
    first, second = pair.nodes
    run(first.library.request(1, COUNT, b"first"))
    pair.settle()
    for number in range(8):
        assert first.library.try_request(1, COUNT, bytes((number,)))
    while first.outgoing:
        second.device.receive(0, first.outgoing.popleft())
    assert second.counters()["overruns"] == 3
    pair.settle(timeouts=6)
    assert second.counted == [b"first", *[bytes((number,)) for number in range(8)]]


class PricedNode(Node):
    """A node whose core takes 1 us for each piece of work. Also implements `HostWork`."""

    core = 0
    reached = 0
    writer = ANYWHERE

    def spend(self, kind: str, size: int = 0, source: int = -1) -> None:  # noqa: ARG002
        self.reached = max(self.reached, self.now) + 1_000
        self.spent.append(kind)

    def caught_up(self) -> Completion[None]:
        return ZERO_COST_WORK.caught_up()

    offload = read_frames = bind = receiving_core = lambda *_: None

    def __init__(self, number: int, settings: Settings) -> None:
        self.spent: list[str] = []
        super().__init__(number, settings)


def test_a_cell_occupies_the_fifo_until_the_core_has_read_it() -> None:
    node = PricedNode(0, Settings(input_fifo=2))
    empty_cell = header(circuit(1, 0, 3)) + with_crc(bytes(PAYLOAD))
    frame = ADDRESSES[0] + ADDRESSES[1] + ETHERTYPE.to_bytes(2, "big") + empty_cell
    for _ in range(3):
        node.device.receive(0, frame)
    assert node.counters()["overruns"] == 1
    node.library.process.read()
    assert node.spent == [READ_TRAP, CELL_READ, CELL_READ]
    for now, overruns in ((1_999, 2), (2_000, 2), (2_999, 3), (3_000, 3), (3_000, 4)):
        node.device.receive(now, frame)
        assert node.counters()["overruns"] == overruns, f"at {now} ns"


def test_a_trap_that_writes_and_reads_enters_the_kernel_once_and_system_calls_have_their_own_costs() -> None:
    node = PricedNode(0, Settings())
    own_connection = node.library.process.connect(0)
    node.library.process.write_read(own_connection, 0)
    assert node.spent == [WRITE_READ_TRAP, CELL_READ]
    node.spent.clear()
    node.library.process.call_write(own_connection, 0)
    node.library.process.call_read()
    node.library.process.call_read()
    assert node.spent == [WRITE_CALL, READ_CALL, CELL_CALL, READ_CALL]
    with pytest.raises(TrapError):
        node.library.process.call_write(7, 0)


def test_a_trap_delivers_at_most_sixteen_cells() -> None:
    node = Node(0, Settings())
    own_connection = node.library.process.connect(0)
    for number in range(20):
        cells.pack_into(node.library.process.memory(own_connection), 0, ACKNOWLEDGEMENT, 0, number)
        node.library.process.write(own_connection, 0)
    assert [len(node.library.process.read()) for _ in range(3)] == [16, 4, 0]


@pytest.mark.parametrize(
    ("cell", "counter"),
    [
        (b"short", "bad_headers"),
        (header(circuit(0, 1, 3))[:4] + b"\0" + bytes(PAYLOAD), "bad_headers"),
        (header(circuit(0, 1, 3)) + b"\1" * PAYLOAD, "bad_checks"),
        (header(circuit(0, 1, 3)) + with_crc(bytes(PAYLOAD - 2) + b"\xfc\0"), "bad_checks"),
        (header(circuit(0, 2, 3)) + with_crc(bytes(PAYLOAD - 2) + b"\xb0\0"), "no_circuit"),
        (header(Circuit(0, 5)) + with_crc(bytes(PAYLOAD - 2) + b"\xb0\0"), "no_circuit"),
        (header(circuit(0, 1, 3)) + with_crc(bytes(PAYLOAD - 2) + b"\xb0\0"), "stale"),
    ],
)
def test_an_invalid_cell_is_counted_and_changes_nothing(cell: bytes, counter: str) -> None:
    pair = Pair()
    node = pair.nodes[1]
    node.device.receive(0, ADDRESSES[1] + ADDRESSES[0] + ETHERTYPE.to_bytes(2, "big") + cell)
    assert node.library.handle_all() <= 1
    assert node.counters()[counter] == 1
    run(pair.nodes[0].library.request(1, COUNT, b"sound"))
    pair.settle(timeouts=2)
    assert node.counted == [b"sound"]


def test_each_cell_of_a_frame_of_several_is_received() -> None:
    pair = Pair()
    first, second = pair.nodes
    run(first.library.request(1, COUNT, b"open"))
    pair.settle()
    for number in range(3):
        assert first.library.try_request(1, COUNT, bytes((number,)))
    frames = list(first.outgoing)
    first.outgoing.clear()
    joined_frame = frames[0] + b"".join(frame[ETHERNET:] for frame in frames[1:])
    assert len(joined_frame) == ETHERNET + 3 * CELL
    second.device.receive(0, joined_frame)
    pair.settle()
    assert second.counted == [b"open", b"\0", b"\1", b"\2"]


def test_the_kernel_checks_connections_and_offsets_of_a_process() -> None:
    node = Node(0, Settings(connections=1))
    with pytest.raises(TrapError, match="no connection 0: the process has 0"):
        node.library.process.write(0, 0)
    assert node.library.process.connect(1) == node.library.process.connect(1) == 0
    for offset in (-SLOT_SIZE, 1, 65 * SLOT_SIZE):
        with pytest.raises(TrapError, match=f"offset must be a multiple of 56 from 0 to 3584, got {offset}"):
            node.library.process.write(0, offset)
    with pytest.raises(TrapError, match="a process has 1 connections at most"):
        node.library.try_request(2, COUNT)
    node.library.process.write(0, 64 * SLOT_SIZE)
    assert circuit_of(node.outgoing[0][ETHERNET:]) == circuit(0, 1, 3)


# Several processes of a node.


def cell_from(source: int, number: int) -> bytes:
    """Return a cell from node `source` to node 0, of three."""
    payload = bytearray(PAYLOAD)
    cells.pack_into(payload, 0, ACKNOWLEDGEMENT, 0, number)
    return bytes(12) + ETHERTYPE.to_bytes(2, "big") + header(circuit(source, 0, 3)) + with_crc(payload)


def test_a_process_can_send_only_on_its_own_connections() -> None:
    node = Node(0, Settings())
    first, second = node.library.process, Process(node.device)
    assert (first.connect(1), first.connect(0), second.connect(2)) == (0, 1, 0)
    with pytest.raises(TrapError, match="no connection 1: the process has 1"):
        second.write(1, 0)
    with pytest.raises(TrapError, match="no connection to node 1: another process of this node has it"):
        second.connect(1)
    second.write(0, 0)
    assert [circuit_of(frame[ETHERNET:]) for frame in node.outgoing] == [circuit(0, 2, 3)]
    assert first.memory(0) is not second.memory(0)


@given(st.lists(st.tuples(st.sampled_from(["cell", "read", "call"]), st.integers(1, 2)), max_size=60))
def test_a_process_reads_its_messages_once_and_in_order_whenever_the_others_enter_the_kernel(
    steps: list[tuple[str, int]],
) -> None:
    """Node 1 sends to the first process, node 2 to the second. At each step a cell arrives, or one of
    them enters the kernel and reads."""
    node = Node(0, Settings())
    processes = {1: node.library.process, 2: Process(node.device)}
    sent_numbers: dict[int, list[int]] = {1: [], 2: []}
    read_numbers: dict[int, list[int]] = {1: [], 2: []}
    for number, process in processes.items():
        process.connect(number)
    for number, (action, process_number) in enumerate(
        [*steps, *(("read", process_number) for process_number in (1, 2) for _ in range(5))]
    ):
        if action == "cell":
            sent_numbers[process_number].append(number % SEQUENCE_NUMBERS)
            node.device.receive(0, cell_from(process_number, number % SEQUENCE_NUMBERS))
        else:
            process = processes[process_number]
            batch = process.read() if action == "read" else process.call_read()
            assert len(batch) <= (BATCH if action == "read" else 1)
            assert {connection for connection, _ in batch} <= {0}
            read_numbers[process_number] += [message.number for _, message in batch]
    assert read_numbers == sent_numbers


def test_unread_messages_of_a_process_take_at_most_two_windows_of_buffers() -> None:
    """Section 3.3.1: 4w cells for each peer, two windows for sending and two for receiving."""
    node = Node(0, Settings())
    first, second = node.library.process, Process(node.device)
    first.connect(1)
    for number in range(3 * MAX_WINDOW):
        node.device.receive(0, cell_from(1, number % SEQUENCE_NUMBERS))
        second.read()
    assert node.counters()["no_buffer"] == MAX_WINDOW
    numbers = [message.number for _ in range(5) for _, message in first.read()]
    assert numbers == list(range(2 * MAX_WINDOW))
    node.device.receive(0, cell_from(1, 7))
    assert [message.number for _, message in first.read()] == [7]


def test_a_library_loses_no_message_while_another_process_reads_at_every_step() -> None:
    pair = Pair()
    other_process = Process(pair.nodes[1].device)

    def read_as_other_process(frame: bytes) -> bool:  # noqa: ARG001
        other_process.read()
        return False

    pair.is_lost = read_as_other_process

    async def send(node: Node) -> None:
        for number in range(100):
            await node.library.request(1, ECHO, bytes((number,)))

    pair.drive(send(pair.nodes[0]), 10)
    pair.settle(3)
    assert pair.nodes[0].echoed == [bytes((number,)) for number in range(100)]


# Rules of handlers, and invalid input.


def test_handlers_may_send_no_requests_and_a_replys_handler_no_reply() -> None:
    pair = Pair()
    second = pair.nodes[1].library
    second.set_handler(7, lambda *_: second.try_request(0, COUNT) and None)
    run(pair.nodes[0].library.request(1, 7))
    with pytest.raises(RuleError, match="a handler may not send requests"):
        pair.settle()
    pair = Pair()
    pair.nodes[0].library.set_handler(ECHOED, lambda *_: Reply(ECHO, b""))
    run(pair.nodes[0].library.request(1, ECHO))
    with pytest.raises(RuleError, match="of a reply has returned a reply"):
        pair.settle()


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (b"echo", "the handler 7 has returned a bytes: it may return a Reply or None"),
        (
            Reply(-1, b""),
            "the handler 7 has returned an invalid reply: the handler's address must be 0 to 4294967295, got -1",
        ),
        (Reply(ECHOED, bytes(41)), "the handler 7 has replied 41 bytes: 40 at most"),
        (Reply(ECHOED, memoryview(bytes(44)).cast("I")), "the handler 7 has replied 44 bytes: 40 at most"),
    ],
)
def test_a_handler_with_an_invalid_reply_raises_and_its_request_is_acknowledged(returned: Reply, sentence: str) -> None:
    pair = Pair()
    first, second = pair.nodes
    second.library.set_handler(7, lambda *_: returned)
    run(first.library.request(1, 7))
    with pytest.raises(RuleError, match=sentence):
        pair.settle()
    pair.settle(timeouts=2)
    assert first.counters()["acknowledged"] == 1
    assert not first.library.pending_work()


def test_invalid_arguments_are_rejected_and_nothing_is_sent() -> None:
    node = Node(0, Settings())
    with pytest.raises(ValueError, match="41 bytes: a message carries 40 at most"):
        node.library.try_request(1, COUNT, bytes(41))
    with pytest.raises(ValueError, match="44 bytes: a message carries 40 at most"):
        node.library.try_request(1, COUNT, memoryview(bytes(44)).cast("I"))
    with pytest.raises(ValueError, match="the handler's address must be 0 to 4294967295, got 4294967296"):
        node.library.try_request(1, 1 << 32)
    with pytest.raises(TypeError):
        node.library.try_request(1, COUNT, "text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="node must be 0 to 2, got 3"):
        node.library.try_request(3, COUNT)
    with pytest.raises(ValueError, match="the handler's address must be 0 to 4294967295, got -1"):
        node.library.set_handler(-1, lambda *_: None)
    assert not node.outgoing
    assert not node.library.pending_work()
    for setting in (
        {"window": 0},
        {"window": 33},
        {"timeout": 0},
        {"give_up": -1},
        {"input_fifo": 0},
        {"connections": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(setting))):
            Settings(**setting)


def test_a_message_for_a_handler_that_is_not_set_is_counted_and_acknowledged() -> None:
    pair = Pair()
    run(pair.nodes[0].library.request(1, 99, b"?"))
    pair.settle()
    assert pair.nodes[1].counters()["no_handler"] == 1
    assert pair.nodes[0].counters()["acknowledged"] == 1


def test_an_introduction_contains_both_identities() -> None:
    pair = Pair()
    run(pair.nodes[0].library.request(1, COUNT))
    frames = list(pair.nodes[0].outgoing)
    assert [kind_of(frame) for frame in frames] == [INTRODUCTION], "requests wait until the session is known"
    pair.settle()
    assert len(pair.nodes[1].counted) == 1
