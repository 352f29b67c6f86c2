"""VIA's provider library on two NICs joined by lists: connections, transfers, protection, and loss."""

from __future__ import annotations

import pytest

from protocols.via.settings import Settings
from protocols.via.vip_descriptors import Memory, Segment
from protocols.via.vipl_names import OP_RDMAWRITE, OP_SENDRECV, Done, Reliability, Result, ViaError, ViState
from protocols.via.virtual_interface import Descriptor
from tests.unit.protocols.host_programs import run
from tests.unit.protocols.via_nics import NicPair


def test_a_send_arrives_in_the_posted_receive_in_several_frames() -> None:
    pair = NicPair()
    pair.buffers[0][:] = bytes(range(256)) * 16
    receive = Descriptor(data=(pair.memory[1].segment(),))
    pair.vis[1].post_receive(receive)
    send = pair.transfer(Descriptor(OP_SENDRECV, (pair.memory[0].segment(),)))
    assert pair.buffers[1] == pair.buffers[0]
    assert (receive.length, receive.has_failed, send.has_failed) == (4096, False, False)


@pytest.mark.parametrize(
    ("offset", "handle", "length"), [(4000, 0, 100), (0, 7, 8)], ids=["beyond its region", "unknown handle"]
)
def test_an_rdma_write_outside_of_registered_memory_breaks_the_connection_and_writes_nothing(
    offset: int, handle: int, length: int
) -> None:
    pair = NicPair()
    pair.buffers[0][:] = b"x" * 4096
    target = pair.memory[1]
    remote = Segment(target.address + offset, target.handle + handle)
    send = pair.transfer(Descriptor(OP_RDMAWRITE, (pair.memory[0].segment(0, length),), remote))
    assert send.status & Done.RDMA_PROT_ERROR
    assert bytes(pair.buffers[1]) == bytes(4096)
    assert [agent.firmware.counter_values()["connections_lost"] for agent in pair.wires.agents] == [1, 1]


def test_an_rdma_write_into_memory_of_another_protection_tag_is_refused() -> None:
    pair = NicPair()
    nic, other_memory = pair.nics[1], memoryview(bytearray(64))

    async def register() -> Memory:
        return await nic.register(other_memory, await nic.create_ptag(), rdma_write=True)

    target = run(pair.wires, register())[0]
    send = pair.transfer(
        Descriptor(OP_RDMAWRITE, (pair.memory[0].segment(0, 8),), Segment(target.address, target.handle))
    )
    assert send.status & Done.RDMA_PROT_ERROR


def test_a_descriptor_with_unregistered_memory_fails_alone() -> None:
    pair = NicPair()
    receive = Descriptor(data=(pair.memory[1].segment(),))
    pair.vis[1].post_receive(receive)
    invalid_send = pair.transfer(Descriptor(OP_SENDRECV, (Segment(1, 99, 8),)))
    valid_send = pair.transfer(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 8),)))
    assert invalid_send.status & Done.PROTECTION_ERROR
    assert (valid_send.has_failed, receive.length) == (False, 8)


def test_a_descriptor_with_too_many_segments_is_not_posted() -> None:
    pair = NicPair()
    with pytest.raises(ViaError) as caught:
        pair.vis[0].post_send(Descriptor(OP_SENDRECV, [pair.memory[0].segment(0, 1)] * 7))
    assert caught.value.result is Result.DESCRIPTOR_ERROR


def test_a_request_without_a_waiting_server_fails_with_no_match() -> None:
    pair = NicPair(connected=False)
    with pytest.raises(ViaError) as caught:
        run(pair.wires, pair.vis[0].connect_request(1, b"unknown"))
    assert caught.value.result is Result.NO_MATCH


