"""Cancelled transfers: each is cancelled or completes, never both, and leaves no descriptor in use."""

from __future__ import annotations

import pytest

from protocols.emp.settings import Settings
from protocols.mpi import ANY_SOURCE, ANY_TAG, ERR_REQUEST, Comm, Request, Status
from protocols.mpi.mpi_errors import MPIError
from tests.unit.protocols.emp_ranks import Ranks
from tests.unit.protocols.mpi_devices import RanksOf, on_every_device


@on_every_device
def test_the_status_shows_a_cancelled_receive_and_the_next_receive_gets_the_message(ranks_of: type[Ranks]) -> None:
    async def sender(comm: Comm) -> None:
        await comm.Recv(None, 1)
        await comm.Send(b"hello", 1, 3)

    async def receiver(comm: Comm) -> None:
        buffer, status = bytearray(5), Status()
        request = await comm.Irecv(bytearray(5))
        await request.Cancel()
        assert await request.Wait(status)
        assert status.Is_cancelled()
        assert (status.source, status.tag, status.count) == (ANY_SOURCE, ANY_TAG, 0)
        await comm.Send(None, 0)
        await comm.Recv(buffer, status=status)
        assert buffer == b"hello"
        assert not status.Is_cancelled()

    ranks = ranks_of(2)
    ranks.run(sender, receiver)
    assert ranks.is_idle()


@on_every_device
def test_a_matched_receive_is_not_cancelled(ranks_of: type[Ranks]) -> None:
    async def sender(comm: Comm) -> None:
        await comm.Send(b"hello", 1, 3)
        await comm.Send(b"", 1, 4)

    async def receiver(comm: Comm) -> None:
        buffer, status = bytearray(5), Status()
        request = await comm.Irecv(buffer, 0, 3)
        await comm.Recv(None, 0, 4)
        await request.Cancel()
        assert await request.Test(status)
        assert (buffer, status.count, status.Is_cancelled()) == (b"hello", 5, False)
        with pytest.raises(MPIError) as raised:
            await request.Cancel()
        assert raised.value.Get_error_class() == ERR_REQUEST

    ranks_of(2).run(sender, receiver)


def test_cancelled_receives_free_their_descriptors() -> None:
    """There are more receives than descriptors: some are posted, and some are queued."""

    async def program(comm: Comm) -> None:
        for _ in range(3):
            requests = [await comm.Irecv(bytearray(9000)) for _ in range(20)]
            for request in reversed(requests):
                await request.Cancel()
            statuses = [Status() for _ in requests]
            assert await Request.Waitall(requests, statuses)
            assert all(status.Is_cancelled() for status in statuses)

    ranks = Ranks(1, Settings(descriptors=8))
    ranks.run(program)
    assert ranks.is_idle()
    assert ranks.wires.agents[0].host.free_descriptors == 8  # type: ignore[attr-defined]


def test_a_posted_send_is_not_cancelled_and_a_queued_send_is() -> None:
    async def sender(comm: Comm) -> list[bool]:
        requests = [await comm.Isend(bytes([number]), 1, number) for number in range(10)]
        statuses = [Status() for _ in requests]
        for request in requests:
            await request.Cancel()
        await comm.Send(b"", 1, 100)
        await Request.Waitall(requests, statuses)
        return [status.Is_cancelled() for status in statuses]

    async def receiver(comm: Comm) -> list[int]:
        status, received = Status(), []
        while status.tag != 100:
            await comm.Recv(bytearray(1), status=status)
            received.append(status.tag)
        return received

    ranks = Ranks(2, Settings(descriptors=8))
    cancelled, received = ranks.run(sender, receiver)
    assert cancelled == [False] * 4 + [True] * 6
    assert received == [0, 1, 2, 3, 100]


@on_every_device
@pytest.mark.parametrize("size", [1, 10_000])
def test_a_receive_of_an_object_is_cancelled_or_complete(ranks_of: type[Ranks], size: int) -> None:
    async def sender(comm: Comm) -> None:
        await comm.Recv(None, 1, 9)
        await comm.send("x" * size, 1, 5)

    async def receiver(comm: Comm) -> None:
        status = Status()
        early_request = await comm.irecv(source=0)
        await early_request.Cancel()
        assert await early_request.wait(status) is None
        assert status.Is_cancelled()
        late_request = await comm.irecv(source=0)
        await comm.Send(None, 0, 9)
        while not late_request.is_complete:
            await late_request.Get_status(status)
        assert status.source == 0
        await late_request.cancel()
        assert await late_request.wait() == "x" * size

    ranks = ranks_of(2)
    ranks.run(sender, receiver)
    assert ranks.is_idle()


@on_every_device
def test_a_wait_returns_when_another_task_cancels_the_receive(ranks_of: RanksOf) -> None:
    requests: list[Request] = []

    async def program(comm: Comm) -> bool:
        requests.append(await comm.Irecv(bytearray(1), 1))
        status = Status()
        await requests[0].Wait(status)
        return status.Is_cancelled()

    async def other_task(comm: Comm) -> bool:
        while not requests:
            assert not await comm.Iprobe()
        await requests[0].Cancel()
        return True

    assert ranks_of(2).run(program, other_task) == [True, True]
