"""Transport: outgoing messages, their packets on the wire, and the channels that carry the packets.

A message is one packet; a bulk message can be several. Packets are assembled from precomputed parts: the first bytes of
frames to a peer, and the message as its host has written it. A Myrinet envelope surrounds each packet
(`protocols.myrinet.envelope`). The layout is that of `frames`.

Between two NICs there are logical channels, each with at most one unanswered packet; the send and the receive table
have a row for each channel. "At-most-once delivery: stop and wait on many independent logical channels" (Chun,
Mainwaring, Culler, "Transport protocols"). With 2 sequence numbers a channel is the alternating-bit protocol, which
requires a network that keeps frames in order. There is no timer per packet: while packets are unanswered, a periodic
scan looks for those that are due.

If the sender gives up an unanswered packet, it cannot determine whether the peer has accepted it. The paper marks the
channel's sequence number as uninitialised; here the channel's generation increases. A receiver accepts the first packet
of a generation with any sequence number, and no packet of an earlier generation.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from protocols.am2.codec import ANSWER_SIZE, FORM_GONE, FORM_KEEPALIVE, FORM_LOST_REPLY, MESSAGE_SIZE, pack_answer
from protocols.am2.settings import Settings
from protocols.core.checksum import crc32
from protocols.core.malformed import MalformedError
from protocols.myrinet.envelope import ETHERNET, crc8

if TYPE_CHECKING:
    from protocols.am2.nic_endpoint import NicEndpoint
    from protocols.am2.peers import Peer

PREFIX_SIZE: Final = 30
"""Number of first bytes, up to the incarnations, that frames of one kind from one NIC to another have in common."""
CHECK_OFFSET: Final = ANSWER_SIZE - 4
"""Offset of the checksum in a frame. The checksum covers the bytes before it and the body."""
MESSAGE_HEADER_SIZE: Final = MESSAGE_SIZE - ANSWER_SIZE
"""Bytes of a message's header, which follows the header of all packets."""
FRAME_OVERHEAD: Final = MESSAGE_SIZE - ETHERNET + 1
"""Bytes of a message's frame without Ethernet header, route, arguments and data: the headers, and the CRC-8."""

_pack_head: Final = struct.Struct(f"!{PREFIX_SIZE}sBBHIH").pack
_pack_check: Final = struct.Struct("!I").pack
_unpack_head: Final = struct.Struct(f"!{PREFIX_SIZE}xBBHIHI").unpack_from
unpack_message: Final = struct.Struct("!BBBBHHQIII").unpack_from
"""Unpack a message's header: form, flags, handler, number of arguments, origin, endpoint, tag, message, offset,
total."""
_pack_message: Final = struct.Struct("!BBBBHHQIII").pack
PACK_OFFSET_AND_TOTAL: Final = struct.Struct("!II").pack_into
"""Write offset and total into a message's header, at OFFSET_AND_TOTAL_AT."""
OFFSET_AND_TOTAL_AT: Final = 20
"""Offset of these fields in a message's header."""
_CRC8: Final = tuple(bytes((value,)) for value in range(256))

_GENERATIONS: Final = 1 << 8
_STAMPS: Final = 1 << 32
_NEVER: Final = 1 << 62
"""Nanoseconds; later than any time."""
_EMPTY: Final = memoryview(b"")

AnyPacket = TypeVar("AnyPacket")
"""A packet of a channel."""


