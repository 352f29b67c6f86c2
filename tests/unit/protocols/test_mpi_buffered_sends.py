"""Buffered sends, whose copies are limited by the buffer that a program has attached; statuses."""

from __future__ import annotations

import pytest

from protocols.mpi import Comm, Status
from protocols.mpi.mpi_errors import ERR_BUFFER, MPIError
from protocols.mpi.send_buffer import BSEND_OVERHEAD
from tests.unit.protocols.emp_ranks import Ranks
from tests.unit.protocols.mpi_devices import RanksOf, on_every_device


@on_every_device
def test_buffered_sends_copy_and_are_limited_by_the_attached_buffer(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        with pytest.raises(MPIError, match="no buffer is attached") as raised:
            await comm.Bsend(b"x", 1)
        assert raised.value.Get_error_class() == ERR_BUFFER
        memory, data = bytearray(3 * (BSEND_OVERHEAD + 8)), bytearray(b"12345678")
        comm.Attach_buffer(memory)
        with pytest.raises(MPIError, match="a buffer is attached"):
            comm.Attach_buffer(memory)
        persistent = await comm.Bsend_init(data, 1, 3)
        await comm.Bsend(data, 1, 1)
        await (await comm.Ibsend(data, 1, 2)).Wait()
        await persistent.Start()
        await persistent.Wait()
        data[:] = b"changed!"
        with pytest.raises(MPIError, match="no room"):
            await comm.Bsend(bytes(len(memory) + 1), 1)
        assert await comm.Detach_buffer() is memory
        comm.Attach_buffer(memory)
        await comm.bsend({"of": "objects"}, 1, 4)
        await comm.Detach_buffer()

    async def receiver(comm: Comm) -> None:
        for tag in (3, 2, 1):
            buffer, status = bytearray(8), Status()
            await comm.Recv(buffer, 0, tag, status)
            assert (buffer, status.Get_tag()) == (b"12345678", tag)
        assert await comm.recv(source=0, tag=4) == {"of": "objects"}

    ranks = ranks_of()
    ranks.run(sender, receiver)
    assert ranks.is_idle()


def test_empty_messages_also_occupy_the_attached_buffer() -> None:
    async def sender(comm: Comm) -> None:
        comm.Attach_buffer(bytearray(BSEND_OVERHEAD))
        await comm.Bsend(b"", 1)
        with pytest.raises(MPIError, match="no room"):
            await comm.Bsend(b"", 1)
        await comm.Detach_buffer()

    async def receiver(comm: Comm) -> None:
        await comm.Recv(bytearray(), 0)

    Ranks().run(sender, receiver)


def test_statuses_are_copied_compared_and_set() -> None:
    status = Status()
    assert status == Status()
    status.Set_source(3)
    status.Set_tag(4)
    status.Set_error(5)
    status.Set_cancelled(True)
    copy = Status(status)
    assert copy == status != Status()
    assert (copy.Get_source(), copy.Get_tag(), copy.Get_error(), copy.Is_cancelled()) == (3, 4, 5, True)
