"""Pickled objects: those that fit in one message, and those that need a second one."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from protocols.emp.settings import Settings
from protocols.mpi import ERR_COUNT, ERR_PROC_FAILED, ERR_TYPE, Comm, Request, Status
from protocols.mpi.device import FIRST_SIZE
from protocols.mpi.mpi_errors import MPIError
from tests.unit.protocols.emp_ranks import Ranks
from tests.unit.protocols.host_programs import StuckError
from tests.unit.protocols.mpi_devices import RanksOf, on_every_device

MAX_SIZE_OF_ONE_MESSAGE = FIRST_SIZE - (len(pickle.dumps(bytes(3000), protocol=5)) - 3000)
"""Maximum size of a `bytes` whose pickle fits in one message."""


@pytest.mark.parametrize(
    "obj",
    [
        None,
        0,
        "text",
        {"a": [1, 2.5, (None, b"x")]},
        bytes(MAX_SIZE_OF_ONE_MESSAGE),
        bytes(MAX_SIZE_OF_ONE_MESSAGE + 1),
        list(range(100_000)),
    ],
    ids=lambda obj: f"{type(obj).__name__} of {len(pickle.dumps(obj))}",
)
@on_every_device
def test_an_object_arrives_with_its_status(obj: object, ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await comm.send(obj, dest=1, tag=11)

    async def receiver(comm: Comm) -> None:
        status = Status()
        assert await comm.recv(source=0, tag=11, status=status) == obj
        size = len(pickle.dumps(obj, protocol=5))
        assert (status.source, status.tag, status.count) == (0, 11, size)

    ranks = ranks_of()
    ranks.run(sender, receiver)
    assert ranks.is_idle()


@pytest.mark.parametrize(("size", "messages"), [(MAX_SIZE_OF_ONE_MESSAGE, 1), (MAX_SIZE_OF_ONE_MESSAGE + 1, 2)])
def test_an_object_up_to_the_first_size_is_one_message(size: int, messages: int) -> None:
    async def sender(comm: Comm) -> None:
        await comm.send(bytes(size), 1)

    async def receiver(comm: Comm) -> None:
        assert await comm.recv() == bytes(size)

    ranks = Ranks()
    ranks.run(sender, receiver)
    assert ranks.wires.agents[1].firmware.counter_values()["messages_received"] == messages


def test_the_receive_of_a_continuation_is_posted_in_time() -> None:
    """Otherwise its data would be dropped, and resent after a timeout."""

    async def sender(comm: Comm) -> None:
        for number in range(5):
            await comm.send([number] * 50_000, 1)

    async def receiver(comm: Comm) -> None:
        for number in range(5):
            assert await comm.recv() == [number] * 50_000

    ranks = Ranks()
    ranks.run(sender, receiver)
    counters = ranks.wires.agents[1].firmware.counter_values()
    assert (
        ranks.wires.agents[0].firmware.counter_values()["frames_resent"] <= 3
    )  # the first object may have arrived before its receive
    assert counters["messages_received"] == 10


@on_every_device
def test_large_and_small_objects_of_all_tags_keep_their_order_under_wildcards(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await Request.waitall(
            [await comm.isend((comm.rank, number, bytes(number % 3 * 5000)), 0, number % 2) for number in range(12)]
        )

    async def receiver(comm: Comm) -> list[tuple[int, int]]:
        requests = [await comm.irecv() for _ in range(24)]
        received = []
        for request in requests:
            status = Status()
            rank, number, data = await request.wait(status)
            assert (status.source, status.tag) == (rank, number % 2)
            assert data == bytes(number % 3 * 5000)
            received.append((rank, number))
        return received

    ranks = ranks_of(3)
    received = ranks.run(receiver, sender, sender)[0]
    for rank in (1, 2):
        assert [number for source, number in received if source == rank] == list(range(12))
    assert ranks.is_idle()


@on_every_device
def test_an_object_may_change_when_its_send_has_begun(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        numbers = [1, 2, 3]
        request = await comm.isend(numbers, 1)
        numbers.clear()
        await request

    async def receiver(comm: Comm) -> object:
        return await comm.recv()

    assert ranks_of().run(sender, receiver)[1] == [1, 2, 3]


@on_every_device
def test_objects_are_exchanged_concurrently_and_with_the_rank_itself(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        peer = 1 - comm.rank
        received = await comm.sendrecv(np.full(10_000, comm.rank), peer, 3, source=peer, recvtag=3)
        assert (received == np.full(10_000, peer)).all()
        assert await comm.sendrecv("x" * 10_000, comm.rank, source=comm.rank) == "x" * 10_000

    ranks_of().run(program, program)


@on_every_device
def test_a_receive_for_any_tag_does_not_match_a_continuation(ranks_of: RanksOf) -> None:
    """The continuation arrives while a receive for any tag waits."""

    async def sender(comm: Comm) -> None:
        await comm.send(bytes(20_000), 1, 1)
        await comm.Send(b"buffer", 1, 2)

    async def receiver(comm: Comm) -> None:
        obj = await comm.irecv(tag=1)
        buffer = bytearray(30_000)
        request = await comm.Irecv(buffer)
        status = Status()
        await request.Wait(status)
        assert (status.tag, status.count) == (2, 6)
        assert await obj == bytes(20_000)

    ranks_of().run(sender, receiver)


@pytest.mark.parametrize(
    "data", [b"short", bytes(100), bytes(FIRST_SIZE), bytes(FIRST_SIZE + 1), bytes(50_000)], ids=len
)
@on_every_device
def test_a_buffer_received_as_an_object_is_an_error(data: bytes, ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await comm.Send(data, 1, 8)
        await comm.send("an object", 1, 8)

    async def receiver(comm: Comm) -> None:
        status = Status()
        with pytest.raises(MPIError, match="the message from rank 0, tag 8, is not a pickled object") as raised:
            await comm.recv(status=status)
        assert raised.value.Get_error_class() == ERR_TYPE
        assert (status.source, status.tag, status.error) == (0, 8, ERR_TYPE)
        assert await comm.recv() == "an object"

    ranks = ranks_of()
    ranks.run(sender, receiver)
    assert ranks.is_idle()


@pytest.mark.parametrize("obj", [None, 7, {"k": [1.5, "v"] * 100}, bytes(4000)], ids=lambda obj: type(obj).__name__)
@on_every_device
def test_pickled_bytes_are_received_as_an_object_and_an_object_as_its_bytes(obj: object, ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await comm.Send(pickle.dumps(obj), 1)
        await comm.send(obj, 1)

    async def receiver(comm: Comm) -> None:
        assert await comm.recv(source=0) == obj
        buffer, status = bytearray(FIRST_SIZE), Status()
        await comm.Recv(buffer, 0, status=status)
        assert pickle.loads(buffer[: status.count]) == obj

    ranks = ranks_of()
    ranks.run(sender, receiver)
    assert ranks.is_idle()


def test_two_large_objects_whose_beginnings_are_acknowledged_in_the_other_order() -> None:
    """The second object's continuation is sent first and received second."""
    ranks = Ranks()
    lost_frames: list[bytes] = []

    def deliver() -> None:
        for number in (1, 0):
            for frame in ranks.wires.take(number):
                if number == 0 and not lost_frames:
                    lost_frames.append(frame)  # the acknowledgement of the first object's beginning
                else:
                    ranks.wires.deliver(frame)

    async def receiver(comm: Comm) -> None:
        requests = [await comm.irecv(), await comm.irecv()]
        assert await Request.waitall(requests) == ["a" * 50_000, "b" * 50_000]

    async def sender(comm: Comm) -> None:
        await Request.waitall([await comm.isend("a" * 50_000, 0), await comm.isend("b" * 50_000, 0)])

    ranks.run(receiver, sender, deliver=deliver)
    assert ranks.wires.agents[1].firmware.counter_values()["frames_resent"]
    assert ranks.is_idle()


