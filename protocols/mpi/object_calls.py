"""Collective calls on pickled objects, with mpi4py's names, as coroutines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from protocols.mpi.collective_calls import CollectiveCalls
from protocols.mpi.collectives import objects
from protocols.mpi.mpi_errors import ERR_COUNT, ArgumentValueError
from protocols.mpi.operations import SUM, Op

T = TypeVar("T")


class ObjectCalls(CollectiveCalls):
    """Collective calls of a communicator on objects."""

    __slots__ = ()

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
            raise ArgumentValueError(ERR_COUNT, f"scatter: the root must pass {self.size} objects, got {count}")
        return await objects.scatter(self._begin_exchange("scatter", root=root), sendobj, root)

    async def allgather(self, sendobj: T) -> list[T]:
        """Return all ranks' objects at all ranks."""
        return await objects.allgather(self._begin_exchange("allgather"), sendobj)

    async def alltoall(self, sendobj: Sequence[T]) -> list[T]:
        """Send the k-th object to rank k; return the objects from all ranks, by rank."""
        self._check_collective("alltoall")
        if len(sendobj) != self.size:
            raise ArgumentValueError(
                ERR_COUNT, f"alltoall: each rank must pass {self.size} objects, got {len(sendobj)}"
            )
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


def _name_of(op: Callable[[Any, Any], Any]) -> str:
    return op.name if isinstance(op, Op) else getattr(op, "__name__", "")
