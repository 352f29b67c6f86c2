"""VIA's provider library call by call: attributes, queues, connections, RDMA Reads, and result codes."""

from __future__ import annotations

import inspect
import re
from typing import cast

import pytest

from protocols.via import attributes, host, virtual_interface
from protocols.via.attributes import MemoryAttributes
from protocols.via.host import ViaNic
from protocols.via.settings import Settings
from protocols.via.vip_descriptors import Queue, Segment, doorbell
from protocols.via.vipl_names import (
    IMMEDIATE,
    OP_RDMAREAD,
    OP_RDMAWRITE,
    OP_SENDRECV,
    QFENCE,
    AsyncError,
    Done,
    Reliability,
    Resource,
    Result,
    ViaError,
    ViState,
)
from protocols.via.virtual_interface import CompletionQueue, Descriptor, ErrorReport, Vi, WorkQueue
from tests.unit.protocols.host_programs import run
from tests.unit.protocols.list_wires import Wires
from tests.unit.protocols.via_nics import NicPair, post_receive, register_memory, result_of

MILLISECOND = 1_000_000
UNRELIABLE = Settings(reliability=1)
LEVELS = pytest.mark.parametrize("level", list(Reliability))
CALLS = [
    "OpenNic", "CloseNic", "QueryNic", "RegisterMem", "DeregisterMem", "QueryMem", "SetMemAttributes",
    "ErrorCallback", "QuerySystemManagementInfo", "CreatePtag", "DestroyPtag", "CreateVi", "DestroyVi", "QueryVi",
    "SetViAttributes", "PostSend", "SendDone", "SendWait", "SendNotify", "PostRecv", "RecvDone", "RecvWait",
    "RecvNotify", "ConnectWait", "ConnectAccept", "ConnectReject", "ConnectRequest", "ConnectPeerRequest",
    "ConnectPeerDone", "ConnectPeerWait", "Disconnect", "CreateCQ", "DestroyCQ", "ResizeCQ", "CQDone", "CQWait",
    "CQNotify", "NSInit", "NSGetHostByName", "NSGetHostByAddr", "NSShutdown",
]  # fmt: skip


def record_errors(nic: ViaNic) -> list[tuple[AsyncError, Resource]]:
    """Return a list to which each asynchronous error of a NIC is added from now on."""
    errors: list[tuple[AsyncError, Resource]] = []

    def record(report: ErrorReport) -> None:
        errors.append((report.error, report.resource))

    nic.on_error = record
    return errors


@pytest.mark.requires("interpreted")
@pytest.mark.parametrize("call", CALLS)
def test_every_call_of_the_specification_is_named_in_the_library(call: str) -> None:
    sources = "".join(map(inspect.getsource, (host, virtual_interface, attributes)))
    assert re.search(rf"\bVip{call}\b", sources)


@LEVELS
def test_messages_arrive_in_order_at_every_level(level: Reliability) -> None:
    pair = NicPair(level=level)
    receives = [post_receive(pair) for _ in range(3)]
    for size in (0, 1, 4096):
        pair.transfer(Descriptor(OP_SENDRECV | IMMEDIATE, (pair.memory[0].segment(0, size),), immediate=size + 7))
    assert [(receive.length, receive.immediate) for receive in receives] == [(0, 7), (1, 8), (4096, 4103)]
    assert all(receive.status == Done.DONE | Done.COMPLETED_RECEIVE | Done.IMMEDIATE for receive in receives)


@pytest.mark.parametrize("level", [Reliability.RELIABLE_DELIVERY, Reliability.RELIABLE_RECEPTION])
def test_a_reliable_send_is_done_when_its_data_is_in_the_targets_memory(level: Reliability) -> None:
    pair = NicPair(level=level)
    post_receive(pair)
    pair.buffers[0][:5] = b"hello"
    send = Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 5),))
    pair.vis[0].post_send(send)
    assert send.is_posted
    pair.wires.deliver(pair.wires.take(0)[0])
    assert bytes(pair.buffers[1][:5]) == b"hello"
    assert send.is_posted
    pair.wires.exchange()
    assert send.status == Done.DONE


