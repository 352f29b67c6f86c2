"""A buffer for messages whose senders need not wait until they have been received.

MPI 4.1, section 3.4: the library decides whether a standard send is buffered. On EMP, which acknowledges reception, an
unbuffered send returns together with the peer's answer. If the sender posts the receive for that answer only then, the
answer is dropped, and the receiver waits for the timeout that repairs it. So programs that block, as mpi4py's do, have
their sends buffered.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

from protocols.mpi.constants import BSEND_OVERHEAD
from protocols.mpi.device import Dispatch, Observer
from protocols.mpi.mpi_errors import MPIError

ROOM: Final = 1 << 20
"""Bytes, about as many as the kernel buffers of a TCP connection."""


class SendBuffer:
    """One rank's buffer. Messages without room are not buffered: their sender waits. `device` reports failures of
    buffered sends."""

    __slots__ = ("_free", "_held", "memory")

    def __init__(self, room: int = ROOM, memory: object = None) -> None:
        """memory: the program's, which stands for the room; nothing is written there."""
        self.memory: Final = memory
        self._free = room
        self._held: set[Dispatch] = set()

    def has_room(self, size: int) -> bool:
        """Whether a message of that many bytes fits."""
        return max(size, BSEND_OVERHEAD) <= self._free

    def hold(self, size: int, completion: Dispatch) -> None:
        """Hold room until the send has completed."""
        self._free -= max(size, BSEND_OVERHEAD)
        self._held.add(completion)
        completion.leave_to(Observer.NOBODY)
        completion.add_callback(partial(self._release, size, completion))

    def _release(self, size: int, completion: Dispatch, _: object) -> None:
        self._free += max(size, BSEND_OVERHEAD)
        self._held.discard(completion)

    async def drain(self) -> None:
        """Wait until the buffer is empty."""
        for completion in list(self._held):
            with suppress(MPIError):  # the next call reports it
                await completion
