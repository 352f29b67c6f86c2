"""Topologies: which ranks are neighbours, and what they exchange. MPI 4.1, chapter 8."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from protocols.mpi import (
    ERR_ARG,
    ERR_COMM,
    ERR_COUNT,
    ERR_RANK,
    ERR_TRUNCATE,
    INT,
    PROC_NULL,
    UNDEFINED,
    UNWEIGHTED,
    WEIGHTS_EMPTY,
    Comm,
)
from protocols.mpi.comm import Cartcomm, Distgraphcomm, Graphcomm
from protocols.mpi.graphs import adjacent_edges, listed_edges, make_graph
from protocols.mpi.mpi_errors import MPIError
from testbed.mpi import MPI
from tests.unit.protocols.emp_ranks import Ranks, run_blocking
from tests.unit.protocols.mpi_devices import RanksOf, on_every_device


@pytest.mark.parametrize(
    ("dims", "periods"),
    [([1], True), ([2], True), ([3], True), ([3], False), ([1, 2], True), ([2, 2], [False, True]), ([1, 1, 1], True)],
)
@on_every_device
def test_a_block_sent_to_the_lower_neighbour_arrives_as_one_from_the_upper(
    ranks_of: RanksOf, dims: list[int], periods: bool | list[bool]
) -> None:
    """MPI 4.1, section 8.6, also where both neighbours of a dimension are one rank, or the rank itself."""

    async def program(comm: Comm) -> None:
        grid = await comm.Create_cart(dims, periods)
        assert grid is not None
        neighbours = grid.neighbourhood.sources
        sent = np.array([[grid.rank, edge] for edge in range(len(neighbours))], "i")
        expected = np.array(
            [[-1, -1] if rank == PROC_NULL else [rank, edge ^ 1] for edge, rank in enumerate(neighbours)], "i"
        )
        for call in (grid.Neighbor_alltoall, grid.Neighbor_alltoallv):
            received = np.full_like(sent, -1)
            await call([sent, 2, INT], [received, 2, INT])
            assert (received == expected).all()
        received = np.full_like(sent, -1)
        offsets = [8 * edge for edge in range(len(neighbours))]
        types = [INT] * len(neighbours)
        counts = [2] * len(neighbours)
        await grid.Neighbor_alltoallw([sent, (counts, offsets), types], [received, (counts, offsets), types])
        assert (received == expected).all()
        objects = await grid.neighbor_alltoall([(grid.rank, edge) for edge in range(len(neighbours))])
        assert objects == [None if rank == PROC_NULL else (rank, edge ^ 1) for edge, rank in enumerate(neighbours)]
        request = await grid.Ineighbor_alltoall(sent, received)
        await request.Wait()
        assert (received == expected).all()

    ranks = ranks_of(prod(dims))
    ranks.run(*[program] * prod(dims))
    assert ranks.is_idle()


@on_every_device
def test_neighbours_of_a_graph_exchange_blocks_and_long_objects(ranks_of: RanksOf) -> None:
    """Two edges lead from rank 0 to rank 1 and back: a block sent on the first one arrives on the first one."""

    async def program(comm: Comm) -> object:
        graph = await comm.Create_graph([3, 5, 6], [1, 1, 2, 0, 0, 0])
        if graph is None:
            return None
        degree = graph.Get_neighbors_count(graph.rank)
        received = np.full((degree, 2), -1, "i")
        await graph.Neighbor_allgather(np.array([graph.rank, 7], "i"), received)
        assert received.tolist() == [[rank, 7] for rank in graph.Get_neighbors(graph.rank)]
        await graph.Neighbor_allgatherv(np.array([graph.rank, 8], "i"), [received, [2] * degree])
        assert received.tolist() == [[rank, 8] for rank in graph.Get_neighbors(graph.rank)]
        assert await graph.neighbor_allgather("x" * 9000) == ["x" * 9000] * degree
        return [first for first, _ in await graph.neighbor_alltoall([(n, "y" * 9000) for n in range(degree)])]

    ranks = ranks_of(4)
    assert ranks.run(*[program] * 4) == [[0, 1, 0], [0, 1], [2], None]
    assert ranks.is_idle()


@on_every_device
def test_ranks_specify_their_own_edges_and_exchange_blocks_of_any_sizes(ranks_of: RanksOf) -> None:
    """An edge leads from each rank to all higher ones; that to rank k has k numbers."""

    async def program(comm: Comm) -> list[int]:
        lower, higher = list(range(comm.rank)), list(range(comm.rank + 1, comm.size))
        graph = await comm.Create_dist_graph_adjacent(lower, higher)
        sent = np.array([100 * comm.rank + rank for rank in higher for _ in range(rank)], "i")
        received = np.full((len(lower), comm.rank), -1, "i")
        await graph.Neighbor_alltoallv([sent, higher], received)
        assert received.tolist() == [[100 * rank + comm.rank] * comm.rank for rank in lower]
        return await graph.neighbor_allgather(comm.rank)

    ranks = ranks_of(4)
    assert ranks.run(*[program] * 4) == [[], [0], [0, 1], [0, 1, 2]]
    assert ranks.is_idle()


def test_one_rank_may_specify_the_edges_of_all() -> None:
    async def program(comm: Comm) -> object:
        if comm.rank:
            ring = await comm.Create_dist_graph([], [], [], WEIGHTS_EMPTY)
        else:
            ring = await comm.Create_dist_graph([0, 2, 1], [2, 1, 1], [1, 1, 0, 2], [4, 5, 6, 7])
        assert isinstance(await ring.Dup(), Distgraphcomm)
        return ring.Get_dist_neighbors()

    assert Ranks(3).run(*[program] * 3) == [
        ([2], [1, 1], ([6], [4, 5])),
        ([0, 0], [2], ([4, 5], [7])),
        ([1], [0], ([7], [6])),
    ]


def test_a_duplicate_keeps_its_topology_and_exchanges_separately() -> None:
    async def program(comm: Comm) -> object:
        grid = await comm.Create_cart([2], True)
        copy, other_copy = await grid.Dup(), (await grid.Idup())[0]  # type: ignore[union-attr]
        assert isinstance(copy, Cartcomm)
        assert isinstance(other_copy, Cartcomm)
        graph = await comm.Create_graph([1, 2], [1, 0])
        assert isinstance(await graph.Dup(), Graphcomm)  # type: ignore[union-attr]
        request = await grid.Ineighbor_allgather(b"a", received := bytearray(2))  # type: ignore[union-attr]
        values = await copy.neighbor_allgather(comm.rank)
        await request.Wait()
        assert received == b"aa"
        copy.Free()
        with pytest.raises(MPIError) as raised:
            await copy.neighbor_allgather(1)
        assert raised.value.Get_error_class() == ERR_COMM
        return values

    assert Ranks(2).run(program, program) == [[1, 1], [0, 0]]


def test_neighbours_whose_blocks_do_not_fit_are_reported() -> None:
    async def program(comm: Comm) -> int:
        pair = await comm.Create_dist_graph_adjacent([1 - comm.rank], [1 - comm.rank])
        with pytest.raises(MPIError, match="expects 4 bytes from rank") as raised:
            await pair.Neighbor_allgather(bytes(8 - comm.rank), bytearray(4))
        return raised.value.Get_error_class()

    assert Ranks(2).run(program, program) == [ERR_TRUNCATE] * 2


def test_invalid_topologies_are_rejected() -> None:
    async def program(comm: Comm) -> None:
        for expected, call in (
            (ERR_ARG, comm.Create_graph([1, 3], [0])),
            (ERR_ARG, comm.Create_graph([2, 1], [0, 0])),
            (ERR_ARG, comm.Create_graph([1, 1], [0])),
            (ERR_RANK, comm.Create_graph([1], [1])),
            (ERR_RANK, comm.Create_dist_graph_adjacent([0], [1])),
            (ERR_ARG, comm.Create_dist_graph_adjacent([0], [0], [1], [])),
            (ERR_ARG, comm.Create_dist_graph([0], [2], [0])),
            (ERR_ARG, comm.Create_dist_graph([0], [1], [0], [1, 2])),
        ):
            with pytest.raises(MPIError) as raised:
                await call
            assert raised.value.Get_error_class() == expected
        graph = await comm.Create_graph([1], [0])
        assert graph is not None
        for rank in (-1, 1):
            with pytest.raises(MPIError, match="rank must be 0 to 0"):
                graph.Get_neighbors(rank)
        with pytest.raises(MPIError) as raised:
            await graph.neighbor_alltoall([1, 2])
        assert raised.value.Get_error_class() == ERR_COUNT
        assert comm.Cart_map([1]) == comm.Graph_map([0], []) == 0
        assert comm.Graph_map([], []) == UNDEFINED

    Ranks(1).run(program)


def test_edges_of_numpy_arrays_are_those_of_lists() -> None:
    assert make_graph(np.array([1, 2]), np.array([1, 0]), 4) == make_graph([1, 2], [1, 0], 4)
    for zero in ([0], np.array([0])):
        assert adjacent_edges(zero, zero, None, None, 4) == ((0,), (0,), None)
        assert adjacent_edges(zero, zero, zero, zero, 4).weights == ((0,), (0,))
        assert listed_edges(zero, [1], np.array([1]), zero, 4) == [(0, 1, 0)]


def test_an_index_that_does_not_describe_the_edges_is_an_error() -> None:
    for index in ([-1, 2], [2, 1], [1, 3], []):
        with pytest.raises(MPIError, match="index must be 0 or more") as raised:
            make_graph(index, [0, 1], 4)
        assert raised.value.Get_error_class() == ERR_ARG


def test_topologies_have_mpi4pys_names_for_blocking_programs() -> None:
    def program() -> None:
        world = MPI.COMM_WORLD
        peer = 1 - world.rank
        grid = world.Create_cart([2], [False])
        assert isinstance(grid, MPI.Topocomm)
        assert (grid.dim, grid.dims, grid.periods, grid.coords) == (1, [2], [False], [world.rank])
        assert grid.inedges == grid.outedges == [[MPI.PROC_NULL, 1], [0, MPI.PROC_NULL]][world.rank]
        assert (grid.indegree, grid.degrees, grid.Get_topology()) == (2, (2, 2), MPI.CART)
        assert isinstance(grid.Dup(), MPI.Cartcomm)
        assert MPI.Cartcomm(grid).Shift(0, 1) == grid.Shift(0, 1)
        graph = world.Create_graph([0, 1, 2], [1, 0])  # with a leading 0, which MPI's index lacks
        assert isinstance(graph, MPI.Graphcomm)
        assert (graph.dims, graph.index, graph.edges, graph.neighbors) == ((2, 2), [1, 2], [1, 0], [peer])
        assert (graph.topology, graph.neighbor_allgather(world.rank)) == (MPI.GRAPH, [peer])
        pair = world.Create_dist_graph_adjacent([peer], None, UNWEIGHTED, None)
        assert isinstance(pair, MPI.Distgraphcomm)
        assert (pair.Get_dist_neighbors_count(), pair.topology) == ((1, 0, False), MPI.DIST_GRAPH)
        assert world.Create_dist_graph_adjacent([], [], WEIGHTS_EMPTY, WEIGHTS_EMPTY).Get_dist_neighbors_count()[2]
        assert world.Create_graph([1], [0]) == MPI.COMM_NULL if world.rank else world.Create_graph([1], [0])
        with pytest.raises(TypeError, match="a Cartcomm is expected, not Comm"):
            MPI.Cartcomm(world)

    run_blocking(Ranks(2), program, program)
