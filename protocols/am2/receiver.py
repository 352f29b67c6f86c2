"""The receiving half of the firmware: acceptance of packets for the endpoints of this NIC's hosts.

A packet that is new on its channel is accepted, refused for a temporary reason, so that it is sent again, or undone, so
that its message is returned to its sender. "Modest preallocated buffers, retransmission is cheap": if a ring has no
room, a packet is refused like any other.
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
    FORM_MEDIUM,
    REASON_BAD_SEGMENT,
    REASON_BAD_TAG,
    REASON_NO_ENDPOINT,
    REASON_NO_MAPPING,
    REASON_NONE,
    REASON_NOT_RESIDENT,
    REASON_OVERRUN,
)
from protocols.am2.endpoint_frames import Resident
from protocols.am2.peers import Peer
from protocols.am2.sender import UNREACHABLE
from protocols.am2.transport import HEADER, PART, PART_AT, unpack_message

MALFORMED: Final = -1
"""The packet has a right check and invalid content: it is not answered."""

_PLACES: Final = layout.PLACES
_HEAD: Final = layout.HEAD.pack_into
_TAG: Final = layout.TAG.unpack_from
_ANY: Final = 0xFFFF_FFFF_FFFF_FFFF


class Delivered(NamedTuple):
    """A message that has been put into an endpoint's ring, with a unique name: for a request the NIC that has sent it,
    that NIC's incarnation, its endpoint there, and the request's number; for a reply the name of its request. A checker
    compares it with returned messages."""

    node: int
    incarnation: int
    endpoint: int
    message: int
    is_reply: bool = False


Witness = Callable[[Delivered], object]


class Receiver:
    """All incoming messages. witness: is called for each delivered one."""

    __slots__ = ("_card", "_counters", "_guarded", "_witness")

    def __init__(self, card: Card, witness: Witness | None) -> None:
        self._card = card
        self._counters = card.counters
        self._guarded = card.settings.guarded
        self._witness = witness

    def deliver(self, peer: Peer, body: bytes) -> int:
        """Deliver a packet's message. Returns REASON_NONE, or the reason why that is impossible."""
        form, flags, _, count, origin, number, tag, message, offset, total = unpack_message(body)
        length = len(body) - HEADER - 4 * count
        card, counters = self._card, self._counters
        if length < 0 or count > layout.MAX_ARGUMENTS or form > FORM_BULK:
            if form != FORM_GONE:
                return MALFORMED
            self._gone(peer, origin)
            return REASON_NONE
        endpoint = card.endpoints.get(number)
        if endpoint is None:
            counters.bad_endpoints += 1
            return REASON_NO_ENDPOINT
        page = endpoint.page
        if page is None or endpoint.is_leaving:
            counters.not_resident += 1
            if not endpoint.faulted:
                endpoint.faulted = True
                counters.faults += 1
                card.nic.interrupt(number << layout.SUBJECTS | layout.FAULT)
            return REASON_NOT_RESIDENT
        if flags & FLAGS_REPLY:
            place = layout.ARRIVED_REPLIES + endpoint.next_reply
        else:
            if self._guarded and ((own := _TAG(page)[0]) != tag or not own) and own != _ANY:
                counters.bad_tags += 1
                return REASON_BAD_TAG
            place = layout.ARRIVED_REQUESTS + endpoint.next_request
        at = _PLACES[place]
        if form:
            if form == FORM_MEDIUM:
                reason = self._stage(endpoint, page, place, body, length) if not page[at] else REASON_OVERRUN
            else:
                identity = (peer.number, peer.incarnation, origin, flags, message)
                reason = self._part(endpoint, page, at, identity, body, length, offset, total)
                if reason == REASON_NONE:
                    come, first = endpoint.parts[identity]
                    if come < total:
                        return REASON_NONE
                    del endpoint.parts[identity]
                    body, length = _whole(body, first, total), total
            if reason:
                counters.overruns += reason == REASON_OVERRUN
                return reason
        elif page[at]:
            counters.overruns += 1
            return REASON_OVERRUN
        _HEAD(page, at, layout.READY, 0, peer.number, length, 0, peer.incarnation)
        at += layout.MESSAGE
        size = HEADER + 4 * count
        page[at : at + size] = body[:size] if length else body
        if flags & FLAGS_REPLY:
            endpoint.next_reply = endpoint.next_reply + 1 & layout.ENTRIES - 1
        else:
            endpoint.next_request = endpoint.next_request + 1 & layout.ENTRIES - 1
            endpoint.requesters[peer] = None
        counters.messages_delivered += 1
        if self._witness is not None:
            if flags & FLAGS_REPLY:
                self._witness(Delivered(card.number, card.incarnation, number, message, True))
            else:
                self._witness(Delivered(peer.number, peer.incarnation, origin, message))
        card.nic.post_completion(number << layout.SUBJECTS | place)
        return REASON_NONE

    def _gone(self, peer: Peer, number: int) -> None:
        """Handle the end of a peer's endpoint. Packets in flight to it have been accepted, with the answer lost, or
        will be returned by the transport; the hosts handle requests that were accepted and answered."""
        for endpoint in self._card.endpoints.values():
            for message in endpoint.messages.values():
                is_request = message.slot < layout.REPLIES and message.peer is peer
                if is_request and message.open and not message.status and unpack_message(message.body)[5] == number:
                    message.status = UNREACHABLE
        self._card.nic.interrupt((peer.number << layout.NAMES | number) << layout.SUBJECTS | layout.GONE)

    def forget(self, peer: Peer) -> None:
        """Discard the partly received messages of a restarted peer."""
        for endpoint in self._card.endpoints.values():
            for identity in [one for one in endpoint.parts if one[0] == peer.number]:
                del endpoint.parts[identity]

    def _stage(self, endpoint: Resident, page: memoryview, place: int, body: bytes, length: int) -> int:
        """Store a medium message's data in the staging area."""
        medium = self._card.settings.medium
        if length > medium:
            return MALFORMED
        if not length:
            return REASON_NONE
        view = self._reach(endpoint, page, layout.STAGING)
        if view is None:
            return REASON_NO_MAPPING
        begin = (place - layout.ARRIVED_REQUESTS) * medium
        self._card.nic.dma_write(view[begin : begin + length], body[len(body) - length :])
        return REASON_NONE

    def _part(
        self,
        endpoint: Resident,
        page: memoryview,
        at: int,
        identity: tuple[int, int, int, int, int],
        body: bytes,
        length: int,
        offset: int,
        total: int,
    ) -> int:
        """Store a part of a bulk message in the segment; the endpoint's `parts` sum the bytes."""
        if offset + length > layout.segment_of(page):
            self._counters.bad_segments += 1
            return REASON_BAD_SEGMENT
        come, first = endpoint.parts.get(identity, (0, offset))
        if come + length > total or (not length and total):  # wrong sizes: undo it, so that its sender is told
            endpoint.parts.pop(identity, None)
            self._counters.bad_segments += 1
            return REASON_BAD_SEGMENT
        if come + length == total and page[at]:
            return REASON_OVERRUN
        if length:
            view = self._reach(endpoint, page, layout.SEGMENT)
            if view is None:
                return REASON_NO_MAPPING
            if offset + length > len(view):  # the host has just made the segment shorter
                self._counters.bad_segments += 1
                return REASON_BAD_SEGMENT
            self._card.nic.dma_write(view[offset : offset + length], body[len(body) - length :])
        endpoint.parts[identity] = (come + length, min(first, offset))
        return REASON_NONE

    def _reach(self, endpoint: Resident, page: memoryview, subject: int) -> memoryview | None:
        """Return memory of an endpoint if it is mapped; otherwise ask the host for a mapping, and return None."""
        region = endpoint.number << layout.SUBJECTS | subject
        view = endpoint.frames.reach(page, region, 0, 0)
        if view is None:
            endpoint.frames.absent.discard(region)
            self._counters.unmapped += 1
            if region not in endpoint.requested:
                endpoint.requested.add(region)
                self._card.nic.interrupt(region << layout.SUBJECTS | layout.UNMAPPED)
        return view


def _whole(body: bytes, first: int, total: int) -> bytes:
    """Return the header of a bulk message that is complete, as if it had been one part."""
    header = bytearray(body)
    PART(header, PART_AT, first, total)
    return bytes(header)
