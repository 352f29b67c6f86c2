"""Persistent collective calls: started again with the buffers' present content, and in any order."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from protocols import mpi as MPI  # noqa: N812  as programs name it
from protocols.mpi import Comm, Prequest
from protocols.mpi.comm import Topocomm
from protocols.mpi.mpi_errors import ERR_OTHER, ERR_REQUEST, ERR_ROOT, MPIError
from tests.unit.protocols.emp_ranks import Ranks
from tests.unit.protocols.mpi_devices import RanksOf, on_every_device

SIZE = 3


@on_every_device
def test_each_start_transfers_the_buffers_present_content(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> list[tuple[float, int]]:
        word, total, seen = np.zeros(4), np.zeros(4), []
        announced = await comm.Bcast_init(word, root=1)
        added = await comm.Allreduce_init(word, total, MPI.SUM)
        entered = await comm.Barrier_init()
        for round_ in range(4):
            word[:] = round_ if comm.rank == 1 else -1
            for request in (announced, added, entered):
                await request.Start()
                await request.Wait()
            seen.append((float(word[3]), int(total[0])))
        for request in (announced, added, entered):
            request.Free()
        return seen

    ranks = ranks_of(SIZE)
    assert ranks.run(*[program] * SIZE) == [[(round_, SIZE * round_) for round_ in range(4)]] * SIZE
    assert ranks.is_idle()


@on_every_device
@pytest.mark.parametrize("items", [5, 3_000])
def test_ranks_may_start_them_in_different_orders_and_make_other_calls_meanwhile(ranks_of: RanksOf, items: int) -> None:
    async def program(comm: Comm) -> None:
        sources = [np.zeros(items, "i") for _ in range(SIZE)]
        targets = [np.zeros((SIZE, items), "i") for _ in range(SIZE)]
        requests = [await comm.Allgather_init(source, target) for source, target in zip(sources, targets, strict=True)]
        for round_ in range(3):
            for number, source in enumerate(sources):
                source[:] = 100 * round_ + 10 * number + comm.rank
            turned = requests[comm.rank :] + requests[: comm.rank]
            await Prequest.Startall(turned)
            assert await comm.allgather(round_) == [round_] * SIZE
            await Prequest.Waitall(turned[::-1])
            for number, target in enumerate(targets):
                assert [set(row.tolist()) for row in target] == [
                    {100 * round_ + 10 * number + rank} for rank in range(SIZE)
                ]

    ranks = ranks_of(SIZE)
    ranks.run(*[program] * SIZE)
    assert ranks.is_idle()


async def begun(comm: Comm, out: dict[str, Any]) -> dict[str, Prequest]:
    """Make every persistent call, with receive buffers in `out`."""
    size, rank = comm.size, comm.rank
    one, many = np.array([rank + 1]), np.arange(size) + 10 * rank
    ones = [1] * size

    def place(name: str, items: int) -> np.ndarray[Any, Any]:
        out[name] = np.full(items, -1)
        return out[name]  # type: ignore[no-any-return]

    integers = [MPI.LONG] * size
    places = [8 * number for number in range(size)]
    return {
        "Gather": await comm.Gather_init(one, place("Gather", size) if rank == 0 else None),
        "Gatherv": await comm.Gatherv_init(one, [place("Gatherv", size), ones] if rank == 0 else None),
        "Scatter": await comm.Scatter_init(many if rank == 1 else None, place("Scatter", 1), 1),
        "Scatterv": await comm.Scatterv_init([many, ones] if rank == 1 else None, place("Scatterv", 1), root=1),
        "Allgatherv": await comm.Allgatherv_init(one, [place("Allgatherv", size), ones]),
        "Alltoall": await comm.Alltoall_init(many, place("Alltoall", size)),
        "Alltoallv": await comm.Alltoallv_init([many, ones], [place("Alltoallv", size), ones]),
        "Alltoallw": await comm.Alltoallw_init(
            [many, ones, places, integers], [place("Alltoallw", size), ones, places, integers]
        ),
        "Reduce": await comm.Reduce_init(one, place("Reduce", 1) if rank == 2 else None, MPI.PROD, 2),
        "Reduce_scatter_block": await comm.Reduce_scatter_block_init(many, place("Reduce_scatter_block", 1)),
        "Reduce_scatter": await comm.Reduce_scatter_init(many, place("Reduce_scatter", 1), ones, MPI.MAX),
        "Scan": await comm.Scan_init(one, place("Scan", 1)),
        "Exscan": await comm.Exscan_init(one, place("Exscan", 1), MPI.SUM, MPI.INFO_NULL),
    }


def test_every_call_has_a_persistent_form_with_the_result_of_the_blocking_one() -> None:
    async def program(comm: Comm) -> dict[str, list[int]]:
        out: dict[str, Any] = {}
        requests = await begun(comm, out)
        for _ in range(2):
            await Prequest.Startall(list(requests.values()))
            await Prequest.Waitall(list(requests.values()))
        return {name: found.tolist() for name, found in out.items()}

    found = Ranks(SIZE).run(*[program] * SIZE)
    columns = [[rank + 10 * source for source in range(SIZE)] for rank in range(SIZE)]
    for rank, results in enumerate(found):
        assert isinstance(results, dict)
        expected = {
            "Gather": [1, 2, 3], "Gatherv": [1, 2, 3], "Scatter": [10 + rank], "Scatterv": [10 + rank],
            "Allgatherv": [1, 2, 3], "Alltoall": columns[rank], "Alltoallv": columns[rank], "Alltoallw": columns[rank],
            "Reduce": [6], "Reduce_scatter_block": [sum(columns[rank])], "Reduce_scatter": [20 + rank],
            "Scan": [[1], [3], [6]][rank], "Exscan": [[-1], [1], [3]][rank],
        }  # fmt: skip
        assert results == {name: expected[name] for name in results}
        assert set(expected) - set(results) <= {"Gather", "Gatherv", "Reduce"}, "results of the root"


def test_neighbours_exchange_blocks_repeatedly() -> None:
    async def program(comm: Comm) -> list[list[int]]:
        ring = await comm.Create_cart([SIZE], [True])
        assert isinstance(ring, Topocomm)
        left, right = (ring.rank - 1) % SIZE, (ring.rank + 1) % SIZE
        own, gathered, exchanged = array("i", [0]), array("i", [0, 0]), array("i", [0, 0])
        both, ints = array("i", [0, 0]), [MPI.INT] * 2
        requests = [
            await ring.Neighbor_allgather_init(own, gathered),
            await ring.Neighbor_alltoall_init(both, exchanged),
        ]
        others = [array("i", [0, 0]) for _ in range(3)]
        requests += [
            await ring.Neighbor_allgatherv_init(own, [others[0], [1, 1]]),
            await ring.Neighbor_alltoallv_init([both, [1, 1]], [others[1], [1, 1]]),
            await ring.Neighbor_alltoallw_init([both, [1, 1], [0, 4], ints], [others[2], [1, 1], [0, 4], ints]),
        ]
        for round_ in range(1, 3):
            own[0], both[0], both[1] = (10 * round_ + ring.rank + further for further in (0, 100, 200))
            await Prequest.Startall(requests)
            await Prequest.Waitall(requests)
            assert list(gathered) == list(others[0]) == [10 * round_ + left, 10 * round_ + right]
            from_left, from_right = 10 * round_ + left + 200, 10 * round_ + right + 100
            assert list(exchanged) == list(others[1]) == list(others[2]) == [from_left, from_right]

    ranks = Ranks(SIZE)
    ranks.run(*[program] * SIZE)  # type: ignore[list-item]
    assert ranks.is_idle()


async def barrier_or_none(comm: Comm) -> Prequest | None:
    """Make a persistent barrier; None if no context is free."""
    try:
        return await comm.Barrier_init()
    except MPIError as error:
        if error.error_class != ERR_OTHER:
            raise
        return None


def test_a_freed_call_releases_its_context_when_complete() -> None:
    async def program(comm: Comm) -> None:
        made = []
        while (request := await barrier_or_none(comm)) is not None:
            made.append(request)
        await made[-1].Start()
        made[-1].Free()
        attempts = [await barrier_or_none(comm) for _ in range(20)]
        assert len([request for request in attempts if request is not None]) == 1

    ranks = Ranks(2)
    ranks.run(program, program)
    assert ranks.is_idle()


def test_errors_of_persistent_calls() -> None:
    async def program(comm: Comm) -> None:
        with pytest.raises(MPIError) as caught:
            await comm.Bcast_init(bytearray(1), root=comm.size)
        assert caught.value.error_class == ERR_ROOT
        request = await comm.Gather_init(bytes(2), bytearray(3))
        assert not request.active
        await request.Wait()  # it is inactive
        await request.Start()
        with pytest.raises(MPIError) as caught:
            await request.Start()
        assert caught.value.error_class == ERR_REQUEST
        with pytest.raises(MPIError, match="Gather: 2 bytes do not fit"):
            await request.Wait()

    Ranks(1).run(program)


def test_none_stands_for_in_place() -> None:
    async def program(comm: Comm) -> None:
        total = np.array([comm.rank, 1])
        await comm.Allreduce(None, total)
        assert total.tolist() == [3, 3]
        rows = np.where(np.arange(SIZE) == comm.rank, comm.rank, -1)
        await comm.Allgather(None, rows)
        assert rows.tolist() == [0, 1, 2]
        block = np.array([comm.rank])
        if comm.rank == 1:
            await comm.Scatter(rows, None, 1)
            await comm.Gather(None, rows, 1)
            assert rows.tolist() == [0, 1, 2]
        else:
            await comm.Scatter(None, block, 1)
            await comm.Gather(block, None, 1)

    Ranks(SIZE).run(*[program] * SIZE)