def test_levels_above_the_providers_are_rejected() -> None:
    pair = NicPair(UNRELIABLE)

    async def create() -> None:
        await pair.nics[0].create_vi(pair.memory[0].ptag, Reliability.RELIABLE_RECEPTION)

    assert result_of(pair, create()) is Result.INVALID_RELIABILITY_LEVEL
    assert pair.nics[0].query().rdma_reads == ()
    assert NicPair().nics[0].query().reliability is Reliability.RELIABLE_RECEPTION


# RDMA.


def rdma_read(pair: NicPair, offset: int, length: int, control: int = 0) -> Descriptor:
    """Return an RDMA Read of the second node's memory into the first's."""
    source = pair.memory[1]
    remote = Segment(source.address + offset, source.handle)
    return Descriptor(OP_RDMAREAD | control, (pair.memory[0].segment(0, length),), remote)


def test_an_rdma_read_gets_several_frames_of_the_peers_memory() -> None:
    pair = NicPair()
    pair.buffers[1][:] = bytes(range(256)) * 16
    read = pair.transfer(rdma_read(pair, 10, 4000))
    assert (read.status, read.length) == (Done.DONE | Done.COMPLETED_RDMA_READ, 4000)
    assert pair.buffers[0][:4000] == pair.buffers[1][10:4010]
    assert not pair.vis[1].receive_queue.done()


def test_lost_frames_of_a_read_are_resent_in_both_directions() -> None:
    pair = NicPair()
    pair.buffers[1][:] = bytes(range(256)) * 16
    read = rdma_read(pair, 0, 4096)
    pair.vis[0].post_send(read)
    pair.wires.nics[0].sent.clear()
    pair.wires.tick()
    pair.wires.deliver(pair.wires.take(0)[0])
    answers = pair.wires.take(1)
    for frame in (*answers[:1], *answers[2:]):
        pair.wires.deliver(frame)
    pair.wires.elapse(1_000 * MILLISECOND)
    assert (read.has_failed, read.is_posted) == (False, False)
    assert pair.buffers[0] == pair.buffers[1]


def test_a_descriptor_with_a_fence_waits_for_the_reads_before_it() -> None:
    pair = NicPair()
    pair.vis[0].post_send(rdma_read(pair, 0, 4096))
    pair.vis[0].post_send(Descriptor(OP_SENDRECV | QFENCE, (pair.memory[0].segment(0, 8),)))
    assert len(pair.wires.nics[0].sent) == 1
    next_receive = post_receive(pair)
    pair.wires.exchange()
    assert (next_receive.length, next_receive.has_failed) == (8, False)


def test_descriptors_complete_in_order_though_a_read_takes_longer_than_the_send_after_it() -> None:
    pair = NicPair()
    post_receive(pair)
    posted_sends = [rdma_read(pair, 0, 4096), Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 8),))]
    for descriptor in posted_sends:
        pair.vis[0].post_send(descriptor)
    pair.wires.exchange()
    assert [pair.vis[0].send_queue.done() for _ in range(3)] == [*posted_sends, None]


@pytest.mark.parametrize(
    "mistake", ["beyond its region", "unknown handle", "memory without permission", "VI without permission"]
)
def test_a_read_without_permission_breaks_the_connection_and_returns_no_data(mistake: str) -> None:
    pair = NicPair()
    reader, target = 0, pair.memory[1]
    if mistake == "VI without permission":
        reader, target = 1, register_memory(pair, 0, read=True)
    elif mistake == "memory without permission":
        target = register_memory(pair, 1)
    errors = record_errors(pair.nics[1 - reader])
    handle = target.handle + 50 * (mistake == "unknown handle")
    offset = 4090 if mistake == "beyond its region" else 0
    before = bytes(pair.buffers[reader])
    read = Descriptor(OP_RDMAREAD, (pair.memory[reader].segment(0, 8),), Segment(target.address + offset, handle))
    pair.vis[reader].post_send(read)
    pair.wires.exchange()
    assert read.status == Done.DONE | Done.COMPLETED_RDMA_READ | Done.RDMA_PROT_ERROR
    assert bytes(pair.buffers[reader]) == before
    assert errors == [(AsyncError.RDMAR_PROT, Resource.VI)]