@pytest.mark.parametrize("first_answer", ["no match", "accepted and disconnected"])
def test_a_delayed_copy_of_an_answered_request_is_not_accepted_again(first_answer: str) -> None:
    """The client has given up the request; its next one must find the server."""
    pair = NicPair(connected=False)
    requests: list[bytes] = []
    client, server = pair.vis

    async def connect() -> None:
        await client.connect_request(1, b"late")

    async def serve() -> None:
        await server.accept(await pair.nics[1].connect_wait(b"late"))

    def deliver() -> None:
        requests.extend(pair.wires.nics[0].sent)
        pair.wires.exchange()

    def deliver_copies_first() -> None:
        while requests:
            pair.wires.deliver(requests.pop())
        pair.wires.exchange()

    if first_answer == "no match":
        with pytest.raises(ViaError) as caught:
            run(pair.wires, connect(), deliver=deliver)
        assert caught.value.result is Result.NO_MATCH
    else:
        run(pair.wires, serve(), connect(), deliver=deliver)
        run(pair.wires, client.disconnect(), server.disconnect())
    assert requests
    run(pair.wires, serve(), connect(), deliver=deliver_copies_first)
    assert not requests
    server.post_receive(receive := Descriptor(data=(pair.memory[1].segment(),)))
    assert not pair.transfer(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 8),))).has_failed
    assert (receive.length, receive.has_failed) == (8, False)


def test_a_delayed_copy_of_an_ended_peer_to_peer_request_does_not_match_a_later_one() -> None:
    pair = NicPair(connected=False)
    requests: list[bytes] = []
    first_vi, second_vi = pair.vis

    def deliver() -> None:
        requests.extend(pair.wires.nics[0].sent)
        pair.wires.exchange()

    run(pair.wires, first_vi.connect_peer(1, b"again"), second_vi.connect_peer(0, b"again"), deliver=deliver)
    run(pair.wires, first_vi.disconnect(), second_vi.disconnect())
    assert requests
    second_vi.connect_peer_request(0, b"again")
    for frame in requests:
        pair.wires.deliver(frame)
    assert second_vi.state is ViState.CONNECT_PENDING
    run(pair.wires, first_vi.connect_peer(1, b"again"), second_vi.connect_peer_wait())
    second_vi.post_receive(receive := Descriptor(data=(pair.memory[1].segment(),)))
    assert not pair.transfer(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 8),))).has_failed
    assert (receive.length, receive.has_failed) == (8, False)


def test_a_lost_frame_is_resent_at_the_reliable_level() -> None:
    pair = NicPair()
    receive = Descriptor(data=(pair.memory[1].segment(),))
    pair.vis[1].post_receive(receive)
    pair.vis[0].post_send(Descriptor(OP_SENDRECV, (pair.memory[0].segment(),)))
    del pair.wires.nics[0].sent[0]
    pair.wires.elapse(1_000_000_000)
    assert (receive.length, receive.has_failed) == (4096, False)
    assert pair.wires.agents[0].firmware.counter_values()["frames_resent"]


def test_a_lost_frame_loses_its_message_at_the_unreliable_level_and_the_next_one_arrives() -> None:
    pair = NicPair(Settings(reliability=int(Reliability.UNRELIABLE)))
    receive = Descriptor(data=(pair.memory[1].segment(),))
    pair.vis[1].post_receive(receive)
    pair.vis[0].post_send(Descriptor(OP_SENDRECV, (pair.memory[0].segment(),)))
    del pair.wires.nics[0].sent[0]
    pair.wires.elapse(1_000_000_000)
    assert receive.is_posted
    pair.transfer(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 16),)))
    assert (receive.length, receive.has_failed) == (16, False)


@pytest.mark.parametrize("size", [8, 4096])
def test_duplicates_are_dropped_at_the_unreliable_level(size: int) -> None:
    """Every level delivers at most once (section 2.5)."""
    pair = NicPair(Settings(reliability=int(Reliability.UNRELIABLE)))
    receives = [Descriptor(data=(pair.memory[1].segment(),)) for _ in range(2)]
    for descriptor in receives:
        pair.vis[1].post_receive(descriptor)
    pair.vis[0].post_send(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, size),)))
    for frame in pair.wires.take(0):
        pair.wires.deliver(frame)
        pair.wires.deliver(frame)
    assert [descriptor.is_posted for descriptor in receives] == [False, True]
    assert receives[0].length == size
