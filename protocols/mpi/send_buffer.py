"""A buffer for sends that complete before their messages have been received.

MPI 4.1, section 3.4: the library decides whether a standard send is buffered. On EMP an unbuffered send returns only when
the peer has received the message; by then the peer may have answered. If the program posts the receive for the answer only
then, the answer is dropped, and retransmitted after a timeout. So the sends of blocking programs, such as those written for
mpi4py, are buffered.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

from protocols.mpi.constants import BSEND_OVERHEAD
from protocols.mpi.device import FailureRecipient, SendCompletion
from protocols.mpi.mpi_errors import MPIError

DEFAULT_SIZE: Final = 1 << 20
"""Bytes: about as many as the kernel buffers for a TCP connection."""


class SendBuffer:
    """One rank's buffer. It only counts bytes: the caller makes the copies. A message that does not fit is not buffered: its
    sender waits. Later calls report failures of buffered sends (see `device`)."""

    __slots__ = ("_free", "_pending", "memory")

    def __init__(self, size: int = DEFAULT_SIZE, memory: object = None) -> None:
        """size: bytes. memory: the program's attached buffer, which only Detach_buffer returns; nothing is written to it."""
        self.memory: Final = memory
        self._free = size
        self._pending: set[SendCompletion] = set()

    def has_room(self, size: int) -> bool:
        """Whether a message of `size` bytes fits."""
        return max(size, BSEND_OVERHEAD) <= self._free

    def reserve(self, size: int, completion: SendCompletion) -> None:
        """Reserve space for a message of `size` bytes until its send has completed."""
        self._free -= max(size, BSEND_OVERHEAD)
        self._pending.add(completion)
        completion.report_failures_to(FailureRecipient.NONE)
        completion.add_callback(partial(self._release, size, completion))

    def _release(self, size: int, completion: SendCompletion, _: object) -> None:
        self._free += max(size, BSEND_OVERHEAD)
        self._pending.discard(completion)

    async def drain(self) -> None:
        """Wait until the buffer is empty."""
        for completion in list(self._pending):
            with suppress(MPIError):  # the next call reports it
                await completion
