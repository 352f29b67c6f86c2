"""mpi4py's point-to-point calls of a communicator, as coroutines.

They belong to no event loop: a call awaits only completions, and the driver of the program resumes it. A program in
mpi4py's names is ported by an `await` before each call that could wait or transfer anything.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import index
from typing import Final

from protocols.core.completion import Completion, Yield
from protocols.mpi.buffers import Message, as_send_data, as_receive_buffer
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG, PROC_NULL
from protocols.mpi.device import Device, SendCompletion, ObjectReceive, ProbeResult, nothing, pickled, send_object, send_pickled
from protocols.mpi.iovec import Data, to_contiguous
from protocols.mpi.mpi_errors import (
    ERR_BUFFER,
    ERR_COMM,
    ERR_COUNT,
    ERR_RANK,
    ERR_TAG,
    PROC_NULL_ENVELOPE,
    Envelope,
    MPIError,
)
from protocols.mpi.mpi_messages import NO_PROC
from protocols.mpi.mpi_messages import Message as Matched
from protocols.mpi.mpi_status import Status
from protocols.mpi.requests import Prequest, Request
from protocols.mpi.send_buffer import SendBuffer

NULL: Final = "COMM_NULL, or a communicator that was freed"


class PointToPoint:
    """All or some of a cluster's ranks, with messages that no other communicator sees.

    context: equal at every rank and distinct for each communicator, below half the device's number of contexts: each
    communicator uses two of these, one for the program's messages and one for the library's. ranks: the device's ranks
    in it, in its own order, including this one; None: all.

    Upper-case calls transfer buffers (`buffers.Message`), lower-case ones pickled objects; each receives what its
    counterpart has sent. Calls raise MPIError with ERR_RANK, ERR_TAG, ERR_BUFFER, ERR_COUNT or ERR_TYPE for invalid
    arguments, and with ERR_PROC_FAILED if an earlier send to the same rank was complete and has failed since (see
    `device`); in both cases they have no effect.
    """

    __slots__ = ("_contexts", "_device", "_ranks", "lost_sends", "rank", "send_buffer", "size")

    def __init__(
        self,
        device: Device,
        context: int = 0,
        ranks: Sequence[int] | None = None,
        send_buffer: SendBuffer | None = None,
    ) -> None:
        if not 0 <= context < device.contexts // 2:
            raise MPIError(ERR_COMM, f"a context of {context}: 0 to {device.contexts // 2 - 1}")
        self._device = device
        self._contexts = (2 * context, 2 * context + 1)
        self._ranks = ranks
        self.rank = device.rank if ranks is None else ranks.index(device.rank)
        self.size = device.size if ranks is None else len(ranks)
        self.send_buffer = send_buffer
        """Buffer of Send and send; None: they are not buffered."""
        self.lost_sends = device.lost_sends
        """Failed sends of this node, in any communicator, that the program has not been notified of."""
        device.contexts_in_use.add(context)

    @property
    def tag_ub(self) -> int:
        """The greatest tag (MPI_TAG_UB)."""
        return self._device.max_tag

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    # Buffers.

    async def Send(self, buf: Message, dest: int, tag: int = 0) -> None:
        """Send, and wait until the buffer may be reused. On EMP that is when the message has been received, unless it
        is buffered."""
        data, room = self._data(buf, dest, tag), self.send_buffer
        if room is None or dest == PROC_NULL or not room.has_room(len(data)):
            await self._send_bytes(data, dest, tag)
        else:
            room.hold(len(data), self._send_bytes(memoryview(bytes(to_contiguous(data))), dest, tag))

    async def Recv(
        self, buf: Message, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> None:
        """Receive. Raises MPIError: ERR_TRUNCATE if the message is longer than the buffer, which is then full."""
        completion = self._receive(buf, source, tag)
        if status is None:
            await completion
        else:
            await self._request(completion, received=True).wait(status)

    async def Ssend(self, buf: Message, dest: int, tag: int = 0) -> None:
        """Send, and wait until the message has been matched and the buffer may be reused."""
        await self._send(buf, dest, tag, True)

    async def Isend(self, buf: Message, dest: int, tag: int = 0) -> Request:
        """Begin a send. The buffer must not change until it is complete."""
        return self._request(self._send(buf, dest, tag))

    async def Issend(self, buf: Message, dest: int, tag: int = 0) -> Request:
        """Begin a send that completes as Ssend does."""
        return self._request(self._send(buf, dest, tag, True))

    async def Irecv(self, buf: Message, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Begin a receive. The buffer belongs to the library until it is complete."""
        return self._request(self._receive(buf, source, tag), received=True)

    async def Send_init(self, buf: Message, dest: int, tag: int = 0) -> Prequest:
        """Make a persistent send (`Prequest.Start`); each start sends the buffer's present contents."""
        return self._persistent_send(buf, dest, tag, False)

    async def Ssend_init(self, buf: Message, dest: int, tag: int = 0) -> Prequest:
        """Make a persistent Ssend."""
        return self._persistent_send(buf, dest, tag, True)

    async def Recv_init(self, buf: Message, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """Make a persistent receive."""
        buffer = as_receive_buffer(buf)
        self._check(source, tag, receive=True)
        begin = partial(self._start, source, partial(self._receive_into, buffer, source, tag))
        return Prequest(begin, True, self._device, self._ranks)

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
        """Send and receive at once, possibly with each other or with this rank itself. If both fail, the receive's
        error is raised."""
        data = self._data(sendbuf, dest, sendtag)
        received = self._request(self._receive(recvbuf, source, recvtag), received=True)
        sent = self._send_bytes(data, dest, sendtag)
        with suppress(MPIError):  # raised below, after the receive
            await sent
        await received.wait(status)
        sent.result()

    async def Sendrecv_replace(
        self,
        buf: Message,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send the buffer's contents, and receive others into it."""
        await self.Sendrecv(bytes(to_contiguous(as_send_data(buf))), dest, sendtag, buf, source, recvtag, status)

    async def Isendrecv(
        self,
        sendbuf: Message,
        dest: int,
        sendtag: int = 0,
        recvbuf: Message = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
    ) -> Request:
        """Begin a Sendrecv; the request's status is the receive's."""
        data = self._data(sendbuf, dest, sendtag)
        received = self._receive(recvbuf, source, recvtag)
        both: Completion[Envelope] = Completion("%s", received)
        sent = self._send_bytes(data, dest, sendtag)
        complete = partial(_complete_both, received, sent, both)
        received.add_callback(lambda _: sent.add_callback(complete))
        return self._request(both, received=True)

    async def Isendrecv_replace(
        self, buf: Message, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG
    ) -> Request:
        """Begin a Sendrecv_replace."""
        return await self.Isendrecv(bytes(to_contiguous(as_send_data(buf))), dest, sendtag, buf, source, recvtag)

    # A ready send's receive has been posted; the library needs not know.
    Rsend = Send
    Irsend = Isend
    Rsend_init = Send_init

    async def Bsend(self, buf: Message, dest: int, tag: int = 0) -> None:
        """Send a copy, for which the attached buffer must have room. Raises MPIError (ERR_BUFFER) if it has none."""
        self._send_copy(self._data(buf, dest, tag), dest, tag)

    async def Ibsend(self, buf: Message, dest: int, tag: int = 0) -> Request:
        """Send as Bsend; the request is complete."""
        return self._request(self._send_copy(self._data(buf, dest, tag), dest, tag))

    async def Bsend_init(self, buf: Message, dest: int, tag: int = 0) -> Prequest:
        """Make a persistent Bsend."""
        begin = partial(self._start, dest, partial(self._send_copy, self._data(buf, dest, tag), dest, tag))
        return Prequest(begin, False, self._device, self._ranks)

    def Attach_buffer(self, buf: bytearray | memoryview) -> None:
        """Attach the program's buffer for buffered sends: it limits them to its size, `BSEND_OVERHEAD` for each message
        included. All communicators share it. Raises MPIError (ERR_BUFFER) if there is one."""
        if self._device.attached_buffer is not None:
            raise MPIError(ERR_BUFFER, "a buffer is attached: detach it first")
        self._device.attached_buffer = SendBuffer(len(memoryview(buf).cast("B")), buf)

    async def Detach_buffer(self) -> object:
        """Wait until all buffered messages are sent; return the buffer. Raises MPIError (ERR_BUFFER) if there is none."""
        attached = self._attached(0)
        await attached.drain()
        self._device.attached_buffer = None
        return attached.memory

    # Probes.

    async def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Wait until such a receive would get a message; returns True. The status describes the message; the count of a
        long object is that of its first page."""
        await self._probe(source, tag, status, wait=True)
        return True

    async def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Whether such a receive would get a message now. If not, the NIC runs before the answer is given."""
        if await self._probe(source, tag, status) is not None or source == PROC_NULL:
            return True
        await Yield()
        return await self._probe(source, tag, status) is not None

    async def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Matched:
        """Probe, and reserve the message: only the returned object can receive it."""
        found = await self._probe(source, tag, status, wait=True, claim=True)
        return NO_PROC if found is None else Matched(self._device, self._contexts, self._ranks, found)

    async def Improbe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Matched | None:
        """Probe as Mprobe, without waiting: None if there is no message after the NIC has run."""
        found = await self._probe(source, tag, status, claim=True)
        if found is None and source != PROC_NULL:
            await Yield()
            found = await self._probe(source, tag, status, claim=True)
            if found is None:
                return None
        return NO_PROC if found is None else Matched(self._device, self._contexts, self._ranks, found)

    probe = Probe
    iprobe = Iprobe
    mprobe = Mprobe
    improbe = Improbe

    # Objects.

    async def send(self, obj: object, dest: int, tag: int = 0) -> None:
        """Pickle an object, send it, and wait as Send does."""
        room = self.send_buffer
        if room is None or dest == PROC_NULL:
            await self._send_object(obj, dest, tag)
            return
        self._check(dest, tag)
        data = pickled(obj)
        is_kept = room.has_room(len(data))
        completion = send_pickled(self._device, self._peer(dest), self._contexts, tag, data)
        if is_kept:
            room.hold(len(data), completion)
        else:
            await completion

    rsend = send

    async def bsend(self, obj: object, dest: int, tag: int = 0) -> None:
        """Pickle an object and send it as Bsend."""
        self._check(dest, tag)
        if dest != PROC_NULL:
            data = pickled(obj)
            room = self._attached(len(data))
            room.hold(len(data), send_pickled(self._device, self._peer(dest), self._contexts, tag, data))

    async def ibsend(self, obj: object, dest: int, tag: int = 0) -> Request:
        """Send an object as bsend; the request is complete."""
        await self.bsend(obj, dest, tag)
        return self._request(nothing())

    async def ssend(self, obj: object, dest: int, tag: int = 0) -> None:
        """Pickle an object, send it, and wait as Ssend does."""
        await self._send_object(obj, dest, tag, True)

    async def recv(
        self,
        buf: object = None,  # noqa: ARG002
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> object:
        """Receive an object. buf: for mpi4py's signature; ignored. Raises MPIError: ERR_TYPE if the message is one of
        Send's. The object is unpickled: whoever can send to this node can execute code in it."""
        return await self._receive_object(source, tag).wait(status)

    async def isend(self, obj: object, dest: int, tag: int = 0) -> Request:
        """Pickle an object and begin to send it. The object may change at once."""
        return self._request(self._send_object(obj, dest, tag))

    irsend = isend

    async def issend(self, obj: object, dest: int, tag: int = 0) -> Request:
        """Pickle an object and begin to send it as ssend does."""
        return self._request(self._send_object(obj, dest, tag, True))

    async def irecv(self, buf: object = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:  # noqa: ARG002
        """Begin to receive an object; `Request.wait` returns it. buf: as in recv."""
        return self._receive_object(source, tag)

    async def sendrecv(
        self,
        sendobj: object,
        dest: int,
        sendtag: int = 0,
        recvbuf: object = None,  # noqa: ARG002
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> object:
        """Send an object and receive one at once. recvbuf: as in recv. If both fail, the receive's error is raised."""
        self._check(source, recvtag, receive=True)
        sent = self._send_object(sendobj, dest, sendtag)
        received = self._receive_object(source, recvtag)
        with suppress(MPIError):  # raised below, after the receive
            await sent
        obj = await received.wait(status)
        sent.result()
        return obj

    def _send_copy(self, data: Data, dest: int, tag: int) -> SendCompletion:
        """Begin to send a copy that the attached buffer has room for; return a completed transfer."""
        if dest != PROC_NULL:
            room = self._attached(len(data))
            room.hold(len(data), self._send_bytes(memoryview(bytes(to_contiguous(data))), dest, tag))
        return nothing()

    def _attached(self, size: int) -> SendBuffer:
        """Return the attached buffer, which has room for a message of that many bytes."""
        room = self._device.attached_buffer
        if room is None:
            raise MPIError(ERR_BUFFER, "no buffer is attached for buffered sends: MPI.Attach_buffer")
        if size and not room.has_room(size):
            raise MPIError(ERR_BUFFER, f"the attached buffer has no room for another message of {size} bytes")
        return room

    def _peer(self, rank: int) -> int:
        """Convert a rank to the device's; negative constants stay."""
        return rank if self._ranks is None or rank < 0 else self._ranks[rank]

    def _request(self, completion: Completion[Envelope], received: bool = False) -> Request:
        return Request(completion, None, received, self._device, self._ranks)

    def _data(self, buf: Message, dest: int, tag: int) -> Data:
        data = as_send_data(buf)
        self._check(dest, tag)
        if len(data) > self._device.max_message_size:
            raise MPIError(ERR_COUNT, f"a message of {len(data)} bytes: at most {self._device.max_message_size}")
        return data

    def _send(self, buf: Message, dest: int, tag: int, synchronous: bool = False) -> SendCompletion:
        return self._send_bytes(self._data(buf, dest, tag), dest, tag, synchronous)

    def _send_bytes(self, data: Data, dest: int, tag: int, synchronous: bool = False) -> SendCompletion:
        if dest == PROC_NULL:
            return nothing()
        return self._device.send(self._peer(dest), self._contexts[0], tag, data, synchronous)

    def _persistent_send(self, buf: Message, dest: int, tag: int, synchronous: bool) -> Prequest:
        begin = partial(
            self._start, dest, partial(self._send_bytes, self._data(buf, dest, tag), dest, tag, synchronous)
        )
        return Prequest(begin, False, self._device, self._ranks)

    def _start(self, peer: int, begin: Callable[[], Completion[Envelope]]) -> Completion[Envelope]:
        """Start a persistent request."""
        self._check_losses(peer)
        return begin()

    def _receive(self, buf: Message, source: int, tag: int) -> Completion[Envelope]:
        buffer = as_receive_buffer(buf)
        self._check(source, tag, receive=True)
        return self._receive_into(buffer, source, tag)

    def _receive_into(self, buffer: Data, source: int, tag: int) -> Completion[Envelope]:
        if source == PROC_NULL:
            return nothing()
        return self._device.receive(self._peer(source), self._contexts[0], tag, buffer)

    async def _probe(
        self, source: int, tag: int, status: Status | None, wait: bool = False, claim: bool = False
    ) -> ProbeResult | None:
        self._check(source, tag, receive=True)
        found = None
        if source != PROC_NULL:
            found = await self._device.probe(self._peer(source), self._contexts[0], tag, wait, claim)
        if status is not None and (found is not None or source == PROC_NULL):
            completion: Completion[Envelope] = Completion()
            completion.complete(PROC_NULL_ENVELOPE if found is None else found.envelope)
            await self._request(completion, received=True).wait(status)
        return found

    def _send_object(self, obj: object, dest: int, tag: int, synchronous: bool = False) -> SendCompletion:
        self._check(dest, tag)
        if dest == PROC_NULL:
            return nothing()
        return send_object(self._device, self._peer(dest), self._contexts, tag, obj, synchronous)

    def _receive_object(self, source: int, tag: int) -> Request:
        self._check(source, tag, receive=True)
        if source == PROC_NULL:
            return self._request(nothing(), received=True)
        incoming = ObjectReceive(self._device, self._peer(source), self._contexts, tag)
        return Request(incoming.completion, incoming, True, self._device, self._ranks)

    def _check(self, peer: int, tag: int, receive: bool = False) -> None:
        if type(peer) is not int or type(tag) is not int:
            index(peer), index(tag)  # raises TypeError for a float, as mpi4py does
        if not self.size:
            raise MPIError(ERR_COMM, NULL)
        if not 0 <= peer < self.size and peer != PROC_NULL and not (receive and peer == ANY_SOURCE):
            raise MPIError(ERR_RANK, f"a rank of {peer}: 0 to {self.size - 1}")
        if not 0 <= tag <= self._device.max_tag and not (receive and tag == ANY_TAG):
            raise MPIError(ERR_TAG, f"a tag of {tag}: 0 to {self._device.max_tag}")
        if self.lost_sends.known:
            self._check_losses(peer)

    def _check_losses(self, peer: int) -> None:
        self.lost_sends.check(self._contexts, self._peer(peer))


def _complete_both(
    received: Completion[Envelope], sent: Completion[Envelope], both: Completion[Envelope], _: object
) -> None:
    """Complete a Sendrecv whose halves are done; if both have failed, with the receive's error."""
    try:
        envelope = received.result()
        sent.result()
    except MPIError as error:
        both.fail(error)
    else:
        both.complete(envelope)
