"""Descriptors: 20 bytes each in the NIC's memory, by which a host passes transfers to its NIC and gets their results.

Section 4.2: 640 descriptors serve sends and receives. The host passes a descriptor to the NIC by its stat field, and the
NIC returns it by the same field. Every page address comes with a 16-bit length, so that a message can have several
segments. There are three formats:

- one page: the descriptor contains the address of the page;
- a chain of up to four descriptors contains up to seven pages: one in the first, two in each of the others;
- an indirect list: the descriptor contains the address of pinned memory that holds the list of pages.

A descriptor of a fourth format is a command to the firmware: it sets the number of frames per collection.

The paper defines the size and the formats, not the layout, which is ours. In a descriptor that the NIC returns, the
address field holds the message's length; peer and tag are the message's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from protocols.core.memory import DmaMemory, Page, Scatter, Span, UnpinnedError

SIZE: Final = 20
_HEAD: Final = struct.Struct("!BBHQHIH")  # stat, kind, length of the page, address, peer, tag, number of pages
Head = tuple[int, int, int, int, int, int, int]
"""A descriptor's head: stat, kind, length of the page, address, peer, tag, number of pages."""

pack_head: Final = _HEAD.pack_into
"""Write a descriptor's head into the NIC's memory: stat, kind, length, address, peer, tag, number of pages."""
unpack_head: Final = _HEAD.unpack_from
"""Read a descriptor's head, a `Head`."""
_RESULT: Final = struct.Struct("!B3xQHI2x")  # in place of the head: stat, length of the message, peer, tag
Result = tuple[int, int, int, int]
"""A returned descriptor: stat, length of the message, peer, tag."""

pack_result: Final = _RESULT.pack_into
"""Write a returned descriptor into the NIC's memory: stat, length of the message, peer, tag; its other fields are 0."""
unpack_result: Final = _RESULT.unpack_from
"""Read a returned descriptor, a `Result`."""
_PAGES: Final = struct.Struct("!QHQH")  # two pages
_ENTRY: Final = struct.Struct("!QH")  # one page

# stat: the descriptor's owner, and the result of the transfer.
HOST: Final = 0
NIC: Final = 1
DONE: Final = 2
TRUNCATED: Final = 3
"""The message is longer than the receive, which has been filled."""
RESTARTED: Final = 4
"""The peer has restarted. Whether a sent message had arrived is not known; the rest of a message to receive will not
come."""
GAVE_UP: Final = 5
"""No acknowledgement arrived within `Settings.give_up`."""
ABANDONED: Final = 6
"""The peer has given up sending the message, or a claimed message no longer exists."""
INVALID: Final = 7
"""The descriptor is invalid, or names memory that is not pinned."""
MESSAGE_FOUND: Final = 8
"""A probe has found a message; the upper half of the length is the message's id."""
NO_MESSAGE: Final = 9
"""A probe without WAIT has found no message."""
CANCELLED: Final = 10
"""The host has cancelled a receive before a message matched it."""
CRASHED: Final = 11
"""The host has reported that the peer's program has crashed, and the rest of the message will not come."""

# kind: the operation, the format, and whether the tag is a wildcard.
SEND: Final = 0
RECEIVE: Final = 1
ONE_PAGE: Final = 0 << 1
CHAIN: Final = 1 << 1
INDIRECT: Final = 2 << 1
SET_UNIT: Final = 3 << 1
"""A command in place of a transfer: the tag is the new number of frames per collection."""
ANY_TAG: Final = 1 << 3
FORMAT: Final = 3 << 1
"""Mask of the format."""
# Extensions of ours to RECEIVE, for MPI.
PROBE: Final = 1 << 4
"""Report the message that the receive would get, without receiving it."""
WAIT: Final = 1 << 5
"""With PROBE: wait until there is a message."""
STANDING: Final = WAIT
"""Without PROBE: a receive that no program waits for, kept for messages that may come."""
CLAIM: Final = 1 << 6
"""With PROBE: keep the message for the receive that names it."""
CLAIMED: Final = 1 << 7
"""Receive a claimed message; its id takes the place of the tag."""

ANY_SOURCE: Final = 0xFFFF
MAX_CHAINED: Final = 7
"""Pages of a chain."""
MAX_PAGES: Final = 0xFFFF
"""Pages of a transfer."""
CONTEXT: Final = 0xFF00_0000
"""The tag bits that even a receive for any tag compares: they separate MPI's communicators."""


