"""Transport: outgoing messages, their packets on the wire, and the channels that carry the packets.

A message is one packet; a bulk message can be many. Packets are assembled from precomputed parts: the first bytes of
frames to a peer, and the message as its host has written it. A Myrinet envelope surrounds each
(`protocols.myrinet.envelope`); the layout is the codec's.

Between two NICs there are logical channels, each with at most one unanswered packet; the send and the receive table
have a row for each. "At-most-once delivery: stop and wait on many independent logical channels" (Chun, Mainwaring,
Culler, "Transport protocols"). With 2 sequence numbers a channel is the alternating-bit protocol, which requires a
network that keeps frames in order. There is no timer per packet: a periodic scan looks for unanswered packets, while
there are any.

A channel that is given up with an unanswered packet is in doubt: the peer may or may not have accepted it. The paper
marks its sequence number as uninitialised; here its generation increases, and a receiver accepts the first packet of a
generation with any sequence number, and none of an earlier generation.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from protocols.am2.codec import ANSWER_SIZE, FORM_GONE, MESSAGE_SIZE, pack_answer
from protocols.am2.settings import Settings
from protocols.core.checksum import crc32
from protocols.core.malformed import MalformedError
from protocols.myrinet.envelope import ETHERNET, crc8

if TYPE_CHECKING:
    from protocols.am2.endpoint_frames import Resident
    from protocols.am2.peers import Peer

PREFIX_SIZE: Final = 30
"""Bytes with which all frames of one kind from one NIC to another begin, up to the incarnations."""
CHECKED: Final = ANSWER_SIZE - 4
"""Bytes before the check."""
HEADER: Final = MESSAGE_SIZE - ANSWER_SIZE
"""Bytes of a message's own header."""
OVERHEAD: Final = MESSAGE_SIZE - ETHERNET + 1
"""Bytes after the Ethernet header of a message's frame, without its payload and its route."""

_pack_head: Final = struct.Struct(f"!{PREFIX_SIZE}sBBHIH").pack
_pack_check: Final = struct.Struct("!I").pack
_unpack_head: Final = struct.Struct(f"!{PREFIX_SIZE}xBBHIHI").unpack_from
unpack_message: Final = struct.Struct("!BBBBHHQIII").unpack_from
"""A message's header: form, flags, handler, arguments, origin, endpoint, tag, message, offset, total."""
_pack_message: Final = struct.Struct("!BBBBHHQIII").pack
PART: Final = struct.Struct("!II").pack_into
PART_AT: Final = 20
"""Position of offset and total in it."""
_CRC8: Final = tuple(bytes((value,)) for value in range(256))

_GENERATIONS: Final = 1 << 8
_STAMPS: Final = 1 << 32
_NEVER: Final = 1 << 62
"""Nanoseconds; later than any time."""
_NOTHING: Final = memoryview(b"")

P = TypeVar("P")
"""Content of a channel: a packet."""


class Message:
    """A message that the host has written into a slot of an endpoint. body: its header and arguments, with its data
    unless that is sent in parts. data: a bulk message's. part: bytes of data in one packet. sent: bytes that have been
    put into packets. open: number of unanswered packets. taken_back: packets to be sent again. status: why it is
    returned, 0 if it is not."""

    __slots__ = (
        "body",
        "data",
        "endpoint",
        "is_begun",
        "offset",
        "open",
        "part",
        "peer",
        "refusals",
        "sent",
        "slot",
        "status",
        "taken_back",
    )

    def __init__(self, endpoint: Resident, slot: int, peer: Peer, body: bytes) -> None:
        self.endpoint: Final = endpoint
        self.slot: Final = slot
        self.peer: Final = peer
        self.body = body
        self.data = _NOTHING
        self.part = self.offset = self.sent = self.open = self.refusals = self.status = 0
        self.is_begun = False
        self.taken_back: Sequence[bytes] = ()

    @property
    def is_sent(self) -> bool:
        """Whether packets have been made of the whole message."""
        return self.is_begun and not self.taken_back and self.sent >= len(self.data)

    def unsent_copy(self) -> Message:
        """Return an unsent copy of a message that has no data in parts."""
        return Message(self.endpoint, self.slot, self.peer, self.body)

    def next(self) -> tuple[bytes, memoryview]:
        """Return the next packet's body, and the data of host memory to append to it."""
        if self.taken_back:
            *self.taken_back, body = self.taken_back
            return body, _NOTHING
        self.is_begun = True
        if not self.data:
            return self.body, _NOTHING
        begin = self.sent
        self.sent = end = min(begin + self.part, len(self.data))
        head = bytearray(self.body)
        PART(head, PART_AT, self.offset + begin, len(self.data))
        return bytes(head), self.data[begin:end]