class Message:
    """A message that the host has written into a slot of an endpoint.

    body: header and arguments, and the data of a medium message. data: data of a bulk message. offset: offset of this
    data in the destination's segment. packet_size: bytes of this data in one packet; 0: not a bulk message. sent_size:
    bytes of this data that have been put into packets. is_begun: a packet has been built. unanswered_count: number of
    unanswered packets. refusal_count: number of temporary refusals. withdrawn: bodies of withdrawn packets, to be sent
    again. status: reason why the message is returned to the host; 0: it is not returned.
    """

    __slots__ = (
        "body",
        "data",
        "endpoint",
        "is_begun",
        "offset",
        "packet_size",
        "peer",
        "refusal_count",
        "sent_size",
        "slot",
        "status",
        "unanswered_count",
        "withdrawn",
    )

    def __init__(self, endpoint: NicEndpoint, slot: int, peer: Peer, body: bytes) -> None:
        self.endpoint: Final = endpoint
        self.slot: Final = slot
        self.peer: Final = peer
        self.body = body
        self.data = _EMPTY
        self.packet_size = self.offset = self.sent_size = self.unanswered_count = self.refusal_count = self.status = 0
        self.is_begun = False
        self.withdrawn: Sequence[bytes] = ()

    @property
    def is_sent(self) -> bool:
        """Whether all packets of the message have been sent."""
        return self.is_begun and not self.withdrawn and self.sent_size >= len(self.data)

    def unsent_copy(self) -> Message:
        """Return an unsent copy of a message that is not a bulk message."""
        return Message(self.endpoint, self.slot, self.peer, self.body)

    def next_packet(self) -> tuple[bytes, memoryview]:
        """Return the next packet's body, and the bulk data in host memory that must be appended to it."""
        if self.withdrawn:
            *self.withdrawn, body = self.withdrawn
            return body, _EMPTY
        self.is_begun = True
        if not self.data:
            return self.body, _EMPTY
        begin = self.sent_size
        self.sent_size = end = min(begin + self.packet_size, len(self.data))
        body_copy = bytearray(self.body)
        PACK_OFFSET_AND_TOTAL(body_copy, OFFSET_AND_TOTAL_AT, self.offset + begin, len(self.data))
        return bytes(body_copy), self.data[begin:end]


Packet = tuple[Message, bytes]
"""A message, and the body of one of its packets."""


def frame_prefix(
    destination_address: bytes,
    source_address: bytes,
    kind: int,
    reason: int,
    source: int,
    destination: int,
    sender: int,
    receiver: int,
) -> bytes:
    """Return the first PREFIX_SIZE bytes of frames with these fields. destination_address, source_address: MACs."""
    return pack_answer(
        destination_address, source_address, kind, reason, source, destination, sender, receiver, 0, 0, 0, 0
    )[:PREFIX_SIZE]


def build_gone(endpoint: int) -> bytes:
    """Build the body of a notice that an endpoint no longer exists."""
    return _pack_message(FORM_GONE, 0, 0, 0, endpoint, 0, 0, 0, 0, 0)


def build_lost_reply(reply: bytes) -> bytes:
    """Build the body of a notice that a reply has been given up or refused. reply: the body of the reply."""
    _, flags, _, _, origin, number, _, message, _, _ = unpack_message(reply)
    return _pack_message(FORM_LOST_REPLY, flags, 0, 0, origin, number, 0, message, 0, 0)


KEEPALIVE: Final = _pack_message(FORM_KEEPALIVE, 0, 0, 0, 0, 0, 0, 0, 0, 0)
"""Body of a message whose acknowledgement shows that the peer's NIC is reachable."""


def build_message(
    prefix: bytes, channel: int, generation: int, sequence: int, stamp: int, route: bytes, body: bytes
) -> bytes:
    """Build a message's frame. prefix: from `frame_prefix`. body: message header, arguments, data."""
    head = _pack_head(prefix, channel, generation, sequence, stamp, len(body) - MESSAGE_HEADER_SIZE)
    frame = head + _pack_check(crc32(body, crc32(head))) + body
    if not route:
        return frame + _CRC8[crc8(frame[ETHERNET:])]
    packet = route + frame[ETHERNET:]
    return frame[:ETHERNET] + packet + _CRC8[crc8(packet)]


def build_answer(prefix: bytes, channel: int, generation: int, sequence: int, stamp: int, route: bytes) -> bytes:
    """Build the frame of an ACK or a NACK. prefix: from `frame_prefix`."""
    head = _pack_head(prefix, channel, generation, sequence, stamp, 0)
    frame = head + _pack_check(crc32(head))
    if not route:
        return frame + _CRC8[crc8(frame[ETHERNET:])]
    packet = route + frame[ETHERNET:]
    return frame[:ETHERNET] + packet + _CRC8[crc8(packet)]


def unpack_body(frame: bytes) -> tuple[int, int, int, int, bytes]:
    """Unpack a message's frame after its prefix: channel, generation, sequence, stamp and body. The envelope's CRC-8 is
    ignored. Raises MalformedError."""
    if len(frame) < MESSAGE_SIZE:
        raise MalformedError("short")
    channel, generation, sequence, stamp, length, check = _unpack_head(frame)
    end = MESSAGE_SIZE + length
    if end > len(frame):
        raise MalformedError("length")
    body = frame[ANSWER_SIZE:end]
    if crc32(body, crc32(frame[:CHECK_OFFSET])) != check:
        raise MalformedError("check")
    return channel, generation, sequence, stamp, body


