"""Calls of VIA's library with values out of range or in the wrong state: they fail, and leave nothing behind."""

from __future__ import annotations

from array import array
from functools import partial

import pytest

from protocols.via.attributes import MemoryAttributes
from protocols.via.settings import Settings
from protocols.via.vip_descriptors import MAX_VIS, Segment
from protocols.via.vipl_names import (
    IMMEDIATE,
    OP_RDMAREAD,
    OP_RDMAWRITE,
    OP_SENDRECV,
    Done,
    Result,
    ViaError,
    ViState,
)
from protocols.via.virtual_interface import Descriptor
from tests.unit.protocols.host_programs import run
from tests.unit.protocols.via_nics import NicPair, post_receive, register_memory, result_of

MILLISECOND = 1_000_000


@pytest.mark.parametrize(
    "descriptor",
    [
        Descriptor(OP_SENDRECV | IMMEDIATE, immediate=1 << 32),
        Descriptor(OP_SENDRECV | IMMEDIATE, immediate=-1),
        Descriptor(-1),
        Descriptor(OP_SENDRECV, (Segment(-1, 1, 8),)),
        Descriptor(OP_SENDRECV, (Segment(1, 1, -8),)),
        Descriptor(OP_RDMAWRITE, (), Segment(0, 1 << 32)),
    ],
    ids=["immediate data", "negative immediate data", "control", "address", "length", "handle"],
)
def test_a_descriptor_with_values_out_of_range_is_not_posted(descriptor: Descriptor) -> None:
    pair = NicPair()
    free_count = pair.nics[0].free_descriptors
    with pytest.raises(ViaError) as caught:
        pair.vis[0].post_send(descriptor)
    assert caught.value.result is Result.DESCRIPTOR_ERROR
    assert (descriptor.is_posted, pair.nics[0].free_descriptors) == (False, free_count)


@pytest.mark.parametrize("kind", ["send_cq", "receive_cq"])
def test_a_completion_queue_of_another_nic_is_not_bound(kind: str) -> None:
    pair = NicPair(connected=False)
    nic, ptag = pair.nics[0], pair.memory[0].ptag
    foreign, own = pair.nics[1].create_cq(4), nic.create_cq(4)
    assert result_of(pair, nic.create_vi(ptag, **{kind: foreign})) is Result.INVALID_PARAMETER
    foreign.destroy()  # nothing was bound to it
    run(pair.wires, nic.create_vi(ptag, **{kind: own}))


def test_a_call_with_parameters_out_of_range_fails_without_effect() -> None:
    pair = NicPair(connected=False)
    nic, vi, ptag = pair.nics[0], pair.vis[0], pair.memory[0].ptag
    free_count, registered_count = nic.free_descriptors, nic.registered
    for program in (
        nic.create_vi(ptag, max_transfer=1 << 40),
        nic.create_vi(ptag, max_transfer=-1),
        nic.register(memoryview(bytearray(8)), -1),
        nic.destroy_ptag(1 << 40),
        nic.connect_wait(b"x", -1),
        vi.connect_request(-1, b"x"),
        vi.connect_request(1, b"x", 1 << 70),
    ):
        assert result_of(pair, program) is Result.INVALID_PARAMETER
    with pytest.raises(ViaError, match="INVALID_PARAMETER"):
        vi.receive_queue.wait(-1)
    assert vi.state is ViState.IDLE
    assert (nic.free_descriptors, nic.registered) == (free_count, registered_count)


def test_memory_of_items_is_registered_by_bytes_and_must_be_contiguous() -> None:
    pair = NicPair()
    nic, ptag = pair.nics[0], pair.memory[0].ptag
    posted_receive = post_receive(pair)
    items = memoryview(array("I", range(64)))
    memory = run(pair.wires, nic.register(items, ptag))[0]
    pair.transfer(Descriptor(OP_SENDRECV, (memory.segment(),)))
    assert (posted_receive.length, bytes(pair.buffers[1][: items.nbytes])) == (items.nbytes, items.tobytes())
    assert result_of(pair, nic.register(memoryview(bytearray(8))[::2], ptag)) is Result.INVALID_PARAMETER


