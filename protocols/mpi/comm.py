"""Communicators: mpi4py's calls as coroutines. This module has non-blocking collective calls, collective calls on objects,
and the constructors of communicators. MPI 4.1, chapters 6 and 7.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import reduce
from operator import and_
from typing import Any, TypeVar

from protocols.core.completion import Completion, drive
from protocols.mpi.buffers import Message
from protocols.mpi.cartesian import Grid, make_grid
from protocols.mpi.collective_calls import CollectiveCalls
from protocols.mpi.collectives import objects
from protocols.mpi.constants import UNDEFINED, InPlace
from protocols.mpi.groups import CONGRUENT, IDENT, Group
from protocols.mpi.mpi_errors import (
    ERR_ARG,
    ERR_COMM,
    ERR_COUNT,
    ERR_OTHER,
    PROC_NULL_ENVELOPE,
    Envelope,
    MPIError,
)
from protocols.mpi.operations import SUM, Op
from protocols.mpi.point_to_point import COMM_NULL_ERROR
from protocols.mpi.requests import Request

T = TypeVar("T")


class Comm(CollectiveCalls):
    """A communicator; see `PointToPoint`. Communicators derived from it inherit its choice of algorithms."""

    __slots__ = ()

    @classmethod
    def null(cls) -> Comm:
        """Make COMM_NULL, whose calls raise MPIError (ERR_COMM)."""
        comm = cls.__new__(cls)
        comm.rank, comm.size, comm.send_buffer = UNDEFINED, 0, None
        return comm

    # Non-blocking calls: each begins the blocking call and returns a request. Buffers must not change before it is complete.

    async def Ibarrier(self) -> Request:
        return self._begin(self.Barrier())

    async def Ibcast(self, buf: Message, root: int = 0) -> Request:
        return self._begin(self.Bcast(buf, root))

    async def Igather(self, sendbuf: Message | InPlace, recvbuf: Message = None, root: int = 0) -> Request:
        return self._begin(self.Gather(sendbuf, recvbuf, root))

    async def Igatherv(self, sendbuf: Message | InPlace, recvbuf: Message = None, root: int = 0) -> Request:
        return self._begin(self.Gatherv(sendbuf, recvbuf, root))

    async def Iscatter(self, sendbuf: Message, recvbuf: Message | InPlace = None, root: int = 0) -> Request:
        return self._begin(self.Scatter(sendbuf, recvbuf, root))

    async def Iscatterv(self, sendbuf: Message, recvbuf: Message | InPlace = None, root: int = 0) -> Request:
        return self._begin(self.Scatterv(sendbuf, recvbuf, root))

    async def Iallgather(self, sendbuf: Message | InPlace, recvbuf: Message) -> Request:
        return self._begin(self.Allgather(sendbuf, recvbuf))

    async def Iallgatherv(self, sendbuf: Message | InPlace, recvbuf: Message) -> Request:
        return self._begin(self.Allgatherv(sendbuf, recvbuf))

    async def Ialltoall(self, sendbuf: Message | InPlace, recvbuf: Message) -> Request:
        return self._begin(self.Alltoall(sendbuf, recvbuf))

    async def Ialltoallv(self, sendbuf: Message | InPlace, recvbuf: Message) -> Request:
        return self._begin(self.Alltoallv(sendbuf, recvbuf))

    async def Ialltoallw(self, sendbuf: Sequence[Any] | InPlace, recvbuf: Sequence[Any]) -> Request:
        return self._begin(self.Alltoallw(sendbuf, recvbuf))

    async def Ireduce(
        self, sendbuf: Message | InPlace, recvbuf: Message | InPlace = None, op: Op = SUM, root: int = 0
    ) -> Request:
        return self._begin(self.Reduce(sendbuf, recvbuf, op, root))

    async def Iallreduce(self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM) -> Request:
        return self._begin(self.Allreduce(sendbuf, recvbuf, op))

    async def Ireduce_scatter_block(self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM) -> Request:
        return self._begin(self.Reduce_scatter_block(sendbuf, recvbuf, op))

    async def Ireduce_scatter(
        self, sendbuf: Message | InPlace, recvbuf: Message, recvcounts: Sequence[int] | None = None, op: Op = SUM
    ) -> Request:
        return self._begin(self.Reduce_scatter(sendbuf, recvbuf, recvcounts, op))

    async def Iscan(self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM) -> Request:
        return self._begin(self.Scan(sendbuf, recvbuf, op))

    async def Iexscan(self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM) -> Request:
        return self._begin(self.Exscan(sendbuf, recvbuf, op))

    # Objects.

    async def bcast(self, obj: Any, root: int = 0) -> Any:
        """Return the root's object at all ranks."""
        return await objects.broadcast(self._begin_exchange("bcast", root=root), obj, root)

    async def gather(self, sendobj: T, root: int = 0) -> list[T] | None:
        """Return all ranks' objects at the root, None elsewhere."""
        return await objects.gather(self._begin_exchange("gather", root=root), sendobj, root)

    async def scatter(self, sendobj: Sequence[T] | None, root: int = 0) -> T:
        """Return the root's k-th object at rank k."""
        self._check_collective("scatter", root)
        if self.rank == root and (sendobj is None or len(sendobj) != self.size):
            count = "none" if sendobj is None else str(len(sendobj))
            raise MPIError(ERR_COUNT, f"scatter: the root must pass {self.size} objects, got {count}")
        return await objects.scatter(self._begin_exchange("scatter", root=root), sendobj, root)

    async def allgather(self, sendobj: T) -> list[T]:
        """Return all ranks' objects at all ranks."""
        return await objects.allgather(self._begin_exchange("allgather"), sendobj)

    async def alltoall(self, sendobj: Sequence[T]) -> list[T]:
        """Send the k-th object to rank k; return the objects from all ranks, by rank."""
        self._check_collective("alltoall")
        if len(sendobj) != self.size:
            raise MPIError(ERR_COUNT, f"alltoall: each rank must pass {self.size} objects, got {len(sendobj)}")
        return await objects.alltoall(self._begin_exchange("alltoall"), sendobj)

    async def reduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM, root: int = 0) -> Any:
        """Return the combination of all ranks' objects at the root, None elsewhere."""
        return await objects.reduce(self._begin_exchange("reduce", root=root, op=_name_of(op)), sendobj, op, root)

    async def allreduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM) -> Any:
        """Return the combination of all ranks' objects."""
        exchange = self._begin_exchange("allreduce", op=_name_of(op))
        return await objects.broadcast(exchange, await objects.reduce(exchange, sendobj, op, 0), 0)

    async def scan(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM) -> Any:
        """Return the combination of the objects of this rank and all lower ranks."""
        return await objects.scan(self._begin_exchange("scan", op=_name_of(op)), sendobj, op, True)

    async def exscan(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM) -> Any:
        """Return the combination of all lower ranks' objects; None at rank 0."""
        return await objects.scan(self._begin_exchange("exscan", op=_name_of(op)), sendobj, op, False)

    # Communicators.

    async def Dup(self, info: None = None) -> Comm:  # noqa: ARG002  for mpi4py's signature
        """Duplicate the communicator: equal ranks, separate messages. Raises MPIError (ERR_OTHER) if no context is free."""
        masks = await self.allgather(self._free_contexts())
        return self._make_comm(_lowest_common_context(masks), self._ranks)

    async def Split(self, color: int = 0, key: int = 0) -> Comm | None:
        """Make a communicator of the ranks that pass an equal color, ordered by key, then by rank. Returns None
        (COMM_NULL) for the color UNDEFINED. Raises as Dup does, and ERR_ARG for another negative color."""
        if color < 0 and color != UNDEFINED:
            raise MPIError(ERR_ARG, f"color must be 0 or more, or UNDEFINED, got {color}")
        arguments = await self.allgather((self._free_contexts(), color, key))
        context = _lowest_common_context([mask for mask, _, _ in arguments])
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
        the group. Raises as Dup does."""
        self._check_collective("Create")
        return await self.Split(0 if self._device.rank in group.processes else UNDEFINED, max(group.rank, 0))

    async def Create_group(self, group: Group, tag: int = 0) -> Comm | None:
        """Make a communicator as Create does; called by the group's members only. tag: distinguishes concurrent calls."""
        if not self.size:
            raise MPIError(ERR_COMM, COMM_NULL_ERROR)
        if self._device.rank not in group.processes:
            return None
        world = Comm(self._device, self._contexts[0] // 2, group.processes, self.send_buffer)
        world._calls = self._device.max_tag // 4 + tag  # tags far from those of the communicator's own calls
        masks = await world.allgather(self._free_contexts())
        return self._make_comm(_lowest_common_context(masks), group.processes)

    async def Create_cart(
        self,
        dims: Sequence[int],
        periods: Sequence[bool] | bool | None = None,
        reorder: bool = False,  # noqa: ARG002  ranks are never reordered
    ) -> Cartcomm | None:
        """Make a communicator whose ranks are the points of a grid, in row-major order. Returns None (COMM_NULL) to excess
        ranks. Raises MPIError: ERR_DIMS, ERR_ARG, and as Dup does."""
        grid = make_grid(dims, periods, self.size)
        subgrid = await self.Split(0 if self.rank < grid.size else UNDEFINED, self.rank)
        return None if subgrid is None else _with_grid(subgrid, grid)

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
        """Return IDENT for the same communicator, CONGRUENT for equal ranks in equal order, SIMILAR for another order, else
        UNEQUAL."""
        group1, group2 = self.Get_group(), comm.Get_group()
        if self._contexts == comm._contexts and group1 == group2:
            return IDENT
        comparison = group1.Compare(group2)
        return CONGRUENT if comparison == IDENT else comparison

    def make_self(self) -> Comm:
        """Make a communicator of this rank only (COMM_SELF); the other ranks need not call it. Raises as Dup does."""
        return self._make_comm(_lowest_common_context([self._free_contexts()]), (self._device.rank,))

    def Free(self) -> None:
        """Free the communicator and its context. No transfer may be in progress in it, at any rank."""
        if not self.size:
            raise MPIError(ERR_COMM, COMM_NULL_ERROR)
        self._device.contexts_in_use.discard(self._contexts[0] // 2)
        self.size = 0

    def _make_comm(self, context: int, ranks: Sequence[int] | None) -> Comm:
        comm = Comm(self._device, context, ranks, self.send_buffer)
        comm.algorithms.update(self.algorithms)
        return comm

    def _free_contexts(self) -> int:
        """Return the free contexts, as a bit mask. Raises MPIError (ERR_COMM) for COMM_NULL."""
        if not self.size:
            raise MPIError(ERR_COMM, COMM_NULL_ERROR)
        in_use = self._device.contexts_in_use
        return sum(1 << number for number in range(self._device.contexts // 2) if number not in in_use)

    def _begin(self, coroutine: Coroutine[Any, None, None]) -> Request:
        """Begin a collective call, and return its request."""
        completion: Completion[Envelope] = Completion("a collective call")

        async def complete() -> None:
            try:
                await coroutine
            except Exception as error:  # noqa: BLE001  raised where the request is waited for
                completion.fail(error)
            else:
                completion.complete(PROC_NULL_ENVELOPE)

        drive(complete())
        return self._make_request(completion)


class Cartcomm(Comm):
    """A communicator with a Cartesian topology. grid: extents, and which dimensions are periodic."""

    __slots__ = ("grid",)

    grid: Grid

    def Get_dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.grid.dims)

    def Get_topo(self) -> tuple[list[int], list[bool], list[int]]:
        """Return the extents, whether dimensions are periodic, and this rank's coordinates."""
        return list(self.grid.dims), list(self.grid.periods), self.grid.coordinates(self.rank)

    def Get_coords(self, rank: int) -> list[int]:
        """Return the coordinates of a rank."""
        return self.grid.coordinates(rank)

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """Return the rank at coordinates."""
        return self.grid.rank(coords)

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Return source and destination of a shift along a dimension; PROC_NULL beyond the end of one that is not
        periodic."""
        return self.grid.shift(self.rank, direction, disp)

    async def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        """Make communicators of subgrids. remain_dims: for each dimension, whether the subgrids keep it."""
        coordinates = self.grid.coordinates(self.rank)
        if len(remain_dims) != len(coordinates):
            raise MPIError(ERR_ARG, f"remain_dims must have {len(coordinates)} elements, got {len(remain_dims)}")
        kept_dimensions = [dimension for dimension, remains in enumerate(remain_dims) if remains]
        grid = Grid(
            tuple(self.grid.dims[dimension] for dimension in kept_dimensions),
            tuple(self.grid.periods[dimension] for dimension in kept_dimensions),
        )
        color = 0
        for dimension, (extent, coordinate) in enumerate(zip(self.grid.dims, coordinates, strict=True)):
            color = color if dimension in kept_dimensions else color * extent + coordinate
        subgrid = await self.Split(color, grid.rank([coordinates[dimension] for dimension in kept_dimensions]))
        assert subgrid is not None
        return _with_grid(subgrid, grid)


def _with_grid(comm: Comm, grid: Grid) -> Cartcomm:
    """Make a communicator with a topology from a new one without."""
    cart_comm = Cartcomm(comm._device, comm._contexts[0] // 2, comm._ranks, comm.send_buffer)
    cart_comm.algorithms.update(comm.algorithms)
    cart_comm.grid = grid
    return cart_comm


def _name_of(op: Callable[[Any, Any], Any]) -> str:
    return op.name if isinstance(op, Op) else getattr(op, "__name__", "")


async def _no_op() -> None:
    """Do nothing."""


def _lowest_common_context(masks: Sequence[int]) -> int:
    """Return the lowest context that is free at all ranks. masks: masks of the free contexts of each rank. Raises MPIError
    (ERR_OTHER) if there is none."""
    free = reduce(and_, masks)
    if not free:
        raise MPIError(ERR_OTHER, "no context is free at all ranks for another communicator: free a communicator first")
    return (free & -free).bit_length() - 1