def test_reads_are_an_option_of_the_provider() -> None:
    pair = NicPair(UNRELIABLE)
    read = pair.transfer(rdma_read(pair, 0, 8))
    assert read.status & Done.FORMAT_ERROR
    nic, buffer = pair.nics[0], memoryview(bytearray(8))
    assert result_of(pair, nic.register(buffer, pair.memory[0].ptag, rdma_read=True)) is Result.INVALID_RDMAREAD
    assert result_of(pair, nic.create_vi(pair.memory[0].ptag, rdma_read=True)) is Result.INVALID_RDMAREAD


def test_memory_deregistered_while_a_message_is_segmented_breaks_the_connection_and_is_not_read() -> None:
    pair = NicPair(Settings(window=1, acknowledge=1))
    post_receive(pair)
    send = Descriptor(OP_SENDRECV, (pair.memory[0].segment(),))
    pair.vis[0].post_send(send)
    run(pair.wires, pair.nics[0].deregister(pair.memory[0]), deliver=lambda: pair.wires.tick())
    pair.wires.exchange()
    assert send.status == Done.DONE | Done.PROTECTION_ERROR


def test_memory_deregistered_while_a_peer_writes_it_breaks_the_connection() -> None:
    pair = NicPair()
    target = pair.memory[1]
    send = Descriptor(OP_RDMAWRITE, (pair.memory[0].segment(),), Segment(target.address, target.handle))
    pair.vis[0].post_send(send)
    frames = pair.wires.take(0)
    pair.wires.deliver(frames[0])
    run(pair.wires, pair.nics[1].deregister(target))
    pair.buffers[1][:] = bytes(4096)
    pair.buffers[0][:] = b"x" * 4096
    for frame in frames[1:]:
        pair.wires.deliver(frame)
    pair.wires.exchange()
    assert send.status & Done.RDMA_PROT_ERROR
    assert bytes(pair.buffers[1]) == bytes(4096)


def test_a_message_longer_than_its_receive_breaks_the_connection_with_a_length_error() -> None:
    pair = NicPair()
    posted_receive = post_receive(pair, size=10)
    send = pair.transfer(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 11),)))
    assert posted_receive.status == Done.DONE | Done.COMPLETED_RECEIVE | Done.LENGTH_ERROR
    assert send.status == Done.DONE | Done.REMOTE_DESC_ERROR
    assert bytes(pair.buffers[1]) == bytes(4096)


@LEVELS
def test_a_message_without_a_receive_is_dropped_or_breaks_the_connection(level: Reliability) -> None:
    pair = NicPair(level=level)
    errors = record_errors(pair.nics[1])
    send = pair.transfer(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 8),)))
    assert errors == [(AsyncError.RECVQ_EMPTY, Resource.VI)]
    is_unreliable = level is Reliability.UNRELIABLE
    assert send.status == Done.DONE | (0 if is_unreliable else Done.REMOTE_DESC_ERROR)
    state = run(pair.wires, pair.vis[1].query())[0].state
    assert state is (ViState.CONNECTED if is_unreliable else ViState.ERROR)


# Attributes.


def test_a_protection_tag_in_use_is_not_destroyed_and_a_destroyed_one_gives_no_access() -> None:
    pair = NicPair()
    nic, ptag = pair.nics[0], pair.memory[0].ptag
    assert result_of(pair, nic.destroy_ptag(ptag)) is Result.ERROR_RESOURCE
    other_ptag = run(pair.wires, nic.create_ptag())[0]
    run(pair.wires, nic.destroy_ptag(other_ptag))
    assert result_of(pair, nic.register(memoryview(bytearray(8)), other_ptag)) is Result.INVALID_PTAG
    assert result_of(pair, nic.create_vi(other_ptag)) is Result.INVALID_PTAG
    assert result_of(pair, nic.destroy_ptag(other_ptag)) is Result.INVALID_PARAMETER


