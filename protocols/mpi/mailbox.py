"""Mailbox of a rank: receives posted ahead for the messages of collective calls, over a NIC that drops the data of messages
that have no receive.

Ranks do not come to a collective call together, so that messages come before their receives; on EMP each costs a time-out.
EMP's own programs keep receives for such messages (Balaji, Shivam, Wyckoff, Panda, "High performance user level sockets over
Gigabit Ethernet", 2002: the unexpected queue). Here, SLOTS receives from any rank are always posted:

- a short message goes to a slot, with a head in front, and is copied from there;
- of a long one only the head does (an offer). Its receiver posts a receive for the message itself, and tells the sender
  (a grant), perhaps before the offer has come. The sender then sends it.

Messages of one sender, context and tag are received in the order in which they were sent.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from struct import Struct
from typing import Final, NamedTuple, Protocol

from protocols.core.completion import Completion
from protocols.mpi.device import SendCompletion, FailureRecipient, ReceiveCompletion, nothing, pickler
from protocols.mpi.iovec import Data
from protocols.mpi.mpi_errors import CANCELLED, ERR_TRUNCATE, Envelope, MPIError

_HEAD: Final = Struct("!HHIQ")  # kind, context, tag, bytes of the message
_SLOT: Final = 4096
SHORT: Final = _SLOT - _HEAD.size
"""Bytes of the longest message that goes to a slot."""
_AHEAD: Final = 64
"""Messages that may be on their way to slots before a sender of another one waits (ours)."""
_MESSAGE: Final = 0
_OFFER: Final = 1
_GRANT: Final = 2

Lane = tuple[int, int, int]
"""Peer, context and tag."""


class PostingDevice(Protocol):
    """The part of `Device` that a mailbox uses."""

    def send(self, destination: int, context: int, tag: int, data: Data, synchronous: bool = False) -> SendCompletion: ...

    def receive(self, source: int, context: int, tag: int, buffer: Data) -> ReceiveCompletion: ...

    def receive_standing(self, buffer: memoryview) -> ReceiveCompletion | None: ...

    def cancel(self, completion: Completion[Envelope]) -> None: ...

    @property
    def standing(self) -> tuple[int, int]: ...


class _Entry(NamedTuple):
    """A message that has come, or its offer. data: None for an offer."""

    length: int
    data: bytes | None


class MailboxReceive(ReceiveCompletion):
    """A receive in progress. data: the received bytes."""

    __slots__ = ("data", "direct", "is_sized")

    def __init__(self, source: int, tag: int, buffer: memoryview | None) -> None:
        """buffer: None for any size."""
        super().__init__(source, tag, 0 if buffer is None else len(buffer))
        self.is_sized = buffer is not None
        self.data = memoryview(b"") if buffer is None else buffer
        self.direct: ReceiveCompletion | None = None
        """Receive of a long message itself."""

    @property
    def completion(self) -> MailboxReceive:
        return self

    @property
    def first(self) -> MailboxReceive:
        return self

    def load(self) -> object:
        """Return the object that was sent."""
        return pickler.loads(self.data)


class Mailbox:
    """Mailbox of one rank, for all of its communicators. slots: number of receives."""

    __slots__ = ("_ahead", "_came", "_device", "_granted", "_offered", "_waiting")

    def __init__(self, device: PostingDevice, slots: int) -> None:
        self._device = device
        self._ahead = 0
        self._came: dict[Lane, deque[_Entry]] = {}
        self._waiting: dict[Lane, deque[MailboxReceive]] = {}
        self._offered: dict[Lane, deque[tuple[memoryview, SendCompletion]]] = {}
        self._granted: dict[Lane, int] = {}
        for _ in range(slots):
            self._post(memoryview(bytearray(_SLOT)))

    def send(self, destination: int, context: int, tag: int, data: memoryview) -> SendCompletion:
        """Begin a send. A short message is copied, and its send complete at once unless many are on their way; a later
        failure is reported as of a buffered one."""
        size = len(data)
        if size <= SHORT:
            sent = self._put(destination, _MESSAGE, context, tag, size, data)
            return nothing() if self._ahead <= _AHEAD else sent
        completion = SendCompletion(destination=destination, tag=tag, size=size, context=context)
        lane = destination, context, tag
        self._put(destination, _OFFER, context, tag, size)
        if self._granted.get(lane):
            self._use_grant(lane)
            self._send_granted(lane, data, completion)
        else:
            self._offered.setdefault(lane, deque()).append((data, completion))
        return completion

    def receive(self, source: int, context: int, tag: int, buffer: memoryview | None) -> MailboxReceive:
        """Begin a receive; `MailboxReceive.load` returns an object, if there is no buffer. Fails as a device's does."""
        delivery, lane = MailboxReceive(source, tag, buffer), (source, context, tag)
        delivery.cancel = partial(self._cancel, lane, delivery)
        if buffer is not None and len(buffer) > SHORT:
            self._grant(lane, delivery, buffer)
        came = self._came.get(lane)
        if not came:
            self._waiting.setdefault(lane, deque()).append(delivery)
            return delivery
        entry = came.popleft()
        if not came:
            del self._came[lane]
        self._deliver(lane, delivery, entry)
        return delivery

    def _put(
        self, destination: int, kind: int, context: int, tag: int, size: int, data: memoryview | bytes = b""
    ) -> SendCompletion:
        """Send a message to a peer's slot."""
        whole = memoryview(b"".join((_HEAD.pack(kind, context, tag, size), data)))
        self._ahead += 1
        sent = self._device.send(destination, *self._device.mailbox_context_tag, whole)
        sent.report_failures_to(FailureRecipient.NONE)
        sent.add_callback(self._sent)
        return sent

    def _sent(self, _: object) -> None:
        self._ahead -= 1

    def _post(self, slot: memoryview) -> None:
        standing = self._device.receive_standing(slot)
        if standing is not None:
            standing.add_callback(partial(self._come, slot))

    def _come(self, slot: memoryview, standing: Completion[Envelope]) -> None:
        """Take a message out of its slot, and post the slot again."""
        try:
            source, _, length = envelope = standing.result()
        except MPIError:  # its sender is gone: the call hears of that elsewhere
            self._post(slot)
            return
        if envelope is CANCELLED:
            return
        kind, context, tag, size = _HEAD.unpack_from(slot)
        data = bytes(slot[_HEAD.size : length])
        self._post(slot)
        lane = source, context, tag
        if kind == _GRANT:
            self._on_grant(lane)
            return
        entry, waiting = _Entry(size, data if kind == _MESSAGE else None), self._waiting.get(lane)
        if not waiting:
            self._came.setdefault(lane, deque()).append(entry)
            return
        delivery = waiting.popleft()
        if not waiting:
            del self._waiting[lane]
        self._deliver(lane, delivery, entry)

    def _deliver(self, lane: Lane, delivery: MailboxReceive, entry: _Entry) -> None:
        """Match a receive with a message, or with its offer."""
        source, _, tag = lane
        if entry.data is None:
            if delivery.direct is None:
                room = delivery.data if delivery.is_sized else memoryview(bytearray(entry.length))
                self._grant(lane, delivery, room)
            return
        if delivery.direct is not None:
            # A message shorter than was expected: it has come in a slot.
            direct, delivery.direct = delivery.direct, None
            self._device.cancel(direct)
        if not delivery.is_sized:
            delivery.data = memoryview(entry.data)
        elif entry.length > len(delivery.data):
            what = f"a message of {entry.length} bytes from rank {source}, for a buffer of {len(delivery.data)} bytes"
            delivery.fail(MPIError(ERR_TRUNCATE, what))
            return
        else:
            delivery.data[: entry.length] = entry.data
        delivery.complete(Envelope(source, tag, entry.length))

    def _grant(self, lane: Lane, delivery: MailboxReceive, room: memoryview) -> None:
        """Post a receive for a long message, and tell its sender."""
        source, context, tag = lane
        delivery.data = room
        delivery.direct = self._device.receive(source, context, tag, room)
        delivery.direct.add_callback(partial(_end, delivery))
        self._put(source, _GRANT, context, tag, len(room))

    def _on_grant(self, lane: Lane) -> None:
        offered = self._offered.get(lane)
        if not offered:
            self._granted[lane] = self._granted.get(lane, 0) + 1
            return
        data, completion = offered.popleft()
        if not offered:
            del self._offered[lane]
        self._send_granted(lane, data, completion)

    def _use_grant(self, lane: Lane) -> None:
        self._granted[lane] -= 1
        if not self._granted[lane]:
            del self._granted[lane]

    def _send_granted(self, lane: Lane, data: memoryview, completion: SendCompletion) -> None:
        self._device.send(*lane, data).add_callback(partial(_copy, completion))

    def _cancel(self, lane: Lane, delivery: MailboxReceive) -> None:
        """Cancel a receive that waits."""
        waiting = self._waiting.get(lane)
        if waiting and delivery in waiting:
            waiting.remove(delivery)
        if delivery.direct is not None:
            self._device.cancel(delivery.direct)
        elif not delivery.done:
            delivery.complete(CANCELLED)


def _copy(completion: Completion[Envelope], inner: Completion[Envelope]) -> None:
    """Complete a transfer as the one that it stands for."""
    try:
        completion.complete(inner.result())
    except MPIError as error:
        completion.fail(error)


def _end(delivery: MailboxReceive, direct: Completion[Envelope]) -> None:
    """Complete a receive with that of the message itself."""
    if delivery.direct is direct and not delivery.done:
        _copy(delivery, direct)
