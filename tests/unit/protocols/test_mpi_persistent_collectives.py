"""Persistent collective calls: started repeatedly with the buffers' present contents, in any order."""

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

RANK_COUNT = 3


@on_every_device
def test_each_start_transfers_the_buffers_present_content(ranks_of: RanksOf) -> None:
    async def program(comm: Comm) -> list[tuple[float, int]]:
        values, total, results = np.zeros(4), np.zeros(4), []
        bcast = await comm.Bcast_init(values, root=1)
        allreduce = await comm.Allreduce_init(values, total, MPI.SUM)
        barrier = await comm.Barrier_init()
        for iteration in range(4):
            values[:] = iteration if comm.rank == 1 else -1
            for request in (bcast, allreduce, barrier):
                await request.Start()
                await request.Wait()
            results.append((float(values[3]), int(total[0])))
        for request in (bcast, allreduce, barrier):
            request.Free()
        return results

    ranks = ranks_of(RANK_COUNT)
    assert (
        ranks.run(*[program] * RANK_COUNT)
        == [[(iteration, RANK_COUNT * iteration) for iteration in range(4)]] * RANK_COUNT
    )
    assert ranks.is_idle()


@on_every_device
@pytest.mark.parametrize("items", [5, 3_000])
def test_ranks_may_start_requests_in_different_orders_and_make_other_calls_meanwhile(
    ranks_of: RanksOf, items: int
) -> None:
    async def program(comm: Comm) -> None:
        sources = [np.zeros(items, "i") for _ in range(RANK_COUNT)]
        targets = [np.zeros((RANK_COUNT, items), "i") for _ in range(RANK_COUNT)]
        requests = [await comm.Allgather_init(source, target) for source, target in zip(sources, targets, strict=True)]
        for iteration in range(3):
            for number, source in enumerate(sources):
                source[:] = 100 * iteration + 10 * number + comm.rank
            rotated = requests[comm.rank :] + requests[: comm.rank]
            await Prequest.Startall(rotated)
            assert await comm.allgather(iteration) == [iteration] * RANK_COUNT
            await Prequest.Waitall(rotated[::-1])
            for number, target in enumerate(targets):
                assert [set(row.tolist()) for row in target] == [
                    {100 * iteration + 10 * number + rank} for rank in range(RANK_COUNT)
                ]

    ranks = ranks_of(RANK_COUNT)
    ranks.run(*[program] * RANK_COUNT)
    assert ranks.is_idle()


async def persistent_requests(comm: Comm, out: dict[str, Any]) -> dict[str, Prequest]:
    """Make every persistent call, with receive buffers in `out`."""
    size, rank = comm.size, comm.rank
    one, many = np.array([rank + 1]), np.arange(size) + 10 * rank
    ones = [1] * size

    def receive_buffer(name: str, items: int) -> np.ndarray[Any, Any]:
        out[name] = np.full(items, -1)
        return out[name]  # type: ignore[no-any-return]

    integers = [MPI.LONG] * size
    displacements = [8 * number for number in range(size)]
    return {
        "Gather": await comm.Gather_init(one, receive_buffer("Gather", size) if rank == 0 else None),
        "Gatherv": await comm.Gatherv_init(one, [receive_buffer("Gatherv", size), ones] if rank == 0 else None),
        "Scatter": await comm.Scatter_init(many if rank == 1 else None, receive_buffer("Scatter", 1), 1),
        "Scatterv": await comm.Scatterv_init(
            [many, ones] if rank == 1 else None, receive_buffer("Scatterv", 1), root=1
        ),
        "Allgatherv": await comm.Allgatherv_init(one, [receive_buffer("Allgatherv", size), ones]),
        "Alltoall": await comm.Alltoall_init(many, receive_buffer("Alltoall", size)),
        "Alltoallv": await comm.Alltoallv_init([many, ones], [receive_buffer("Alltoallv", size), ones]),
        "Alltoallw": await comm.Alltoallw_init(
            [many, ones, displacements, integers], [receive_buffer("Alltoallw", size), ones, displacements, integers]
        ),
        "Reduce": await comm.Reduce_init(one, receive_buffer("Reduce", 1) if rank == 2 else None, MPI.PROD, 2),
        "Reduce_scatter_block": await comm.Reduce_scatter_block_init(many, receive_buffer("Reduce_scatter_block", 1)),
        "Reduce_scatter": await comm.Reduce_scatter_init(many, receive_buffer("Reduce_scatter", 1), ones, MPI.MAX),
        "Scan": await comm.Scan_init(one, receive_buffer("Scan", 1)),
        "Exscan": await comm.Exscan_init(one, receive_buffer("Exscan", 1), MPI.SUM, MPI.INFO_NULL),
    }