def test_memory_attributes_determine_the_access_of_peers() -> None:
    pair = NicPair()
    target = pair.memory[1]
    assert pair.nics[1].query_memory(target) == MemoryAttributes(target.ptag, True, True)
    run(pair.wires, pair.nics[1].set_memory_attributes(target, MemoryAttributes(target.ptag, False, False)))
    send = pair.transfer(
        Descriptor(OP_RDMAWRITE, (pair.memory[0].segment(0, 8),), Segment(target.address, target.handle))
    )
    assert send.status & Done.RDMA_PROT_ERROR
    run(pair.wires, pair.nics[1].deregister(target))
    with pytest.raises(ViaError, match="INVALID_PARAMETER"):
        pair.nics[1].query_memory(target)


def test_attributes_of_a_vi_change_only_while_it_is_idle() -> None:
    pair = NicPair()
    vi = pair.vis[0]
    queried = run(pair.wires, vi.query())[0]
    assert (queried.state, queried.sends_empty, queried.receives_empty) == (ViState.CONNECTED, True, True)
    new_attributes = queried.attributes._replace(max_transfer=100)
    assert result_of(pair, vi.set_attributes(new_attributes)) is Result.INVALID_STATE
    run(pair.wires, vi.disconnect())
    run(pair.wires, vi.set_attributes(new_attributes))
    assert vi.attributes.max_transfer == 100
    assert result_of(pair, vi.set_attributes(new_attributes._replace(max_transfer=0))) is Result.INVALID_MTU


def test_a_vi_with_a_posted_receive_is_not_destroyed() -> None:
    pair = NicPair(connected=False)
    posted_receive = post_receive(pair)
    assert result_of(pair, pair.vis[1].destroy()) is Result.ERROR_RESOURCE
    run(pair.wires, pair.vis[1].disconnect())
    assert posted_receive.status & Done.DESC_FLUSHED_ERROR
    run(pair.wires, pair.vis[1].destroy())


def test_names_are_resolved_until_the_name_service_is_shut_down() -> None:
    nic = NicPair().nics[0]
    assert nic.node_by_name(nic.name_by_node(1)) == 1
    with pytest.raises(ViaError, match="ERROR_NAMESERVICE"):
        nic.node_by_name("unknown")
    nic.shut_down_name_service()
    with pytest.raises(ViaError, match="ERROR_NAMESERVICE"):
        nic.name_by_node(1)
    nic.init_name_service()
    assert nic.name_by_node(1) == "1"
    assert nic.query_system_management_info() == [0, 1]


def test_the_name_service_has_the_names_of_the_clusters_nodes() -> None:
    """Two ranks of a node share its name, and have indices."""
    nic = cast(ViaNic, Wires(host.plug(), 3, hosts=(0, 0, 2), names=("server", "server", "client")).agents[0].host)
    assert [nic.name_by_node(number) for number in range(3)] == ["server", "server", "client"]
    assert [nic.node_by_name("server"), nic.node_by_name("server", 1), nic.node_by_name("client")] == [0, 1, 2]
    for name, index in (("server", 2), ("client", -1), ("1", 0)):
        with pytest.raises(ViaError, match="ERROR_NAMESERVICE"):
            nic.node_by_name(name, index)


def test_a_closed_nic_ends_its_connections_and_accepts_commands_after_it_is_reopened() -> None:
    pair = NicPair()
    errors = record_errors(pair.nics[1])
    run(pair.wires, pair.nics[0].close())
    pair.wires.exchange()
    assert errors == [(AsyncError.CONN_LOST, Resource.VI)]
    assert result_of(pair, pair.nics[0].create_ptag()) is Result.INVALID_STATE
    run(pair.wires, pair.vis[1].disconnect())
    run(pair.wires, pair.nics[0].open())

    async def reopen() -> Vi:
        return await pair.nics[0].create_vi(await pair.nics[0].create_ptag())

    vi = run(pair.wires, reopen())[0]
    run(pair.wires, vi.connect_peer(1, b"again"), pair.vis[1].connect_peer(0, b"again"))
    assert vi.state is ViState.CONNECTED


