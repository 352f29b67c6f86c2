"""Persistent requests, and calls on several requests."""

from __future__ import annotations

import pytest

from protocols.mpi import (
    ANY_SOURCE,
    ERR_IN_STATUS,
    ERR_REQUEST,
    ERR_TAG,
    ERR_TRUNCATE,
    PROC_NULL,
    SUCCESS,
    UNDEFINED,
    Comm,
    Prequest,
    Request,
    Status,
)
from protocols.mpi.mpi_errors import MPIError
from tests.unit.protocols.emp_ranks import Ranks
from tests.unit.protocols.mpi_devices import RanksOf, on_every_device


@pytest.mark.parametrize("synchronous", [False, True])
@on_every_device
def test_persistent_requests_transfer_the_buffers_contents_at_each_start(synchronous: bool, ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        buffer = bytearray(1)
        request = await (comm.Ssend_init if synchronous else comm.Send_init)(buffer, 1, 3)
        assert not request.active
        for number in range(5):
            buffer[0] = number
            await request.Start()
            await request.Wait()
        request.Free()

    async def receiver(comm: Comm) -> list[int]:
        buffer, status, received = bytearray(1), Status(), []
        request = await comm.Recv_init(buffer, ANY_SOURCE, 3)
        assert await request.Test(status), "a request that was never started is complete"
        assert status.source == ANY_SOURCE
        for _ in range(5):
            await request.Start()
            while not await request.Test(status):
                pass
            assert (status.source, status.tag, request.active) == (0, 3, False)
            received.append(buffer[0])
        return received

    ranks = ranks_of()
    assert ranks.run(sender, receiver)[1] == list(range(5))
    assert ranks.is_idle()


@on_every_device
def test_startall_starts_in_order(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> list[int]:
        peer = 1 - comm.rank
        data, buffers = bytearray(b"ab"), [bytearray(1), bytearray(1)]
        requests = [await comm.Recv_init(buffer, peer, 1) for buffer in buffers]
        requests += [await comm.Send_init(memoryview(data)[index : index + 1], peer, 1) for index in range(2)]
        requests.append(await comm.Send_init(data, PROC_NULL))
        for contents in (b"ab", b"cd"):
            data[:] = contents
            await Prequest.Startall(requests)
            await Request.Waitall(requests)
            assert bytes(buffers[0] + buffers[1]) == contents
        order = []
        await Prequest.Startall(requests)
        while (index := await Request.Waitany(requests)) != UNDEFINED:
            order.append(index)
        return sorted(order)

    ranks = ranks_of()
    assert ranks.run(program, program) == [[0, 1, 2, 3, 4]] * 2
    assert ranks.is_idle()


@on_every_device
def test_a_persistent_request_that_is_active_cannot_be_started_and_can_be_cancelled(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        request = await comm.Recv_init(bytearray(1))
        with pytest.raises(MPIError) as raised:
            await request.Cancel()
        assert raised.value.Get_error_class() == ERR_REQUEST
        for _ in range(2):
            await request.Start()
            with pytest.raises(MPIError) as raised:
                await request.Start()
            assert raised.value.Get_error_class() == ERR_REQUEST
            status = Status()
            await request.Cancel()
            await request.Wait(status)
            assert status.Is_cancelled()

    ranks = ranks_of(1)
    ranks.run(program)
    assert ranks.is_idle()


@on_every_device
def test_a_persistent_request_with_invalid_arguments_is_rejected_when_it_is_created(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        for make in (comm.Send_init, comm.Ssend_init, comm.Recv_init):
            with pytest.raises(MPIError) as raised:
                await make(bytearray(1), 0, -5)
            assert raised.value.Get_error_class() == ERR_TAG

    ranks_of(1).run(program)


@on_every_device
def test_testall_completes_all_requests_or_none(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await comm.Send(b"1", 1, 1)
        await comm.Recv(None, 1)
        await comm.Send(b"2", 1, 2)

    async def receiver(comm: Comm) -> None:
        statuses = [Status(), Status()]
        requests = [await comm.Irecv(bytearray(1), 0, tag) for tag in (1, 2)]
        while not requests[0].is_complete:
            assert not await Request.Testall(requests, statuses)
        assert not await Request.Testall(requests)
        assert [request.active for request in requests] == [True, True]
        await comm.Send(None, 0)
        while not await Request.Testall(requests, statuses):
            pass
        assert [status.tag for status in statuses] == [1, 2]
        assert await Request.testall(requests) == (True, [None, None])

    ranks_of().run(sender, receiver)


@on_every_device
def test_testany_returns_an_index_and_whether_any_request_is_active(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        status = Status()
        assert await Request.Testany([], status) == (UNDEFINED, True)
        requests = [await comm.irecv(source=0, tag=tag) for tag in (1, 2)]
        assert await Request.testany(requests) == (UNDEFINED, False, None)
        await comm.send("x", 0, 2)
        assert await Request.testany(requests, status) == (1, True, "x")
        assert status.tag == 2
        assert await Request.Testany(requests) == (UNDEFINED, False)
        await comm.send("y", 0, 1)
        assert await Request.Testany(requests) == (0, True)
        assert await Request.Testany(requests) == (UNDEFINED, True)

    ranks_of(1).run(program)


@on_every_device
def test_waitsome_returns_all_completed_requests(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        requests = [await comm.irecv(source=0, tag=tag) for tag in range(4)]
        assert await Request.Testsome(requests) == []
        for tag in (3, 1):
            await comm.send(tag, 0, tag)
        statuses = [Status() for _ in range(4)]
        assert await Request.waitsome(requests, statuses) == ([1, 3], [1, 3])
        assert [status.tag for status in statuses[:2]] == [1, 3]
        sends = [await comm.isend(tag, 0, tag) for tag in (0, 2)]
        received: list[int] = []
        while (indices := await Request.Waitsome(requests)) is not None:
            assert indices
            received += indices
        assert sorted(received) == [0, 2]
        assert await Request.testsome(requests) == (None, None)
        await Request.Waitall(sends)

    ranks_of(1).run(program)


@on_every_device
def test_waitsome_raises_for_a_failed_request_after_completing_all(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        requests = [await comm.Irecv(bytearray(2), 0, tag) for tag in range(3)]
        for tag, size in ((0, 1), (1, 3)):
            await comm.Send(bytes(size), 0, tag)
        statuses = [Status() for _ in range(3)]
        with pytest.raises(MPIError, match="1 of 2 requests have failed") as raised:
            await Request.Waitsome(requests, statuses)
        assert raised.value.Get_error_class() == ERR_IN_STATUS
        assert [status.error for status in statuses[:2]] == [SUCCESS, ERR_TRUNCATE]
        assert [request.active for request in requests] == [False, False, True]
        await requests[2].Cancel()
        await requests[2].Wait()

    ranks_of(1).run(program)


@on_every_device
def test_get_status_leaves_the_request_active(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        status = Status()
        request = await comm.irecv(source=0)
        assert not await request.Get_status(status)
        await comm.send("x", 0, 6)
        assert await request.Get_status(status)
        assert (status.tag, request.active) == (6, True)
        assert await request.wait() == "x"
        assert await request.Get_status(status)
        assert status.source == ANY_SOURCE

    ranks_of(1).run(program)


@on_every_device
def test_get_status_of_several_requests_leaves_them_active_and_fills_statuses(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        requests = [await comm.irecv(source=0, tag=tag) for tag in range(3)]
        status, statuses = Status(), list[Status]()
        assert await Request.Get_status_any(requests, status) == (UNDEFINED, False)
        assert await Request.Get_status_some(requests) == []
        for tag in (2, 1):
            await comm.send(tag, 0, tag)
        while await Request.Get_status_some(requests, statuses) != [1, 2]:
            pass
        assert [entry.tag for entry in statuses] == [1, 2]
        assert await Request.Get_status_any(requests, status) == (1, True)
        assert (status.tag, await Request.Get_status_all(requests)) == (1, False)
        await comm.send(0, 0, 0)
        while not await Request.Get_status_all(requests, statuses):
            pass
        assert [entry.tag for entry in statuses] == [0, 1, 2]
        assert await Request.waitall(requests) == [0, 1, 2]
        assert await Request.Get_status_any(requests, status) == (UNDEFINED, True)
        assert status.source == ANY_SOURCE
        assert (await Request.Get_status_some(requests), await Request.Get_status_all(requests)) == (None, True)

    ranks_of(1).run(program)


def test_get_status_does_not_raise_a_requests_error() -> None:
    async def program(comm: Comm) -> None:
        request, status = await comm.Irecv(bytearray(1), 0), Status()
        await comm.Send(bytes(2), 0)
        while not await Request.Get_status_all([request], [status]):
            pass
        assert status.error == ERR_TRUNCATE
        with pytest.raises(MPIError, match="2 bytes"):
            await request.Wait()

    Ranks(1).run(program)