def test_every_call_has_a_persistent_form_with_the_result_of_the_blocking_one() -> None:
    async def program(comm: Comm) -> dict[str, list[int]]:
        out: dict[str, Any] = {}
        requests = await persistent_requests(comm, out)
        for _ in range(2):
            await Prequest.Startall(list(requests.values()))
            await Prequest.Waitall(list(requests.values()))
        return {name: values.tolist() for name, values in out.items()}

    results_of_ranks = Ranks(RANK_COUNT).run(*[program] * RANK_COUNT)
    columns = [[rank + 10 * source for source in range(RANK_COUNT)] for rank in range(RANK_COUNT)]
    for rank, results in enumerate(results_of_ranks):
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
        ring = await comm.Create_cart([RANK_COUNT], [True])
        assert isinstance(ring, Topocomm)
        left, right = (ring.rank - 1) % RANK_COUNT, (ring.rank + 1) % RANK_COUNT
        own, gathered, exchanged = array("i", [0]), array("i", [0, 0]), array("i", [0, 0])
        sent, ints = array("i", [0, 0]), [MPI.INT] * 2
        requests = [
            await ring.Neighbor_allgather_init(own, gathered),
            await ring.Neighbor_alltoall_init(sent, exchanged),
        ]
        vector_results = [array("i", [0, 0]) for _ in range(3)]
        requests += [
            await ring.Neighbor_allgatherv_init(own, [vector_results[0], [1, 1]]),
            await ring.Neighbor_alltoallv_init([sent, [1, 1]], [vector_results[1], [1, 1]]),
            await ring.Neighbor_alltoallw_init([sent, [1, 1], [0, 4], ints], [vector_results[2], [1, 1], [0, 4], ints]),
        ]
        for iteration in range(1, 3):
            own[0], sent[0], sent[1] = (10 * iteration + ring.rank + offset for offset in (0, 100, 200))
            await Prequest.Startall(requests)
            await Prequest.Waitall(requests)
            assert list(gathered) == list(vector_results[0]) == [10 * iteration + left, 10 * iteration + right]
            from_left, from_right = 10 * iteration + left + 200, 10 * iteration + right + 100
            assert list(exchanged) == list(vector_results[1]) == list(vector_results[2]) == [from_left, from_right]

    ranks = Ranks(RANK_COUNT)
    ranks.run(*[program] * RANK_COUNT)  # type: ignore[list-item]
    assert ranks.is_idle()


async def try_barrier_init(comm: Comm) -> Prequest | None:
    """Make a persistent barrier; None if no context is free."""
    try:
        return await comm.Barrier_init()
    except MPIError as error:
        if error.error_class != ERR_OTHER:
            raise
        return None


def test_a_freed_call_releases_its_context_when_complete() -> None:
    async def program(comm: Comm) -> None:
        requests = []
        while (request := await try_barrier_init(comm)) is not None:
            requests.append(request)
        await requests[-1].Start()
        requests[-1].Free()
        attempts = [await try_barrier_init(comm) for _ in range(20)]
        assert len([request for request in attempts if request is not None]) == 1

    ranks = Ranks(2)
    ranks.run(program, program)
    assert ranks.is_idle()


def test_persistent_calls_reject_invalid_arguments_and_a_second_start() -> None:
    async def program(comm: Comm) -> None:
        with pytest.raises(MPIError) as caught:
            await comm.Bcast_init(bytearray(1), root=comm.size)
        assert caught.value.error_class == ERR_ROOT
        request = await comm.Gather_init(bytes(2), bytearray(3))
        assert not request.active
        await request.Wait()  # inactive: returns at once
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
        rows = np.where(np.arange(RANK_COUNT) == comm.rank, comm.rank, -1)
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

    Ranks(RANK_COUNT).run(*[program] * RANK_COUNT)