# Queues.


def vi_with_completion_queue(pair: NicPair, entries: int) -> tuple[Vi, CompletionQueue]:
    """Return a connected VI of the second node with three receives, and the completion queue to which they complete."""
    nic, cq = pair.nics[1], pair.nics[1].create_cq(entries)
    vi = run(pair.wires, nic.create_vi(pair.memory[1].ptag, receive_cq=cq))[0]
    run(pair.wires, pair.vis[0].connect_peer(1, b"cq"), vi.connect_peer(0, b"cq"))
    for _ in range(3):
        vi.post_receive(Descriptor(data=(pair.memory[1].segment(),)))
    return vi, cq


def send_three(pair: NicPair) -> None:
    for _ in range(3):
        pair.transfer(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 8),)))


def test_completions_of_a_bound_queue_are_awaited_at_its_completion_queue_only() -> None:
    pair = NicPair(connected=False)
    vi, cq = vi_with_completion_queue(pair, 3)
    with pytest.raises(ViaError, match="wait on that queue"):
        vi.receive_queue.wait()
    with pytest.raises(ViaError, match="wait on that queue"):
        vi.receive_queue.notify(print)
    send_three(pair)
    for _ in range(3):
        queue = cq.done()
        assert queue is vi.receive_queue
        assert queue.done() is not None
    assert cq.done() is None


def test_a_completion_queue_that_is_too_small_loses_completions_and_reports_it() -> None:
    pair = NicPair(connected=False)
    vi, cq = vi_with_completion_queue(pair, 2)
    errors = record_errors(pair.nics[1])
    send_three(pair)
    assert errors == [(AsyncError.VI_OVERRUN, Resource.CQ)]
    with pytest.raises(ViaError, match="INVALID_PARAMETER"):
        cq.resize(1)
    cq.resize(5)
    vi.post_receive(Descriptor(data=(pair.memory[1].segment(),)))
    pair.transfer(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 8),)))
    assert [cq.done() is not None for _ in range(4)] == [True, True, True, False]


def test_a_handler_is_called_once_and_several_are_called_in_turn() -> None:
    pair = NicPair(connected=False)
    _, cq = vi_with_completion_queue(pair, 3)
    calls: list[str] = []
    cq.notify(lambda _: calls.append("first"))
    cq.notify(lambda _: calls.append("second"))
    pair.vis[0].send_queue.notify(lambda _: calls.append("sent"))
    send_three(pair)
    assert sorted(calls) == ["first", "second", "sent"]
    cq.notify(lambda _: calls.append("at once"))
    assert calls[-1] == "at once"


def test_a_completion_queue_is_destroyed_when_no_vi_is_bound_to_it() -> None:
    pair = NicPair(connected=False)
    vi, cq = vi_with_completion_queue(pair, 3)
    with pytest.raises(ViaError, match="ERROR_RESOURCE"):
        cq.destroy()
    run(pair.wires, vi.disconnect())
    run(pair.wires, vi.destroy())
    cq.destroy()
    assert result_of(pair, pair.nics[1].create_vi(pair.memory[1].ptag, send_cq=cq)) is Result.INVALID_PARAMETER


def test_a_program_may_have_two_completion_queues() -> None:
    pair = NicPair(connected=False)
    vi, cq = vi_with_completion_queue(pair, 3)
    other_queue = pair.nics[0].create_cq(1)

    async def wait_for_completion(queue: CompletionQueue) -> WorkQueue:
        return await queue.wait()

    async def send() -> None:
        pair.vis[0].post_send(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 8),)))

    queue, _ = run(pair.wires, wait_for_completion(cq), send())
    assert queue.vi is vi
    assert other_queue.done() is None


