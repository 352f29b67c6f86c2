"""Non-blocking collective calls, with mpi4py's names, as coroutines."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from protocols.core.completion import Completion, drive
from protocols.mpi.buffers import Message
from protocols.mpi.constants import InPlace
from protocols.mpi.mpi_errors import ERR_COMM, PROC_NULL_ENVELOPE, Envelope, MPIError
from protocols.mpi.object_calls import ObjectCalls
from protocols.mpi.operations import SUM, Op
from protocols.mpi.point_to_point import COMM_NULL_ERROR
from protocols.mpi.requests import Request


class NonblockingCalls(ObjectCalls):
    """Non-blocking collective calls of a communicator."""

    __slots__ = ()

    # Each call begins the blocking call and returns its request. Buffers must not be used before the request is complete.

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

    def _begin(self, coroutine: Coroutine[Any, None, None]) -> Request:
        """Begin a collective call, and return its request. Raises MPIError: ERR_COMM for COMM_NULL, and as the blocking call
        does for invalid arguments. Other errors, failed ranks among them, are raised where the request is waited for."""
        if not self.size:
            coroutine.close()
            raise MPIError(ERR_COMM, COMM_NULL_ERROR)
        calls = self._calls
        completion = begin_collective(coroutine)
        if completion.done and self._calls == calls and not self._device.rank_failures.reasons:
            completion.result()  # raises the error of a rejected call, which was not counted
        return self._make_request(completion)


def begin_collective(coroutine: Coroutine[Any, None, None]) -> Completion[Envelope]:
    """Begin a collective call; its errors are raised where the completion is awaited."""
    completion: Completion[Envelope] = Completion("a collective call")

    async def complete() -> None:
        try:
            await coroutine
        except Exception as error:  # noqa: BLE001  raised where the request is waited for
            completion.fail(error)
        else:
            completion.complete(PROC_NULL_ENVELOPE)

    drive(complete())
    return completion
