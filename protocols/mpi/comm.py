"""Communicators: mpi4py's point-to-point calls, each one awaited.

They belong to no loop: a call awaits completions and nothing else, and whoever drives the program resumes it. So a
program in mpi4py's names becomes one of ours by an `await` before each call that could wait or move anything.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, TypeVar, cast

from protocols.core.completion import Completion
from protocols.mpi.buffering import SendBuffer
from protocols.mpi.buffers import readable, writable
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG, PROC_NULL, UNDEFINED
from protocols.mpi.device import Device, Found, nothing
from protocols.mpi.errors import ERR_ARG, ERR_COMM, ERR_COUNT, ERR_OTHER, ERR_RANK, ERR_TAG, NOBODY, Envelope, MPIError
from protocols.mpi.messages import Message as Matched
from protocols.mpi.objects import Incoming, pickled, send_object, send_pickled
from protocols.mpi.pieces import Data, gathered
from protocols.mpi.requests import Prequest, Request, Turn
from protocols.mpi.status import Status

if TYPE_CHECKING:
    from protocols.mpi.buffers import Message

T = TypeVar("T")

_COLLECTIVE = 0
"""The tag of what ranks tell each other in the library's own context; continuations of objects have others."""


class Comm:
    """All of a cluster's ranks, or some, and messages that no other communicator sees.

    context: the same at every rank and another one for each communicator, from 0 to half of what the device has: of its
    contexts, one is the program's and one the library's own. ranks: the device's that it is made of, in its own order, this
    one among them; None: all.

    Capital letters move buffers (`buffers.Message`), small ones objects, which are pickled; each receives what its like
    has sent. Calls raise MPIError with ERR_RANK, ERR_TAG, ERR_BUFFER, ERR_COUNT or ERR_TYPE for arguments that cannot
    be, before anything has happened.
    """

    __slots__ = ("_contexts", "_device", "_ranks", "rank", "send_buffer", "size")

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
        """Of what Send and send need not wait for; None: of nothing."""
        device.taken.add(context)

    @property
    def tag_ub(self) -> int:
        """The greatest tag (MPI_TAG_UB)."""
        return self._device.most_tag

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    # Buffers:

    async def Send(self, buf: Message, dest: int, tag: int = 0) -> None:
        """Send, and wait until the buffer may be used again; on EMP that is when the message has been received, unless it is
        buffered. Raises MPIError also where an earlier one that was buffered has failed."""
        data, room = self._data(buf, dest, tag), self.send_buffer
        if room is None or dest == PROC_NULL or not room.has_room(len(data)):
            await self._send_bytes(data, dest, tag)
        else:
            room.hold(len(data), self._send_bytes(memoryview(bytes(gathered(data))), dest, tag))

    async def Recv(
        self, buf: Message, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> None:
        """Receive. Raises MPIError: ERR_TRUNCATE if the message is longer than the buffer, which is then full."""
        over = self._receive(buf, source, tag)
        if status is None:
            await over
        else:
            await self._request(over, received=True).wait(status)

    async def Ssend(self, buf: Message, dest: int, tag: int = 0) -> None:
        """Send, and wait until the message has its receive, and the buffer may be used again."""
        await self._send(buf, dest, tag, True)

    async def Isend(self, buf: Message, dest: int, tag: int = 0) -> Request:
        """Begin a send. The buffer must not change until it is over."""
        return self._request(self._send(buf, dest, tag))

    async def Issend(self, buf: Message, dest: int, tag: int = 0) -> Request:
        """Begin a send that is over when Ssend is."""
        return self._request(self._send(buf, dest, tag, True))

    async def Irecv(self, buf: Message, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Begin a receive. The buffer is the library's until it is over."""
        return self._request(self._receive(buf, source, tag), received=True)

    async def Send_init(self, buf: Message, dest: int, tag: int = 0) -> Prequest:
        """A send to be started (`Prequest.Start`), again and again, of what the buffer then has."""
        return self._persistent_send(buf, dest, tag, False)

    async def Ssend_init(self, buf: Message, dest: int, tag: int = 0) -> Prequest:
        """The same of Ssend."""
        return self._persistent_send(buf, dest, tag, True)

    async def Recv_init(self, buf: Message, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """A receive to be started, again and again."""
        buffer = writable(buf)
        self._check(source, tag, receive=True)
        begin = partial(self._receive_into, buffer, source, tag)
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
        """Send and receive at once; also with each other, or with oneself. If both fail, the receive's error is raised."""
        data = self._data(sendbuf, dest, sendtag)
        received = self._request(self._receive(recvbuf, source, recvtag), received=True)
        sent = self._send_bytes(data, dest, sendtag)
        with suppress(MPIError):  # raised below, when the receive is over
            await sent
        await received.wait(status)
        sent.result()

    # What there is to be received:

    async def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Wait until a receive like that would get a message; True. The status says which; where that is a long object, its
        count is that of its first page."""
        await self._probe(source, tag, status, wait=True)
        return True

    async def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Whether a receive like that would get a message now. If not, others get their turn meanwhile."""
        if await self._probe(source, tag, status) is not None or source == PROC_NULL:
            return True
        await Turn()
        return False

    async def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Matched:
        """As Probe, and that message is nobody's any more but who receives it by what this returns."""
        found = await self._probe(source, tag, status, wait=True, claim=True)
        return Matched(self._device, self._contexts, self._ranks, found)

    async def Improbe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Matched | None:
        """As Mprobe, if there is one now; None if not, and others get their turn meanwhile."""
        found = await self._probe(source, tag, status, claim=True)
        if found is None and source != PROC_NULL:
            await Turn()
            return None
        return Matched(self._device, self._contexts, self._ranks, found)

    probe = Probe
    iprobe = Iprobe
    mprobe = Mprobe
    improbe = Improbe

    # Objects:

    async def send(self, obj: object, dest: int, tag: int = 0) -> None:
        """Pickle an object, send it, and wait as Send does."""
        room = self.send_buffer
        if room is None or dest == PROC_NULL:
            await self._send_object(obj, dest, tag)
            return
        self._check(dest, tag)
        data = pickled(obj)
        is_kept = room.has_room(len(data))
        over = send_pickled(self._device, self._peer(dest), self._contexts, tag, data)
        if is_kept:
            room.hold(len(data), over)
        else:
            await over

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
        """Receive an object. buf: as mpi4py has it, and not needed here. Raises MPIError: ERR_TYPE if the message is one of
        Send's."""
        return await self._receive_object(source, tag).wait(status)

    async def isend(self, obj: object, dest: int, tag: int = 0) -> Request:
        """Pickle an object and begin to send it. It may change at once."""
        return self._request(self._send_object(obj, dest, tag))

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
        with suppress(MPIError):  # raised below, when the receive is over
            await sent
        obj = await received.wait(status)
        sent.result()
        return obj

    # All ranks together; each calls these in the same order as the others.

    async def Barrier(self) -> None:
        """Go on when every rank has come here."""
        await self._everybodys(None)

    barrier = Barrier

    async def Dup(self) -> Comm:
        """The same ranks, and messages of their own. Raises MPIError (ERR_OTHER) where no context is left for them."""
        offers = await self._everybodys(self._free_contexts())
        return Comm(self._device, _agreed(offers), self._ranks, self.send_buffer)

    async def Split(self, color: int = 0, key: int = 0) -> Comm | None:
        """A communicator of those that say the same color, in the order of their keys; of equal keys, of their ranks here.
        None (COMM_NULL) for who says UNDEFINED. Raises as Dup does, and ERR_ARG for a color below 0."""
        if color < 0 and color != UNDEFINED:
            raise MPIError(ERR_ARG, f"a color of {color}: 0 or more, or UNDEFINED")
        said = await self._everybodys((self._free_contexts(), color, key))
        context = _agreed([offer for offer, _, _ in said])
        if color == UNDEFINED:
            return None
        chosen = sorted((key, rank) for rank, (_, other, key) in enumerate(said) if other == color)
        # Communicators that have no rank in common may have a context in common.
        return Comm(self._device, context, tuple(self._peer(rank) for _, rank in chosen), self.send_buffer)

    def alone(self) -> Comm:
        """This rank's own (COMM_SELF). Raises as Dup does; the other ranks need not call it."""
        own = _agreed([self._free_contexts()])
        return Comm(self._device, own, (self._device.rank,), self.send_buffer)

    def Free(self) -> None:
        """It is not to be used any more; another one may have its context. Nothing may be under way in it, at any rank."""
        self._device.taken.discard(self._contexts[0] // 2)
        self.size = 0

    async def _everybodys(self, value: T) -> list[T]:
        """What each rank has said, by rank. In log2(n) rounds, in which what is known doubles (Bruck and others, "Efficient
        algorithms for all-to-all communications", 1997, section 4)."""
        rank, size, own = self.rank, self.size, self._contexts[1]
        known = [value]  # of this rank, the one before it, and so on
        distance = 1
        while distance < size:
            to, by = self._peer((rank + distance) % size), self._peer((rank - distance) % size)
            sent = send_object(self._device, to, (own, own), _COLLECTIVE, known[: size - distance])
            incoming = Incoming(self._device, by, (own, own), _COLLECTIVE)
            await incoming.over
            await sent
            known += cast("list[T]", incoming.load())
            distance *= 2
        return [known[(rank - other) % size] for other in range(size)]

    def _free_contexts(self) -> int:
        """As bits."""
        taken = self._device.taken
        return sum(1 << number for number in range(self._device.contexts // 2) if number not in taken)

    def _peer(self, rank: int) -> int:
        """The device's rank, or what stands for one."""
        return rank if self._ranks is None or rank < 0 else self._ranks[rank]

    def _request(self, over: Completion[Envelope], received: bool = False) -> Request:
        return Request(over, None, received, self._device, self._ranks)

    def _data(self, buf: Message, dest: int, tag: int) -> Data:
        data = readable(buf)
        self._check(dest, tag)
        if len(data) > self._device.most_bytes:
            raise MPIError(ERR_COUNT, f"a message of {len(data)} bytes: at most {self._device.most_bytes}")
        return data

    def _send(self, buf: Message, dest: int, tag: int, synchronous: bool = False) -> Completion[Envelope]:
        return self._send_bytes(self._data(buf, dest, tag), dest, tag, synchronous)

    def _send_bytes(self, data: Data, dest: int, tag: int, synchronous: bool = False) -> Completion[Envelope]:
        if dest == PROC_NULL:
            return nothing()
        return self._device.send(self._peer(dest), self._contexts[0], tag, data, synchronous)

    def _persistent_send(self, buf: Message, dest: int, tag: int, synchronous: bool) -> Prequest:
        begin = partial(self._send_bytes, self._data(buf, dest, tag), dest, tag, synchronous)
        return Prequest(begin, False, self._device, self._ranks)

    def _receive(self, buf: Message, source: int, tag: int) -> Completion[Envelope]:
        buffer = writable(buf)
        self._check(source, tag, receive=True)
        return self._receive_into(buffer, source, tag)

    def _receive_into(self, buffer: Data, source: int, tag: int) -> Completion[Envelope]:
        if source == PROC_NULL:
            return nothing()
        return self._device.receive(self._peer(source), self._contexts[0], tag, buffer)

    async def _probe(
        self, source: int, tag: int, status: Status | None, wait: bool = False, claim: bool = False
    ) -> Found | None:
        self._check(source, tag, receive=True)
        found = None
        if source != PROC_NULL:
            found = await self._device.probe(self._peer(source), self._contexts[0], tag, wait, claim)
        if status is not None and (found is not None or source == PROC_NULL):
            over: Completion[Envelope] = Completion()
            over.complete(NOBODY if found is None else found.envelope)
            await self._request(over, received=True).wait(status)
        return found

    def _send_object(self, obj: object, dest: int, tag: int, synchronous: bool = False) -> Completion[Envelope]:
        self._check(dest, tag)
        if dest == PROC_NULL:
            return nothing()
        return send_object(self._device, self._peer(dest), self._contexts, tag, obj, synchronous)

    def _receive_object(self, source: int, tag: int) -> Request:
        self._check(source, tag, receive=True)
        if source == PROC_NULL:
            return self._request(nothing(), received=True)
        incoming = Incoming(self._device, self._peer(source), self._contexts, tag)
        return Request(incoming.over, incoming, True, self._device, self._ranks)

    def _check(self, peer: int, tag: int, receive: bool = False) -> None:
        if not 0 <= peer < self.size and peer != PROC_NULL and not (receive and peer == ANY_SOURCE):
            if not self.size:
                raise MPIError(ERR_COMM, "a communicator that was freed")
            raise MPIError(ERR_RANK, f"a rank of {peer}: 0 to {self.size - 1}")
        if not 0 <= tag <= self._device.most_tag and not (receive and tag == ANY_TAG):
            raise MPIError(ERR_TAG, f"a tag of {tag}: 0 to {self._device.most_tag}")


def _agreed(offers: Sequence[int]) -> int:
    """The least context that is free at all ranks, each of which offers what is free there, as bits."""
    free = reduce(and_, offers)
    if not free:
        raise MPIError(ERR_OTHER, "no context is free at all ranks for another communicator: free one first")
    return (free & -free).bit_length() - 1