def test_waits_fail_after_their_timeout() -> None:
    pair = NicPair(connected=False)
    _, cq = vi_with_completion_queue(pair, 3)

    async def wait_for_cq() -> None:
        await cq.wait(3 * MILLISECOND)

    async def wait_for_queue() -> None:
        await pair.vis[0].receive_queue.wait(3 * MILLISECOND)

    async def wait_for_request() -> None:
        await pair.nics[0].connect_wait(b"unknown", 3 * MILLISECOND)

    for program in (wait_for_cq(), wait_for_queue(), wait_for_request()):
        start = pair.wires.now
        assert result_of(pair, program) is Result.TIMEOUT
        assert pair.wires.now == start + 3 * MILLISECOND
    assert result_of(pair, pair.nics[0].connect_wait(b"no", MILLISECOND)) is Result.TIMEOUT


def test_a_wait_that_ends_before_its_timeout_leaves_no_timer() -> None:
    pair = NicPair(connected=False)
    _, cq = vi_with_completion_queue(pair, 3)

    async def wait_for_completion() -> None:
        await cq.wait(3_000 * MILLISECOND)

    async def send() -> None:
        pair.vis[0].post_send(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 8),)))

    run(pair.wires, wait_for_completion(), send())
    pair.wires.exchange()
    assert pair.wires.deadline is None
    assert not pair.wires.pending_work()


# Connections.


def test_a_server_accepts_one_client_and_rejects_another() -> None:
    pair = NicPair(connected=False)
    client, server = pair.nics

    async def serve() -> None:
        request = await server.connect_wait(b"door")
        assert (request.node, request.discriminator, request.is_peer) == (0, b"door", False)
        await server.reject(request)
        await pair.vis[1].accept(await server.connect_wait(b"door"))

    async def connect() -> Result:
        with pytest.raises(ViaError) as caught:
            await pair.vis[0].connect_request(1, b"door")
        while pair.vis[0].state is not ViState.CONNECTED:
            try:
                await pair.vis[0].connect_request(1, b"door")
            except ViaError:  # the server is not waiting yet
                continue
        return caught.value.result

    assert run(pair.wires, serve(), connect())[1] is Result.REJECT
    assert pair.vis[1].state is ViState.CONNECTED
    assert client.query().max_segments == 6


def test_a_peer_request_is_posted_and_then_completed() -> None:
    pair = NicPair(connected=False)
    first, second = pair.vis
    with pytest.raises(ViaError, match="INVALID_STATE"):
        first.connect_peer_done()
    first.connect_peer_request(1, b"x")
    assert first.connect_peer_done() is None
    second.connect_peer_request(0, b"x")
    pair.wires.exchange()
    assert first.connect_peer_done() == first.attributes
    assert run(pair.wires, second.connect_peer_wait())[0] == second.attributes


@pytest.mark.parametrize("lost_frame", range(4))
def test_a_connection_is_made_though_one_of_its_frames_is_lost(lost_frame: int) -> None:
    pair = NicPair(connected=False)
    for number, vi in enumerate(pair.vis):
        vi.connect_peer_request(1 - number, b"x")
    frame_number = 0
    while any(nic.sent for nic in pair.wires.nics) or pair.wires.tick():
        for number in range(2):
            for frame in pair.wires.take(number):
                if frame_number != lost_frame:
                    pair.wires.deliver(frame)
                frame_number += 1
        if all(vi.connect_peer_done() for vi in pair.vis):
            break
    assert [vi.state for vi in pair.vis] == [ViState.CONNECTED] * 2


def test_peers_that_ask_each_other_before_they_know_their_incarnations_are_connected() -> None:
    """Each request names an incarnation that its receiver does not have. The rejection arrives when the other's request
    has been answered, and does not end the connection."""
    pair = NicPair(connected=False, incarnation=7)
    for number, vi in enumerate(pair.vis):
        vi.connect_peer_request(1 - number, b"x")
    (first,), (second,) = pair.wires.take(0), pair.wires.take(1)
    pair.wires.deliver(first)
    pair.wires.deliver(second)
    pair.wires.elapse(1_000 * MILLISECOND)
    assert [vi.state for vi in pair.vis] == [ViState.CONNECTED] * 2
    assert [agent.firmware.counter_values()["connections_lost"] for agent in pair.wires.agents] == [0, 0]


