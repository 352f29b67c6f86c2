"""Host memory as a NIC sees it: pages at physical addresses, which the host has asked the kernel for.

A program's buffer is pinned for a transfer and gets physical addresses page by page (EMP section 3.2: the kernel
translates, a page takes below a microsecond). Whatever address a descriptor names, the NIC reaches pinned memory only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Protocol

PAGE: Final = 4096
"""Bytes; of the machines in the papers, and of most today."""

_REGION_BITS: Final = 32  # of a physical address, below the region's number: no region is larger
_WITHIN: Final = (1 << _REGION_BITS) - 1

Page = tuple[int, int]
"""A physical address, and how many bytes from there on."""


class UnpinnedError(LookupError):
    """An address range that is not, or not wholly, pinned memory."""


class Reachable(Protocol):
    """Host memory as the NIC has it."""

    def view(self, address: int, length: int) -> memoryview:
        """The bytes there. Raises UnpinnedError."""
        ...


class SharedReachable(Reachable, Protocol):
    """The same, of a host that is another process."""

    def fence(self) -> None:
        """What is written before is seen by the host before anything is read after."""
        ...


class Pinning(Protocol):
    """Host memory as the host library has it."""

    def __len__(self) -> int:
        """How many regions are pinned."""
        ...

    def pin(self, buffer: memoryview, receive: int = 0) -> list[Page]:
        """Keep a buffer's pages in memory and say where they are, each at most a page long. buffer: bytes, contiguous.
        receive: whether the NIC will write there (not 0), or read. MemoryError where there is no room."""
        ...

    def pin_page(self, buffer: memoryview, receive: int = 0) -> int:
        """The same for a buffer that is no longer than a page, or lies in pages one behind the other: its address."""
        ...

    def unpin(self, address: int, received: int = 0) -> None:
        """The region that begins there (`pin`'s first page) is not the NIC's any more. received: bytes that the NIC has
        written there, or more."""
        ...


class Allocating(Pinning, Protocol):
    """The same, with memory to be had that the NIC uses where it is: what `pin_page` says of it is where it lies."""

    def allocate(self, size: int) -> memoryview:
        """All zero, or what was there before. MemoryError."""
        ...

    def release(self, buffer: memoryview) -> None:
        """What `allocate` has given is not used any more, nor any view of it."""
        ...

    def has(self, buffer: memoryview) -> bool:
        """Whether it lies in such memory."""
        ...

    def fence(self) -> None:
        """What is written before is seen by the NIC before anything is read after."""
        ...


class HostMemory:
    """One host's pinned regions, each contiguous, in one process with its NIC. Is `Reachable`, and does `Pinning`."""

    __slots__ = ("_next", "_regions")

    def __init__(self) -> None:
        self._regions: dict[int, memoryview] = {}
        self._next = 1

    def __len__(self) -> int:
        """How many regions are pinned."""
        return len(self._regions)

    def pin(self, buffer: memoryview, receive: int = 0) -> list[Page]:  # noqa: ARG002
        base, size = self.pin_page(buffer), len(buffer)
        if size <= PAGE:
            return [(base, size)]
        return [(base + at, min(PAGE, size - at)) for at in range(0, size, PAGE)]

    def pin_page(self, buffer: memoryview, receive: int = 0) -> int:  # noqa: ARG002
        self._regions[self._next] = buffer
        base = self._next << _REGION_BITS
        self._next += 1
        return base

    def unpin(self, address: int, received: int = 0) -> None:  # noqa: ARG002
        del self._regions[address >> _REGION_BITS]

    def view(self, address: int, length: int) -> memoryview:
        region = self._regions.get(address >> _REGION_BITS)
        begin = address & _WITHIN
        if region is None or begin + length > len(region):
            raise UnpinnedError(f"{length} bytes at 0x{address:x} are not pinned")
        return region[begin : begin + length] if begin or length < len(region) else region


class Scatter:
    """A message's place in host memory where that is several pieces, one behind the other."""

    __slots__ = ("_begins", "_place", "_whole")

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self._whole = pieces
        self._begins = [0, *accumulate(map(len, pieces))]
        # Of the piece that was asked for last: the next one asked for is most often there, or behind it.
        self._place = 0

    def __len__(self) -> int:
        """Bytes."""
        return self._begins[-1]

    def pieces(self, begin: int, end: int) -> list[memoryview]:
        """The message's bytes from begin to end, where they are."""
        if begin >= end:
            return []
        pieces, begins, place = self._whole, self._begins, self._place
        if not begins[place] <= begin < begins[place + 1]:
            place = bisect_right(begins, begin) - 1
        start, behind = begins[place], begins[place + 1]
        out: list[memoryview] = []
        while end > behind:
            if begin < behind:
                out.append(pieces[place][begin - start :])
                begin = behind
            place += 1
            start, behind = behind, begins[place + 1]
        self._place = place
        out.append(pieces[place][begin - start : end - start])
        return out


Span = memoryview | Scatter
"""A message's place in host memory: most often one piece."""
