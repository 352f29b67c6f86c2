"""Communicators: mpi4py's calls as coroutines. This module has the constructors of communicators, and communicators with
topologies. MPI 4.1, chapters 7 and 8.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Self, TypeAlias, TypeVar

from protocols.mpi.block_buffers import BlockBuffers, ContiguousBuffer, split_equally, typed_blocks
from protocols.mpi.buffers import Message, as_send_data, equal_blocks, vector_blocks
from protocols.mpi.cartesian import Grid, make_grid
from protocols.mpi.collectives.choices import Algorithms
from protocols.mpi.collectives.neighbourhoods import Neighbourhood, exchange_blocks, exchange_objects
from protocols.mpi.constants import UNDEFINED
from protocols.mpi.graphs import DistributedGraph, Graph, adjacent_edges, edges_of, listed_edges, make_graph
from protocols.mpi.groups import CONGRUENT, IDENT, Group
from protocols.mpi.info import INFO_NULL, Info
from protocols.mpi.iovec import to_contiguous
from protocols.mpi.mpi_errors import ERR_ARG, ERR_COMM, ERR_COUNT, ERR_GROUP, MPIError, check_type
from protocols.mpi.persistent_calls import PersistentCalls
from protocols.mpi.point_to_point import COMM_NULL_ERROR
from protocols.mpi.requests import Prequest, Request

Topology: TypeAlias = Grid | Graph | DistributedGraph
TopologyT = TypeVar("TopologyT", bound=Topology)


class Comm(PersistentCalls):
    """A communicator; see `PointToPoint`. Communicators derived from it inherit its choice of algorithms."""

    __slots__ = ()

    @classmethod
    def null(cls) -> Self:
        """Make COMM_NULL, whose calls raise MPIError (ERR_COMM)."""
        comm = cls.__new__(cls)
        comm.rank, comm.size, comm.send_buffer, comm.algorithms = UNDEFINED, 0, None, Algorithms()
        return comm

    async def Dup(self, info: None = None) -> Comm:  # noqa: ARG002  for mpi4py's signature
        """Duplicate the communicator: equal ranks, separate messages. Raises MPIError (ERR_OTHER) if no context is free."""
        return await self._duplicate()

    async def Split(self, color: int = 0, key: int = 0) -> Comm | None:
        """Make a communicator of the ranks that pass an equal color, ordered by key, then by rank. Returns None
        (COMM_NULL) for the color UNDEFINED. Raises as Dup does, and ERR_ARG for another negative color."""
        if color < 0 and color != UNDEFINED:
            raise MPIError(ERR_ARG, f"color must be 0 or more, or UNDEFINED, got {color}")
        arguments = await self.allgather((self._contexts_in_use(), color, key))
        context = self._lowest_free_context([mask for mask, _, _ in arguments])
        if color == UNDEFINED:
            return None
        members = sorted((key, rank) for rank, (_, rank_color, key) in enumerate(arguments) if rank_color == color)
        # Communicators without a common rank may share a context.
        return self._make_comm(context, tuple(self._device_rank(rank) for _, rank in members))

    Clone = Dup

    async def Idup(self) -> tuple[Comm, Request]:
        """Duplicate as Dup does; returns the communicator and a complete request."""
        return await self.Dup(), self._begin(_no_op())

    async def Create(self, group: Group) -> Comm | None:
        """Make a communicator of a group of these ranks; called by all ranks. Returns None (COMM_NULL) to ranks outside of
        the group. Raises as Dup does, and ERR_GROUP for a group with other processes."""
        check_type(group, Group)
        self._check_collective("Create")
        self._check_members(group)
        return await self.Split(0 if self._device.rank in group.processes else UNDEFINED, max(group.rank, 0))

    async def Create_group(self, group: Group, tag: int = 0) -> Comm | None:
        """Make a communicator as Create does; called by the group's members only. tag: distinguishes concurrent calls."""
        if not self.size:
            raise MPIError(ERR_COMM, COMM_NULL_ERROR)
        check_type(group, Group)
        self._check_members(group)
        if self._device.rank not in group.processes:
            return None
        members = Comm(self._device, self._contexts[0] // 2, group.processes, self.send_buffer)
        members._calls = self._device.max_tag // 4 + tag  # for tags far from those of this communicator's own calls
        return self._make_comm(await members._agree_on_context(), group.processes)

    async def Create_cart(
        self,
        dims: Sequence[int],
        periods: Sequence[bool] | bool | None = None,
        reorder: bool = False,  # noqa: ARG002  ranks are never reordered
    ) -> Cartcomm | None:
        """Make a communicator whose ranks are the points of a grid, in row-major order. Returns None (COMM_NULL) to excess
        ranks. Raises MPIError: ERR_DIMS, ERR_ARG, and as Dup does."""
        return await self._with_first_ranks(Cartcomm, make_grid(dims, periods, self.size))

    def Cart_map(self, dims: Sequence[int], periods: Sequence[bool] | bool | None = None) -> int:
        """Return the rank that Create_cart would give to this one; UNDEFINED if none."""
        return self.rank if self.rank < make_grid(dims, periods, self.size).size else UNDEFINED

    async def Create_graph(
        self,
        index: Sequence[int],
        edges: Sequence[int],
        reorder: bool = False,  # noqa: ARG002  ranks are never reordered
    ) -> Graphcomm | None:
        """Make a communicator with a graph; all ranks pass the whole graph (`graphs.make_graph`). Returns None
        (COMM_NULL) to excess ranks. Raises MPIError: ERR_ARG, ERR_RANK, and as Dup does."""
        return await self._with_first_ranks(Graphcomm, make_graph(index, edges, self.size))

    def Graph_map(self, index: Sequence[int], edges: Sequence[int]) -> int:
        """Return the rank that Create_graph would give to this one; UNDEFINED if none."""
        return self.rank if self.rank < make_graph(index, edges, self.size).size else UNDEFINED

    async def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int] | None,
        destinations: Sequence[int] | None,
        sourceweights: Sequence[int] | None = None,
        destweights: Sequence[int] | None = None,
        info: object = None,  # noqa: ARG002  for mpi4py's signature
        reorder: bool = False,  # noqa: ARG002
    ) -> Distgraphcomm:
        """Make a communicator with a graph; each rank passes its own edges (`graphs.adjacent_edges`). Raises MPIError:
        ERR_RANK, ERR_ARG, and as Dup does."""
        edges = adjacent_edges(sources, destinations, sourceweights, destweights, self.size)
        return _with_topology(await self._duplicate(), Distgraphcomm, edges)

    async def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Sequence[int] | None = None,
        info: object = None,  # noqa: ARG002  for mpi4py's signature
        reorder: bool = False,  # noqa: ARG002
    ) -> Distgraphcomm:
        """Make a communicator with a graph; each rank passes some of the edges, which may be those of other ranks
        (`graphs.listed_edges`). Raises MPIError as Create_dist_graph_adjacent does."""
        listed = listed_edges(sources, degrees, destinations, weights, self.size)
        edges = [edge for part in await self.allgather(listed) for edge in part]
        return _with_topology(await self._duplicate(), Distgraphcomm, edges_of(self.rank, edges, weights is not None))

    async def _with_first_ranks(self, kind: type[TopocommT], topology: Grid | Graph) -> TopocommT | None:
        """Make a communicator with a topology, of the first `topology.size` ranks; return None to the other ranks."""
        members = await self.Split(0 if self.rank < topology.size else UNDEFINED, self.rank)
        return None if members is None else _with_topology(members, kind, topology)

    def Is_intra(self) -> bool:
        return True

    def Is_inter(self) -> bool:
        return False

    def Get_group(self) -> Group:
        """Return the group of its ranks. Raises MPIError (ERR_COMM) for COMM_NULL."""
        if not self.size:
            raise MPIError(ERR_COMM, COMM_NULL_ERROR)
        return Group([self._device_rank(rank) for rank in range(self.size)], self._device.rank)

    def Compare(self, comm: Comm) -> int:
        """Return IDENT for one communicator, CONGRUENT for equal ranks in equal order, SIMILAR for equal ranks in another
        order, else UNEQUAL."""
        group1, group2 = self.Get_group(), comm.Get_group()
        if self._contexts == comm._contexts and group1 == group2:
            return IDENT
        comparison = group1.Compare(group2)
        return CONGRUENT if comparison == IDENT else comparison

    def make_self(self) -> Comm:
        """Make a communicator of this rank only (COMM_SELF); the other ranks need not call it. Raises as Dup does."""
        return self._make_comm(self._lowest_free_context([self._contexts_in_use()]), (self._device.rank,))

    def Free(self) -> None:
        """Free the communicator and its context. No transfer may be in progress in it, at any rank."""
        if not self.size:
            raise MPIError(ERR_COMM, COMM_NULL_ERROR)
        self._device.contexts_in_use.discard(self._contexts[0] // 2)
        self.size = 0

    def _check_members(self, group: Group) -> None:
        """Raise MPIError (ERR_GROUP) for a group with processes that are not in this communicator."""
        if others := sorted({*group.processes} - {*self.Get_group().processes}):
            raise MPIError(
                ERR_GROUP,
                f"the group must consist of ranks of this communicator, got also ranks {others} of COMM_WORLD",
            )

    async def _duplicate(self) -> Comm:
        """Make a communicator of equal ranks, without a topology."""
        return self._make_comm(await self._agree_on_context(), self._ranks)

    def _make_comm(self, context: int, ranks: Sequence[int] | None) -> Comm:
        comm = Comm(self._device, context, ranks, self.send_buffer)
        comm.algorithms.update(self.algorithms)
        return comm


class Topocomm(Comm, Generic[TopologyT]):
    """A communicator with a topology. The calls exchange data along this rank's edges: one block for each edge, in the order
    of the edges. An edge to PROC_NULL transfers nothing and leaves its block unchanged.

    The calls raise MPIError as `CollectiveCalls` do, and ERR_TRUNCATE if the blocks of two neighbours differ in size.
    """

    __slots__ = ("topology",)

    topology: TopologyT

    @property
    def neighbourhood(self) -> Neighbourhood:
        """This rank's edges. Raises MPIError (ERR_COMM) for COMM_NULL."""
        if not self.size:
            raise MPIError(ERR_COMM, COMM_NULL_ERROR)
        return self.topology.neighbourhood(self.rank)

    async def Dup(self, info: None = None) -> Comm:
        """Duplicate as `Comm.Dup` does; the duplicate has an equal topology."""
        return _with_topology(await super().Dup(info), type(self), self.topology)

    Clone = Dup

    async def Neighbor_allgather(self, sendbuf: Message, recvbuf: Message) -> None:
        """Send one block to all neighbours; gather blocks of equal size from them."""
        block = to_contiguous(as_send_data(sendbuf))
        out = ContiguousBuffer(equal_blocks(recvbuf, len(self.neighbourhood.sources), True), is_input=True)
        blocks = split_equally(out.data, len(self.neighbourhood.sources))
        await self._exchange_blocks("Neighbor_allgather", [block] * len(self.neighbourhood.destinations), blocks)
        out.scatter()

    async def Neighbor_allgatherv(self, sendbuf: Message, recvbuf: Message) -> None:
        """Send one block to all neighbours; gather blocks of any sizes from them. recvbuf: as in Allgatherv."""
        block = to_contiguous(as_send_data(sendbuf))
        out = BlockBuffers(vector_blocks(recvbuf, len(self.neighbourhood.sources), True), is_input=True)
        await self._exchange_blocks("Neighbor_allgatherv", [block] * len(self.neighbourhood.destinations), out.data)
        out.scatter()

    async def Neighbor_alltoall(self, sendbuf: Message, recvbuf: Message) -> None:
        """Send a block to each neighbour, and receive one from each; all blocks have equal sizes."""
        neighbourhood = self.neighbourhood
        data = to_contiguous(equal_blocks(sendbuf, len(neighbourhood.destinations), False))
        out = ContiguousBuffer(equal_blocks(recvbuf, len(neighbourhood.sources), True), is_input=True)
        blocks = split_equally(data, len(neighbourhood.destinations))
        await self._exchange_blocks("Neighbor_alltoall", blocks, split_equally(out.data, len(neighbourhood.sources)))
        out.scatter()

    async def Neighbor_alltoallv(self, sendbuf: Message, recvbuf: Message) -> None:
        """Send a block to each neighbour, and receive one from each, of any sizes. sendbuf, recvbuf: as in Alltoallv."""
        neighbourhood = self.neighbourhood
        data = vector_blocks(sendbuf, len(neighbourhood.destinations), False)
        out = BlockBuffers(vector_blocks(recvbuf, len(neighbourhood.sources), True), is_input=True)
        await self._exchange_blocks("Neighbor_alltoallv", [to_contiguous(block) for block in data], out.data)
        out.scatter()

    async def Neighbor_alltoallw(self, sendbuf: Sequence[Any], recvbuf: Sequence[Any]) -> None:
        """Send a block to each neighbour, and receive one from each, of any sizes and datatypes. sendbuf, recvbuf: as in
        Alltoallw."""
        neighbourhood = self.neighbourhood
        data = typed_blocks(sendbuf, len(neighbourhood.destinations), False)
        out = BlockBuffers(typed_blocks(recvbuf, len(neighbourhood.sources), True), is_input=True)
        await self._exchange_blocks("Neighbor_alltoallw", [to_contiguous(block) for block in data], out.data)
        out.scatter()

    async def Ineighbor_allgather(self, sendbuf: Message, recvbuf: Message) -> Request:
        return self._begin(self.Neighbor_allgather(sendbuf, recvbuf))

    async def Ineighbor_allgatherv(self, sendbuf: Message, recvbuf: Message) -> Request:
        return self._begin(self.Neighbor_allgatherv(sendbuf, recvbuf))

    async def Ineighbor_alltoall(self, sendbuf: Message, recvbuf: Message) -> Request:
        return self._begin(self.Neighbor_alltoall(sendbuf, recvbuf))

    async def Ineighbor_alltoallv(self, sendbuf: Message, recvbuf: Message) -> Request:
        return self._begin(self.Neighbor_alltoallv(sendbuf, recvbuf))

    async def Ineighbor_alltoallw(self, sendbuf: Sequence[Any], recvbuf: Sequence[Any]) -> Request:
        return self._begin(self.Neighbor_alltoallw(sendbuf, recvbuf))

    async def Neighbor_allgather_init(
        self,
        sendbuf: Message,
        recvbuf: Message,
        info: Info = INFO_NULL,  # noqa: ARG002  mpi4py's
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Neighbor_allgather(sendbuf, recvbuf))

    async def Neighbor_allgatherv_init(
        self,
        sendbuf: Message,
        recvbuf: Message,
        info: Info = INFO_NULL,  # noqa: ARG002  mpi4py's
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Neighbor_allgatherv(sendbuf, recvbuf))

    async def Neighbor_alltoall_init(
        self,
        sendbuf: Message,
        recvbuf: Message,
        info: Info = INFO_NULL,  # noqa: ARG002  mpi4py's
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Neighbor_alltoall(sendbuf, recvbuf))

    async def Neighbor_alltoallv_init(
        self,
        sendbuf: Message,
        recvbuf: Message,
        info: Info = INFO_NULL,  # noqa: ARG002  mpi4py's
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Neighbor_alltoallv(sendbuf, recvbuf))

    async def Neighbor_alltoallw_init(
        self,
        sendbuf: Sequence[Any],
        recvbuf: Sequence[Any],
        info: Info = INFO_NULL,  # noqa: ARG002  mpi4py's
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Neighbor_alltoallw(sendbuf, recvbuf))

    async def neighbor_allgather(self, sendobj: object) -> list[Any]:
        """Send an object to all neighbours; return their objects."""
        neighbourhood = self.neighbourhood
        exchange = self._begin_exchange("neighbor_allgather")
        return await exchange_objects(exchange, neighbourhood, [sendobj] * len(neighbourhood.destinations))

    async def neighbor_alltoall(self, sendobj: Sequence[object]) -> list[Any]:
        """Send an object to each neighbour; return their objects."""
        neighbourhood = self.neighbourhood
        if len(sendobj) != len(neighbourhood.destinations):
            raise MPIError(
                ERR_COUNT, f"neighbor_alltoall: {len(sendobj)} objects for {len(neighbourhood.destinations)} neighbours"
            )
        return await exchange_objects(self._begin_exchange("neighbor_alltoall"), neighbourhood, sendobj)

    async def _exchange_blocks(self, call: str, data: Sequence[memoryview], out: Sequence[memoryview]) -> None:
        await exchange_blocks(self._begin_exchange(call), self.neighbourhood, data, out)


class Cartcomm(Topocomm[Grid]):
    """A communicator with a Cartesian topology. topology: extents, and which dimensions are periodic."""

    __slots__ = ()

    def Get_dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.topology.dims)

    def Get_topo(self) -> tuple[list[int], list[bool], list[int]]:
        """Return the extents, whether dimensions are periodic, and this rank's coordinates."""
        return list(self.topology.dims), list(self.topology.periods), self.topology.coordinates(self.rank)

    def Get_coords(self, rank: int) -> list[int]:
        """Return the coordinates of a rank."""
        return self.topology.coordinates(rank)

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """Return the rank at coordinates."""
        return self.topology.rank(coords)

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Return source and destination of a shift along a dimension; PROC_NULL beyond the end of a dimension that is not
        periodic."""
        return self.topology.shift(self.rank, direction, disp)

    async def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        """Make communicators of subgrids. remain_dims: for each dimension, whether the subgrids keep it."""
        dims, periods = self.topology
        coordinates = self.topology.coordinates(self.rank)
        if len(remain_dims) != len(coordinates):
            raise MPIError(ERR_ARG, f"remain_dims must have {len(coordinates)} elements, got {len(remain_dims)}")
        kept_dimensions = [dimension for dimension, remains in enumerate(remain_dims) if remains]
        grid = Grid(
            tuple(dims[dimension] for dimension in kept_dimensions),
            tuple(periods[dimension] for dimension in kept_dimensions),
        )
        color = 0
        for dimension, (extent, coordinate) in enumerate(zip(dims, coordinates, strict=True)):
            color = color if dimension in kept_dimensions else color * extent + coordinate
        subgrid = await self.Split(color, grid.rank([coordinates[dimension] for dimension in kept_dimensions]))
        assert subgrid is not None
        return _with_topology(subgrid, Cartcomm, grid)


class Graphcomm(Topocomm[Graph]):
    """A communicator with a graph that all ranks know."""

    __slots__ = ()

    def Get_dims(self) -> tuple[int, int]:
        """Return the numbers of ranks and of edges."""
        return self.topology.size, len(self.topology.edges)

    def Get_topo(self) -> tuple[list[int], list[int]]:
        """Return index and edges (`graphs.Graph`)."""
        return list(self.topology.ends), list(self.topology.edges)

    def Get_neighbors_count(self, rank: int) -> int:
        """Return the number of neighbours of a rank."""
        return len(self.topology.neighbours(rank))

    def Get_neighbors(self, rank: int) -> list[int]:
        """Return the neighbours of a rank."""
        return self.topology.neighbours(rank)


class Distgraphcomm(Topocomm[DistributedGraph]):
    """A communicator with a graph of which each rank knows only its own edges."""

    __slots__ = ()

    def Get_dist_neighbors_count(self) -> tuple[int, int, bool]:
        """Return the numbers of incoming and outgoing edges, and whether they have weights."""
        sources, destinations, weights = self.topology
        return len(sources), len(destinations), weights is not None

    def Get_dist_neighbors(self) -> tuple[list[int], list[int], tuple[list[int], list[int]] | None]:
        """Return the sources, the destinations, and the weights of both; None for edges without weights."""
        sources, destinations, weights = self.topology
        lists = None if weights is None else (list(weights[0]), list(weights[1]))
        return list(sources), list(destinations), lists


TopocommT = TypeVar("TopocommT", bound=Topocomm[Any])


def _with_topology(comm: Comm, kind: type[TopocommT], topology: Topology) -> TopocommT:
    """Make a communicator with a topology from a new communicator without one."""
    topology_comm = kind(comm._device, comm._contexts[0] // 2, comm._ranks, comm.send_buffer)
    topology_comm.algorithms.update(comm.algorithms)
    topology_comm.topology = topology
    return topology_comm


async def _no_op() -> None:
    """Do nothing."""
