"""Probes, matched probes and synchronous sends, on every device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocols.mpi import (
    ANY_SOURCE,
    ANY_TAG,
    ERR_REQUEST,
    ERR_TRUNCATE,
    PROC_NULL,
    Comm,
    Request,
    Status,
)
from protocols.mpi.device import Device
from protocols.mpi.mpi_errors import MPIError
from tests.unit.protocols.emp_ranks import Ranks
from tests.unit.protocols.host_programs import StuckError
from tests.unit.protocols.mpi_devices import on_every_device
from tests.unit.protocols.nicless_endpoints import DescriptorEndpoint, LibraryRanks

RanksOf = Callable[[int], Ranks]


@on_every_device
def test_a_probe_describes_the_message_that_a_receive_matches(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await comm.Send(b"0123456789", 1, 7)

    async def receiver(comm: Comm) -> None:
        status, second_status = Status(), Status()
        assert await comm.Probe(status=status)
        assert (status.source, status.tag, status.count) == (0, 7, 10)
        assert await comm.Iprobe(0, 7, second_status), "a probed message can still be received"
        assert second_status.count == 10
        buffer = bytearray(status.Get_count())
        await comm.Recv(buffer, status.source, status.tag)
        assert buffer == b"0123456789"
        assert not await comm.Iprobe()

    ranks = ranks_of(2)
    ranks.run(sender, receiver)
    assert ranks.is_idle()


@on_every_device
def test_a_probe_waits_for_a_matching_message_and_finds_the_oldest(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        requests = [await comm.Isend(bytes(tag), 1, tag) for tag in (3, 1, 2, 1)]
        await Request.Waitall(requests)

    async def receiver(comm: Comm) -> list[int]:
        status, order = Status(), []
        await comm.Probe(ANY_SOURCE, 2)
        for _ in range(4):
            await comm.Probe(status=status)
            order.append(status.tag)
            await comm.Recv(bytearray(5), status.source, status.tag)
        return order

    assert ranks_of(2).run(sender, receiver)[1] == [3, 1, 2, 1]


@on_every_device
def test_a_probe_does_not_find_a_message_for_a_posted_receive(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await comm.Send(b"first", 1, 1)
        await comm.Send(b"second", 1, 1)

    async def receiver(comm: Comm) -> None:
        buffer, status = bytearray(5), Status()
        request = await comm.Irecv(buffer, 0, 1)
        await comm.Probe(ANY_SOURCE, ANY_TAG, status)
        assert status.count == 6
        assert await request.Test()
        assert buffer == b"first"
        await comm.Recv(bytearray(6))

    ranks_of(2).run(sender, receiver)


@on_every_device
def test_polling_with_a_probe_finds_a_message_eventually(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await comm.Recv(None, 1)
        await comm.Send(b"x", 1)

    async def receiver(comm: Comm) -> None:
        for _ in range(3):
            assert not await comm.Iprobe(0)
        await comm.Isend(None, 0)
        polls = 0
        while not await comm.Iprobe(0):
            polls += 1
            assert polls < 20
        await comm.Recv(bytearray(1), 0)

    ranks_of(2).run(sender, receiver)


@on_every_device
def test_a_claimed_message_matches_no_other_receive_or_probe(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await Request.Waitall([await comm.Isend(data, 1, 4) for data in (b"first", b"second", b"third")])

    async def receiver(comm: Comm) -> None:
        status, buffer = Status(), bytearray(6)
        first = await comm.Mprobe(status=status)
        assert (status.source, status.tag, status.count) == (0, 4, 5)
        await comm.Recv(buffer, 0, 4)
        assert buffer == b"second"
        third_message = None
        while third_message is None:
            third_message = await comm.Improbe(0)
        assert await comm.Improbe(0) is None
        await first.Recv(buffer, status)
        assert (buffer, status.count) == (b"firstd", 5)
        with pytest.raises(MPIError, match="was received before") as raised:
            await first.Recv(buffer)
        assert raised.value.Get_error_class() == ERR_REQUEST
        short_buffer = bytearray(2)
        with pytest.raises(MPIError) as raised:
            await (await third_message.Irecv(short_buffer)).Wait(status)
        assert raised.value.Get_error_class() == ERR_TRUNCATE
        assert (short_buffer, status.count) == (b"th", 2)

    ranks = ranks_of(2)
    ranks.run(sender, receiver)
    assert ranks.is_idle()


@on_every_device
@pytest.mark.parametrize("size", [10, 50_000])
def test_probes_find_objects(ranks_of: RanksOf, size: int) -> None:
    async def sender(comm: Comm) -> None:
        for tag in (1, 2, 3):
            await comm.send([tag] * size, 1, tag)

    async def receiver(comm: Comm) -> None:
        status = Status()
        assert await comm.probe(tag=1, status=status)
        assert await comm.recv(source=status.source, tag=status.tag) == [1] * size
        message = await comm.mprobe(tag=2)
        assert await message.recv() == [2] * size
        while (probe_result := await comm.improbe(0)) is None:
            assert not await comm.iprobe(0, 1)
        assert await (await probe_result.irecv()).wait(status) == [3] * size
        assert (status.source, status.tag) == (0, 3)

    ranks = ranks_of(2)
    ranks.run(sender, receiver)
    assert ranks.is_idle()


def test_a_probe_of_proc_null_finds_the_null_message() -> None:
    async def program(comm: Comm) -> None:
        status, buffer = Status(), bytearray(b"unchanged")
        assert await comm.Probe(PROC_NULL, status=status)
        assert await comm.Iprobe(PROC_NULL)
        assert (status.source, status.tag, status.count) == (PROC_NULL, ANY_TAG, 0)
        message = await comm.Improbe(PROC_NULL)
        assert message is not None
        await message.Recv(buffer, status)
        assert (buffer, status.source) == (b"unchanged", PROC_NULL)
        assert await (await comm.Mprobe(PROC_NULL)).recv() is None

    Ranks(1).run(program)


def test_a_probe_does_not_find_a_message_for_a_queued_receive() -> None:
    """MPI 4.1, section 3.8.1: a probe finds the message that a receive begun then would get."""
    endpoint = DescriptorEndpoint(receives=1)
    device = Device(endpoint)
    device.receive(0, 0, 5, memoryview(bytearray(1)))
    pending_receive = device.receive(0, 0, 7, memoryview(bytearray(1)))
    endpoint.unexpected = [(0, 0, 7, 1), (0, 0, 9, 1)]
    assert device.pending_work() == ["a receive from rank 0, tag 7, 1 bytes: no descriptor is free"]
    assert device.probe(0, 0, 7, wait=False).result() is None
    assert device.probe(0, 0, 9, wait=False).result() is not None
    assert device.probe(0, 0, 9, wait=False, claim=True).result() is None, (
        "a claim is not made while a receive is queued"
    )
    device.cancel(pending_receive)
    assert device.probe(0, 0, 7, wait=False).result() is not None


@on_every_device
@pytest.mark.parametrize("is_object", [False, True])
def test_a_synchronous_send_completes_when_it_is_matched(ranks_of: RanksOf, is_object: bool) -> None:
    started = []

    async def sender(comm: Comm) -> None:
        request = await comm.issend("x", 1, 2) if is_object else await comm.Issend(b"x", 1, 2)
        await comm.Send(b"now", 1, 1)
        assert not await request.Test()
        await comm.Recv(None, 1)
        assert not await request.Test()
        assert not started
        await comm.Send(b"go", 1, 1)
        await request.Wait()
        assert started
        await (comm.ssend("y", 1, 3) if is_object else comm.Ssend(b"y", 1, 3))
        assert len(started) == 2

    async def receiver(comm: Comm) -> None:
        await comm.Recv(bytearray(3), 0, 1)
        for _ in range(5):
            assert await comm.Iprobe(0, 2) in (True, False)
        await comm.Send(None, 0)
        await comm.Recv(bytearray(2), 0, 1)
        for tag in (2, 3):
            started.append(tag)
            await (comm.recv(source=0, tag=tag) if is_object else comm.Recv(bytearray(1), 0, tag))

    ranks = ranks_of(2)
    ranks.run(sender, receiver)
    assert ranks.is_idle()


@on_every_device
def test_a_synchronous_send_without_a_receive_never_completes(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await comm.Ssend(b"x", 1, 2)

    async def receiver(comm: Comm) -> None:
        await comm.Probe(0, 2)
        await comm.Mprobe(0, 2)
        await comm.Recv(bytearray(1), 0, 2)

    with pytest.raises(StuckError, match="program 0: <Completion of a send to rank 1, tag 2"):
        ranks_of(2).run(sender, receiver)


def test_two_hundred_concurrent_synchronous_sends_complete_with_their_own_receives() -> None:
    """More than an endpoint without matching can distinguish at a time: the others wait."""
    ended: list[int] = []

    async def sender(comm: Comm) -> None:
        requests = [await comm.Issend(bytes([number]), 1, number) for number in range(200)]
        for _ in requests:
            ended.append(await Request.Waitany(requests))

    async def receiver(comm: Comm) -> None:
        for number in reversed(range(100)):
            await comm.Recv(bytearray(1), 0, number)
        for number in range(100, 200):
            await comm.Recv(bytearray(1), 0, number)

    ranks = LibraryRanks(2)
    ranks.run(sender, receiver)
    assert sorted(ended) == list(range(200))
    assert ranks.is_idle()
