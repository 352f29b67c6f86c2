"""The rank of a process that has attached to a NIC by itself: there is no loop but its own, so that a call that must wait
runs that until what it waits for is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Final

from protocols.mpi import blocking, comm
from protocols.mpi.buffering import SendBuffer


class Attached:
    """As `programs.Program` to its own process. now: its clock, nanoseconds. name: its node's."""

    def __init__(self, world: comm.Comm, complete: blocking.Run, now: Callable[[], int], name: str) -> None:
        """world: all nodes. complete: carries a coroutine on to its end, and raises RuntimeError within one that it carries
        on already."""
        self.now: Final = now
        self.name: Final = name
        self._world = world
        self._complete = complete

    @cached_property
    def world(self) -> blocking.Comm:
        """Its COMM_WORLD. From the first call on its sends are buffered: only programs that block want that."""
        if self._world.send_buffer is None:
            self._world.send_buffer = SendBuffer()
        return blocking.Comm(self._world, self._complete)

    @cached_property
    def alone(self) -> blocking.Comm:
        """Its COMM_SELF."""
        return blocking.Comm(self.world.awaited.alone(), self._complete)

    def finalize(self) -> None:
        """Wait until everything has been received that was sent. Raises MPIError where something never will be."""
        if self._world.send_buffer is not None:
            self._complete(self._world.send_buffer.drain())


_attached: list[Attached] = []  # a process may have several NICs; the last one counts


def last() -> Attached | None:
    """Whom MPI's names mean in this process, beside programs of a run."""
    return _attached[-1] if _attached else None


@contextmanager
def meant(rank: Attached) -> Iterator[Attached]:
    """MPI's names mean this one, until the end of the block."""
    _attached.append(rank)
    try:
        yield rank
    finally:
        _attached.remove(rank)
