"""MPI on AM-II: order, credits, long messages, and peers that are absent or restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocols.am2 import codec
from protocols.am2.plug import plug
from protocols.am2.settings import MAX_SEQUENCES, MILLISECOND, SECOND, Settings
from protocols.mpi import ERR_PROC_FAILED, Comm, Request, Status, am2
from protocols.mpi.am2.pairs import WINDOW
from protocols.mpi.am2.staging_area import MAX_SLOTS_PER_MESSAGE, SLOT_SIZE, SLOTS, StagingRegion
from protocols.mpi.device import Device
from protocols.mpi.mpi_errors import MPIError
from tests.unit.protocols.am2_mpi_nodes import Nodes, error_class_of
from tests.unit.protocols.mpi_devices import Am2Ranks

FEW_RETRIES = Settings(retries=3, longest_timeout=20 * MILLISECOND)
LONG_MESSAGE = bytes(range(256)) * (4 * SLOT_SIZE // 256)
"""Twice as long as the part of the staging region that one message may occupy."""


def test_mpi_uses_the_first_endpoint_of_a_node() -> None:
    nodes = Nodes()
    with pytest.raises(ValueError, match="first"):
        am2.device(nodes.wires.agents[0].host)  # type: ignore[arg-type]
    nodes.exchange(0, 1)


def test_a_send_completes_when_its_buffer_may_be_reused() -> None:
    nodes = Nodes()
    nodes.exchange(0, 1)
    for size in (4, 100, 3000):
        buffer = bytearray(b"x" * size)
        send = nodes.devices[0].send(1, 0, 7, memoryview(buffer))
        assert send.done
        buffer[:] = b"y" * size
        receive, received = nodes.receive(1, 0, size, tag=7)
        nodes.wires.elapse(SECOND)
        assert receive.result().length == size
        assert received == b"x" * size


def test_a_long_message_is_sent_only_after_the_match() -> None:
    nodes = Nodes()
    send = nodes.send(0, 1, LONG_MESSAGE)
    nodes.wires.elapse(SECOND)
    assert not send.done
    assert nodes.wires.agents[1].firmware.counter_values()["packets_received"] < 10
    receive, buffer = nodes.receive(1, 0, len(LONG_MESSAGE))
    nodes.wires.elapse(SECOND)
    assert (send.result().length, receive.result().length) == (len(LONG_MESSAGE), len(LONG_MESSAGE))
    assert buffer == LONG_MESSAGE


def test_a_long_message_is_sent_only_up_to_the_size_of_its_receive() -> None:
    for capacity in (0, 1000):
        nodes = Nodes()
        send = nodes.send(0, 1, LONG_MESSAGE)
        receive, buffer = nodes.receive(1, 0, capacity)
        nodes.wires.elapse(SECOND)
        assert send.result().length == len(LONG_MESSAGE)
        with pytest.raises(MPIError, match=f"{len(LONG_MESSAGE)} bytes .* for a buffer of {capacity}"):
            receive.result()
        assert buffer == LONG_MESSAGE[:capacity]
        assert nodes.wires.agents[1].firmware.counter_values()["packets_received"] < 20


def test_more_long_messages_than_slots_take_turns() -> None:
    count = 2 * SLOTS
    nodes = Nodes(3)
    sends = [
        nodes.send(1 + number % 2, 0, LONG_MESSAGE[: 2 * SLOT_SIZE + number], tag=number) for number in range(count)
    ]
    receives = [nodes.receive(0, 1 + number % 2, 3 * SLOT_SIZE, tag=number) for number in range(count)]
    nodes.wires.elapse(SECOND)
    for number, (completion, (receive, buffer)) in enumerate(zip(sends, receives, strict=True)):
        assert completion.done
        assert buffer[: receive.result().length] == LONG_MESSAGE[: 2 * SLOT_SIZE + number]
    assert nodes.ranks.is_idle()


def test_early_messages_are_kept_and_limited_by_the_window() -> None:
    nodes = Nodes(2, Settings(sequences=MAX_SEQUENCES))
    nodes.exchange(0, 1)
    sends = [nodes.send(0, 1, number.to_bytes(2)) for number in range(10 * WINDOW)]
    first, *frames = nodes.wires.take(0)
    for frame in frames:
        nodes.wires.deliver(frame)
    nodes.wires.exchange()  # all frames but the first message's
    early_messages = nodes.endpoint(1)._pairs[0].early
    assert len(early_messages) == WINDOW - 1
    assert not nodes.endpoint(1)._pairs[0].arriving
    nodes.wires.deliver(first)
    nodes.wires.exchange()
    assert not early_messages
    assert all(completion.done for completion in sends)
    for number in range(10 * WINDOW):
        receive, buffer = nodes.receive(1, 0, 2)
        assert receive.result().length == 2
        assert buffer == number.to_bytes(2)


def test_a_silent_peer_does_not_block_sends_to_other_peers() -> None:
    nodes = Nodes(3)
    nodes.exchange(0, 1)
    nodes.exchange(0, 2)
    sends_to_silent = [nodes.send(0, 1, bytes(100)) for _ in range(50)]
    sends_to_live = [nodes.send(0, 2, bytes(100)) for _ in range(200)]
    nodes.advance(100 * MILLISECOND, lambda frame: frame[:6] == nodes.wires.addresses[1])
    assert all(completion.done for completion in sends_to_live)
    assert sum(completion.done for completion in sends_to_silent) == 4


def test_messages_to_a_silent_peer_fail_and_later_messages_arrive() -> None:
    nodes = Nodes(2, FEW_RETRIES)
    sends = [nodes.send(0, 1, data) for data in (b"short", bytes(3000), LONG_MESSAGE)]
    nodes.drop_all_frames(SECOND)
    assert [error_class_of(completion) for completion in sends] == [ERR_PROC_FAILED] * 3
    nodes.exchange(0, 1)
    assert nodes.ranks.is_idle()


def test_an_interrupted_long_message_fails_at_both_ends() -> None:
    nodes = Nodes(2, FEW_RETRIES)
    nodes.exchange(0, 1)
    send = nodes.send(0, 1, LONG_MESSAGE)
    receive, _ = nodes.receive(1, 0, len(LONG_MESSAGE))
    pending, buffer = nodes.receive(1, 0, 10, tag=5)
    for _ in range(6):
        for number in (0, 1):
            nodes.wires.deliver_from(number)
    nodes.drop_all_frames(150 * MILLISECOND)
    assert error_class_of(send) == ERR_PROC_FAILED
    nodes.wires.elapse(SECOND)  # the receiver is notified of the new session
    assert error_class_of(receive) == ERR_PROC_FAILED
    assert not pending.done  # not the lost message's
    nodes.send(0, 1, b"later", tag=5)
    nodes.wires.elapse(SECOND)
    assert pending.result().length == 5
    assert buffer[:5] == b"later"
    staging = nodes.endpoint(1)._staging
    assert not staging._held_back
    assert len(staging._free) == SLOTS
    nodes.exchange(0, 1)


def test_slots_are_held_back_while_messages_of_the_former_session_may_be_in_flight() -> None:
    nodes = Nodes(2, replace(FEW_RETRIES, channels=256))  # one is free besides those of lost packets
    nodes.exchange(0, 1)
    nodes.send(1, 0, b"lost message")
    nodes.advance(40 * MILLISECOND, lambda frame: b"lost m" in frame)
    send, (receive, _) = nodes.send(0, 1, LONG_MESSAGE), nodes.receive(1, 0, len(LONG_MESSAGE))
    nodes.advance(30 * MILLISECOND, lambda frame: b"lost m" in frame or len(frame) > 1000)
    # The receiver has given up its own message, and announced it; fragments of the long one are still missing.
    staging, pair = nodes.endpoint(1)._staging, nodes.endpoint(1)._pairs[0]
    assert [error_class_of(completion) for completion in (send, receive)] == [ERR_PROC_FAILED] * 2
    assert (pair.own_session, pair.is_open) == ((1, 1), True)
    assert list(map(len, staging._held_back.values())) == [MAX_SLOTS_PER_MESSAGE]
    nodes.send(0, 1, b"meanwhile")
    nodes.advance(MILLISECOND, lambda frame: len(frame) > 1000)
    assert nodes.receive(1, 0, 9)[1] == b"meanwhile"
    assert staging._held_back
    nodes.wires.elapse(SECOND)
    assert not staging._held_back
    nodes.exchange(0, 1)


@pytest.mark.parametrize("credits_per_peer", [1, 4])
def test_credits_of_returned_replies_are_restored_when_the_peer_reports_them(credits_per_peer: int) -> None:
    nodes = Nodes(2, replace(FEW_RETRIES, credits=credits_per_peer))
    nodes.exchange(0, 1)
    replier = nodes.wires.addresses[1]
    for _ in range(2 * credits_per_peer):
        sends = [nodes.send(0, 1, b"word") for _ in range(20)]
        nodes.advance(
            60 * MILLISECOND, lambda frame: frame[6:12] == replier and codec.kind_of(frame) == codec.KIND_MESSAGE
        )
        nodes.wires.elapse(SECOND)
        assert [completion.done for completion in sends] == [True] * 20
        assert error_class_of(sends[-1]) == ERR_PROC_FAILED
        pair = nodes.endpoint(0)._pairs[1]
        assert (pair.former_unanswered_count, pair.lacks_credits) == (0, False)
        nodes.exchange(0, 1)
        assert nodes.endpoint(0)._endpoint.credits(pair.translation) == credits_per_peer


def test_messages_of_a_former_session_are_rejected() -> None:
    nodes = Nodes(2, FEW_RETRIES)
    nodes.exchange(0, 1)
    nodes.send(1, 0, b"lost message")
    nodes.advance(50 * MILLISECOND, lambda frame: b"lost m" in frame)
    nodes.send(0, 1, b"before")
    held_frames = nodes.wires.take(0)
    nodes.advance(10 * MILLISECOND, lambda frame: b"lost m" in frame or b"before" in frame)
    assert nodes.endpoint(1)._pairs[0].own_session == (1, 1)
    for text in (b"after1", b"after2", b"after3"):
        nodes.send(0, 1, text)
    for frame in held_frames:
        nodes.wires.deliver(frame)
    nodes.wires.elapse(SECOND)
    assert [nodes.receive(1, 0, 6)[1] for _ in range(3)] == [b"after1", b"after2", b"after3"]


def test_a_late_identity_of_a_former_incarnation_is_ignored() -> None:
    nodes = Nodes(2, FEW_RETRIES)
    nodes.send(0, 1, b"first of all")
    late_frames = nodes.wires.take(0)
    nodes.drop_all_frames(60 * MILLISECOND)
    assert nodes.endpoint(0)._pairs[1].own_session == (1, 1)
    nodes.exchange(0, 1)
    send = nodes.send(1, 0, LONG_MESSAGE)
    nodes.wires.exchange()
    for frame in late_frames:
        nodes.wires.deliver(frame)
    receive, buffer = nodes.receive(0, 1, len(LONG_MESSAGE))
    nodes.wires.elapse(SECOND)
    assert (send.result().length, receive.result().length) == (len(LONG_MESSAGE), len(LONG_MESSAGE))
    assert buffer == LONG_MESSAGE
    assert nodes.endpoint(1)._pairs[0].peer_session == (1, 1)


@pytest.mark.parametrize("restarted", [0, 1])
def test_transfers_in_progress_fail_when_a_peer_restarts_and_later_ones_succeed(restarted: int) -> None:
    nodes = Nodes(2)
    nodes.exchange(0, 1)
    remaining, completions = 1 - restarted, []
    completions.append(nodes.send(remaining, restarted, LONG_MESSAGE))
    completions.append(nodes.receive(remaining, restarted, len(LONG_MESSAGE))[0])
    nodes.send(restarted, remaining, LONG_MESSAGE)
    nodes.wires.exchange()
    nodes.restart(restarted)
    nodes.exchange(restarted, remaining)
    assert [error_class_of(completion) for completion in completions] == [ERR_PROC_FAILED] * 2
    nodes.exchange(remaining, restarted)


def test_a_rank_that_only_sends_detects_the_restart_of_a_peer() -> None:
    nodes = Nodes(2)
    nodes.exchange(0, 1)
    nodes.restart(1)
    completions = [nodes.send(0, 1, LONG_MESSAGE), nodes.send(0, 1, LONG_MESSAGE)]
    nodes.wires.elapse(SECOND)
    assert [error_class_of(completion) for completion in completions] == [ERR_PROC_FAILED] * 2
    nodes.exchange(0, 1)


@pytest.mark.parametrize("notified_by", ["message", "keepalive"])
def test_replies_that_a_peer_had_not_sent_before_its_restart_are_not_awaited(notified_by: str) -> None:
    nodes = Nodes(2)
    nodes.exchange(0, 1)
    sends = [nodes.send(0, 1, bytes(4)) for _ in range(20)]
    for frame in nodes.wires.take(0):
        nodes.wires.deliver(frame)  # four requests, which are handled
    for frame in nodes.wires.take(1):
        if codec.kind_of(frame) == codec.KIND_ACK:  # but not the replies
            nodes.wires.deliver(frame)
    nodes.restart(1)
    nodes.wires.elapse(2 * SECOND)
    assert [completion.done for completion in sends] == [True] * 4 + [False] * 16
    if notified_by == "message":
        nodes.exchange(1, 0)
    else:
        nodes.wires.elapse(10 * SECOND)
    assert [error_class_of(completion) for completion in sends[4:]] == [ERR_PROC_FAILED] * 16
    nodes.exchange(0, 1)


def test_a_synchronous_send_fails_when_its_receiver_restarts_before_the_match() -> None:
    nodes = Nodes(2)
    completion = nodes.devices[0].send(1, 0, 3, memoryview(b"short"), True)
    nodes.wires.elapse(SECOND)
    assert not completion.done
    nodes.restart(1)
    nodes.exchange(1, 0)
    assert error_class_of(completion) == ERR_PROC_FAILED


class LateRanks(Am2Ranks):
    """Two ranks, the second of which has no endpoint until `start_endpoint`."""

    def __init__(self) -> None:
        super().__init__(1)
        self.wires = type(self.wires)(plug(), 2)
        self.devices = [am2.device(self.wires.agents[0].host)]  # type: ignore[arg-type]

    def start_endpoint(self) -> Device:
        self.devices.append(am2.device(self.wires.agents[1].host))  # type: ignore[arg-type]
        return self.devices[1]


def test_hello_is_repeated_until_the_peer_has_an_endpoint() -> None:
    ranks = LateRanks()
    completion = ranks.devices[0].send(1, 0, 3, memoryview(b"early"))
    for _ in range(50):
        for number in (0, 1):
            ranks.wires.deliver_from(number)
    assert not completion.done
    buffer = bytearray(5)
    receive = ranks.start_endpoint().receive(0, 0, 3, memoryview(buffer))
    ranks.wires.elapse(SECOND)
    assert completion.done
    assert receive.result().length == 5
    assert buffer == b"early"


def test_a_peer_without_an_endpoint_fails_after_the_time_limit() -> None:
    ranks = LateRanks()
    completion = ranks.devices[0].send(1, 0, 3, memoryview(b"early"))
    ranks.wires.elapse(SECOND)
    assert error_class_of(completion) == ERR_PROC_FAILED


def test_peers_share_the_entries_of_the_translation_table() -> None:
    nodes = Nodes(6, Settings(translations=2))
    sends = [nodes.send(0, 1 + number % 5, bytes([number])) for number in range(100)]
    nodes.wires.elapse(SECOND)
    assert all(completion.done for completion in sends)
    for peer in range(1, 6):
        for number in range(peer - 1, 100, 5):
            receive, buffer = nodes.receive(peer, 0, 1)
            assert receive.done
            assert buffer == bytes([number])


def test_all_ranks_send_long_messages_to_all_ranks_without_deadlock() -> None:
    async def program(comm: Comm) -> None:
        peers = [rank for rank in range(comm.size) if rank != comm.rank]
        buffers = [bytearray(len(LONG_MESSAGE)) for _ in peers]
        sends = [await comm.Isend(LONG_MESSAGE, peer, comm.rank) for peer in peers]
        receives = [await comm.Irecv(buffer, peer, peer) for peer, buffer in zip(peers, buffers, strict=True)]
        await Request.Waitall(sends + receives, [Status() for _ in sends + receives])
        assert all(buffer == LONG_MESSAGE for buffer in buffers)

    ranks = Am2Ranks(5)
    programs: list[Callable[[Comm], object]] = [program] * 5
    ranks.run(*programs)  # type: ignore[arg-type]
    assert ranks.is_idle()


def test_messages_to_a_freed_endpoint_fail() -> None:
    nodes = Nodes(2)
    nodes.exchange(0, 1)
    nodes.wires.agents[1].host.terminate()  # type: ignore[attr-defined]
    completions = [nodes.send(0, 1, LONG_MESSAGE), nodes.devices[0].send(1, 0, 0, memoryview(b"short"), True)]
    nodes.wires.elapse(SECOND)
    assert [error_class_of(completion) for completion in completions] == [ERR_PROC_FAILED] * 2


def test_slots_are_allocated_in_turn_and_those_of_a_lost_peer_are_held_back() -> None:
    staging = StagingRegion()
    first, second = staging.take(SLOT_SIZE), staging.take(10 * SLOT_SIZE)
    assert (len(first), len(second)) == (1, 2)
    staging.hold_back(1, first)
    staging.free(second)
    allocations = [staging.take(2 * SLOT_SIZE) for _ in range(SLOTS)]
    assert sorted(sum(allocations, ())) == sorted({*range(SLOTS)} - {*first})
    assert not staging.take(1)
    staging.release(1)
    assert staging.take(1) == first
    for peer, slots in enumerate([first, *allocations]):
        staging.hold_back(peer, slots)
    assert staging.take(1) == first, "when all are held back, those of the first lost peer are reused"


def test_messages_that_arrive_during_a_handler_with_a_full_ring_are_handled_later() -> None:
    nodes = Nodes(3, Settings(credits=16))
    nodes.exchange(0, 1)
    nodes.exchange(0, 2)
    sends = [nodes.send(0, 1 + number // 20, b"word") for number in range(40)]
    nodes.send(1, 0, b"another")
    host, endpoint = nodes.wires.agents[0].host, nodes.endpoint(0)._endpoint
    assert sum(completion.done for completion in sends) == 16
    host.handling_endpoint = endpoint  # type: ignore[attr-defined]
    nodes.wires.deliver_from(1)
    assert not endpoint.is_empty
    host.handling_endpoint = None  # type: ignore[attr-defined]
    nodes.wires.elapse(SECOND)
    assert all(completion.done for completion in sends)
    assert nodes.receive(0, 1, 7)[1] == b"another"
    assert nodes.ranks.is_idle()
