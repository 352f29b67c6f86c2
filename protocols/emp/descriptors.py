"""Descriptors: 20 bytes each in the NIC's memory, by which a host gives transfers to its NIC and gets them back.

Section 4.2: 640 of them serve sends and receives; the host writes one and hands it over in its stat field, and finds
there that it has it back. Every page address comes with a length of 16 bits, so that a message can lie in pieces. Three
formats:

- one page: the descriptor names it;
- a chain of up to four descriptors names up to seven pages: one in the first, two in each of the others;
- an indirect list: the descriptor names pinned memory that holds the pages.

The paper gives the size and the formats, not the layout; this one is ours. Of a descriptor that the NIC gives back, the
address holds the message's length, peer and tag are the message's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from protocols.core.memory import Page, Reachable, Scatter, Span, UnpinnedError

if TYPE_CHECKING:
    from protocols.emp.host_transfers import Transfer

SIZE: Final = 20
_HEAD: Final = struct.Struct("!BBHQHIH")  # stat, kind, length of the page, address, peer, tag, number of pages
pack_head: Final = _HEAD.pack_into
"""Write a descriptor into the NIC's memory at a place: stat, kind, length, address, peer, tag, number of pages."""
unpack_head: Final = _HEAD.unpack_from
"""The same back."""
_PAGES: Final = struct.Struct("!QHQH")  # two pages
_ENTRY: Final = struct.Struct("!QH")  # of an indirect list

# stat: who owns the descriptor, and what became of the transfer.
HOST: Final = 0
NIC: Final = 1
DONE: Final = 2
TRUNCATED: Final = 3
"""A receive that was shorter than its message; it has been filled."""
RESTARTED: Final = 4
"""The peer has started again and knows nothing of the message."""
GAVE_UP: Final = 5
"""No acknowledgement came for as long as the settings say."""
ABANDONED: Final = 6
"""The peer has given up sending the message."""
INVALID: Final = 7
"""The descriptor makes no sense, or names memory that is not pinned."""
FOUND: Final = 8
"""A probe that has found a message; the length's upper half is the message's id."""
NOTHING: Final = 9
"""A probe that was not to wait, and for which no message was there."""
TAKEN_BACK: Final = 10
"""A receive that the host has taken back before there was a message for it."""

# kind: the operation, the format, and whether any tag will do.
SEND: Final = 0
RECEIVE: Final = 1
ONE_PAGE: Final = 0 << 1
CHAIN: Final = 1 << 1
INDIRECT: Final = 2 << 1
ANY_TAG: Final = 1 << 3
FORMAT: Final = 3 << 1
# With RECEIVE, and ours: EMP's MPI needs them.
PROBE: Final = 1 << 4
"""Not to receive: to tell of the message that would be."""
WAIT: Final = 1 << 5
"""With PROBE: until there is one."""
CLAIM: Final = 1 << 6
"""With PROBE: and to keep it for the receive that names it."""
CLAIMED: Final = 1 << 7
"""The receive of a message that was claimed; its id stands for the tag."""

ANY_SOURCE: Final = 0xFFFF
MOST_CHAINED: Final = 7
MOST_PAGES: Final = 0xFFFF
CONTEXT: Final = 0xFF00_0000
"""The bits of a tag that even a receive for any tag asks for: so MPI's communicators stay apart."""


class DescriptorError(ValueError):
    """What a host wrote makes no sense."""


def chained(pages: int) -> int:
    """How many descriptors so many pages take."""
    return 1 if pages <= 1 or pages > MOST_CHAINED else 1 + pages // 2


def list_of(pages: Sequence[Page]) -> bytearray:
    """An indirect list, for the host to pin."""
    return bytearray(struct.pack("!" + "QH" * len(pages), *[number for page in pages for number in page]))


class Descriptors:
    """All of a NIC's, which the host reaches by programmed input and output."""

    __slots__ = ("count", "handed", "memory", "most_pieces", "pages_apart")

    def __init__(
        self,
        count: int,
        pages_apart: bool = False,
        memory: bytearray | memoryview | None = None,
        handed: dict[int, Transfer] | None = None,
        most_pieces: int = MOST_PAGES,
    ) -> None:
        """pages_apart: as an adapter's. memory: where they are, if not in memory of their own. handed: transfers that are
        handed over as they are, by the index of a descriptor that is not written; None: host and NIC have no such dict in
        common. most_pieces: in which a message may lie; the NIC keeps as much for each as for a page."""
        self.handed = handed
        self.most_pieces = most_pieces
        self.count = count
        self.pages_apart = pages_apart
        self.memory = bytearray(SIZE * count) if memory is None else memory
        """All of it. A descriptor that the NIC gives back has the message's length where the address was."""

    def write(self, index: int, kind: int, pages: Sequence[Page], peer: int, tag: int, stated: int = 0) -> None:
        """A transfer, in the format that kind says, handed over to the NIC. stated: how many pages an indirect list has,
        whose address is then the only page given."""
        address, length = pages[0]
        place = index * SIZE
        if len(pages) > 1:
            for at in range(1, len(pages), 2):
                second = pages[at + 1] if at + 1 < len(pages) else (0, 0)
                _PAGES.pack_into(self.memory, place + SIZE * (at + 1) // 2, *pages[at], *second)
        # The stat field comes last: from then on it is the NIC's.
        pack_head(self.memory, place, NIC, kind, 0 if stated else length, address, peer, tag, stated or len(pages))

    def scatter(self, index: int, kind: int, length: int, address: int, count: int, memory: Reachable) -> Span:
        """Where a transfer's bytes are, by what its first descriptor says. Raises DescriptorError for a format that is none,
        and for memory that the host has not pinned."""
        kind &= FORMAT
        pages: list[Page]
        if kind == ONE_PAGE and count == 1:
            pages = [(address, length)]
        elif kind == CHAIN and 1 < count <= MOST_CHAINED and index + chained(count) <= self.count:
            pages = [(address, length)]
            for place in range(index + 1, index + chained(count)):
                first, size, second, more = _PAGES.unpack_from(self.memory, place * SIZE)
                pages += [(first, size), (second, more)]
            del pages[count:]
        elif kind == INDIRECT and count:
            try:
                pages = list(_ENTRY.iter_unpack(memory.view(address, count * _ENTRY.size)))
            except UnpinnedError as error:
                raise DescriptorError(f"the list of pages: {error}") from error
        else:
            raise DescriptorError(f"descriptor {index}: format {kind >> 1} with {count} pages")
        # Pages that lie one behind the other are one piece for the DMA engine, where memory is like that.
        pieces: list[memoryview] = []
        begin, size = pages[0]
        try:
            for address, length in pages[1:]:
                if address == begin + size and not self.pages_apart:
                    size += length
                else:
                    pieces.append(memory.view(begin, size))
                    begin, size = address, length
            pieces.append(memory.view(begin, size))
        except UnpinnedError as error:
            raise DescriptorError(f"descriptor {index}: {error}") from error
        pieces = [piece for piece in pieces if piece] or pieces[:1]
        if len(pieces) > self.most_pieces:
            raise DescriptorError(f"descriptor {index}: {len(pieces)} pieces, and {self.most_pieces} are allowed")
        return pieces[0] if len(pieces) == 1 else Scatter(pieces)
