"""Communicators: mpi4py's point-to-point calls, each one awaited.

They belong to no loop: a call awaits completions and nothing else, and whoever drives the program resumes it. So a
program in mpi4py's names becomes one of ours by an `await` before each call.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from protocols.core.completion import Completion
from protocols.mpi.buffers import readable, writable
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG, PROC_NULL
from protocols.mpi.device import Device
from protocols.mpi.errors import ERR_COMM, ERR_COUNT, ERR_RANK, ERR_TAG, Envelope, MPIError
from protocols.mpi.objects import Incoming, send_object
from protocols.mpi.requests import Request
from protocols.mpi.status import Status

if TYPE_CHECKING:
    from protocols.mpi.buffers import Message

_NOBODY = Envelope(PROC_NULL, ANY_TAG, 0)
"""What a receive from PROC_NULL gets."""


class Comm:
    """All of a cluster's ranks, and messages that no other communicator sees.

    context: the same at every rank and another one for each communicator, from 0 to half of what the device has: of its
    contexts, one is the program's and one the library's own.

    Capital letters move buffers (`buffers.Message`), small ones objects, which are pickled; each receives what its like
    has sent. Calls raise MPIError with ERR_RANK, ERR_TAG, ERR_BUFFER, ERR_COUNT or ERR_TYPE for arguments that cannot
    be, before anything has happened.
    """

    __slots__ = ("_contexts", "_device")

    def __init__(self, device: Device, context: int = 0) -> None:
        if not 0 <= context < device.contexts // 2:
            raise MPIError(ERR_COMM, f"a context of {context}: 0 to {device.contexts // 2 - 1}")
        self._device = device
        self._contexts = (2 * context, 2 * context + 1)

    @property
    def rank(self) -> int:
        return self._device.rank

    @property
    def size(self) -> int:
        return self._device.size

    @property
    def tag_ub(self) -> int:
        """The greatest tag (MPI_TAG_UB)."""
        return self._device.most_tag

    def Get_rank(self) -> int:
        return self._device.rank

    def Get_size(self) -> int:
        return self._device.size

    # Buffers:

    async def Send(self, buf: Message, dest: int, tag: int = 0) -> None:
        """Send, and wait until the buffer may be used again; on EMP that is when the message has been received."""
        await self._send(buf, dest, tag)

    async def Recv(
        self, buf: Message, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> None:
        """Receive. Raises MPIError: ERR_TRUNCATE if the message is longer than the buffer, which is then full."""
        over = self._receive(buf, source, tag)
        if status is None:
            await over
        else:
            await Request(over, received=True).wait(status)

    async def Isend(self, buf: Message, dest: int, tag: int = 0) -> Request:
        """Begin a send. The buffer must not change until it is over."""
        return Request(self._send(buf, dest, tag))

    async def Irecv(self, buf: Message, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Begin a receive. The buffer is the library's until it is over."""
        return Request(self._receive(buf, source, tag), received=True)

    async def Sendrecv(
        self,
        sendbuf: Message,
        dest: int,
        sendtag: int = 0,
        recvbuf: Message = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send and receive at once; also with each other, or with oneself. If both fail, the receive's error is raised."""
        data = self._data(sendbuf, dest, sendtag)
        received = Request(self._receive(recvbuf, source, recvtag), received=True)
        sent = self._send_bytes(data, dest, sendtag)
        with suppress(MPIError):  # raised below, when the receive is over
            await sent
        await received.wait(status)
        sent.result()

    # Objects:

    async def send(self, obj: object, dest: int, tag: int = 0) -> None:
        """Pickle an object, send it, and wait as Send does."""
        await self._send_object(obj, dest, tag)

    async def recv(self, *, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> object:
        """Receive an object. Raises MPIError: ERR_TYPE if the message is one of Send's."""
        return await self._receive_object(source, tag).wait(status)

    async def isend(self, obj: object, dest: int, tag: int = 0) -> Request:
        """Pickle an object and begin to send it. It may change at once."""
        return Request(self._send_object(obj, dest, tag))

    async def irecv(self, *, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Begin to receive an object; `Request.wait` returns it."""
        return self._receive_object(source, tag)

    async def sendrecv(
        self,
        sendobj: object,
        dest: int,
        sendtag: int = 0,
        *,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> object:
        """Send an object and receive one at once. If both fail, the receive's error is raised."""
        self._check(source, recvtag, receive=True)
        sent = self._send_object(sendobj, dest, sendtag)
        received = self._receive_object(source, recvtag)
        with suppress(MPIError):  # raised below, when the receive is over
            await sent
        obj = await received.wait(status)
        sent.result()
        return obj

    def _data(self, buf: Message, dest: int, tag: int) -> memoryview:
        data = readable(buf)
        self._check(dest, tag)
        if len(data) > self._device.most_bytes:
            raise MPIError(ERR_COUNT, f"a message of {len(data)} bytes: at most {self._device.most_bytes}")
        return data

    def _send(self, buf: Message, dest: int, tag: int) -> Completion[Envelope]:
        return self._send_bytes(self._data(buf, dest, tag), dest, tag)

    def _send_bytes(self, data: memoryview, dest: int, tag: int) -> Completion[Envelope]:
        return self._device.send(dest, self._contexts[0], tag, data) if dest != PROC_NULL else _nothing()

    def _receive(self, buf: Message, source: int, tag: int) -> Completion[Envelope]:
        buffer = writable(buf)
        self._check(source, tag, receive=True)
        return self._device.receive(source, self._contexts[0], tag, buffer) if source != PROC_NULL else _nothing()

    def _send_object(self, obj: object, dest: int, tag: int) -> Completion[Envelope]:
        self._check(dest, tag)
        return send_object(self._device, dest, self._contexts, tag, obj) if dest != PROC_NULL else _nothing()

    def _receive_object(self, source: int, tag: int) -> Request:
        self._check(source, tag, receive=True)
        if source == PROC_NULL:
            return Request(_nothing(), received=True)
        incoming = Incoming(self._device, source, self._contexts, tag)
        return Request(incoming.over, incoming, received=True)

    def _check(self, peer: int, tag: int, receive: bool = False) -> None:
        if not 0 <= peer < self._device.size and peer != PROC_NULL and not (receive and peer == ANY_SOURCE):
            raise MPIError(ERR_RANK, f"a rank of {peer}: 0 to {self._device.size - 1}")
        if not 0 <= tag <= self._device.most_tag and not (receive and tag == ANY_TAG):
            raise MPIError(ERR_TAG, f"a tag of {tag}: 0 to {self._device.most_tag}")


def _nothing() -> Completion[Envelope]:
    """A transfer with nobody."""
    done: Completion[Envelope] = Completion("nobody")
    done.complete(_NOBODY)
    return done
