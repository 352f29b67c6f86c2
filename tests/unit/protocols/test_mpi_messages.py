"""MPI's point-to-point calls on buffers, on every device."""

from __future__ import annotations

import numpy as np
import pytest

from protocols import mpi
from protocols.emp.settings import Settings
from protocols.mpi import (
    ANY_SOURCE,
    ANY_TAG,
    DOUBLE,
    ERR_BUFFER,
    ERR_COMM,
    ERR_IN_STATUS,
    ERR_PROC_FAILED,
    ERR_RANK,
    ERR_TAG,
    ERR_TRUNCATE,
    PROC_NULL,
    SUCCESS,
    UNDEFINED,
    Comm,
    Request,
    Status,
)
from protocols.mpi.mpi_errors import MPIError
from tests.unit.protocols.emp_ranks import Ranks
from tests.unit.protocols.host_programs import StuckError
from tests.unit.protocols.mpi_devices import RanksOf, on_every_device

BEYOND_TAG_UB = 1 << 40
"""Placeholder for the first invalid tag of a device, tag_ub + 1."""


async def idle(_: Comm) -> None:
    """Do nothing, as a rank without messages."""


@pytest.mark.parametrize("size", [0, 1, 1456, 1457, 4096, 4097, 30_000, 1_000_000])
@pytest.mark.parametrize("mtu", [1500, 9000])
@on_every_device
def test_a_message_arrives_with_its_status(size: int, mtu: int, ranks_of: RanksOf) -> None:
    ranks = ranks_of(mtu=mtu)
    data = np.random.default_rng(size).bytes(size)

    async def sender(comm: Comm) -> None:
        await comm.Send(data, dest=1, tag=7)

    async def receiver(comm: Comm) -> None:
        buffer, status = bytearray(size + 10), Status()
        await comm.Recv(buffer, source=0, tag=7, status=status)
        assert bytes(buffer) == data + bytes(10)
        assert (status.Get_source(), status.Get_tag(), status.Get_count()) == (0, 7, size)
        assert status.Get_error() == SUCCESS

    ranks.run(sender, receiver)
    assert ranks.is_idle()


@on_every_device
def test_numpy_arrays_are_sent_and_received(ranks_of: RanksOf) -> None:
    matrix = np.arange(3000, dtype=np.float64).reshape(30, 100)

    async def sender(comm: Comm) -> None:
        await comm.Send(matrix, 1)
        await comm.Send([matrix, 100, DOUBLE], 1)

    async def receiver(comm: Comm) -> None:
        received, row, status = np.zeros((30, 100)), np.zeros(101), Status()
        await comm.Recv(received)
        assert (received == matrix).all()
        await comm.Recv(row, status=status)
        assert (row[:100] == matrix[0]).all()
        assert status.Get_count(DOUBLE) == 100
        assert status.count == 800

    ranks_of().run(sender, receiver)


