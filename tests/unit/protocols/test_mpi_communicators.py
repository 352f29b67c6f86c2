"""Communicators derived from others: their ranks, their separate messages, and their release."""

from __future__ import annotations

import pytest

from protocols.mpi import ANY_SOURCE, COMM_NULL, ERR_ARG, ERR_COMM, ERR_OTHER, UNDEFINED, Comm, Message, Status
from protocols.mpi.mpi_errors import MPIError
from tests.unit.protocols.mpi_devices import OpenMxRanks, RanksOf, on_every_device


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@on_every_device
def test_no_rank_leaves_a_barrier_before_all_ranks_have_entered(count: int, ranks_of: RanksOf) -> None:
    entered: list[int] = []

    async def program(comm: Comm) -> None:
        for iteration in range(3):
            if comm.rank == iteration % comm.size:
                assert not await comm.Iprobe(), "the others continue meanwhile"
            entered.append(iteration)
            await comm.Barrier()
            assert entered.count(iteration) == comm.size

    ranks = ranks_of(count)
    ranks.run(*[program] * count)
    assert ranks.is_idle()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@on_every_device
def test_a_duplicate_has_equal_ranks_and_separate_messages(count: int, ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        copy = await comm.Dup()
        assert (copy.rank, copy.size) == (comm.rank, comm.size)
        right_peer, left_peer = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        requests = [await comm.Isend(b"w", right_peer, 3), await copy.Isend(b"c", right_peer, 3)]
        received = bytearray(1)
        await copy.Recv(received, ANY_SOURCE)
        assert received == b"c"
        await comm.Recv(received, left_peer)
        assert received == b"w"
        for request in requests:
            await request.Wait()

    ranks = ranks_of(count)
    ranks.run(*[program] * count)
    assert ranks.is_idle()


@on_every_device
def test_a_split_orders_by_key_then_rank_and_statuses_have_ranks_of_the_communicator(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> tuple[int, int] | None:
        color = UNDEFINED if comm.rank == 4 else comm.rank % 2
        part = await comm.Split(color, key=-(comm.rank // 2))
        if part is COMM_NULL:
            return None
        assert part is not None
        status, buffer = Status(), bytearray(1)
        peer = (part.rank + 1) % part.size
        sent = await part.Isend(bytes([comm.rank]), peer, part.rank)
        await part.Recv(buffer, ANY_SOURCE, status=status)
        assert status.source == (part.rank - 1) % part.size == status.tag
        assert buffer[0] % 2 == comm.rank % 2
        await sent.Wait()
        sent = await part.isend("object", peer)
        assert await part.Probe(status=status)
        message = await part.Mprobe(status.source)
        assert isinstance(message, Message)
        assert await message.recv(status) == "object"
        assert status.source == (part.rank - 1) % part.size
        await sent.wait()
        with pytest.raises(MPIError):
            await part.Send(b"", part.size)
        return part.rank, part.size

    results = ranks_of(6).run(*[program] * 6)
    assert results == [(1, 2), (2, 3), (0, 2), (1, 3), None, (0, 3)]


@on_every_device
def test_a_split_communicator_can_be_split_and_duplicated(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> int:
        half_comm = await comm.Split(comm.rank // 2)
        assert half_comm is not None
        single_comm = await half_comm.Split(half_comm.rank)
        assert single_comm is not None
        copy = await half_comm.Dup()
        assert (single_comm.rank, single_comm.size) == (0, 1)
        request = await single_comm.irecv(source=0)
        await single_comm.send("to myself", 0)
        assert await request.wait() == "to myself"
        received = await copy.sendrecv(comm.rank, 1 - copy.rank, source=1 - copy.rank)
        assert isinstance(received, int)
        return received

    assert ranks_of(4).run(*[program] * 4) == [1, 0, 3, 2]


@on_every_device
def test_freed_contexts_are_reused_and_contexts_can_run_out(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> int:
        for _ in range(300):
            (await comm.Dup()).Free()
        for _ in range(127):
            await comm.Dup()
        device = ranks.devices[comm.rank]
        device.contexts_in_use.update(range(128, device.contexts // 2))  # Open-MX has more
        with pytest.raises(MPIError, match="no context is free") as raised:
            await comm.Dup()
        return raised.value.Get_error_class()

    ranks = ranks_of(2)
    assert ranks.run(program, program) == [ERR_OTHER] * 2


def test_a_duplicate_takes_short_messages_where_contexts_are_many() -> None:
    ranks = OpenMxRanks(3)
    ranks.run(*[Comm.Dup] * 3)
    counters = [agent.firmware.counter_values() for agent in ranks.wires.agents]
    assert all(counts["send_tiny"] + counts["send_small"] for counts in counters)
    assert not any(counts["send_mediumsq_frag"] for counts in counters)


@on_every_device
def test_a_context_must_be_free_at_all_ranks(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        if comm.rank:
            comm.make_self()
        copy = await comm.Dup()
        request = await copy.Irecv(None, 1 - comm.rank)
        await copy.Send(None, 1 - comm.rank)
        await request.Wait()

    ranks_of(2).run(program, program)


@on_every_device
def test_a_freed_communicator_and_a_negative_color_are_errors(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        copy = await comm.Dup()
        copy.Free()
        with pytest.raises(MPIError, match="freed") as raised:
            await copy.Send(b"", 0)
        assert raised.value.Get_error_class() == ERR_COMM
        with pytest.raises(MPIError) as raised:
            await comm.Split(-1)
        assert raised.value.Get_error_class() == ERR_ARG

    ranks_of(1).run(program)
