"""Pinned memory of a host whose NIC is another process: a heap in the region that both share. An address is an offset.

A program's buffer in the heap (`Heap.allocate`) is used in place. Any other is copied: in, before it is sent; out, as far
as a message has filled it.

The page that was freed last is allocated first, so that few pages are ever touched and take memory. Longer buffers are
consecutive pages, allocated first-fit.
"""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_left
from typing import Final

from protocols.core.memory import PAGE, Page, UnpinnedError


class ReachedMemory:
    """A host's heap for the agent of its NIC, which can reach nothing else of the region, wherever a descriptor points."""

    __slots__ = ("_fence", "_heap", "_size")

    def __init__(self, heap: memoryview) -> None:
        self._heap = heap
        self._size = len(heap)
        self._fence = threading.Lock()

    def fence(self) -> None:
        with self._fence:  # see `rings`
            pass

    def view(self, address: int, length: int) -> memoryview:
        """Return a view of the heap. Raises UnpinnedError outside of it."""
        if address + length > self._size:
            raise UnpinnedError(f"{length} bytes at 0x{address:x} are outside the heap of {self._size}")
        return self._heap[address : address + length]


class Heap:
    """A heap for its host. Implements `Allocating`."""

    def __init__(self, heap: memoryview) -> None:
        self._heap = heap
        self._begin: Final = ctypes.addressof(ctypes.c_char.from_buffer(heap))
        self._size = len(heap)
        self._single: list[int] = []  # addresses of freed pages
        self._gaps = [(PAGE, len(heap) // PAGE * PAGE)]  # begin, end; sorted, never adjacent
        # Address 0 is never allocated: a host library may use it as null.
        self._pinned: dict[int, tuple[memoryview | None, int]] = {}
        """By address: a buffer elsewhere that is to be filled (else None), and the bytes to be freed (or 0)."""
        self._own: dict[int, int] = {}  # programs' allocations: address -> bytes
        self._in_place = 0
        self._fence = threading.Lock()

    def __len__(self) -> int:
        return len(self._pinned) + self._in_place

    @property
    def free(self) -> int:
        """Free bytes."""
        return sum(end - begin for begin, end in self._gaps) + PAGE * len(self._single)

    def allocate(self, size: int) -> memoryview:
        """Allocate memory that the NIC uses in place; its content is 0 or that of a former buffer. MemoryError."""
        address = self._take(size)
        self._own[address] = size
        return self._heap[address : address + size]

    def release(self, buffer: memoryview) -> None:
        """Free a buffer of `allocate`, of which no view is used any more."""
        address = self._where(buffer)
        self._give_back(address, self._own.pop(address))

    def fence(self) -> None:
        with self._fence:  # see `rings`
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
            return self._where(buffer)
        address = self._single.pop() if size <= PAGE and self._single else self._take(size)
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
        self._give_back(address, pinned[1])

    def _where(self, buffer: memoryview) -> int:
        """Return the address of a buffer in the heap."""
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer)) - self._begin

    def _take(self, size: int) -> int:
        """Allocate consecutive pages for `size` bytes; return the address. MemoryError."""
        size = max(PAGE, (size + PAGE - 1) // PAGE * PAGE)
        for again in (False, True):
            for index, (begin, end) in enumerate(self._gaps):
                if end - begin >= size:
                    if end - begin > size:
                        self._gaps[index] = begin + size, end
                    else:
                        del self._gaps[index]
                    return begin
            if again or not self._single:
                break
            while self._single:
                self._fill(self._single.pop(), PAGE)
        raise MemoryError(
            f"of {self._size} bytes of pinned memory no {size} in a row are free: wait for transfers to be done"
        )

    def _give_back(self, address: int, size: int) -> None:
        if size <= PAGE:
            self._single.append(address)
        else:
            self._fill(address, (size + PAGE - 1) // PAGE * PAGE)

    def _fill(self, begin: int, size: int) -> None:
        """Add free pages to the gaps, merged with adjacent ones."""
        gaps, end = self._gaps, begin + size
        index = bisect_left(gaps, (begin, 0))
        if index < len(gaps) and gaps[index][0] == end:
            end = gaps.pop(index)[1]
        if index and gaps[index - 1][1] == begin:
            index -= 1
            begin = gaps.pop(index)[0]
        gaps.insert(index, (begin, end))
