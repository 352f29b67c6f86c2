"""Room for messages whose senders need not wait until they have been received.

MPI 4.1, section 3.4: whether a standard send is buffered is the library's affair. On EMP, which acknowledges what has been
received, one that is not comes back together with the peer's answer; whoever begins its receive only then has that answer
dropped, and waits for the time-out that repairs it. So programs that block, as mpi4py's do, have their sends buffered.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

from protocols.core.completion import Completion
from protocols.mpi.errors import Envelope, MPIError

ROOM: Final = 1 << 20
"""Bytes, about what the kernel buffers of a TCP connection."""
_LEAST: Final = 1024  # bytes that a message counts for, however short


class SendBuffer:
    """A rank's. What finds no room in it is not buffered: its sender waits."""

    __slots__ = ("_error", "_free", "_held")

    def __init__(self, room: int = ROOM) -> None:
        self._free = room
        self._error: MPIError | None = None
        self._held: set[Completion[Envelope]] = set()

    def has_room(self, size: int) -> bool:
        """For a message of so many bytes. Raises MPIError where an earlier one has failed: its sender had gone on."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return max(size, _LEAST) <= self._free

    def hold(self, size: int, over: Completion[Envelope]) -> None:
        """Until it is over."""
        self._free -= max(size, _LEAST)
        self._held.add(over)
        over.add_callback(partial(self._release, size))

    def _release(self, size: int, over: Completion[Envelope]) -> None:
        self._free += max(size, _LEAST)
        self._held.discard(over)
        try:
            over.result()
        except MPIError as error:
            self._error = error

    async def drain(self) -> None:
        """Wait until nothing is held any more. Raises MPIError where something has failed."""
        for over in list(self._held):
            with suppress(MPIError):  # raised below
                await over
        self.has_room(0)
