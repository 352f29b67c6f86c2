"""Messages between two endpoints of one node: the sender's driver writes their events, and no frame is sent."""

from __future__ import annotations

import pytest

from protocols.core.firmware import Adapter, Agent, Nic
from protocols.core.memory import HostMemory
from protocols.openmx import codec
from protocols.openmx.counters import Counters
from protocols.openmx.driver_endpoint import Driver
from protocols.openmx.endpoint_memory import Op, OwnCommands
from protocols.openmx.firmware import Firmware
from protocols.openmx.host import Library, plug
from protocols.openmx.mx_names import MAX_LENGTH, MEDIUM_MAX, Status
from protocols.openmx.settings import MIN_ENTRIES, Settings
from tests.unit.protocols.openmx_commands import command
from tests.unit.protocols.openmx_pair import ONE_NODE, RESEND, EndpointPair, pattern


def separate_process(adapter: Adapter, nic: Nic) -> Agent:
    """Build an agent whose driver finds no other driver, as in a process of its own."""
    return plug()(adapter, nic)


@pytest.mark.parametrize(
    ("size", "counts"),
    [
        (0, {"shared_tiny": 1}),
        (32, {"shared_tiny": 1}),
        (33, {"shared_small": 1}),
        (128, {"shared_small": 1}),
        (129, {"shared_mediumsq_frag": 1}),
        (4_096, {"shared_mediumsq_frag": 3}),
        (4_097, {"shared_rndv": 1}),
    ],
)
def test_a_message_to_an_endpoint_of_the_node_needs_no_frame(size: int, counts: dict[str, int]) -> None:
    pair = EndpointPair(hosts=ONE_NODE)
    buffer, request = pair.receive(size)
    sent, received = pair.finish(pair.send(pattern(size)), request)
    assert (sent.status, received.status, received.length) == (Status.SUCCESS, Status.SUCCESS, size)
    assert bytes(buffer) == pattern(size)
    pair.elapse(RESEND)
    assert pair.sent == []
    counters = pair.driver(0).counter_values()
    kinds = ("shared_tiny", "shared_small", "shared_mediumsq_frag", "shared_rndv")
    assert {name: counters[name] for name in kinds if counters[name]} == counts
    assert counters["shared_connect"] == counters["acknowledged"] == 1
    assert not [name for name, count in counters.items() if name.startswith("send_") and count]
    assert pair.counter(1, "shared_truc") + pair.counter(1, "shared_notify") == 1
    assert pair.counter(0, "resent") == pair.counter(1, "resent") == 0


def test_an_endpoint_sends_to_another_endpoint_of_its_rank_without_frames() -> None:
    pair = EndpointPair()
    pair.sent.clear()
    end, second, buffer = pair.ends[0], pair.library(0).open_endpoint(3), bytearray(4_096)
    pair.run(end.connect(0, 3))
    pair.finish(second.irecv(buffer, 9), end.isend([pattern(4_096)], end.partner(0, 3), 9))
    assert bytes(buffer) == pattern(4_096)
    pair.elapse(RESEND)
    assert pair.sent == []
    assert pair.counter(0, "shared_mediumsq_frag") == 3


def test_drivers_in_different_processes_use_frames() -> None:
    pair = EndpointPair(hosts=ONE_NODE, build=separate_process)
    buffer, request = pair.receive(4_096)
    pair.finish(pair.send(pattern(4_096)), request)
    assert bytes(buffer) == pattern(4_096)
    assert pair.sent.count("MEDIUM") == 3
    assert pair.counter(0, "shared_mediumsq_frag") == 0


def test_eager_and_large_messages_arrive_in_the_order_of_their_sends() -> None:
    """Every message matches every receive; the large ones are announced and pulled, the others written at once."""
    sizes = (4, 50_000, 4, 4_096, 4_097, 100, 70_000, 129, 0)
    pair = EndpointPair(hosts=ONE_NODE)
    buffers, receives = zip(*[pair.receive(70_000) for _ in sizes], strict=True)
    pair.finish(*[pair.send(pattern(size)) for size in sizes], *receives)
    assert [receive.result().length for receive in receives] == list(sizes)
    assert [bytes(buffer[:size]) for buffer, size in zip(buffers, sizes, strict=True)] == list(map(pattern, sizes))
    assert pair.counter(1, "early") == pair.counter(1, "duplicates") == 0


def test_unexpected_messages_wait_and_are_matched_in_order() -> None:
    pair = EndpointPair(hosts=ONE_NODE)
    sends = [pair.send(pattern(size)) for size in (3, 4_096, 5_000)]
    pair.elapse(RESEND)
    assert pair.counter(1, "unexpected") == 3
    receives = [pair.receive(5_000)[1] for _ in sends]
    pair.finish(*sends, *receives)
    assert [receive.result().length for receive in receives] == [3, 4_096, 5_000]


