"""mpi4py's point-to-point calls of a communicator, as coroutines.

The coroutines need no event loop: a call awaits only completions, and the driver of the program resumes it. To port a
program of mpi4py, put `await` before each call that could wait or transfer data.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import index
from typing import Final

from protocols.core.completion import Completion, Yield
from protocols.mpi.buffers import Message, as_receive_buffer, as_send_data
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG, PROC_NULL
from protocols.mpi.device import (
    Device,
    ObjectReceive,
    ProbeResult,
    SendCompletion,
    null_transfer,
    pickle_object,
    send_object,
    send_pickled,
)
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
from protocols.mpi.mpi_messages import Message as ClaimedMessage
from protocols.mpi.mpi_status import Status
from protocols.mpi.requests import Prequest, Request
from protocols.mpi.send_buffer import SendBuffer

COMM_NULL_ERROR: Final = "the communicator is COMM_NULL, or was freed"


class PointToPoint:
    """Point-to-point calls of a communicator. A communicator consists of some or all ranks of a cluster; its messages are
    received in no other communicator.

    context: equal at every rank and distinct for each communicator. It must be below half the device's number of contexts,
    since each communicator uses two of these: one for the program's messages and one for the library's. ranks: the device's
    ranks by the communicator's, including this one; None: all, in order.

    Upper-case calls transfer buffers (`buffers.Message`), lower-case calls pickled objects; a lower-case receive expects
    the message of a lower-case send. Calls raise MPIError with ERR_RANK, ERR_TAG, ERR_BUFFER, ERR_COUNT or ERR_TYPE for
    invalid arguments, and with ERR_COMM for COMM_NULL. They raise it with ERR_PROC_FAILED if an earlier send to the
    same rank failed after it had completed (see `device`). In both cases they have no other effect.
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
            raise MPIError(ERR_COMM, f"context must be 0 to {device.contexts // 2 - 1}, got {context}")
        self._device = device
        self._contexts = (2 * context, 2 * context + 1)
        self._ranks = ranks
        self.rank = device.rank if ranks is None else ranks.index(device.rank)
        self.size = device.size if ranks is None else len(ranks)
        self.send_buffer = send_buffer
        """Buffer of Send and send; None: sends are not buffered."""
        self.lost_sends = device.lost_sends
        """Failed sends of this node, in any communicator, that no call has reported."""
        device.contexts_in_use.add(context)

    @property
    def tag_ub(self) -> int:
        """The greatest tag (MPI_TAG_UB). Raises MPIError (ERR_COMM) for COMM_NULL."""
        if not self.size:
            raise MPIError(ERR_COMM, COMM_NULL_ERROR)
        return self._device.max_tag

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    # Buffers.

    async def Send(self, buf: Message, dest: int, tag: int = 0) -> None:
        """Send, and wait until the buffer may be reused. On EMP that is when the message has been received, unless the send
        is buffered."""
        data, send_buffer = self._prepare_send(buf, dest, tag), self.send_buffer
        if send_buffer is None or dest == PROC_NULL or not send_buffer.has_room(len(data)):
            await self._send_bytes(data, dest, tag)
        else:
            send_buffer.reserve(len(data), self._send_bytes(memoryview(bytes(to_contiguous(data))), dest, tag))

    async def Recv(
        self, buf: Message, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> None:
        """Receive. Raises MPIError: ERR_TRUNCATE if the message is longer than the buffer, which is then full;
        ERR_PROC_FAILED if the sender fails after the message has been matched."""
        completion = self._receive(buf, source, tag)
        if status is None:
            await completion
        else:
            await self._make_request(completion, is_receive=True).wait(status)

    async def Ssend(self, buf: Message, dest: int, tag: int = 0) -> None:
        """Send, and wait until the message has been matched and the buffer may be reused."""
        await self._send(buf, dest, tag, True)

    async def Isend(self, buf: Message, dest: int, tag: int = 0) -> Request:
        """Begin a send. The buffer must not change until the request is complete."""
        return self._make_request(self._send(buf, dest, tag))

    async def Issend(self, buf: Message, dest: int, tag: int = 0) -> Request:
        """Begin a send that completes as Ssend does."""
        return self._make_request(self._send(buf, dest, tag, True))

    async def Irecv(self, buf: Message, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Begin a receive. The program must not use the buffer until the request is complete."""
        return self._make_request(self._receive(buf, source, tag), is_receive=True)

    async def Send_init(self, buf: Message, dest: int, tag: int = 0) -> Prequest:
        """Make a persistent send (`Prequest.Start`); each start sends the contents that the buffer has then."""
        return self._persistent_send(buf, dest, tag, False)

    async def Ssend_init(self, buf: Message, dest: int, tag: int = 0) -> Prequest:
        """Make a persistent Ssend."""
        return self._persistent_send(buf, dest, tag, True)

    async def Recv_init(self, buf: Message, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """Make a persistent receive."""
        buffer = as_receive_buffer(buf)
        self._check(source, tag, receive=True)
        begin = partial(self._start_persistent, source, partial(self._receive_into, buffer, source, tag))
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
        """Send and receive concurrently; dest and source may be this rank itself. If both fail, the receive's error is
        raised."""
        data = self._prepare_send(sendbuf, dest, sendtag)
        received = self._make_request(self._receive(recvbuf, source, recvtag), is_receive=True)
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
        """Send the buffer's contents, and receive into the same buffer."""
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
        data = self._prepare_send(sendbuf, dest, sendtag)
        received = self._receive(recvbuf, source, recvtag)
        both: Completion[Envelope] = Completion("%s", received)
        sent = self._send_bytes(data, dest, sendtag)
        complete = partial(_complete_both, received, sent, both)
        received.add_callback(lambda _: sent.add_callback(complete))
        return self._make_request(both, is_receive=True)

    async def Isendrecv_replace(
        self, buf: Message, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG
    ) -> Request:
        """Begin a Sendrecv_replace."""
        return await self.Isendrecv(bytes(to_contiguous(as_send_data(buf))), dest, sendtag, buf, source, recvtag)

    # Ready sends. The program guarantees that the receive is posted; the library makes no use of that.
    Rsend = Send
    Irsend = Isend
    Rsend_init = Send_init

    async def Bsend(self, buf: Message, dest: int, tag: int = 0) -> None:
        """Send a copy. Raises MPIError (ERR_BUFFER) if no buffer is attached, or the attached buffer has no room for it."""
        self._send_copy(self._prepare_send(buf, dest, tag), dest, tag)

    async def Ibsend(self, buf: Message, dest: int, tag: int = 0) -> Request:
        """Send as Bsend; returns a complete request."""
        return self._make_request(self._send_copy(self._prepare_send(buf, dest, tag), dest, tag))

    async def Bsend_init(self, buf: Message, dest: int, tag: int = 0) -> Prequest:
        """Make a persistent Bsend."""
        begin = partial(
            self._start_persistent, dest, partial(self._send_copy, self._prepare_send(buf, dest, tag), dest, tag)
        )
        return Prequest(begin, False, self._device, self._ranks)

    def Attach_buffer(self, buf: bytearray | memoryview) -> None:
        """Attach a buffer for buffered sends. Its size limits the messages that it holds, each of which occupies at least
        `BSEND_OVERHEAD` bytes. All communicators share it. Raises MPIError: ERR_BUFFER if a buffer is attached, ERR_COMM for
        COMM_NULL."""
        if not self.size:
            raise MPIError(ERR_COMM, COMM_NULL_ERROR)
        if self._device.attached_buffer is not None:
            raise MPIError(ERR_BUFFER, "a buffer is attached: call Detach_buffer first")
        self._device.attached_buffer = SendBuffer(len(memoryview(buf).cast("B")), buf)

    async def Detach_buffer(self) -> object:
        """Wait until all buffered messages are sent; return the buffer. Raises MPIError: ERR_BUFFER if none is attached,
        ERR_COMM for COMM_NULL."""
        if not self.size:
            raise MPIError(ERR_COMM, COMM_NULL_ERROR)
        attached = self._attached_buffer()
        await attached.drain()
        self._device.attached_buffer = None
        return attached.memory

    # Probes.

    async def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Wait until a receive with these arguments would match a message; returns True. The status describes the message;
        for a long object the count is that of its first message (`device.FIRST_SIZE`)."""
        await self._probe(source, tag, status, wait=True)
        return True

    async def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Whether a receive with these arguments would match a message. If not, other tasks run, and the call probes once
        more."""
        if await self._probe(source, tag, status) is not None or source == PROC_NULL:
            return True
        await Yield()
        return await self._probe(source, tag, status) is not None

    async def Mprobe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> ClaimedMessage:
        """Wait for a message, and claim it: only the returned object can receive it."""
        return self._make_message(await self._probe(source, tag, status, wait=True, claim=True))

    async def Improbe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> ClaimedMessage | None:
        """Claim a message as Mprobe does, without waiting. If there is none, other tasks run, and the call probes once more;
        returns None if there is still none."""
        probe_result = await self._probe(source, tag, status, claim=True)
        if probe_result is None and source != PROC_NULL:
            await Yield()
            probe_result = await self._probe(source, tag, status, claim=True)
            if probe_result is None:
                return None
        return self._make_message(probe_result)

    probe = Probe
    iprobe = Iprobe
    mprobe = Mprobe
    improbe = Improbe

    # Objects.

    async def send(self, obj: object, dest: int, tag: int = 0) -> None:
        """Pickle an object, send it, and wait as Send does."""
        send_buffer = self.send_buffer
        if send_buffer is None or dest == PROC_NULL:
            await self._send_object(obj, dest, tag)
            return
        self._check(dest, tag)
        data = pickle_object(obj)
        is_buffered = send_buffer.has_room(len(data))
        completion = send_pickled(self._device, self._device_rank(dest), self._contexts, tag, data)
        if is_buffered:
            send_buffer.reserve(len(data), completion)
        else:
            await completion

    rsend = send

    async def bsend(self, obj: object, dest: int, tag: int = 0) -> None:
        """Pickle an object and send it as Bsend."""
        self._check(dest, tag)
        if dest != PROC_NULL:
            data = pickle_object(obj)
            send_buffer = self._attached_buffer(len(data))
            send_buffer.reserve(
                len(data), send_pickled(self._device, self._device_rank(dest), self._contexts, tag, data)
            )

    async def ibsend(self, obj: object, dest: int, tag: int = 0) -> Request:
        """Send an object as bsend; returns a complete request."""
        await self.bsend(obj, dest, tag)
        return self._make_request(null_transfer())

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
        """Receive an object. buf: ignored; for mpi4py's signature. Raises MPIError: ERR_TYPE for a message of Send. The
        object is unpickled: a peer that can send to this node can execute code in it."""
        return await self._receive_object(source, tag).wait(status)

    async def isend(self, obj: object, dest: int, tag: int = 0) -> Request:
        """Pickle an object and begin to send it. The program may change the object at once."""
        return self._make_request(self._send_object(obj, dest, tag))

    irsend = isend

    async def issend(self, obj: object, dest: int, tag: int = 0) -> Request:
        """Pickle an object and begin to send it as ssend does."""
        return self._make_request(self._send_object(obj, dest, tag, True))

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
        """Send and receive objects concurrently. recvbuf: as buf in recv. If both fail, the receive's error is raised."""
        self._check(source, recvtag, receive=True)
        sent = self._send_object(sendobj, dest, sendtag)
        received = self._receive_object(source, recvtag)
        with suppress(MPIError):  # raised below, after the receive
            await sent
        obj = await received.wait(status)
        sent.result()
        return obj

    def _send_copy(self, data: Data, dest: int, tag: int) -> SendCompletion:
        """Begin to send a copy in the attached buffer; return a completed transfer."""
        if dest != PROC_NULL:
            send_buffer = self._attached_buffer(len(data))
            send_buffer.reserve(len(data), self._send_bytes(memoryview(bytes(to_contiguous(data))), dest, tag))
        return null_transfer()

    def _attached_buffer(self, size: int | None = None) -> SendBuffer:
        """Return the attached buffer. size: bytes of a message for it. Raises MPIError (ERR_BUFFER) if there is none, or it
        has no room for the message."""
        send_buffer = self._device.attached_buffer
        if send_buffer is None:
            raise MPIError(ERR_BUFFER, "no buffer is attached for buffered sends: call MPI.Attach_buffer")
        if size is not None and not send_buffer.has_room(size):
            raise MPIError(ERR_BUFFER, f"the attached buffer has no room for another message of {size} bytes")
        return send_buffer

    def _device_rank(self, rank: int) -> int:
        """Convert a rank of the communicator to the device's; negative constants stay unchanged."""
        return rank if self._ranks is None or rank < 0 else self._ranks[rank]

    def _make_request(self, completion: Completion[Envelope], is_receive: bool = False) -> Request:
        return Request(completion, None, is_receive, self._device, self._ranks)

    def _prepare_send(self, buf: Message, dest: int, tag: int) -> Data:
        data = as_send_data(buf)
        self._check(dest, tag)
        if len(data) > self._device.max_message_size:
            raise MPIError(
                ERR_COUNT, f"a message must have at most {self._device.max_message_size} bytes, got {len(data)}"
            )
        return data

    def _send(self, buf: Message, dest: int, tag: int, synchronous: bool = False) -> SendCompletion:
        return self._send_bytes(self._prepare_send(buf, dest, tag), dest, tag, synchronous)

    def _send_bytes(self, data: Data, dest: int, tag: int, synchronous: bool = False) -> SendCompletion:
        if dest == PROC_NULL:
            return null_transfer()
        return self._device.send(self._device_rank(dest), self._contexts[0], tag, data, synchronous)

    def _persistent_send(self, buf: Message, dest: int, tag: int, synchronous: bool) -> Prequest:
        begin = partial(
            self._start_persistent,
            dest,
            partial(self._send_bytes, self._prepare_send(buf, dest, tag), dest, tag, synchronous),
        )
        return Prequest(begin, False, self._device, self._ranks)

    def _start_persistent(self, peer: int, begin: Callable[[], Completion[Envelope]]) -> Completion[Envelope]:
        """Begin the transfer of a persistent request, after the check that other calls make before each transfer."""
        self._check_lost_sends(peer)
        return begin()

    def _receive(self, buf: Message, source: int, tag: int) -> Completion[Envelope]:
        buffer = as_receive_buffer(buf)
        self._check(source, tag, receive=True)
        return self._receive_into(buffer, source, tag)

    def _receive_into(self, buffer: Data, source: int, tag: int) -> Completion[Envelope]:
        if source == PROC_NULL:
            return null_transfer()
        return self._device.receive(self._device_rank(source), self._contexts[0], tag, buffer)

    async def _probe(
        self, source: int, tag: int, status: Status | None, wait: bool = False, claim: bool = False
    ) -> ProbeResult | None:
        self._check(source, tag, receive=True)
        probe_result = None
        if source != PROC_NULL:
            probe_result = await self._device.probe(self._device_rank(source), self._contexts[0], tag, wait, claim)
        if status is not None and (probe_result is not None or source == PROC_NULL):
            completion: Completion[Envelope] = Completion()
            completion.complete(PROC_NULL_ENVELOPE if probe_result is None else probe_result.envelope)
            await self._make_request(completion, is_receive=True).wait(status)
        return probe_result

    def _make_message(self, probe_result: ProbeResult | None) -> ClaimedMessage:
        """Make the message that a probe has claimed. probe_result: None for a probe of PROC_NULL."""
        if probe_result is None:
            return NO_PROC
        return ClaimedMessage(self._device, self._contexts, self._ranks, probe_result)

    def _send_object(self, obj: object, dest: int, tag: int, synchronous: bool = False) -> SendCompletion:
        self._check(dest, tag)
        if dest == PROC_NULL:
            return null_transfer()
        return send_object(self._device, self._device_rank(dest), self._contexts, tag, obj, synchronous)

    def _receive_object(self, source: int, tag: int) -> Request:
        self._check(source, tag, receive=True)
        if source == PROC_NULL:
            return self._make_request(null_transfer(), is_receive=True)
        incoming = ObjectReceive(self._device, self._device_rank(source), self._contexts, tag)
        return Request(incoming.completion, incoming, True, self._device, self._ranks)

    def _check(self, peer: int, tag: int, receive: bool = False) -> None:
        if type(peer) is not int or type(tag) is not int:
            index(peer), index(tag)  # raises TypeError for a float, as mpi4py does
        if not self.size:
            raise MPIError(ERR_COMM, COMM_NULL_ERROR)
        if not 0 <= peer < self.size and peer != PROC_NULL and not (receive and peer == ANY_SOURCE):
            raise MPIError(ERR_RANK, f"rank must be 0 to {self.size - 1}, got {peer}")
        if not 0 <= tag <= self._device.max_tag and not (receive and tag == ANY_TAG):
            raise MPIError(ERR_TAG, f"tag must be 0 to {self._device.max_tag}, got {tag}")
        if self.lost_sends.unreported:
            self._check_lost_sends(peer)

    def _check_lost_sends(self, peer: int) -> None:
        self.lost_sends.check(self._contexts, self._device_rank(peer))


def _complete_both(
    received: Completion[Envelope], sent: Completion[Envelope], both: Completion[Envelope], _: object
) -> None:
    """Complete a Sendrecv whose send and receive are done. If both have failed, it fails with the receive's error."""
    try:
        envelope = received.result()
        sent.result()
    except MPIError as error:
        both.fail(error)
    else:
        both.complete(envelope)
