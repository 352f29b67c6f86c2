"""Mailbox of a rank: pre-posted receives for the messages of collective calls, over a NIC that drops the data of messages
without a posted receive.

Ranks enter a collective call at different times, so that messages arrive before their receives are posted. On EMP each of
these messages costs a timeout. Libraries on EMP avoid that by pre-posted receives: the unexpected queue of Balaji, Shivam,
Wyckoff, Panda, "High performance user level sockets over Gigabit Ethernet", 2002. The slots of a mailbox are receives from
any rank that are always posted:

- A short (eager) message is sent to a slot, with a header, and copied from there.
- For a long (rendezvous) message only the header is sent to a slot, as an offer. The receiver posts a receive for the
  message, and sends the sender a grant, possibly before the offer has arrived. Then the sender sends the message.

Messages with equal sender, context and tag are received in the order in which they were sent.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from struct import Struct
from typing import Final, NamedTuple, Protocol

from protocols.core.completion import Completion
from protocols.mpi.device import FailureRecipient, ReceiveCompletion, SendCompletion, null_transfer
from protocols.mpi.iovec import Data
from protocols.mpi.mpi_errors import CANCELLED, ERR_TRUNCATE, Envelope, MPIError

_HEADER: Final = Struct("!HHIQ")  # kind, context, tag, bytes of the message
_SLOT_SIZE: Final = 4096
_MAX_SHORT: Final = _SLOT_SIZE - _HEADER.size
"""Maximum bytes of a message that is sent to a slot."""
_MAX_IN_FLIGHT: Final = 64
"""Maximum messages in flight to slots of other ranks; the send of a further one waits. Our choice."""
_MESSAGE: Final = 0
_OFFER: Final = 1
_GRANT: Final = 2

MatchKey = tuple[int, int, int]
"""Peer, context and tag."""


class PostingDevice(Protocol):
    """The part of `Device` that a mailbox uses."""

    def send(
        self, destination: int, context: int, tag: int, data: Data, synchronous: bool = False
    ) -> SendCompletion: ...

    def receive(self, source: int, context: int, tag: int, buffer: Data) -> ReceiveCompletion: ...

    def receive_standing(self, buffer: memoryview) -> ReceiveCompletion | None: ...

    def cancel(self, completion: Completion[Envelope]) -> None: ...

    @property
    def mailbox_context_tag(self) -> tuple[int, int]: ...


class _SlotMessage(NamedTuple):
    """A message, or the offer of a message, that has arrived in a slot. length: of the message. data: None for an offer."""

    length: int
    data: bytes | None


class MailboxReceive(ReceiveCompletion):
    """A receive in progress. data: the received bytes. is_sized: whether the caller has passed a buffer. direct_receive: the
    receive of a long message at the device; None: there is none."""

    __slots__ = ("data", "direct_receive", "is_sized")

    def __init__(self, source: int, tag: int, buffer: memoryview | None) -> None:
        """buffer: None for a message of any size."""
        super().__init__(source, tag, 0 if buffer is None else len(buffer))
        self.is_sized = buffer is not None
        self.data = memoryview(b"") if buffer is None else buffer
        self.direct_receive: ReceiveCompletion | None = None

    @property
    def completion(self) -> MailboxReceive:
        return self

    @property
    def first_receive(self) -> MailboxReceive:
        return self


class Mailbox:
    """Mailbox of one rank, for all of its communicators. slots: number of pre-posted receives."""

    __slots__ = ("_device", "_early_grants", "_in_flight", "_offers", "_posted", "_unexpected")

    def __init__(self, device: PostingDevice, slots: int) -> None:
        self._device = device
        self._in_flight = 0
        self._unexpected: dict[MatchKey, deque[_SlotMessage]] = {}
        self._posted: dict[MatchKey, deque[MailboxReceive]] = {}
        self._offers: dict[MatchKey, deque[tuple[memoryview, SendCompletion]]] = {}
        self._early_grants: dict[MatchKey, int] = {}
        for _ in range(slots):
            self._post_slot(memoryview(bytearray(_SLOT_SIZE)))

    def send(self, destination: int, context: int, tag: int, data: memoryview) -> SendCompletion:
        """Begin a send. A short message is copied, and its send completes at once unless too many are in flight; a later
        failure is reported as that of a buffered send."""
        size = len(data)
        if size <= _MAX_SHORT:
            slot_send = self._send_to_slot(destination, _MESSAGE, context, tag, size, data)
            return null_transfer() if self._in_flight <= _MAX_IN_FLIGHT else slot_send
        completion = SendCompletion(destination=destination, tag=tag, size=size, context=context)
        key = destination, context, tag
        self._send_to_slot(destination, _OFFER, context, tag, size)
        if self._early_grants.get(key):
            self._use_grant(key)
            self._send_granted(key, data, completion)
        else:
            self._offers.setdefault(key, deque()).append((data, completion))
        return completion

    def receive(self, source: int, context: int, tag: int, buffer: memoryview | None) -> MailboxReceive:
        """Begin a receive. buffer: None for a message of any size, a pickled object: `MailboxReceive.data` then has its
        bytes. Fails as a receive of the device does."""
        receive, key = MailboxReceive(source, tag, buffer), (source, context, tag)
        receive.cancel = partial(self._cancel, key, receive)
        if buffer is not None and len(buffer) > _MAX_SHORT:
            self._grant(key, receive, buffer)
        unexpected = self._unexpected.get(key)
        if not unexpected:
            self._posted.setdefault(key, deque()).append(receive)
            return receive
        message = unexpected.popleft()
        if not unexpected:
            del self._unexpected[key]
        self._match(key, receive, message)
        return receive

    def _send_to_slot(
        self, destination: int, kind: int, context: int, tag: int, size: int, data: memoryview | bytes = b""
    ) -> SendCompletion:
        """Send a header and data to a peer's slot."""
        packet = memoryview(b"".join((_HEADER.pack(kind, context, tag, size), data)))
        self._in_flight += 1
        slot_send = self._device.send(destination, *self._device.mailbox_context_tag, packet)
        slot_send.report_failures_to(FailureRecipient.NONE)
        slot_send.add_callback(self._on_sent)
        return slot_send

    def _on_sent(self, _: object) -> None:
        self._in_flight -= 1

    def _post_slot(self, slot: memoryview) -> None:
        slot_receive = self._device.receive_standing(slot)
        if slot_receive is not None:
            slot_receive.add_callback(partial(self._on_slot_filled, slot))

    def _on_slot_filled(self, slot: memoryview, slot_receive: Completion[Envelope]) -> None:
        """Copy a message from its slot, and post the slot again."""
        try:
            source, _, length = envelope = slot_receive.result()
        except MPIError:  # the sender has failed, which `rank_failures` reports to the collective calls
            self._post_slot(slot)
            return
        if envelope is CANCELLED:
            return
        kind, context, tag, size = _HEADER.unpack_from(slot)
        data = bytes(slot[_HEADER.size : length])
        self._post_slot(slot)
        key = source, context, tag
        if kind == _GRANT:
            self._on_grant(key)
            return
        message, posted = _SlotMessage(size, data if kind == _MESSAGE else None), self._posted.get(key)
        if not posted:
            self._unexpected.setdefault(key, deque()).append(message)
            return
        receive = posted.popleft()
        if not posted:
            del self._posted[key]
        self._match(key, receive, message)

    def _match(self, key: MatchKey, receive: MailboxReceive, message: _SlotMessage) -> None:
        """Match a receive with a message or an offer."""
        source, _, tag = key
        if message.data is None:
            if receive.direct_receive is None:
                buffer = receive.data if receive.is_sized else memoryview(bytearray(message.length))
                self._grant(key, receive, buffer)
            return
        if receive.direct_receive is not None:
            # The message is shorter than the buffer, and so was sent to a slot.
            direct_receive, receive.direct_receive = receive.direct_receive, None
            self._device.cancel(direct_receive)
        if not receive.is_sized:
            receive.data = memoryview(message.data)
        elif message.length > len(receive.data):
            error = f"a message of {message.length} bytes from rank {source}, for a buffer of {len(receive.data)} bytes"
            receive.fail(MPIError(ERR_TRUNCATE, error))
            return
        else:
            receive.data[: message.length] = message.data
        receive.complete(Envelope(source, tag, message.length))

    def _grant(self, key: MatchKey, receive: MailboxReceive, buffer: memoryview) -> None:
        """Post a receive for a long message, and grant it to the sender."""
        source, context, tag = key
        receive.data = buffer
        receive.direct_receive = self._device.receive(source, context, tag, buffer)
        receive.direct_receive.add_callback(partial(_complete_from_direct_receive, receive))
        self._send_to_slot(source, _GRANT, context, tag, len(buffer))

    def _on_grant(self, key: MatchKey) -> None:
        offers = self._offers.get(key)
        if not offers:
            self._early_grants[key] = self._early_grants.get(key, 0) + 1
            return
        data, completion = offers.popleft()
        if not offers:
            del self._offers[key]
        self._send_granted(key, data, completion)

    def _use_grant(self, key: MatchKey) -> None:
        self._early_grants[key] -= 1
        if not self._early_grants[key]:
            del self._early_grants[key]

    def _send_granted(self, key: MatchKey, data: memoryview, completion: SendCompletion) -> None:
        self._device.send(*key, data).add_callback(partial(_copy_outcome, completion))

    def _cancel(self, key: MatchKey, receive: MailboxReceive) -> None:
        posted = self._posted.get(key)
        if posted and receive in posted:
            posted.remove(receive)
        if receive.direct_receive is not None:
            self._device.cancel(receive.direct_receive)
        elif not receive.done:
            receive.complete(CANCELLED)


def _copy_outcome(completion: Completion[Envelope], carrier: Completion[Envelope]) -> None:
    """Complete a transfer with the outcome of the one that carries it out."""
    try:
        completion.complete(carrier.result())
    except MPIError as error:
        completion.fail(error)


def _complete_from_direct_receive(receive: MailboxReceive, direct_receive: Completion[Envelope]) -> None:
    """Complete a receive with the outcome of its direct receive."""
    if receive.direct_receive is direct_receive and not receive.done:
        _copy_outcome(receive, direct_receive)