Packet = tuple[Message, bytes]
"""A message, and the content of one packet of it."""


def prefix(
    to: bytes, own: bytes, kind: int, reason: int, source: int, destination: int, sender: int, receiver: int
) -> bytes:
    """Return the first PREFIX_SIZE bytes of frames with these fields."""
    return pack_answer(to, own, kind, reason, source, destination, sender, receiver, 0, 0, 0, 0)[:PREFIX_SIZE]


def build_gone(endpoint: int) -> bytes:
    """Build the body of a message which states that an endpoint no longer exists."""
    return _pack_message(FORM_GONE, 0, 0, 0, endpoint, 0, 0, 0, 0, 0)


def build_message(
    begin: bytes, channel: int, generation: int, sequence: int, stamp: int, route: bytes, body: bytes
) -> bytes:
    """Build a message's frame. body: its own header, arguments, data."""
    head = _pack_head(begin, channel, generation, sequence, stamp, len(body) - HEADER)
    frame = head + _pack_check(crc32(body, crc32(head))) + body
    if not route:
        return frame + _CRC8[crc8(frame[ETHERNET:])]
    behind = route + frame[ETHERNET:]
    return frame[:ETHERNET] + behind + _CRC8[crc8(behind)]


def build_answer(begin: bytes, channel: int, generation: int, sequence: int, stamp: int, route: bytes) -> bytes:
    """Build the frame of an ACK or a NACK."""
    head = _pack_head(begin, channel, generation, sequence, stamp, 0)
    frame = head + _pack_check(crc32(head))
    if not route:
        return frame + _CRC8[crc8(frame[ETHERNET:])]
    behind = route + frame[ETHERNET:]
    return frame[:ETHERNET] + behind + _CRC8[crc8(behind)]


def unpack_body(frame: bytes) -> tuple[int, int, int, int, bytes]:
    """Return channel, generation, sequence, stamp and body of a message whose beginning is known, without its
    envelope's CRC-8. Raises MalformedError."""
    if len(frame) < MESSAGE_SIZE:
        raise MalformedError("short")
    channel, generation, sequence, stamp, length, check = _unpack_head(frame)
    end = MESSAGE_SIZE + length
    if end > len(frame):
        raise MalformedError("length")
    body = frame[ANSWER_SIZE:end]
    if crc32(body, crc32(frame[:CHECKED])) != check:
        raise MalformedError("check")
    return channel, generation, sequence, stamp, body


def unpack_answer(frame: bytes) -> tuple[int, int, int, int]:
    """Return channel, generation, sequence and stamp of an answer whose beginning is known. Raises MalformedError."""
    if len(frame) < ANSWER_SIZE:
        raise MalformedError("short")
    channel, generation, sequence, stamp, length, check = _unpack_head(frame)
    if length:
        raise MalformedError("length")
    if crc32(frame[:CHECKED]) != check:
        raise MalformedError("check")
    return channel, generation, sequence, stamp


class Sending(Generic[P]):
    """One row of the send table, for one channel. packet: the unanswered packet; None: the channel is free. stamp: of
    its last sending. first: stamp of its first sending, which left at time begun. due: when it is resent. retries:
    number of resends since the peer last answered about it. refused: the last sending was refused for a temporary
    reason, so that no copy of it is in flight any more."""

    __slots__ = (
        "begun", "channel", "due", "first", "generation", "packet", "patience", "refused", "retries", "sequence", "stamp",
    )  # fmt: skip

    def __init__(self, channel: int) -> None:
        self.channel: Final = channel
        self.generation = 0
        self.sequence = 0
        self.packet: P | None = None
        self.stamp = 0
        self.first = 0
        self.begun = 0
        self.due = 0
        self.patience = 0
        self.retries = 0
        self.refused = False


