"""Messages that a matched probe has claimed, so that no other receive can match them. MPI 4.1, section 3.8.2."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocols.mpi.buffers import Message as Buffer
from protocols.mpi.buffers import as_receive_buffer
from protocols.mpi.device import Device, ObjectReceive, ProbeResult, null_transfer
from protocols.mpi.mpi_errors import ERR_REQUEST, MPIError
from protocols.mpi.mpi_status import Status
from protocols.mpi.requests import Request


class Message:
    """A claimed message, which can be received once. Upper-case calls receive into a buffer, lower-case calls return an
    object."""

    __slots__ = ("_contexts", "_device", "_probe_result", "_ranks", "_received")

    def __init__(
        self,
        device: Device | None,
        contexts: tuple[int, int],
        ranks: Sequence[int] | None,
        probe_result: ProbeResult | None,
    ) -> None:
        """contexts: contexts of the communicator's messages, and of its continuations. ranks: the device's ranks by the
        communicator's; None: equal. device, probe_result: None for MPI_MESSAGE_NO_PROC."""
        self._device = device
        self._contexts = contexts
        self._ranks = ranks
        self._probe_result = probe_result
        self._received = False

    @classmethod
    def null(cls) -> Message:
        """Make MPI_MESSAGE_NULL, which cannot be received."""
        message = cls(None, (0, 0), None, None)
        message._received = True
        return message

    @property
    def is_null(self) -> bool:
        """Whether it has been received, or is MPI_MESSAGE_NULL."""
        return self._received

    async def Recv(self, buf: Buffer, status: Status | None = None) -> None:
        """Receive the message. Raises MPIError: as Comm.Recv, and ERR_REQUEST if it was received before. An invalid buffer
        raises ERR_BUFFER, ERR_COUNT or ERR_TYPE, and the message can still be received."""
        await (await self.Irecv(buf)).wait(status)

    async def Irecv(self, buf: Buffer) -> Request:
        """Begin to receive the message."""
        buffer = as_receive_buffer(buf)
        probe_result = self._take()
        device = self._device
        completion = (
            null_transfer()
            if probe_result is None or device is None
            else device.receive_claimed(probe_result, self._contexts[0], buffer)
        )
        return Request(completion, None, True, self._device, self._ranks)

    async def recv(self, status: Status | None = None) -> object:
        """Receive the message as an object. Raises MPIError: ERR_TYPE for a message of Send."""
        return await (await self.irecv()).wait(status)

    async def irecv(self) -> Request:
        """Begin to receive the message as an object, which `Request.wait` returns."""
        probe_result = self._take()
        if probe_result is None or self._device is None:
            return Request(null_transfer(), None, True, self._device)
        incoming = ObjectReceive(
            self._device, probe_result.envelope.source, self._contexts, probe_result.envelope.tag, probe_result
        )
        return Request(incoming.completion, incoming, True, self._device, self._ranks)

    def _take(self) -> ProbeResult | None:
        if self._received:
            raise MPIError(ERR_REQUEST, "the message is MESSAGE_NULL, or was received before")
        self._received = self._probe_result is not None
        return self._probe_result


NO_PROC: Final = Message(None, (0, 0), None, None)
"""MPI_MESSAGE_NO_PROC: the result of a matched probe of PROC_NULL."""
