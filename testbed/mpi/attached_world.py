"""Rank of a process that has attached to a NIC by itself: it has the only loop, which a blocking call runs until the
awaited completion is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Final

from protocols.mpi import blocking_calls, comm
from protocols.mpi.send_buffer import SendBuffer
from testbed.spec.placement import node_of


class AttachedRank:
    """Rank of this process, with the interface of `mpi_programs.Program`. now: its clock, nanoseconds. name: the
    rank's."""

    def __init__(
        self, world: comm.Comm, complete: blocking_calls.CoroutineRunner, now: Callable[[], int], name: str
    ) -> None:
        """world: all nodes. complete: runs a coroutine to its end, and raises RuntimeError within one that it runs
        already."""
        self.now: Final = now
        self.name: Final = name
        self._world = world
        self._complete = complete

    @cached_property
    def world(self) -> blocking_calls.Comm:
        """COMM_WORLD of this process. From the first access on its sends are buffered, as only blocking programs need."""
        if self._world.send_buffer is None:
            self._world.send_buffer = SendBuffer()
        properties = blocking_calls.properties_of(self._world, node_of(self.name), "MPI_COMM_WORLD")
        return blocking_calls.Comm(self._world, self._complete, properties)

    @cached_property
    def alone(self) -> blocking_calls.Comm:
        """COMM_SELF of this process."""
        alone = self.world.wrapped.make_self()
        return blocking_calls.Comm(
            alone, self._complete, blocking_calls.properties_of(alone, node_of(self.name), "MPI_COMM_SELF")
        )

    def finalize(self) -> None:
        """Wait until no send is buffered any more. Raises MPIError where a send has failed that was reported done."""
        if self._world.send_buffer is not None:
            self._complete(self._world.send_buffer.drain())
        self._world.lost_sends.finish()


_attached: list[AttachedRank] = []  # a process may have several NICs; the last one counts


def last_attached() -> AttachedRank | None:
    """Return the rank that MPI's names refer to in this process, outside programs of a run."""
    return _attached[-1] if _attached else None


@contextmanager
def bind_names(rank: AttachedRank) -> Iterator[AttachedRank]:
    """Let MPI's names refer to a rank until the end of the block."""
    _attached.append(rank)
    try:
        yield rank
    finally:
        _attached.remove(rank)
