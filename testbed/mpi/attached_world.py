"""Rank of a process that has attached to a NIC (`testbed.attach`). The process has one event loop, which a blocking call
runs until the awaited completion is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Final

from protocols.mpi import blocking_calls, comm
from protocols.mpi.send_buffer import SendBuffer
from testbed.spec.placement import node_of


class AttachedRank:
    """Rank of this process, with the interface of `mpi_programs.Program`. now: returns the time of its clock in
    nanoseconds. name: the rank's name."""

    def __init__(
        self, world: comm.Comm, complete: blocking_calls.CoroutineRunner, now: Callable[[], int], name: str
    ) -> None:
        """world: communicator of all ranks. complete: runs a coroutine to its end, and raises RuntimeError if it is
        called by a coroutine that it is running."""
        self.now: Final = now
        self.name: Final = name
        self._world = world
        self._complete = complete

    @cached_property
    def world(self) -> blocking_calls.Comm:
        """COMM_WORLD of this process. The first access adds a send buffer, which only blocking programs need."""
        if self._world.send_buffer is None:
            self._world.send_buffer = SendBuffer()
        properties = blocking_calls.make_properties(self._world, node_of(self.name), "MPI_COMM_WORLD")
        return blocking_calls.Comm(self._world, self._complete, properties)

    @cached_property
    def self_comm(self) -> blocking_calls.Comm:
        """COMM_SELF of this process."""
        self_comm = self.world.wrapped.make_self()
        return blocking_calls.Comm(
            self_comm, self._complete, blocking_calls.make_properties(self_comm, node_of(self.name), "MPI_COMM_SELF")
        )

    def finalize(self) -> None:
        """Wait until no send is buffered any more. Raises MPIError if a send has failed after it was reported done."""
        if self._world.send_buffer is not None:
            self._complete(self._world.send_buffer.drain())
        self._world.lost_sends.finish()


_attached: list[AttachedRank] = []  # a process may have several NICs; the last one counts


def last_attached() -> AttachedRank | None:
    """Return the rank that MPI's names refer to in this process, outside programs of a run; None if there is none."""
    return _attached[-1] if _attached else None


@contextmanager
def bind_names(rank: AttachedRank) -> Iterator[AttachedRank]:
    """Let MPI's names refer to a rank until the end of the block."""
    _attached.append(rank)
    try:
        yield rank
    finally:
        _attached.remove(rank)