def unpack_answer(frame: bytes) -> tuple[int, int, int, int]:
    """Unpack an answer's frame after its prefix: channel, generation, sequence and stamp. Raises MalformedError."""
    if len(frame) < ANSWER_SIZE:
        raise MalformedError("short")
    channel, generation, sequence, stamp, length, check = _unpack_head(frame)
    if length:
        raise MalformedError("length")
    if crc32(frame[:CHECK_OFFSET]) != check:
        raise MalformedError("check")
    return channel, generation, sequence, stamp


class SendRow(Generic[AnyPacket]):
    """One row of the send table, for one channel. packet: the unanswered packet; None: the channel is free. stamp: of
    the last sending. first_stamp: of the first sending, which left the NIC at first_sent_at. due_at: time at which the
    packet is resent. timeout: nanoseconds from a sending to due_at, unless the sending is refused. retries: number of
    resends since the first sending or the last refusal. is_refused: the last sending was refused for a temporary
    reason, so that no copy of the packet can be accepted."""

    __slots__ = (
        "channel", "due_at", "first_sent_at", "first_stamp", "generation", "is_refused", "packet", "retries", "sequence",
        "stamp", "timeout",
    )  # fmt: skip

    def __init__(self, channel: int) -> None:
        self.channel: Final = channel
        self.generation = 0
        self.sequence = 0
        self.packet: AnyPacket | None = None
        self.stamp = 0
        self.first_stamp = 0
        self.first_sent_at = 0
        self.due_at = 0
        self.timeout = 0
        self.retries = 0
        self.is_refused = False