@pytest.mark.parametrize("size", [20, 100, 3_000])
def test_a_message_longer_than_its_receive_is_truncated(size: int) -> None:
    pair = EndpointPair(hosts=ONE_NODE)
    buffer, request = pair.receive(10)
    pair.send(pattern(size))
    (received,) = pair.finish(request)
    assert (received.status, received.length, received.transferred) == (Status.TRUNCATED, size, 10)
    assert bytes(buffer) == pattern(size)[:10]


def test_a_cancelled_receive_gets_no_message() -> None:
    pair = EndpointPair(hosts=ONE_NODE)
    buffer, request = pair.receive(4)
    assert pair.ends[1].cancel(request)
    later, second = pair.receive(4)
    pair.finish(pair.send(b"data"), second)
    assert (bytes(buffer), bytes(later)) == (bytes(4), b"data")
    assert request.result().status is Status.CANCELLED


def test_messages_beyond_a_full_ring_are_resent_and_arrive_once() -> None:
    """The receiver handles no completions while the messages are sent."""
    pair = EndpointPair(Settings(entries=MIN_ENTRIES), hosts=ONE_NODE)
    nic = pair.wires.nics[1]
    agent, completions = nic.agent, list[int]()
    nic.post_completion = completions.append  # type: ignore[method-assign]
    count = MIN_ENTRIES + 8
    receives = [pair.receive(4)[1] for _ in range(count)]
    for number in range(count):
        pair.send(number.to_bytes(4, "big"))
    assert (len(completions), pair.counter(1, "unexp_eventq_full")) == (MIN_ENTRIES, 8)
    del nic.post_completion
    assert agent is not None
    for index in completions:
        agent.host.on_completion(index)
    pair.elapse(2 * RESEND)
    assert [int.from_bytes(receive.buffer) for receive in receives] == list(range(count))
    assert pair.counter(0, "resent") >= 8
    assert pair.sent == []


def test_a_message_to_a_closed_endpoint_is_refused() -> None:
    pair = EndpointPair(hosts=ONE_NODE)
    pair.ends[1].close()
    (result,) = pair.finish(pair.send(pattern(4), synchronous=True))
    assert result.status is Status.ENDPOINT_CLOSED
    assert (pair.counter(1, "send_nack_lib"), pair.counter(0, "recv_nack_lib")) == (1, 1)
    assert pair.sent == []


def test_a_connection_request_waits_for_the_endpoint_to_be_opened() -> None:
    pair = EndpointPair(hosts=ONE_NODE)
    connecting = pair.ends[0].iconnect(pair.ends[0].partner(1, 7))
    assert not connecting.done
    assert pair.counter(1, "early_connects") == 1
    pair.library(1).open_endpoint(7)
    assert connecting.done
    assert connecting.result() is Status.SUCCESS
    assert pair.sent == []


def test_partners_on_the_node_are_notified_of_a_dead_process() -> None:
    """The next process's driver notifies them, as it notifies those of other nodes."""
    settings, drivers = Settings(), dict[int, Driver]()

    def build_agent(adapter: Adapter, nic: Nic) -> Agent:
        memory, commands, counters = HostMemory(), OwnCommands(), Counters()
        driver = Firmware(adapter, nic, memory, commands, settings, codec, counters, drivers)
        return Agent(driver, Library(adapter, nic, memory, commands, settings, counters))

    pair = EndpointPair(hosts=ONE_NODE, build=build_agent)
    losses = list[Status]()
    pair.ends[0].on_lost = lambda _, status: losses.append(status)
    dead_driver = pair.driver(1)
    pair.wires.restart(1)
    pair.driver(1).take_over(pair.wires.now, dead_driver)
    pair.elapse(RESEND)
    assert losses == [Status.ENDPOINT_CLOSED]
    assert not pair.partners[0].is_connected
    assert pair.sent == []


@pytest.mark.parametrize(
    ("op", "length"),
    [
        (Op.RNDV, MAX_LENGTH + 1),
        (Op.NOTIFY, 1 << 63),
        (Op.SEND, 129),
        (Op.SEND_MEDIUM, MEDIUM_MAX + 1),
        (Op.SEND_MEDIUM, 0),
        (Op.SEND_MEDIUM, 3_000),
    ],
)
def test_an_invalid_command_writes_nothing_into_another_endpoints_ring(op: int, length: int) -> None:
    """Lengths out of range, and memory that the host has not pinned."""
    pair = EndpointPair(Settings(entries=MIN_ENTRIES), hosts=ONE_NODE)
    received, invalid = pair.counter(1, "recv_messages"), pair.counter(0, "invalid")
    library = pair.library(0)
    for _ in range(MIN_ENTRIES):
        invalid_command = command(op, peer=1, length=length, session=pair.partners[0].session, address=1 << 40)
        library.ring_doorbell(library.commands.write(invalid_command), 0, 0)
    assert pair.counter(0, "invalid") == invalid + MIN_ENTRIES
    assert pair.counter(1, "recv_messages") == received
    buffer, request = pair.receive(4)
    pair.finish(pair.send(b"data"), request)
    assert buffer == b"data"