@pytest.mark.parametrize("attribute", ["reliability", "max_transfer"])
def test_a_request_with_different_attributes_is_not_accepted(attribute: str) -> None:
    pair = NicPair(connected=False)
    own_attributes = pair.vis[1].attributes
    new_attributes = own_attributes._replace(reliability=Reliability.UNRELIABLE, rdma_read=False)
    if attribute == "max_transfer":
        new_attributes = own_attributes._replace(max_transfer=8)
    run(pair.wires, pair.vis[1].set_attributes(new_attributes))

    async def serve() -> None:
        await pair.vis[1].accept(await pair.nics[1].connect_wait(b"x"))

    async def connect() -> None:
        await pair.vis[0].connect_request(1, b"x", timeout=20 * MILLISECOND)

    with pytest.raises(ViaError) as caught:
        run(pair.wires, serve(), connect())
    expected = Result.INVALID_MTU if attribute == "max_transfer" else Result.INVALID_RELIABILITY_LEVEL
    assert caught.value.result is expected


def test_a_request_to_a_missing_server_times_out() -> None:
    pair = NicPair(connected=False)
    assert result_of(pair, pair.vis[0].connect_peer(1, b"x", 20 * MILLISECOND)) is Result.TIMEOUT
    assert pair.wires.now == 20 * MILLISECOND
    assert result_of(pair, pair.vis[0].connect_request(7, b"x")) is Result.NOT_REACHABLE
    assert result_of(pair, pair.vis[0].connect_request(1, b"x" * 41)) is Result.INVALID_PARAMETER


def test_a_request_is_repeated_to_a_restarted_peer_and_its_connection_is_lost() -> None:
    pair = NicPair(connected=False)
    pair.vis[0].connect_peer_request(1, b"x")
    pair.wires.exchange()
    pair.wires.restart(1)
    pair.wires.elapse(500 * MILLISECOND)
    assert pair.vis[0].connect_peer_done() is None
    pair = NicPair()
    errors = record_errors(pair.nics[0])
    pair.wires.restart(1)
    send = pair.transfer(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 8),)))
    assert errors == [(AsyncError.CONN_LOST, Resource.VI)]
    assert send.has_failed


def test_a_late_frame_of_an_earlier_connection_is_dropped() -> None:
    pair = NicPair()
    pair.vis[0].post_send(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 8),)))
    late_frames = pair.wires.take(0)
    for vi in pair.vis:
        run(pair.wires, vi.disconnect())
    run(pair.wires, *(vi.connect_peer(1 - number, b"again") for number, vi in enumerate(pair.vis)))
    posted_receive = post_receive(pair)
    for frame in late_frames:
        pair.wires.deliver(frame)
    pair.wires.exchange()
    assert posted_receive.is_posted
    pair.transfer(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 3),)))
    assert posted_receive.length == 3


def test_a_doorbell_for_an_unknown_vi_is_reported() -> None:
    pair = NicPair()
    errors = record_errors(pair.nics[0])
    pair.vis[0].post_receive(Descriptor(data=()))
    run(pair.wires, pair.vis[0].disconnect())
    run(pair.wires, pair.vis[0].destroy())
    with pytest.raises(KeyError):  # destroyed
        pair.nics[0]._vis[pair.vis[0].number]
    pair.vis[0].post_send(Descriptor(OP_SENDRECV, ()))
    assert errors == [(AsyncError.POST_DESC, Resource.DESCRIPTOR)]


@pytest.mark.parametrize("bits", [17, 32, 62])
def test_a_doorbell_for_a_number_without_a_vi_is_only_counted(bits: int) -> None:
    """Doorbells of a shared NIC are rung by untrusted processes."""
    pair = NicPair()
    errors, firmware = record_errors(pair.nics[0]), pair.wires.agents[0].firmware
    firmware.on_doorbell(0, doorbell(Queue.SEND, 1 << bits, 9))
    assert (errors, firmware.counter_values()["invalid"]) == ([], 1)
    post_receive(pair)
    assert not pair.transfer(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 8),))).has_failed