def test_read_only_memory_can_be_sent_and_nothing_is_received_in_it() -> None:
    pair = NicPair()
    nic, ptag = pair.nics[1], pair.memory[1].ptag
    memory = run(pair.wires, nic.register(memoryview(b"constant"), ptag))[0]
    posted_receive = Descriptor(data=(memory.segment(),))
    pair.vis[1].post_receive(posted_receive)
    assert posted_receive.status == Done.DONE | Done.COMPLETED_RECEIVE | Done.PROTECTION_ERROR
    source = register_memory(pair, 0, read=True)
    read = Descriptor(OP_RDMAREAD, (memory.segment(),), Segment(source.address, source.handle))
    pair.vis[1].post_send(read)
    assert read.status == Done.DONE | Done.PROTECTION_ERROR
    assert result_of(pair, nic.register(memoryview(b"constant"), ptag, rdma_write=True)) is Result.INVALID_PARAMETER
    writable = MemoryAttributes(ptag, True, False)
    assert result_of(pair, nic.set_memory_attributes(memory, writable)) is Result.INVALID_PARAMETER
    pair.vis[0].post_receive(answer := Descriptor(data=(pair.memory[0].segment(),)))
    pair.vis[1].post_send(Descriptor(OP_SENDRECV, (memory.segment(),)))
    pair.wires.exchange()
    assert (answer.length, bytes(pair.buffers[0][:8])) == (8, b"constant")


# Calls in the wrong state.


def test_a_second_request_of_a_vi_is_refused_and_the_first_continues() -> None:
    pair = NicPair(connected=False)
    first, second = pair.vis
    first.connect_peer_request(1, b"x")
    with pytest.raises(ViaError, match="INVALID_STATE"):
        first.connect_peer_request(1, b"y")
    assert result_of(pair, first.connect_request(1, b"y")) is Result.INVALID_STATE
    assert first.state is ViState.CONNECT_PENDING
    assert first.connect_peer_done() is None
    run(pair.wires, second.connect_peer(0, b"x"), first.connect_peer_wait())
    assert first.state is ViState.CONNECTED


def test_a_vi_with_a_pending_request_cannot_accept_another_and_stays_pending() -> None:
    pair = NicPair(connected=False)
    client, server = pair.vis
    server.connect_peer_request(0, b"x")

    async def serve() -> None:
        await server.accept(await pair.nics[1].connect_wait(b"y"))

    async def connect() -> None:
        await client.connect_request(1, b"y")

    assert result_of(pair, serve(), connect()) is Result.INVALID_STATE
    assert server.state is ViState.CONNECT_PENDING is run(pair.wires, server.query())[0].state


def test_a_timed_wait_without_a_free_slot_fails_and_loses_no_descriptor() -> None:
    pair = NicPair(Settings(slots=8))
    vi, memory = pair.vis[1], pair.memory[1]
    receives = [Descriptor(data=(memory.segment(),)) for _ in range(pair.nics[1].free_descriptors)]
    for descriptor in receives:
        vi.post_receive(descriptor)
    with pytest.raises(ViaError, match="ERROR_RESOURCE"):
        vi.receive_queue.wait(MILLISECOND)
    pair.transfer(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 8),)))
    assert vi.receive_queue.done() is receives[0]


def test_a_completion_queue_that_a_call_waits_for_is_not_destroyed_and_a_destroyed_one_refuses_calls() -> None:
    pair = NicPair(connected=False)
    cq = pair.nics[0].create_cq(1)
    cq.wait(MILLISECOND)
    with pytest.raises(ViaError, match="ERROR_RESOURCE"):
        cq.destroy()
    pair.wires.elapse(MILLISECOND)
    cq.destroy()
    for call in (cq.wait, cq.destroy, partial(cq.notify, print), partial(cq.resize, 2)):
        with pytest.raises(ViaError, match="INVALID_PARAMETER"):
            call()


def test_vi_numbers_wrap_around_and_skip_those_in_use() -> None:
    pair = NicPair()
    nic, ptag = pair.nics[0], pair.memory[0].ptag
    nic._last_vi = MAX_VIS - 2
    numbers = [run(pair.wires, nic.create_vi(ptag))[0].number for _ in range(3)]
    assert (numbers, pair.vis[0].number) == ([MAX_VIS - 1, 0, 2], 1)
