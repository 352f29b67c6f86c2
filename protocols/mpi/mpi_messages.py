"""Messages found by a matched probe, which no other receive can get."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocols.mpi.buffers import Message as Buffer
from protocols.mpi.buffers import writable
from protocols.mpi.device import Device, Incoming, ProbeResult, nothing
from protocols.mpi.mpi_errors import ERR_REQUEST, MPIError
from protocols.mpi.mpi_status import Status
from protocols.mpi.requests import Request


class Message:
    """A message to be received once, through this object. Upper-case calls receive into a buffer, lower-case ones an
    object."""

    __slots__ = ("_contexts", "_device", "_found", "_ranks", "_received")

    def __init__(
        self, device: Device | None, contexts: tuple[int, int], ranks: Sequence[int] | None, found: ProbeResult | None
    ) -> None:
        """found, device: None for MPI_MESSAGE_NO_PROC."""
        self._device = device
        self._contexts = contexts
        self._ranks = ranks
        self._found = found
        self._received = False

    @classmethod
    def null(cls) -> Message:
        """Make MPI_MESSAGE_NULL, which cannot be received."""
        message = cls(None, (0, 0), None, None)
        message._received = True
        return message

    @property
    def is_null(self) -> bool:
        """Whether it has been received."""
        return self._received

    async def Recv(self, buf: Buffer, status: Status | None = None) -> None:
        """Receive it. Raises MPIError: ERR_TRUNCATE as Comm.Recv, ERR_REQUEST if it was received before."""
        await (await self.Irecv(buf)).wait(status)

    async def Irecv(self, buf: Buffer) -> Request:
        """Begin to receive it."""
        buffer = writable(buf)
        found = self._take()
        device = self._device
        completion = (
            nothing() if found is None or device is None else device.receive_claimed(found, self._contexts[0], buffer)
        )
        return Request(completion, None, True, self._device, self._ranks)

    async def recv(self, status: Status | None = None) -> object:
        """Receive it as an object. Raises MPIError: ERR_TYPE if it is one of Send's."""
        return await (await self.irecv()).wait(status)

    async def irecv(self) -> Request:
        """Begin to receive it as an object; `Request.wait` returns the object."""
        found = self._take()
        if found is None or self._device is None:
            return Request(nothing(), None, True, self._device)
        incoming = Incoming(self._device, found.envelope.source, self._contexts, found.envelope.tag, found)
        return Request(incoming.completion, incoming, True, self._device, self._ranks)

    def _take(self) -> ProbeResult | None:
        if self._received:
            raise MPIError(ERR_REQUEST, "the message was received before")
        self._received = self._found is not None
        return self._found


NO_PROC: Final = Message(None, (0, 0), None, None)
"""MPI_MESSAGE_NO_PROC."""
