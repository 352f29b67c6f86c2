"""The NIC's state of a host's endpoint.

An endpoint leaves its endpoint frame when none of its packets is in flight: each has been answered, at least by the
NACK for its latest sending, after which no copy of it will be accepted (section "Endpoint unloading").
"""

from __future__ import annotations

from typing import Final

from protocols.am2.nic_memory import NicEndpointFrames
from protocols.am2.page import NEXT_REPLY_OFFSET, NEXT_REQUEST_OFFSET, RING_SIZE
from protocols.am2.peers import Peer
from protocols.am2.transport import Message

_RING_MASK: Final = RING_SIZE - 1

BulkKey = tuple[int, int, int, int, int]
"""NIC, incarnation, origin, flags and number of a bulk message."""


class NicEndpoint:
    """An existing endpoint, resident or not.

    frames: its host's endpoint frames. page: its frame; None: it is not resident. loaded_at: time of its last load.
    leave_at: time from which it may leave its frame; None: it need not leave. is_leaving: it accepts and sends no
    message. is_released: the host no longer writes into the page. has_faulted: the host has been notified of a message
    for the endpoint while it was not resident. unanswered_count: number of its unanswered packets. next_request,
    next_reply: positions in the rings of arrived messages. messages: its messages in progress, by slot.
    returning_slots: slots of undeliverable messages that wait for room in the reply ring. bulk_parts: bytes received
    and least offset of each incomplete bulk message. requested_regions: regions for which a mapping has been requested.
    requesters: NICs that have sent requests to it.
    """

    __slots__ = (
        "bulk_parts",
        "frames",
        "has_faulted",
        "is_leaving",
        "is_released",
        "leave_at",
        "loaded_at",
        "messages",
        "next_reply",
        "next_request",
        "number",
        "page",
        "requested_regions",
        "requesters",
        "returning_slots",
        "unanswered_count",
    )  # fmt: skip

    def __init__(self, number: int, frames: NicEndpointFrames) -> None:
        self.number: Final = number
        self.frames: Final = frames
        self.page: memoryview | None = None
        self.loaded_at = 0
        self.leave_at: int | None = None
        self.is_leaving = False
        self.is_released = False
        self.has_faulted = False
        self.unanswered_count = 0
        self.next_request = 0
        self.next_reply = 0
        self.messages: dict[int, Message] = {}
        self.returning_slots: list[int] = []
        self.bulk_parts: dict[BulkKey, tuple[int, int]] = {}
        self.requested_regions: set[int] = set()
        self.requesters: dict[Peer, None] = {}

    def load(self, now: int, page: memoryview) -> None:
        """Make the endpoint resident. page: its frame, which contains the page."""
        self.page = page
        self.loaded_at = now
        self.next_request, self.next_reply = (
            page[NEXT_REQUEST_OFFSET] & _RING_MASK,
            page[NEXT_REPLY_OFFSET] & _RING_MASK,
        )
        self.leave_at = None
        self.is_leaving = self.is_released = self.has_faulted = False

    def save_ring_positions(self, page: memoryview) -> None:
        """Save the ring positions in the page, before the endpoint leaves its frame."""
        page[NEXT_REQUEST_OFFSET], page[NEXT_REPLY_OFFSET] = self.next_request, self.next_reply
