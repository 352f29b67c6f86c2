"""Persistent collective calls, with mpi4py's names, as coroutines. MPI 4.1, section 6.13.

Ranks initialize persistent calls in the same order, as other collective calls, but may start them in any order, which may
differ among ranks. So each persistent call has a context of its own until its request is freed and a call in progress
has ended.
"""

# ruff: noqa: N802, ARG002 -- the names and arguments are mpi4py's

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from functools import reduce
from operator import or_
from typing import Any, Self

from protocols.core.completion import Completion
from protocols.mpi.buffers import Message
from protocols.mpi.constants import InPlace
from protocols.mpi.info import INFO_NULL, Info
from protocols.mpi.mpi_errors import ERR_COMM, ERR_OTHER, Envelope, MPIError
from protocols.mpi.nonblocking_calls import NonblockingCalls, begin_collective
from protocols.mpi.operations import SUM, Op
from protocols.mpi.point_to_point import COMM_NULL_ERROR
from protocols.mpi.requests import Prequest


class CollectivePrequest(Prequest):
    """A persistent collective call. release: frees its context."""

    __slots__ = ("_release",)

    def __init__(self, begin: Callable[[], Completion[Envelope]], release: Callable[[object], None]) -> None:
        super().__init__(begin)
        self._release = release

    def Free(self) -> None:
        """Free the request, and its context once its call is complete."""
        super().Free()
        if self.active:
            self._completion.add_callback(self._release)
        else:
            self._release(None)


class PersistentCalls(NonblockingCalls):
    """Persistent collective calls of a communicator. All ranks make an ``..._init`` call together. It raises MPIError:
    ERR_OTHER if no context is free, ERR_ROOT for an invalid root, ERR_COMM for COMM_NULL, ERR_PROC_FAILED. Buffers are
    read and written from `Prequest.Start` until a wait has completed the request; other errors of the call are raised
    by that wait. info: ignored."""

    __slots__ = ()

    async def Barrier_init(self, info: Info = INFO_NULL) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Barrier())

    async def Bcast_init(self, buf: Message, root: int = 0, info: Info = INFO_NULL) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Bcast(buf, root), root)

    async def Gather_init(
        self, sendbuf: Message | InPlace, recvbuf: Message = None, root: int = 0, info: Info = INFO_NULL
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Gather(sendbuf, recvbuf, root), root)

    async def Gatherv_init(
        self, sendbuf: Message | InPlace, recvbuf: Message = None, root: int = 0, info: Info = INFO_NULL
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Gatherv(sendbuf, recvbuf, root), root)

    async def Scatter_init(
        self, sendbuf: Message, recvbuf: Message | InPlace = None, root: int = 0, info: Info = INFO_NULL
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Scatter(sendbuf, recvbuf, root), root)

    async def Scatterv_init(
        self, sendbuf: Message, recvbuf: Message | InPlace = None, root: int = 0, info: Info = INFO_NULL
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Scatterv(sendbuf, recvbuf, root), root)

    async def Allgather_init(self, sendbuf: Message | InPlace, recvbuf: Message, info: Info = INFO_NULL) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Allgather(sendbuf, recvbuf))

    async def Allgatherv_init(self, sendbuf: Message | InPlace, recvbuf: Message, info: Info = INFO_NULL) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Allgatherv(sendbuf, recvbuf))

    async def Alltoall_init(self, sendbuf: Message | InPlace, recvbuf: Message, info: Info = INFO_NULL) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Alltoall(sendbuf, recvbuf))

    async def Alltoallv_init(self, sendbuf: Message | InPlace, recvbuf: Message, info: Info = INFO_NULL) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Alltoallv(sendbuf, recvbuf))

    async def Alltoallw_init(
        self, sendbuf: Sequence[Any] | InPlace, recvbuf: Sequence[Any], info: Info = INFO_NULL
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Alltoallw(sendbuf, recvbuf))

    async def Reduce_init(
        self,
        sendbuf: Message | InPlace,
        recvbuf: Message | InPlace = None,
        op: Op = SUM,
        root: int = 0,
        info: Info = INFO_NULL,
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Reduce(sendbuf, recvbuf, op, root), root)

    async def Allreduce_init(
        self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM, info: Info = INFO_NULL
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Allreduce(sendbuf, recvbuf, op))

    async def Reduce_scatter_block_init(
        self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM, info: Info = INFO_NULL
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Reduce_scatter_block(sendbuf, recvbuf, op))

    async def Reduce_scatter_init(
        self,
        sendbuf: Message | InPlace,
        recvbuf: Message,
        recvcounts: Sequence[int] | None = None,
        op: Op = SUM,
        info: Info = INFO_NULL,
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Reduce_scatter(sendbuf, recvbuf, recvcounts, op))

    async def Scan_init(
        self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM, info: Info = INFO_NULL
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Scan(sendbuf, recvbuf, op))

    async def Exscan_init(
        self, sendbuf: Message | InPlace, recvbuf: Message, op: Op = SUM, info: Info = INFO_NULL
    ) -> Prequest:
        return await self._make_persistent(lambda comm: comm.Exscan(sendbuf, recvbuf, op))

    async def _make_persistent(
        self, call: Callable[[Self], Coroutine[Any, None, None]], root: int = 0
    ) -> CollectivePrequest:
        """Make the request of a persistent call. Each start of the request calls `call` with a copy of the communicator that
        has a context of its own."""
        self._check_collective("a persistent call", root)
        context, in_use = await self._agree_on_context(), self._device.contexts_in_use
        comm = copy(self)
        comm._contexts, comm._calls = (2 * context, 2 * context + 1), 0
        in_use.add(context)
        return CollectivePrequest(lambda: begin_collective(call(comm)), lambda _: in_use.discard(context))

    async def _agree_on_context(self) -> int:
        """Return the lowest context that is free at all ranks. Raises MPIError: ERR_COMM for COMM_NULL; ERR_OTHER if there
        is none."""
        return self._lowest_free_context(await self.allgather(self._contexts_in_use()))

    def _contexts_in_use(self) -> int:
        """Return this rank's contexts in use, as a bit mask. Raises MPIError (ERR_COMM) for COMM_NULL."""
        if not self.size:
            raise MPIError(ERR_COMM, COMM_NULL_ERROR)
        return sum(1 << number for number in self._device.contexts_in_use)

    def _lowest_free_context(self, masks: Sequence[int]) -> int:
        """Return the lowest context that is free at all ranks. masks: bit mask of the contexts in use at each rank. Raises
        MPIError (ERR_OTHER) if there is none."""
        free = ~reduce(or_, masks)
        context = (free & -free).bit_length() - 1
        if context >= self._device.contexts // 2:
            raise MPIError(
                ERR_OTHER,
                "no context is free at all ranks for another communicator or persistent collective call: free one first",
            )
        return context
