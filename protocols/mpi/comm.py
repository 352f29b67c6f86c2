"""Communicators: mpi4py's calls as coroutines. Here are non-blocking collective calls, collective calls on objects, and the
calls that make communicators. MPI 4.1, chapters 6 and 7.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import reduce
from operator import and_
from typing import Any, TypeVar

from protocols.core.completion import Completion, drive
from protocols.mpi.buffers import Message
from protocols.mpi.cartesian import Grid, grid_of
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
from protocols.mpi.point_to_point import NULL
from protocols.mpi.requests import Request

T = TypeVar("T")


class Comm(CollectiveCalls):
    """All or some of a cluster's ranks; see `PointToPoint`. Communicators that are made from one begin with its choice of
    algorithms."""

    __slots__ = ()

    @classmethod
    def null(cls) -> Comm:
        """Make COMM_NULL, whose calls raise MPIError (ERR_COMM)."""
        comm = cls.__new__(cls)
        comm.rank, comm.size, comm.send_buffer = UNDEFINED, 0, None
        return comm

    # Non-blocking: each begins the call of its name, and returns a request. Buffers must not change meanwhile.

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
        return await objects.broadcast(self._exchange("bcast", root=root), obj, root)

    async def gather(self, sendobj: T, root: int = 0) -> list[T] | None:
        """Return all ranks' objects at the root, None elsewhere."""
        return await objects.gather(self._exchange("gather", root=root), sendobj, root)

    async def scatter(self, sendobj: Sequence[T] | None, root: int = 0) -> T:
        """Return the k-th of the root's objects at rank k."""
        self._check_collective("scatter", root)
        if self.rank == root and (sendobj is None or len(sendobj) != self.size):
            what = "none" if sendobj is None else str(len(sendobj))
            raise MPIError(ERR_COUNT, f"scatter: the root has to pass {self.size} objects, and has passed {what}")
        return await objects.scatter(self._exchange("scatter", root=root), sendobj, root)

    async def allgather(self, sendobj: T) -> list[T]:
        """Return all ranks' objects at all of them."""
        return await objects.allgather(self._exchange("allgather"), sendobj)

    async def alltoall(self, sendobj: Sequence[T]) -> list[T]:
        """Send the k-th object to rank k; return what the ranks have sent, by rank."""
        self._check_collective("alltoall")
        if len(sendobj) != self.size:
            raise MPIError(ERR_COUNT, f"alltoall: {len(sendobj)} objects for {self.size} ranks")
        return await objects.alltoall(self._exchange("alltoall"), sendobj)

    async def reduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM, root: int = 0) -> Any:
        """Return the combination of all ranks' objects at the root, None elsewhere."""
        return await objects.reduce(self._exchange("reduce", root=root, op=_name_of(op)), sendobj, op, root)

    async def allreduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM) -> Any:
        """Return the combination of all ranks' objects."""
        exchange = self._exchange("allreduce", op=_name_of(op))
        return await objects.broadcast(exchange, await objects.reduce(exchange, sendobj, op, 0), 0)

    async def scan(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM) -> Any:
        """Return the combination of the objects of this rank and all lower ones."""
        return await objects.scan(self._exchange("scan", op=_name_of(op)), sendobj, op, True)

    async def exscan(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM) -> Any:
        """Return the combination of all lower ranks' objects; None at rank 0."""
        return await objects.scan(self._exchange("exscan", op=_name_of(op)), sendobj, op, False)

    # Communicators.

    async def Dup(self, info: None = None) -> Comm:  # noqa: ARG002  for mpi4py's signature
        """Make a communicator of these ranks with messages of its own. Raises MPIError (ERR_OTHER) if no context is
        left."""
        offers = await self.allgather(self._free_contexts())
        return self._another(_agreed(offers), self._ranks)

    async def Split(self, color: int = 0, key: int = 0) -> Comm | None:
        """Make a communicator of the ranks that pass the same color, ordered by key, then by rank. Returns None
        (COMM_NULL) for UNDEFINED. Raises as Dup does, and ERR_ARG for a negative color."""
        if color < 0 and color != UNDEFINED:
            raise MPIError(ERR_ARG, f"a color of {color}: 0 or more, or UNDEFINED")
        said = await self.allgather((self._free_contexts(), color, key))
        context = _agreed([offer for offer, _, _ in said])
        if color == UNDEFINED:
            return None
        chosen = sorted((key, rank) for rank, (_, other, key) in enumerate(said) if other == color)
        # Communicators that have no rank in common may share a context.
        return self._another(context, tuple(self._peer(rank) for _, rank in chosen))

    Clone = Dup

    async def Idup(self) -> tuple[Comm, Request]:
        """Make a communicator as Dup does; returns it with a complete request."""
        return await self.Dup(), self._begin(_nothing())

    async def Create(self, group: Group) -> Comm | None:
        """Make a communicator of some of these ranks; all ranks call it. Returns None (COMM_NULL) to those that are not in
        the group. Raises as Dup does."""
        self._check_collective("Create")
        return await self.Split(0 if self._device.rank in group.processes else UNDEFINED, max(group.rank, 0))

    async def Create_group(self, group: Group, tag: int = 0) -> Comm | None:
        """Make a communicator as Create does; only the group's members call it. tag: distinguishes calls made at once."""
        if not self.size:
            raise MPIError(ERR_COMM, NULL)
        if self._device.rank not in group.processes:
            return None
        world = Comm(self._device, self._contexts[0] // 2, group.processes, self.send_buffer)
        world._calls = self._device.max_tag // 4 + tag  # of tags that the communicator's own calls are far from
        offers = await world.allgather(self._free_contexts())
        return self._another(_agreed(offers), group.processes)

    async def Create_cart(
        self,
        dims: Sequence[int],
        periods: Sequence[bool] | bool | None = None,
        reorder: bool = False,  # noqa: ARG002  it never does
    ) -> Cartcomm | None:
        """Make a communicator whose ranks are points of a grid, in row-major order. Ranks beyond it get None (COMM_NULL).
        Raises MPIError: ERR_DIMS, ERR_ARG, and as Dup does."""
        grid = grid_of(dims, periods, self.size)
        part = await self.Split(0 if self.rank < grid.size else UNDEFINED, self.rank)
        return None if part is None else _with_grid(part, grid)

    def Is_intra(self) -> bool:
        return True

    def Is_inter(self) -> bool:
        return False

    def Get_group(self) -> Group:
        """Return the group of its ranks. Raises MPIError (ERR_COMM) for COMM_NULL."""
        if not self.size:
            raise MPIError(ERR_COMM, NULL)
        return Group([self._peer(rank) for rank in range(self.size)], self._device.rank)

    def Compare(self, comm: Comm) -> int:
        """Return IDENT for one communicator, CONGRUENT for the same ranks in order, SIMILAR for another order, else
        UNEQUAL."""
        group1, group2 = self.Get_group(), comm.Get_group()
        if self._contexts == comm._contexts and group1 == group2:
            return IDENT
        compared = group1.Compare(group2)
        return CONGRUENT if compared == IDENT else compared

    def alone(self) -> Comm:
        """Make a communicator of this rank alone (COMM_SELF). Raises as Dup does; the other ranks need not call it."""
        return self._another(_agreed([self._free_contexts()]), (self._device.rank,))

    def Free(self) -> None:
        """Free the communicator and its context. No transfer may be in progress in it, at any rank."""
        if not self.size:
            raise MPIError(ERR_COMM, NULL)
        self._device.contexts_in_use.discard(self._contexts[0] // 2)
        self.size = 0

    def _another(self, context: int, ranks: Sequence[int] | None) -> Comm:
        made = Comm(self._device, context, ranks, self.send_buffer)
        made.algorithms.update(self.algorithms)
        return made

    def _free_contexts(self) -> int:
        """Return the free contexts, as a bit mask. Raises MPIError (ERR_COMM) for COMM_NULL."""
        if not self.size:
            raise MPIError(ERR_COMM, NULL)
        taken = self._device.contexts_in_use
        return sum(1 << number for number in range(self._device.contexts // 2) if number not in taken)

    def _begin(self, work: Coroutine[Any, None, None]) -> Request:
        """Begin a call, and return its request."""
        completion: Completion[Envelope] = Completion("a collective call")

        async def complete() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001  raised where the request is waited for
                completion.fail(error)
            else:
                completion.complete(PROC_NULL_ENVELOPE)

        drive(complete())
        return self._request(completion)


class Cartcomm(Comm):
    """A communicator with a Cartesian topology. grid: extents and periods."""

    __slots__ = ("grid",)

    grid: Grid

    def Get_dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.grid.dims)

    def Get_topo(self) -> tuple[list[int], list[bool], list[int]]:
        """Return extents, periods, and this rank's point."""
        return list(self.grid.dims), list(self.grid.periods), self.grid.coordinates(self.rank)

    def Get_coords(self, rank: int) -> list[int]:
        """Return a rank's point."""
        return self.grid.coordinates(rank)

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """Return a point's rank."""
        return self.grid.rank(coords)

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Return the source and the destination of a shift along a dimension; PROC_NULL beyond an open end."""
        return self.grid.shift(self.rank, direction, disp)

    async def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        """Make communicators of the grid's parts that keep these dimensions."""
        point = self.grid.coordinates(self.rank)
        if len(remain_dims) != len(point):
            raise MPIError(ERR_ARG, f"{len(remain_dims)} dimensions to keep or not, of {len(point)}")
        kept = [place for place, remains in enumerate(remain_dims) if remains]
        grid = Grid(tuple(self.grid.dims[place] for place in kept), tuple(self.grid.periods[place] for place in kept))
        color = 0
        for place, (extent, coordinate) in enumerate(zip(self.grid.dims, point, strict=True)):
            color = color if place in kept else color * extent + coordinate
        part = await self.Split(color, grid.rank([point[place] for place in kept]))
        assert part is not None
        return _with_grid(part, grid)


def _with_grid(comm: Comm, grid: Grid) -> Cartcomm:
    """Give a new communicator a topology."""
    made = Cartcomm(comm._device, comm._contexts[0] // 2, comm._ranks, comm.send_buffer)
    made.algorithms.update(comm.algorithms)
    made.grid = grid
    return made


def _name_of(op: Callable[[Any, Any], Any]) -> str:
    return op.name if isinstance(op, Op) else getattr(op, "__name__", "")


async def _nothing() -> None:
    """Do nothing."""


def _agreed(offers: Sequence[int]) -> int:
    """Return the lowest context that is free at all ranks. offers: each rank's free contexts, as bit masks."""
    free = reduce(and_, offers)
    if not free:
        raise MPIError(ERR_OTHER, "no context is free at all ranks for another communicator: free one first")
    return (free & -free).bit_length() - 1
