"""The endpoints of a NIC's host, as the NIC knows them: which are in its endpoint frames, and what it keeps for each.

An endpoint leaves its frame when nothing of it is under way: each of its packets has been answered, if only by the NACK for
its latest sending, which says that no copy of it will be taken any more (section "Endpoint unloading").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocols.am2.messages import Message
from protocols.am2.nic_memory import Frames
from protocols.am2.page import ENTRIES

if TYPE_CHECKING:
    from protocols.am2.peers import Peer

# Where in a page the NIC notes what it must know of the endpoint when that comes into a frame again.
_NEXT_REQUEST: Final = 18
_NEXT_REPLY: Final = 19
_LAST: Final = ENTRIES - 1


class Resident:
    """An endpoint that there is, resident or not. frames: of its host. page: its frame; None: it is in none. leave_at: when
    it is to leave it; None: it is not asked to. is_leaving: it takes and sends nothing. is_released: the host writes nothing
    into the page any more. open: its packets that are not answered. faulted: the host knows that it is wanted. returns:
    slots of messages for whose return there is no room yet. parts: bytes that have come of bulk messages, and their least
    offset, by NIC, incarnation, origin, flags and message. asked: regions that the host was asked to map. askers:
    NICs from which requests have come for it."""

    __slots__ = (
        "asked", "askers", "faulted", "frames", "is_leaving", "is_released", "leave_at", "loaded_at", "messages",
        "next_reply", "next_request", "number", "open", "page", "parts", "returns",
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
        self.asked: set[int] = set()
        self.askers: dict[Peer, None] = {}

    def load(self, now: int, page: memoryview) -> None:
        """It is in a frame now."""
        self.page = page
        self.loaded_at = now
        self.next_request, self.next_reply = page[_NEXT_REQUEST] & _LAST, page[_NEXT_REPLY] & _LAST
        self.leave_at = None
        self.is_leaving = self.is_released = self.faulted = False

    def note(self, page: memoryview) -> None:
        """Before it leaves."""
        page[_NEXT_REQUEST], page[_NEXT_REPLY] = self.next_request, self.next_reply
