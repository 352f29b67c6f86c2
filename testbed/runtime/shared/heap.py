"""Pinned memory of a host whose NIC is another process: a heap in the region that both share. Addresses are offsets in the
heap.

A program's buffer in the heap (`Heap.allocate`) is used in place. Any other buffer is copied into the heap before it is
sent; received bytes are copied out of the heap.

The page that was freed last is allocated first, so that few pages are ever touched and take memory. Buffers longer than a
page occupy consecutive pages, allocated first-fit.
"""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_left
from typing import Final

from protocols.core.memory import PAGE, Allocating, Page, SharedDmaMemory, UnpinnedError


class HeapView(SharedDmaMemory):
    """A host's heap, as the agent of its NIC accesses it: no descriptor can refer to another part of the region."""

    __slots__ = ("_fence", "_heap", "_size")

    def __init__(self, heap: memoryview) -> None:
        self._heap = heap
        self._size = len(heap)
        self._fence = threading.Lock()

    def fence(self) -> None:
        with self._fence:  # taking a lock is a full fence: see `rings`
            pass

    def view(self, address: int, length: int) -> memoryview:
        """Return a view of `length` bytes of the heap. Raises UnpinnedError if they are not in the heap."""
        if address + length > self._size:
            raise UnpinnedError(f"{length} bytes at 0x{address:x} are outside the heap of {self._size} bytes")
        return self._heap[address : address + length]


class Heap(Allocating):
    """A host's heap, as the host allocates from it."""

    def __init__(self, heap: memoryview) -> None:
        self._heap = heap
        self._start: Final = ctypes.addressof(ctypes.c_char.from_buffer(heap))
        self._size = len(heap)
        self._free_pages: list[int] = []  # addresses of pages freed one by one
        # Start and end of free ranges; sorted, never adjacent. Address 0 is never free: a host library may use it as null.
        self._gaps = [(PAGE, len(heap) // PAGE * PAGE)]
        self._pinned: dict[int, tuple[memoryview | None, int]] = {}
        """By address: the buffer outside the heap that is filled on receipt, or None; and the bytes allocated for it."""
        self._allocations: dict[int, int] = {}  # of programs: address -> bytes
        self._in_place = 0  # number of pinned buffers in the heap
        self._fence = threading.Lock()

    def __len__(self) -> int:
        """Return the number of pinned buffers."""
        return len(self._pinned) + self._in_place

    @property
    def free(self) -> int:
        """Number of free bytes."""
        return sum(end - start for start, end in self._gaps) + PAGE * len(self._free_pages)

    def allocate(self, size: int) -> memoryview:
        """Allocate uninitialised memory that the NIC uses in place. Raises MemoryError."""
        address = self._allocate_pages(size)
        self._allocations[address] = size
        return self._heap[address : address + size]

    def release(self, buffer: memoryview) -> None:
        """Free a buffer from `allocate`. No view of it may be used afterwards."""
        address = self._address_of(buffer)
        self._free(address, self._allocations.pop(address))

    def fence(self) -> None:
        with self._fence:  # taking a lock is a full fence: see `rings`
            pass

    def has(self, buffer: memoryview) -> bool:
        """Whether a buffer lies in the heap."""
        return len(buffer) > 0 and buffer.obj is self._heap.obj

    def pin(self, buffer: memoryview, receive: int = 0) -> list[Page]:
        base, size = self.pin_page(buffer, receive), len(buffer)
        if size <= PAGE:
            return [(base, size)]
        return [(base + at, min(PAGE, size - at)) for at in range(0, size, PAGE)]

    def pin_page(self, buffer: memoryview, receive: int = 0) -> int:
        size = len(buffer)
        if size and buffer.obj is self._heap.obj:
            self._in_place += 1
            return self._address_of(buffer)
        address = self._free_pages.pop() if size <= PAGE and self._free_pages else self._allocate_pages(size)
        if receive:
            self._pinned[address] = buffer, size
        else:
            self._heap[address : address + size] = buffer
            self._pinned[address] = None, size
        return address

    def unpin(self, address: int, received: int = 0) -> None:
        pinned = self._pinned.pop(address, None)
        if pinned is None:
            self._in_place -= 1
            return
        buffer, size = pinned
        if buffer is not None and received:
            if received < size:
                size = received
            buffer[:size] = self._heap[address : address + size]
        self._free(address, pinned[1])

    def _address_of(self, buffer: memoryview) -> int:
        """Return the address of a buffer in the heap."""
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer)) - self._start

    def _allocate_pages(self, size: int) -> int:
        """Allocate consecutive pages for `size` bytes; return the address. Raises MemoryError."""
        size = max(PAGE, (size + PAGE - 1) // PAGE * PAGE)
        for is_merged in (False, True):
            for index, (start, end) in enumerate(self._gaps):
                if end - start >= size:
                    if end - start > size:
                        self._gaps[index] = start + size, end
                    else:
                        del self._gaps[index]
                    return start
            if is_merged or not self._free_pages:
                break
            while self._free_pages:
                self._add_gap(self._free_pages.pop(), PAGE)
        raise MemoryError(
            f"the pinned memory of {self._size} bytes has no {size} consecutive free bytes: wait for transfers to end"
        )

    def _free(self, address: int, size: int) -> None:
        if size <= PAGE:
            self._free_pages.append(address)
        else:
            self._add_gap(address, (size + PAGE - 1) // PAGE * PAGE)

    def _add_gap(self, start: int, size: int) -> None:
        """Add a free range to the gaps; merge it with adjacent ones."""
        gaps, end = self._gaps, start + size
        index = bisect_left(gaps, (start, 0))
        if index < len(gaps) and gaps[index][0] == end:
            end = gaps.pop(index)[1]
        if index and gaps[index - 1][1] == start:
            index -= 1
            start = gaps.pop(index)[0]
        gaps.insert(index, (start, end))
