"""The NIC's view of its hosts' endpoints: which are in its endpoint frames, and its state for each.

An endpoint leaves its frame when none of its packets is in flight: each has been answered, at least by the NACK for its
latest sending, which tells that no copy of it will be accepted any more (section "Endpoint unloading").
"""

from __future__ import annotations

from typing import Final

from protocols.am2.nic_memory import Frames
from protocols.am2.page import ENTRIES
from protocols.am2.peers import Peer
from protocols.am2.transport import Message

# Offsets in a page at which the NIC saves its ring positions for the endpoint's next load.
_NEXT_REQUEST: Final = 18
_NEXT_REPLY: Final = 19
_LAST: Final = ENTRIES - 1


class Resident:
    """An existing endpoint, resident or not.

    frames: its host's. page: its frame; None: it is not resident. leave_at: when it is to leave its frame; None: it has
    not been asked to. is_leaving: it accepts and sends nothing. is_released: the host no longer writes into the page.
    open: number of its unanswered packets. faulted: the host has been told that it is wanted. returns: slots of
    messages that wait for room to be returned. parts: bytes received of bulk messages, and their least offset, by NIC,
    incarnation, origin, flags and message. requested: regions that the host was asked to map. requesters: NICs that have
    sent requests to it.
    """

    __slots__ = (
        "faulted",
        "frames",
        "is_leaving",
        "is_released",
        "leave_at",
        "loaded_at",
        "messages",
        "next_reply",
        "next_request",
        "number",
        "open",
        "page",
        "parts",
        "requested",
        "requesters",
        "returns",
    )  # fmt: skip

    def __init__(self, number: int, frames: Frames) -> None:
        self.number: Final = number
        self.frames: Final = frames
        self.page: memoryview | None = None
        self.loaded_at = 0
        self.leave_at: int | None = None
        self.is_leaving = False
        self.is_released = False
        self.faulted = False
        self.open = 0
        self.next_request = 0
        self.next_reply = 0
        self.messages: dict[int, Message] = {}
        self.returns: list[int] = []
        self.parts: dict[tuple[int, int, int, int, int], tuple[int, int]] = {}
        self.requested: set[int] = set()
        self.requesters: dict[Peer, None] = {}

    def load(self, now: int, page: memoryview) -> None:
        """Enter a frame."""
        self.page = page
        self.loaded_at = now
        self.next_request, self.next_reply = page[_NEXT_REQUEST] & _LAST, page[_NEXT_REPLY] & _LAST
        self.leave_at = None
        self.is_leaving = self.is_released = self.faulted = False

    def note(self, page: memoryview) -> None:
        """Save the ring positions in the page, before it leaves its frame."""
        page[_NEXT_REQUEST], page[_NEXT_REPLY] = self.next_request, self.next_reply