@on_every_device
def test_the_count_of_an_incomplete_item_is_undefined(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await comm.Send(b"12345", 1)

    async def receiver(comm: Comm) -> None:
        status = Status()
        await comm.Recv(bytearray(5), status=status)
        assert status.Get_count(DOUBLE) == UNDEFINED

    ranks_of().run(sender, receiver)


@on_every_device
def test_messages_of_one_tag_do_not_overtake_and_tags_are_received_in_any_order(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await Request.Waitall([await comm.Isend(bytes([number]), 1, tag=number % 3) for number in range(30)])

    async def receiver(comm: Comm) -> list[int]:
        received = []
        for tag in (2, 0, 1):
            for _ in range(10):
                buffer = bytearray(1)
                await comm.Recv(buffer, 0, tag)
                received.append(buffer[0])
        return received

    assert ranks_of().run(sender, receiver)[1] == [*range(2, 30, 3), *range(0, 30, 3), *range(1, 30, 3)]


@on_every_device
def test_wildcard_receives_report_source_and_tag_in_the_status(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await comm.Send(bytes([comm.rank] * 3), 0, tag=10 + comm.rank)

    async def receiver(comm: Comm) -> set[tuple[int, int, bytes]]:
        received = set()
        for _ in range(3):
            buffer, status = bytearray(3), Status()
            await comm.Recv(buffer, ANY_SOURCE, ANY_TAG, status)
            received.add((status.source, status.tag, bytes(buffer)))
        return received

    received = ranks_of(4).run(receiver, sender, sender, sender)[0]
    assert received == {(1, 11, b"\1\1\1"), (2, 12, b"\2\2\2"), (3, 13, b"\3\3\3")}


@on_every_device
def test_a_receive_for_any_source_or_tag_is_for_its_own_communicator(ranks_of: RanksOf) -> None:
    ranks = ranks_of()
    first, second = ranks.world, ranks.communicators(1)

    async def sender(comm: Comm) -> None:
        assert comm is first[0]
        requests = [await comm.Isend(b"world", 1, 3), await second[0].Isend(b"other", 1, 3)]
        await Request.Waitall(requests)

    async def receiver(comm: Comm) -> None:
        own_buffer, world_buffer = bytearray(5), bytearray(5)
        await second[1].Recv(own_buffer)
        await comm.Recv(world_buffer)
        assert (own_buffer, world_buffer) == (b"other", b"world")

    ranks.run(sender, receiver)


@on_every_device
def test_the_largest_tag_does_not_match_the_next_communicators_smallest_tag(ranks_of: RanksOf) -> None:
    ranks = ranks_of()
    other_comms = ranks.communicators(1)

    async def sender(comm: Comm) -> None:
        await Request.Waitall([await comm.Isend(b"a", 1, comm.tag_ub), await other_comms[0].Isend(b"b", 1, 0)])

    async def receiver(comm: Comm) -> None:
        smallest, largest, status = bytearray(1), bytearray(1), Status()
        await other_comms[1].Recv(smallest)
        await comm.Recv(largest, status=status)
        assert (smallest, largest, status.tag) == (b"b", b"a", comm.tag_ub)

    ranks.run(sender, receiver)


@on_every_device
def test_a_rank_sends_to_itself(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        buffer, status = bytearray(5000), Status()
        request = await comm.Irecv(buffer, comm.rank)
        await comm.Send(b"x" * 5000, comm.rank, 4)
        await request.Wait(status)
        assert buffer == b"x" * 5000
        assert (status.source, status.tag) == (0, 4)
        await comm.Sendrecv(b"y", comm.rank, 1, buffer, comm.rank, 1)
        assert buffer[:2] == b"yx"

    ranks = ranks_of(1)
    ranks.run(program)
    assert ranks.is_idle()


@on_every_device
def test_all_ranks_exchange_with_a_neighbour_concurrently(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        received, status = bytearray(10_000), Status()
        right_peer, left_peer = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        await comm.Sendrecv(bytes([comm.rank]) * 10_000, right_peer, 5, received, left_peer, 5, status)
        assert received == bytes([left_peer]) * 10_000
        assert status.source == left_peer

    ranks_of(4).run(program, program, program, program)


@on_every_device
def test_transfers_with_proc_null_complete_at_once(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        buffer, status = bytearray(b"unchanged"), Status()
        await comm.Send(b"abc", PROC_NULL)
        await comm.Recv(buffer, PROC_NULL, status=status)
        assert (buffer, status.source, status.tag, status.count) == (b"unchanged", PROC_NULL, ANY_TAG, 0)
        await comm.Sendrecv(b"abc", PROC_NULL, 0, buffer, PROC_NULL)
        await comm.send({}, PROC_NULL)
        assert await comm.recv(source=PROC_NULL) is None
        assert await comm.sendrecv({}, PROC_NULL, source=PROC_NULL) is None

    ranks_of(1).run(program)


@on_every_device
def test_a_message_longer_than_its_receive_fails_the_receive_only(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await comm.Send(b"0123456789", 1, 6)
        await comm.Send(b"next", 1, 6)

    async def receiver(comm: Comm) -> None:
        buffer, status = bytearray(b"....|"), Status()
        with pytest.raises(MPIError, match="a message of 10 bytes from rank 0, tag 6, for a buffer of 4") as raised:
            await comm.Recv([buffer, 4], status=status)
        assert raised.value.Get_error_class() == ERR_TRUNCATE
        assert (status.source, status.tag, status.count, status.error) == (0, 6, 4, ERR_TRUNCATE)
        assert buffer == b"0123|"
        await comm.Recv(buffer)
        assert buffer == b"next|"

    ranks = ranks_of()
    ranks.run(sender, receiver)
    assert ranks.is_idle()


@pytest.mark.parametrize(
    ("dest", "number", "error_class"),
    [
        (2, 0, ERR_RANK),
        (ANY_SOURCE, 0, ERR_RANK),
        (-3, 0, ERR_RANK),
        (1, ANY_TAG, ERR_TAG),
        (1, BEYOND_TAG_UB, ERR_TAG),
    ],
)
@on_every_device
def test_a_send_with_invalid_arguments_is_rejected_without_effect(
    dest: int, number: int, error_class: int, ranks_of: RanksOf
) -> None:
    ranks = ranks_of()

    async def program(comm: Comm) -> None:
        tag = comm.tag_ub + 1 if number == BEYOND_TAG_UB else number
        for send in (comm.Send, comm.Isend, comm.send, comm.isend, comm.Sendrecv, comm.sendrecv):
            with pytest.raises(MPIError) as raised:
                await send(b"", dest, tag)
            assert raised.value.Get_error_class() == error_class

    ranks.run(program, idle)
    assert ranks.is_idle()


@pytest.mark.parametrize(
    ("source", "number", "error_class"),
    [(2, 0, ERR_RANK), (-3, 0, ERR_RANK), (0, -2, ERR_TAG), (0, BEYOND_TAG_UB, ERR_TAG)],
)
@on_every_device
def test_a_receive_with_invalid_arguments_is_rejected(
    source: int, number: int, error_class: int, ranks_of: RanksOf
) -> None:
    ranks = ranks_of()

    async def program(comm: Comm) -> None:
        tag = comm.tag_ub + 1 if number == BEYOND_TAG_UB else number
        for receive in (comm.Recv(bytearray(1), source, tag), comm.recv(source=source, tag=tag)):
            with pytest.raises(MPIError) as raised:
                await receive
            assert raised.value.Get_error_class() == error_class

    ranks.run(program, idle)
    assert ranks.is_idle()


@on_every_device
def test_objects_and_read_only_buffers_are_rejected_by_buffer_calls(ranks_of: RanksOf) -> None:
    ranks = ranks_of()

    async def program(comm: Comm) -> None:
        with pytest.raises(MPIError) as raised:
            await comm.Sendrecv("text", 1, 0, bytearray(1), 1)
        assert raised.value.Get_error_class() == ERR_BUFFER
        with pytest.raises(MPIError) as raised:
            await comm.Sendrecv(b"bytes", 1, 0, b"fixed", 1)
        assert raised.value.Get_error_class() == ERR_BUFFER

    ranks.run(program, idle)
    assert ranks.is_idle()


@on_every_device
def test_there_are_at_least_128_communicators(ranks_of: RanksOf) -> None:
    ranks = ranks_of()
    limit = ranks.devices[0].contexts // 2
    assert limit >= 128
    ranks.communicators(limit - 1)
    for context in (-1, limit):
        with pytest.raises(MPIError, match=f"context must be 0 to {limit - 1}, got {context}") as raised:
            ranks.communicators(context)
        assert raised.value.Get_error_class() == ERR_COMM


@on_every_device
def test_a_message_longer_than_the_maximum_is_rejected(ranks_of: RanksOf) -> None:
    ranks = ranks_of()
    ranks.devices[0].max_message_size = 10

    async def program(comm: Comm) -> None:
        with pytest.raises(MPIError, match="a message must have at most 10 bytes, got 11"):
            await comm.Isend(bytes(11), 1)

    ranks.run(program, idle)


def test_a_send_to_a_silent_peer_fails() -> None:
    ranks = Ranks(settings=Settings(give_up=1_000_000_000))

    async def sender(comm: Comm) -> None:
        with pytest.raises(MPIError, match="acknowledged nothing") as raised:
            await comm.Send(b"lost", 1)
        assert raised.value.Get_error_class() == ERR_PROC_FAILED

    ranks.run(sender, idle)


@on_every_device
def test_a_deadlock_of_two_ranks_is_reported(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        await comm.Recv(bytearray(4), 1 - comm.rank, 3)

    with pytest.raises(StuckError, match="program 0: <Completion of a receive from rank 1, tag 3, 4 bytes: waiting>"):
        ranks_of().run(program, program)


@on_every_device
def test_a_test_returns_false_until_the_message_arrives_and_lets_other_tasks_run(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await comm.Recv(None, 1)
        await comm.Send(b"there", 1, 2)

    async def receiver(comm: Comm) -> None:
        buffer, status = bytearray(5), Status()
        request = await comm.Irecv(buffer)
        for _ in range(10):
            assert not await request.Test(status)
        await comm.Isend(None, 0)
        tests = 0
        while not await request.Test(status):
            tests += 1
            assert tests < 10
        assert (buffer, status.source, status.count) == (b"there", 0, 5)

    ranks_of().run(sender, receiver)


@on_every_device
def test_calls_of_an_inactive_request_return_at_once(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        receive = await comm.Irecv(bytearray(5), 0)
        send = await comm.Isend(b"hello", 0)
        assert receive.active
        assert await receive.Wait()
        assert not receive.active
        status = Status()
        assert await receive.Wait(status)
        assert await receive.Test(status)
        assert (status.source, status.tag, status.count) == (ANY_SOURCE, ANY_TAG, 0)
        await send
        assert await Request.Waitany([receive, send], status) == UNDEFINED
        assert await Request.Waitany([]) == UNDEFINED

    ranks_of(1).run(program)


def test_waitany_returns_each_request_once_in_order_of_completion() -> None:
    async def sender(comm: Comm) -> None:
        for tag in (2, 0, 3, 1):
            await comm.Send(bytes([tag]), 1, tag)

    async def receiver(comm: Comm) -> list[tuple[int, int]]:
        requests = [await comm.Irecv(bytearray(1), 0, tag) for tag in range(4)]
        order = []
        for _ in range(4):
            status = Status()
            order.append((await Request.Waitany(requests, status), status.tag))
        return order

    # One frame at a time, so that each message is complete before the next arrives.
    ranks = Ranks()

    def deliver() -> None:
        for number in (0, 1):
            ranks.wires.deliver_from(number)

    assert ranks.run(sender, receiver, deliver=deliver)[1] == [(2, 2), (0, 0), (3, 3), (1, 1)]


@on_every_device
def test_waitall_waits_for_all_requests_even_if_one_fails(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        for size in (1, 20, 3):
            await comm.Send(bytes(size), 1)

    async def receiver(comm: Comm) -> None:
        requests = [await comm.Irecv(bytearray(10)) for _ in range(3)]
        statuses = [Status(), Status(), Status()]
        with pytest.raises(MPIError, match="1 of 3 requests have failed, the first because a message of 20") as raised:
            await Request.Waitall(requests, statuses)
        assert raised.value.Get_error_class() == ERR_IN_STATUS
        assert [status.error for status in statuses] == [SUCCESS, ERR_TRUNCATE, SUCCESS]
        assert [status.count for status in statuses] == [1, 10, 3]
        assert not any(request.active for request in requests)

    ranks_of().run(sender, receiver)


def test_an_error_has_the_interface_of_mpi4pys_exception() -> None:
    error = mpi.Exception(ERR_TAG, "a tag of -5")
    assert isinstance(error, RuntimeError)
    assert error.Get_error_class() == error.Get_error_code() == error.error_class == error.error_code == ERR_TAG
    assert error.Get_error_string() == error.error_string == str(error) == "a tag of -5"