class Outgoing(Generic[P]):
    """The send table for one peer. Times are nanoseconds.

    Answers echo the stamp of the sending that they answer, so that round-trip times are known for resent packets, too.
    If round trips are long, because hosts are busy or a queue is full, a packet's timeout follows RFC 6298, between the
    settings' timeout and the longest one. Otherwise most resends would duplicate packets that had arrived, and their
    handling would make round trips longer still.
    """

    __slots__ = (
        "_long", "_rows", "_sequences", "_settings", "_stamp", "_trip", "_variation", "free", "patience", "unanswered",
    )  # fmt: skip

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sequences = settings.sequences - 1
        self._rows: list[Sending[P]] = [Sending(channel) for channel in range(settings.channels)]
        self.free = deque(self._rows)
        """Rows without a packet; the one that has been free for longest is used next."""
        self._stamp = 0
        self._long = settings.timeout // 3  # shorter round trips have no effect until a longer one occurs
        self._trip = 0
        self._variation = 0
        self.patience = settings.timeout
        """Timeout of a first sending."""
        self.unanswered = 0
        """Number of channels that are not free."""

    @property
    def is_full(self) -> bool:
        return not self.free

    def begin(self, now: int, packet: P) -> Sending[P] | None:
        """Assign a free channel to a packet that is sent now; None if there is none."""
        if not self.free:
            return None
        row = self.free.popleft()
        row.packet = packet
        row.retries = 0
        self.unanswered += 1
        # inlines `_sent`, since every packet passes here
        self._stamp = row.stamp = row.first = (self._stamp + 1) % _STAMPS
        row.refused = False
        row.patience = patience = self.patience
        row.begun = now
        row.due = now + patience
        return row

    def hold(self, row: Sending[P]) -> Callable[[int], None]:
        """Record that a packet's frame remains in the NIC. Return the function that starts the packet's timer, to be called
        when the frame has left."""
        row.due = _NEVER
        return partial(self._left, row, row.stamp)

    def _left(self, row: Sending[P], stamp: int, now: int) -> None:
        """Start the timer of a packet unless it has been answered, or sent again."""
        if row.stamp == stamp and row.packet is not None:
            row.due = now + row.patience
            if stamp == row.first:
                row.begun = now

    def answered(self, now: int, channel: int, generation: int, sequence: int, stamp: int) -> P | None:
        """Release the channel of a packet that the peer has accepted or undone. Returns the packet, or None if the
        answer is late."""
        row = self._row(channel, generation, sequence)
        if row is None:
            return None
        if stamp == row.first:
            took = now - row.begun
            if took > self._long or self._trip:
                self._learn(took)
        elif stamp == row.stamp and not row.refused:
            self._learn(now - row.due + row.patience)
        row.sequence = (row.sequence + 1) & self._sequences
        packet = row.packet
        row.packet = None
        self.free.append(row)
        self.unanswered -= 1
        return packet

    def refused(self, now: int, channel: int, generation: int, sequence: int, stamp: int) -> Sending[P] | None:
        """Record that the peer has refused the packet for a temporary reason. Returns its row; None if the refusal is
        about another packet, or about an earlier sending of this one, since the peer may have accepted a later one."""
        row = self._row(channel, generation, sequence)
        if row is None or row.stamp != stamp:
            return None
        row.refused = True
        row.retries = 0
        row.patience = self.patience
        row.due = now + self._settings.refused
        return row

    def take_back(self, row: Sending[P]) -> P:
        """Take back a packet whose last sending was refused: no copy of it will be accepted any more. Its channel is
        free, and the next packet uses its sequence number."""
        if not row.refused:
            raise ValueError(f"channel {row.channel}: a packet that may be in flight cannot be taken back")
        return self._released(row)

    def give_up(self, row: Sending[P]) -> P:
        """Give up an unanswered packet; the peer may have accepted it."""
        row.generation = (row.generation + 1) % _GENERATIONS
        row.sequence = 0
        return self._released(row)

    def due(self, now: int) -> Iterator[Sending[P]]:
        """Yield the packets to be resent or given up: see `is_hopeless` and `mark_resent`."""
        for row in self._rows:
            if row.packet is not None and row.due <= now:
                yield row

    def is_hopeless(self, row: Sending[P]) -> bool:
        """Whether a packet has used all its resends."""
        return row.retries >= self._settings.retries

    def mark_resent(self, now: int, row: Sending[P]) -> None:
        """Record a resend."""
        row.retries += 1
        self._sent(now, row, min(2 * row.patience, self._settings.longest_timeout))

    def mark_last(self, now: int, row: Sending[P]) -> None:
        """Record that a packet has just been sent, and will not be resent; a late answer is accepted."""
        row.retries = self._settings.retries
        row.patience = self._settings.longest_timeout
        row.due = now + row.patience

    def mark_new(self, now: int, row: Sending[P]) -> None:
        """Record a packet as sent for the first time: nobody has accepted it."""
        row.retries = 0
        self._sent(now, row, self.patience)
        row.first, row.begun = row.stamp, now

    def under_way(self) -> Iterator[Sending[P]]:
        """Yield the rows that have a packet."""
        return (row for row in self._rows if row.packet is not None)

    def _learn(self, took: int) -> None:
        """Update the timeout with a round-trip time."""
        settings = self._settings
        if self._trip:
            away = took - self._trip
            self._trip += away >> 3
            self._variation += (abs(away) - self._variation) >> 2
        else:
            self._trip, self._variation = took, took >> 1
        wanted = self._trip + 4 * self._variation
        if wanted <= settings.timeout:
            self._trip = self._variation = 0  # round trips are normal again
        self.patience = min(max(wanted, settings.timeout), settings.longest_timeout)

    def _sent(self, now: int, row: Sending[P], patience: int) -> None:
        self._stamp = row.stamp = (self._stamp + 1) % _STAMPS
        row.refused = False
        row.patience = patience
        row.due = now + patience

    def _row(self, channel: int, generation: int, sequence: int) -> Sending[P] | None:
        if channel >= len(self._rows):
            return None
        row = self._rows[channel]
        if row.packet is None or row.sequence != sequence or row.generation != generation:
            return None
        return row

    def _released(self, row: Sending[P]) -> P:
        packet = row.packet
        if packet is None:
            raise ValueError(f"channel {row.channel} is free")
        row.packet = None
        self.free.append(row)
        self.unanswered -= 1
        return packet


