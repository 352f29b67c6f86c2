"""Host memory as a NIC sees it: pages at physical addresses, which the host obtains from the kernel.

A program's buffer is pinned for a transfer and translated to physical addresses page by page (EMP section 3.2: the
kernel translates, in less than a microsecond per page). The NIC can access pinned memory only, whatever address a
descriptor contains.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, Protocol

PAGE: Final = 4096
"""Size of a page in bytes, on the machines of the papers and on most machines today."""

_REGION_BITS: Final = 32  # bits of the offset in a region; the higher bits are the region's number
_OFFSET_MASK: Final = (1 << _REGION_BITS) - 1

Page = tuple[int, int]
"""Physical address, and length in bytes."""


class UnpinnedError(LookupError):
    """An address range is not pinned, or not completely."""


class DmaMemory(Protocol):
    """Host memory as the NIC accesses it."""

    __slots__ = ()

    def view(self, address: int, length: int) -> memoryview:
        """Return a view of `length` bytes at a physical address. Raises UnpinnedError if they are not pinned."""
        ...


class SharedDmaMemory(DmaMemory, Protocol):
    """Host memory in another process, as the NIC accesses it."""

    __slots__ = ()

    def fence(self) -> None:
        """Make earlier writes visible to the host before later reads."""
        ...


class Pinning(Protocol):
    """Host memory as the host library accesses it."""

    __slots__ = ()

    def __len__(self) -> int:
        """Number of pinned regions."""
        ...

    def pin(self, buffer: memoryview, receive: int = 0) -> list[Page]:
        """Pin a buffer, and return its pages; each entry is at most a page long. buffer: contiguous bytes. receive:
        nonzero if the NIC will write to the buffer, 0 if it will only read. Raises MemoryError if there is no room."""
        ...

    def pin_page(self, buffer: memoryview, receive: int = 0) -> int:
        """Pin a buffer of at most a page, or in contiguous pages, and return its address. Arguments and errors as for
        `pin`."""
        ...

    def unpin(self, address: int, received: int = 0) -> None:
        """Unpin the region at an address (`pin`'s first page). received: bytes that the NIC has written to it, or an
        upper bound."""
        ...


class Allocating(Pinning, Protocol):
    """Pinnable memory with an allocator: the NIC accesses allocated memory without a copy, and `pin_page` returns its
    address."""

    __slots__ = ()

    def allocate(self, size: int) -> memoryview:
        """Allocate memory, either zeroed or with former contents. Raises MemoryError."""
        ...

    def release(self, buffer: memoryview) -> None:
        """Free memory from `allocate`. The caller must not use the memory, or a view of it, afterwards."""
        ...

    def has(self, buffer: memoryview) -> bool:
        """Whether the buffer lies in allocated memory."""
        ...

    def fence(self) -> None:
        """Make earlier writes visible to the NIC before later reads."""
        ...


class HostMemory(DmaMemory, Pinning):
    """Pinned regions of a host that shares a process with its NIC; each region is contiguous."""

    __slots__ = ("_next", "_regions")

    def __init__(self) -> None:
        self._regions: dict[int, memoryview] = {}
        self._next = 1

    def __len__(self) -> int:
        """Number of pinned regions."""
        return len(self._regions)

    def pin(self, buffer: memoryview, receive: int = 0) -> list[Page]:  # noqa: ARG002
        base, size = self.pin_page(buffer), len(buffer)
        if size <= PAGE:
            return [(base, size)]
        last = (size - 1) // PAGE * PAGE
        return [*[(base + offset, PAGE) for offset in range(0, last, PAGE)], (base + last, size - last)]

    def pin_page(self, buffer: memoryview, receive: int = 0) -> int:  # noqa: ARG002
        number = self._next
        self._next = number + 1
        self._regions[number] = buffer
        return number << _REGION_BITS

    def unpin(self, address: int, received: int = 0) -> None:  # noqa: ARG002
        del self._regions[address >> _REGION_BITS]

    def view(self, address: int, length: int) -> memoryview:
        region = self._regions.get(address >> _REGION_BITS)
        begin = address & _OFFSET_MASK
        if region is None or begin + length > len(region):
            raise UnpinnedError(f"{length} bytes at 0x{address:x} are not pinned")
        return region[begin : begin + length] if begin or length < len(region) else region


class Scatter:
    """A message's location in host memory: several segments in order, addressed by offset in the message."""

    __slots__ = ("_begins", "_last", "_segments")

    def __init__(self, segments: Sequence[memoryview]) -> None:
        self._segments = segments
        begin = 0
        self._begins = begins = [begin]
        for segment in segments:
            begin += len(segment)
            begins.append(begin)
        # Segment in which the last lookup ended. The next lookup mostly begins there, and then needs no search.
        self._last = 0

    def __len__(self) -> int:
        """Length in bytes."""
        return self._begins[-1]

    def views(self, begin: int, end: int) -> list[memoryview]:
        """Return views of the message's bytes from offset `begin` up to `end`, one for each segment with such bytes."""
        if begin >= end:
            return []
        segments, begins, index = self._segments, self._begins, self._last
        if not begins[index] <= begin < begins[index + 1]:
            index = bisect_right(begins, begin) - 1
        start, segment_end = begins[index], begins[index + 1]
        views: list[memoryview] = []
        while end > segment_end:
            if begin < segment_end:
                views.append(segments[index][begin - start :])
                begin = segment_end
            index += 1
            start, segment_end = segment_end, begins[index + 1]
        self._last = index
        views.append(segments[index][begin - start : end - start])
        return views


Span = memoryview | Scatter
"""A message's location in host memory: in most cases one segment."""