class SendTable(Generic[AnyPacket]):
    """The send table for one peer. Times are nanoseconds.

    Answers echo the stamp of the sending that they answer, so that round-trip times of resent packets are known, too.
    If round trips are long, because hosts are busy or a queue is full, a packet's timeout follows RFC 6298, between the
    settings' timeout and the longest timeout. Otherwise most resends would duplicate packets that had arrived, and the
    duplicates would make round trips even longer.
    """

    __slots__ = (
        "_last_stamp", "_min_round_trip", "_rows", "_sequence_mask", "_settings", "_smoothed_round_trip",
        "_variation", "free_rows", "timeout", "unanswered_count",
    )  # fmt: skip

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sequence_mask = settings.sequences - 1
        self._rows: list[SendRow[AnyPacket]] = [SendRow(channel) for channel in range(settings.channels)]
        self.free_rows = deque(self._rows)
        """Rows without a packet; the one that has been free for longest is used next."""
        self._last_stamp = 0
        self._min_round_trip = settings.timeout // 3  # shorter round trips are ignored until a longer one occurs
        self._smoothed_round_trip = 0
        self._variation = 0
        self.timeout = settings.timeout
        """Timeout of a packet's first sending."""
        self.unanswered_count = 0
        """Number of channels that are not free."""

    @property
    def is_full(self) -> bool:
        return not self.free_rows

    def begin(self, now: int, packet: AnyPacket) -> SendRow[AnyPacket] | None:
        """Assign a free channel to a packet that is sent now. Returns None if no channel is free."""
        if not self.free_rows:
            return None
        row = self.free_rows.popleft()
        row.packet = packet
        row.retries = 0
        self.unanswered_count += 1
        # `_record_sending`, inlined, since this runs for every packet
        self._last_stamp = row.stamp = row.first_stamp = (self._last_stamp + 1) % _STAMPS
        row.is_refused = False
        row.timeout = timeout = self.timeout
        row.first_sent_at = now
        row.due_at = now + timeout
        return row

    def hold_timer(self, row: SendRow[AnyPacket]) -> Callable[[int], None]:
        """Record that a packet's frame waits in the NIC. Returns the function that starts the packet's timer, to be
        called when the frame has left."""
        row.due_at = _NEVER
        return partial(self._start_timer, row, row.stamp)

    def _start_timer(self, row: SendRow[AnyPacket], stamp: int, now: int) -> None:
        """Start the timer of a packet unless it has been answered, or sent again."""
        if row.stamp == stamp and row.packet is not None:
            row.due_at = now + row.timeout
            if stamp == row.first_stamp:
                row.first_sent_at = now

    def on_answer(self, now: int, channel: int, generation: int, sequence: int, stamp: int) -> AnyPacket | None:
        """Release the channel of a packet that the peer has accepted or undone. Returns the packet, or None if the
        answer is late."""
        row = self._rows[channel] if channel < len(self._rows) else None
        # `_find_row`, inlined, since this runs for every answer
        if row is None or row.packet is None or row.sequence != sequence or row.generation != generation:
            return None
        if stamp == row.first_stamp:
            round_trip = now - row.first_sent_at
            if round_trip > self._min_round_trip or self._smoothed_round_trip:
                self._update_timeout(round_trip)
        elif stamp == row.stamp and not row.is_refused:
            self._update_timeout(now - row.due_at + row.timeout)
        row.sequence = (row.sequence + 1) & self._sequence_mask
        packet = row.packet
        row.packet = None
        self.free_rows.append(row)
        self.unanswered_count -= 1
        return packet

    def on_refusal(
        self, now: int, channel: int, generation: int, sequence: int, stamp: int
    ) -> SendRow[AnyPacket] | None:
        """Record that the peer has refused a packet for a temporary reason. Returns its row; None if the refusal is
        about another packet, or about an earlier sending of this one, since the peer may have accepted a later one."""
        row = self._find_row(channel, generation, sequence)
        if row is None or row.stamp != stamp:
            return None
        row.is_refused = True
        row.retries = 0
        row.timeout = self.timeout
        row.due_at = now + self._settings.refused
        return row

    def withdraw(self, row: SendRow[AnyPacket]) -> AnyPacket:
        """Withdraw a packet whose last sending was refused, so that the peer accepts no copy of it any more. This frees
        the channel; the next packet uses the same sequence number. Raises ValueError for another packet."""
        if not row.is_refused:
            raise ValueError(f"channel {row.channel}: a packet that may be in flight cannot be withdrawn")
        return self._release(row)

    def give_up(self, row: SendRow[AnyPacket]) -> AnyPacket:
        """Give up an unanswered packet, which the peer may have accepted, and begin a new generation of the channel."""
        row.generation = (row.generation + 1) % _GENERATIONS
        row.sequence = 0
        return self._release(row)

    def due_rows(self, now: int) -> Iterator[SendRow[AnyPacket]]:
        """Yield the rows whose packets must be resent (`mark_resent`) or, if `is_exhausted`, given up."""
        for row in self._rows:
            if row.packet is not None and row.due_at <= now:
                yield row

    def is_exhausted(self, row: SendRow[AnyPacket]) -> bool:
        """Whether a packet has used all its resends."""
        return row.retries >= self._settings.retries

    def mark_resent(self, now: int, row: SendRow[AnyPacket]) -> None:
        """Record a resend."""
        row.retries += 1
        self._record_sending(now, row, min(2 * row.timeout, self._settings.longest_timeout))

    def mark_final(self, now: int, row: SendRow[AnyPacket]) -> None:
        """Record that a packet has just been sent and will not be resent. An answer within the longest timeout is
        accepted."""
        row.retries = self._settings.retries
        row.timeout = self._settings.longest_timeout
        row.due_at = now + row.timeout

    def mark_first(self, now: int, row: SendRow[AnyPacket]) -> None:
        """Record a new sending of a packet as its first one, since the peer has dropped the earlier ones."""
        row.retries = 0
        self._record_sending(now, row, self.timeout)
        row.first_stamp, row.first_sent_at = row.stamp, now

    def unanswered_rows(self) -> Iterator[SendRow[AnyPacket]]:
        """Yield the rows that have a packet."""
        return (row for row in self._rows if row.packet is not None)

    def _update_timeout(self, round_trip: int) -> None:
        """Update the timeout with a round-trip time, as in RFC 6298."""
        settings = self._settings
        if self._smoothed_round_trip:
            deviation = round_trip - self._smoothed_round_trip
            self._smoothed_round_trip += deviation >> 3
            self._variation += (abs(deviation) - self._variation) >> 2
        else:
            self._smoothed_round_trip, self._variation = round_trip, round_trip >> 1
        timeout = self._smoothed_round_trip + 4 * self._variation
        if timeout <= settings.timeout:
            self._smoothed_round_trip = self._variation = 0  # round trips are short again
        self.timeout = min(max(timeout, settings.timeout), settings.longest_timeout)

    def _record_sending(self, now: int, row: SendRow[AnyPacket], timeout: int) -> None:
        self._last_stamp = row.stamp = (self._last_stamp + 1) % _STAMPS
        row.is_refused = False
        row.timeout = timeout
        row.due_at = now + timeout

    def _find_row(self, channel: int, generation: int, sequence: int) -> SendRow[AnyPacket] | None:
        """Return the row of an unanswered packet; None if there is no such packet."""
        if channel >= len(self._rows):
            return None
        row = self._rows[channel]
        if row.packet is None or row.sequence != sequence or row.generation != generation:
            return None
        return row

    def _release(self, row: SendRow[AnyPacket]) -> AnyPacket:
        packet = row.packet
        if packet is None:
            raise ValueError(f"channel {row.channel} is free")
        row.packet = None
        self.free_rows.append(row)
        self.unanswered_count -= 1
        return packet