class PacketClass(Enum):
    """Classification of a packet by the receive table."""

    NEW = "new: to be accepted or refused"
    AGAIN = "accepted or undone before: the same answer is sent again"
    OLD = "an outdated copy: dropped"


_NEW: Final = PacketClass.NEW  # an enumeration's member lookup is slow
_AGAIN: Final = PacketClass.AGAIN
_OLD: Final = PacketClass.OLD


class _Receiving:
    __slots__ = ("answer", "expected", "generation", "refused")

    def __init__(self) -> None:
        self.expected: int | None = None  # nothing has been received
        self.generation = 0
        self.answer = 0
        self.refused: int | None = None  # the stamp of the last refused sending


class Incoming:
    """The receive table for one peer.

    The sender may withdraw a packet if it knows that the last sending was refused (section "Endpoint unloading"). So a
    sending that was refused once is never accepted, nor one before it: otherwise a copy made by the network could be
    accepted after the packet has been sent by another channel. This rule is ours: Myrinet makes no copies.
    """

    __slots__ = ("_rows", "_sequences", "channels")

    def __init__(self, settings: Settings) -> None:
        self._sequences = settings.sequences - 1
        self._rows = [_Receiving() for _ in range(settings.channels)]
        self.channels: Final = settings.channels

    def classify(self, channel: int, generation: int, sequence: int, stamp: int) -> PacketClass:
        """Classify a packet of a channel. Raises IndexError for a channel that does not exist."""
        row = self._rows[channel]
        if row.expected is None or (ahead := (generation - row.generation) % _GENERATIONS):
            if row.expected is not None and ahead >= _GENERATIONS // 2:
                return _OLD
            row.generation, row.expected, row.answer, row.refused = generation, sequence, 0, None
            return _NEW
        if sequence == row.expected:
            if row.refused is not None and (row.refused - stamp) % _STAMPS < _STAMPS // 2:
                return _OLD
            return _NEW
        return _AGAIN if sequence == (row.expected - 1) & self._sequences else _OLD

    def take(self, channel: int, answer: int = 0) -> None:
        """Advance the channel: the packet that `classify` has found new is accepted, or undone for the reason `answer`."""
        row = self._rows[channel]
        if row.expected is None:
            raise ValueError(f"channel {channel}: no packet has come")
        row.expected = (row.expected + 1) & self._sequences
        row.answer = answer

    def refuse(self, channel: int, stamp: int) -> None:
        """Record that the packet that `classify` has found new is refused for a temporary reason."""
        self._rows[channel].refused = stamp

    def answer(self, channel: int) -> int:
        """Return the answer to the last packet: 0, or the reason why it was undone."""
        return self._rows[channel].answer