@on_every_device
def test_an_object_that_cannot_be_pickled_is_not_sent(ranks_of: RanksOf) -> None:
    ranks = ranks_of(1)

    async def program(comm: Comm) -> None:
        with pytest.raises((pickle.PicklingError, AttributeError)):
            await comm.send(lambda: None, 0)

    ranks.run(program)
    assert ranks.is_idle()


def _fail_to_load(_: int) -> object:
    raise ValueError("not here")


class Unloadable:
    """Object that can be pickled and not unpickled."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return _fail_to_load, (1,)


@on_every_device
def test_an_object_that_cannot_be_unpickled_raises_in_the_wait(ranks_of: RanksOf) -> None:
    async def sender(comm: Comm) -> None:
        await comm.send(Unloadable(), 1)
        await comm.send("next", 1)

    async def receiver(comm: Comm) -> None:
        with pytest.raises(ValueError, match="not here"):
            await comm.recv()
        assert await comm.recv() == "next"

    ranks_of().run(sender, receiver)


@on_every_device
def test_an_object_longer_than_the_maximum_is_rejected(ranks_of: RanksOf) -> None:
    ranks = ranks_of(1)
    ranks.devices[0].max_message_size = 5000

    async def program(comm: Comm) -> None:
        with pytest.raises(MPIError, match="at most 9068") as raised:
            await comm.isend(bytes(10_000), 0)
        assert raised.value.Get_error_class() == ERR_COUNT

    ranks.run(program)
    assert ranks.is_idle()


@pytest.mark.parametrize("size", [10, 50_000])
def test_a_send_of_an_object_to_a_silent_peer_fails(size: int) -> None:
    async def sender(comm: Comm) -> None:
        with pytest.raises(MPIError) as raised:
            await comm.send(bytes(size), 1)
        assert raised.value.Get_error_class() == ERR_PROC_FAILED

    async def idle(_: Comm) -> None:
        pass

    Ranks(settings=Settings(give_up=1_000_000_000)).run(sender, idle)


@on_every_device
def test_a_stalled_receive_of_an_object_is_described_in_the_report(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> None:
        await comm.recv(tag=9)

    with pytest.raises(StuckError, match="a receive from any rank, tag 9"):
        ranks_of(1).run(program)