class DescriptorError(ValueError):
    """A host has written an invalid descriptor."""


def chain_length(pages: int) -> int:
    """Return the number of descriptors of a transfer of this many pages: a chain's length, or 1 with a list of pages."""
    return 1 if pages <= 1 or pages > MAX_CHAINED else 1 + pages // 2


def pack_page_list(pages: Sequence[Page]) -> bytearray:
    """Pack the list of pages of an indirect descriptor; the host pins it."""
    return bytearray(struct.pack("!" + "QH" * len(pages), *[number for page in pages for number in page]))


class Descriptors:
    """All descriptors of a NIC, which the host accesses by programmed input and output."""

    __slots__ = ("count", "max_segments", "memory", "pages_apart")

    def __init__(
        self,
        count: int,
        pages_apart: bool = False,
        memory: bytearray | memoryview | None = None,
        max_segments: int = MAX_PAGES,
    ) -> None:
        """pages_apart: see `Adapter`. memory: holds the descriptors; None: it is allocated. max_segments: maximum number
        of segments of a message, for each of which the NIC keeps state."""
        self.max_segments = max_segments
        self.count = count
        self.pages_apart = pages_apart
        self.memory = bytearray(SIZE * count) if memory is None else memory
        """The memory of all descriptors. A returned descriptor has the message's length in place of the address."""

    def write_unit(self, index: int, unit: int) -> None:
        """Write the command that sets the number of frames per collection, and pass it to the NIC."""
        pack_head(self.memory, index * SIZE, NIC, SET_UNIT, 0, 0, 0, unit, 1)

    def write(self, index: int, kind: int, pages: Sequence[Page], peer: int, tag: int, page_count: int = 0) -> None:
        """Write a transfer in the format of `kind`, and pass it to the NIC. page_count: number of pages in an indirect
        list, whose address is then the only entry of `pages`; 0 for the other formats."""
        address, length = pages[0]
        offset = index * SIZE
        if len(pages) > 1:
            for number in range(1, len(pages), 2):
                second_page = pages[number + 1] if number + 1 < len(pages) else (0, 0)
                _PAGES.pack_into(self.memory, offset + SIZE * (number + 1) // 2, *pages[number], *second_page)
        # The stat field comes last: writing it passes the descriptor to the NIC.
        pack_head(
            self.memory, offset, NIC, kind, 0 if page_count else length, address, peer, tag, page_count or len(pages)
        )

    def locate(self, index: int, kind: int, length: int, address: int, count: int, memory: DmaMemory) -> Span:
        """Return the location of a transfer's bytes in host memory. index: of its first descriptor. kind, length, address,
        count: that descriptor's fields, count being the number of pages. memory: the host's. Raises DescriptorError for an
        invalid format, for memory that is not pinned, and for more than `max_segments` segments."""
        kind &= FORMAT
        pages: list[Page]
        if kind == ONE_PAGE and count == 1:
            pages = [(address, length)]
        elif kind == CHAIN and 1 < count <= MAX_CHAINED and index + chain_length(count) <= self.count:
            rest_of_chain = self.memory[(index + 1) * SIZE : (index + chain_length(count)) * SIZE]
            pages = [(address, length), *_ENTRY.iter_unpack(rest_of_chain)]
            del pages[count:]  # the last descriptor has room for two pages
        elif kind == INDIRECT and count:
            try:
                pages = list(_ENTRY.iter_unpack(memory.view(address, count * _ENTRY.size)))
            except UnpinnedError as error:
                raise DescriptorError(f"the list of pages: {error}") from error
        else:
            raise DescriptorError(f"descriptor {index}: format {kind >> 1} with {count} pages")
        # Contiguous pages are one segment for the DMA engine, if host memory is contiguous.
        segments: list[memoryview] = []
        begin, size = pages[0]
        try:
            for address, length in pages[1:]:
                if address == begin + size and not self.pages_apart:
                    size += length
                else:
                    segments.append(memory.view(begin, size))
                    begin, size = address, length
            segments.append(memory.view(begin, size))
        except UnpinnedError as error:
            raise DescriptorError(f"descriptor {index}: {error}") from error
        segments = [segment for segment in segments if segment] or segments[:1]
        if len(segments) > self.max_segments:
            raise DescriptorError(
                f"descriptor {index}: {len(segments)} segments, at most {self.max_segments} are allowed"
            )
        return segments[0] if len(segments) == 1 else Scatter(segments)
