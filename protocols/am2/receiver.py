"""The receiving half of the firmware: delivery of packets to the endpoints of this NIC's hosts.

A packet that is new on its channel is accepted; or refused for a temporary reason, so that it is resent; or undone, so
that its message is returned to its sender. A full ring is a temporary reason, too: "modest preallocated buffers,
retransmission is cheap".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from protocols.am2 import page as layout
from protocols.am2.card import Card
from protocols.am2.codec import (
    FLAGS_REPLY,
    FORM_BULK,
    FORM_GONE,
    FORM_KEEPALIVE,
    FORM_LOST_REPLY,
    FORM_MEDIUM,
    REASON_BAD_SEGMENT,
    REASON_BAD_TAG,
    REASON_NO_ENDPOINT,
    REASON_NO_MAPPING,
    REASON_NONE,
    REASON_NOT_RESIDENT,
    REASON_OVERRUN,
)
from protocols.am2.nic_endpoint import BulkKey, NicEndpoint
from protocols.am2.peers import Peer
from protocols.am2.sender import UNREACHABLE
from protocols.am2.transport import MESSAGE_HEADER_SIZE, OFFSET_AND_TOTAL_AT, PACK_OFFSET_AND_TOTAL, unpack_message

MALFORMED: Final = -1
"""Result for a packet with a correct checksum and invalid content, which is not answered."""

_SLOT_OFFSETS: Final = layout.SLOT_OFFSETS
_SUBJECT_BITS: Final = layout.SUBJECT_BITS
_ARRIVED_REPLIES: Final = layout.ARRIVED_REPLIES
_ARRIVED_REQUESTS: Final = layout.ARRIVED_REQUESTS
_MAX_ARGUMENTS: Final = layout.MAX_ARGUMENTS
_MESSAGE_OFFSET: Final = layout.MESSAGE_OFFSET
_READY: Final = layout.READY
_RING_MASK: Final = layout.RING_SIZE - 1
_PACK_HEAD: Final = layout.HEAD.pack_into
_UNPACK_TAG: Final = layout.TAG.unpack_from
_ANY: Final = 0xFFFF_FFFF_FFFF_FFFF


class Delivery(NamedTuple):
    """Report that a request, or its reply, has been put into an endpoint's ring. Checkers compare deliveries with
    returned messages.

    node, incarnation: of the NIC that has sent the request. endpoint: number of the requesting endpoint. message:
    number of the request. is_reply: the reply has been delivered, not the request.
    """

    node: int
    incarnation: int
    endpoint: int
    message: int
    is_reply: bool = False


DeliveryCallback = Callable[[Delivery], object]


class Receiver:
    """All incoming messages. on_delivery: called for each delivered message."""

    __slots__ = ("_card", "_counters", "_guarded", "_on_delivery")

    def __init__(self, card: Card, on_delivery: DeliveryCallback | None) -> None:
        self._card = card
        self._counters = card.counters
        self._guarded = card.settings.guarded
        self._on_delivery = on_delivery

    def deliver(self, peer: Peer, body: bytes) -> int:
        """Deliver a packet. body: message header, arguments, data. Returns REASON_NONE, MALFORMED, or the reason of a
        NACK."""
        form, flags, _, count, origin, number, tag, message, offset, total = unpack_message(body)
        length = len(body) - MESSAGE_HEADER_SIZE - 4 * count
        card, counters = self._card, self._counters
        if length < 0 or count > _MAX_ARGUMENTS or form > FORM_BULK:
            if form == FORM_GONE:
                self._on_endpoint_gone(peer, origin)
            elif form == FORM_LOST_REPLY:
                self._on_reply_lost(peer, number, (peer.number, peer.incarnation, origin, flags, message))
            elif form != FORM_KEEPALIVE:
                return MALFORMED
            return REASON_NONE
        endpoint = card.endpoints.get(number)
        if endpoint is None:
            counters.bad_endpoints += 1
            return REASON_NO_ENDPOINT
        page = endpoint.page
        if page is None or endpoint.is_leaving:
            counters.not_resident += 1
            if not endpoint.has_faulted:
                endpoint.has_faulted = True
                counters.faults += 1
                card.nic.interrupt(number << layout.SUBJECT_BITS | layout.FAULT)
            return REASON_NOT_RESIDENT
        if flags & FLAGS_REPLY:
            slot = _ARRIVED_REPLIES + endpoint.next_reply
        else:
            own_tag = _UNPACK_TAG(page)[0] if self._guarded else _ANY
            if own_tag != _ANY and (own_tag != tag or not own_tag):
                counters.bad_tags += 1
                endpoint.bulk_parts.pop((peer.number, peer.incarnation, origin, flags, message), None)
                return REASON_BAD_TAG
            slot = _ARRIVED_REQUESTS + endpoint.next_request
        entry_offset = _SLOT_OFFSETS[slot]
        if form:
            if form == FORM_MEDIUM:
                is_free = not page[entry_offset]
                reason = self._store_medium(endpoint, page, slot, body, length) if is_free else REASON_OVERRUN
            else:
                key = (peer.number, peer.incarnation, origin, flags, message)
                reason = self._store_part(endpoint, page, entry_offset, key, body, length, offset, total)
                if reason == REASON_NONE:
                    received, min_offset = endpoint.bulk_parts[key]
                    if received < total:
                        return REASON_NONE
                    del endpoint.bulk_parts[key]
                    body, length = _complete_header(body, min_offset, total), total
            if reason:
                counters.overruns += reason == REASON_OVERRUN
                return reason
        elif page[entry_offset]:
            counters.overruns += 1
            return REASON_OVERRUN
        _PACK_HEAD(page, entry_offset, _READY, 0, peer.number, length, 0, peer.incarnation)
        message_offset, size = entry_offset + _MESSAGE_OFFSET, MESSAGE_HEADER_SIZE + 4 * count
        page[message_offset : message_offset + size] = body[:size] if length else body
        if flags & FLAGS_REPLY:
            endpoint.next_reply = endpoint.next_reply + 1 & _RING_MASK
            peer.reply_count += 1
        else:
            endpoint.next_request = endpoint.next_request + 1 & _RING_MASK
            endpoint.requesters[peer] = None
        counters.messages_delivered += 1
        if self._on_delivery is not None:
            if flags & FLAGS_REPLY:
                self._on_delivery(Delivery(card.number, card.incarnation, number, message, True))
            else:
                self._on_delivery(Delivery(peer.number, peer.incarnation, origin, message))
        card.nic.post_completion(number << _SUBJECT_BITS | slot)
        return REASON_NONE

    def _on_endpoint_gone(self, peer: Peer, number: int) -> None:
        """Handle a notice that a peer's endpoint no longer exists. Requests in flight to it are returned as
        unreachable, even if their packets are still acknowledged; the hosts end the requests that were acknowledged
        before."""
        for endpoint in self._card.endpoints.values():
            for message in endpoint.messages.values():
                is_request = message.slot < layout.REPLIES and message.peer is peer
                if (
                    is_request
                    and message.unanswered_count
                    and not message.status
                    and unpack_message(message.body)[5] == number
                ):
                    message.status = UNREACHABLE
        self._card.nic.interrupt((peer.number << layout.ENDPOINT_BITS | number) << layout.SUBJECT_BITS | layout.GONE)

    def _on_reply_lost(self, peer: Peer, number: int, reply: BulkKey) -> None:
        """Handle a notice that the reply to a request of endpoint `number` was given up or refused. The request ends as
        in `_on_endpoint_gone`. reply: key of the reply, if it is a bulk message."""
        endpoint = self._card.endpoints.get(number)
        if endpoint is None:
            return
        endpoint.bulk_parts.pop(reply, None)
        request = reply[4]
        for message in endpoint.messages.values():
            is_request = message.slot < layout.REPLIES and message.peer is peer
            if (
                is_request
                and message.unanswered_count
                and not message.status
                and unpack_message(message.body)[7] == request
            ):
                message.status = UNREACHABLE
        request &= layout.REQUEST_MASK
        subject = ((request << layout.NODE_BITS | peer.number) << layout.ENDPOINT_BITS | number) << layout.SUBJECT_BITS
        self._card.nic.interrupt(subject | layout.LOST_REPLY)

    def discard_parts(self, peer: Peer) -> None:
        """Discard the partly received messages of a restarted peer."""
        for endpoint in self._card.endpoints.values():
            for key in [key for key in endpoint.bulk_parts if key[0] == peer.number]:
                del endpoint.bulk_parts[key]

    def _store_medium(self, endpoint: NicEndpoint, page: memoryview, slot: int, body: bytes, length: int) -> int:
        """Store a medium message's data in the endpoint's staging area. Result: see `deliver`."""
        medium = self._card.settings.medium
        if length > medium:
            return MALFORMED
        if not length:
            return REASON_NONE
        view = self._region_view(endpoint, page, layout.RECEIVE_STAGING)
        if view is None:
            return REASON_NO_MAPPING
        begin = (slot - layout.ARRIVED_REQUESTS) * medium
        self._card.nic.dma_write(view[begin : begin + length], body[len(body) - length :])
        return REASON_NONE

    def _store_part(
        self,
        endpoint: NicEndpoint,
        page: memoryview,
        entry_offset: int,
        key: BulkKey,
        body: bytes,
        length: int,
        offset: int,
        total: int,
    ) -> int:
        """Store a part of a bulk message in the endpoint's segment, and record it in `bulk_parts`. A reason that undoes
        the message discards its parts. Result: see `deliver`."""
        received, min_offset = endpoint.bulk_parts.get(key, (0, offset))
        is_inconsistent = received + length > total or (not length and total)
        if is_inconsistent or offset + length > layout.segment_length(page):
            return self._undo_bulk(endpoint, key)
        if received + length == total and page[entry_offset]:
            return REASON_OVERRUN
        if length:
            view = self._region_view(endpoint, page, layout.SEGMENT)
            if view is None:
                return REASON_NO_MAPPING
            if offset + length > len(view):  # the host has just shortened the segment
                return self._undo_bulk(endpoint, key)
            self._card.nic.dma_write(view[offset : offset + length], body[len(body) - length :])
        endpoint.bulk_parts[key] = (received + length, min(min_offset, offset))
        return REASON_NONE

    def _undo_bulk(self, endpoint: NicEndpoint, key: BulkKey) -> int:
        """Discard the parts of a bulk message that does not fit into the segment, and return the reason of the NACK."""
        endpoint.bulk_parts.pop(key, None)
        self._counters.bad_segments += 1
        return REASON_BAD_SEGMENT

    def _region_view(self, endpoint: NicEndpoint, page: memoryview, subject: int) -> memoryview | None:
        """Return a region of an endpoint if it is mapped; otherwise request a mapping from the host, and return
        None."""
        region = endpoint.number << layout.SUBJECT_BITS | subject
        view = endpoint.frames.region_view(page, region, 0, 0)
        if view is None:
            endpoint.frames.absent_regions.discard(region)
            self._counters.unmapped += 1
            if region not in endpoint.requested_regions:
                endpoint.requested_regions.add(region)
                self._card.nic.interrupt(region << layout.SUBJECT_BITS | layout.UNMAPPED)
        return view


def _complete_header(body: bytes, offset: int, total: int) -> bytes:
    """Return the header of a complete bulk message: the header of the part received last, with the offset of all
    data."""
    header = bytearray(body)
    PACK_OFFSET_AND_TOTAL(header, OFFSET_AND_TOTAL_AT, offset, total)
    return bytes(header)