class PacketClass(Enum):
    """Classification of a packet by the receive table."""

    NEW = "new: to be accepted or refused"
    DUPLICATE = "accepted or undone before: its answer is repeated"
    OLD = "an outdated copy: dropped"


_NEW: Final = PacketClass.NEW  # a global, since looking up a member of an enumeration is slow
_DUPLICATE: Final = PacketClass.DUPLICATE
_OLD: Final = PacketClass.OLD


class _ReceiveRow:
    """One row of the receive table. expected_sequence: sequence number of the next packet; None: nothing has been
    received. last_answer: 0, or the reason why the last packet was undone. refused_stamp: after a refusal
    in this generation, the stamp up to which sendings are dropped: of the last refused sending, or before that of a
    later sending that was received; None: no refusal."""

    __slots__ = ("expected_sequence", "generation", "last_answer", "refused_stamp")

    def __init__(self) -> None:
        self.expected_sequence: int | None = None
        self.generation = 0
        self.last_answer = 0
        self.refused_stamp: int | None = None


class ReceiveTable:
    """The receive table for one peer.

    The sender may withdraw a packet after its last sending was refused (section "Endpoint unloading"). So neither a
    refused sending nor an earlier one is accepted later: otherwise a copy made by the network could be accepted after
    the packet has been sent on another channel. This rule is ours: Myrinet makes no copies.
    """

    __slots__ = ("_rows", "_sequence_mask", "channel_count")

    def __init__(self, settings: Settings) -> None:
        self._sequence_mask = settings.sequences - 1
        self._rows = [_ReceiveRow() for _ in range(settings.channels)]
        self.channel_count: Final = settings.channels

    def classify(self, channel: int, generation: int, sequence: int, stamp: int) -> PacketClass:
        """Classify a packet of a channel. Raises IndexError for a channel that does not exist."""
        row = self._rows[channel]
        expected = row.expected_sequence
        if expected is None or (ahead := (generation - row.generation) % _GENERATIONS):
            if expected is not None and ahead >= _GENERATIONS // 2:
                return _OLD
            row.generation, row.expected_sequence, row.last_answer, row.refused_stamp = generation, sequence, 0, None
            return _NEW
        if sequence == expected:
            if row.refused_stamp is not None:
                if (row.refused_stamp - stamp) % _STAMPS < _STAMPS // 2:
                    return _OLD
                row.refused_stamp = (stamp - 1) % _STAMPS  # it must follow the stamps, which wrap around
            return _NEW
        return _DUPLICATE if sequence == (expected - 1) & self._sequence_mask else _OLD

    def advance(self, channel: int, answer: int = 0) -> None:
        """Advance the channel after its NEW packet. answer: 0 if the packet is accepted, or the reason for which it is
        undone."""
        row = self._rows[channel]
        if row.expected_sequence is None:
            raise ValueError(f"channel {channel}: no packet has been received")
        row.expected_sequence = (row.expected_sequence + 1) & self._sequence_mask
        row.last_answer = answer

    def refuse(self, channel: int, stamp: int) -> None:
        """Record that the channel's NEW packet is refused for a temporary reason. stamp: the packet's."""
        self._rows[channel].refused_stamp = stamp

    def last_answer(self, channel: int) -> int:
        """Return the answer to the channel's last packet: 0, or the reason why the packet was undone."""
        return self._rows[channel].last_answer
