"""Shared region: the memory that one host process shares with the agent of its NIC. It contains, in this order:

    control words of the ring of doorbells (host -> agent), then of the ring of completions (agent -> host)
    the numbers in both rings
    descriptors: memory of the NIC that the host writes by programmed I/O
    heap: the host's pinned memory; an address in a descriptor is an offset in the heap

The agent makes the region, and passes it to the host together with the file descriptors for wake-ups. The host may write
anywhere at any time, so the agent keeps all state on which it relies in private memory.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Final

from testbed.runtime.shared import rings

_PAGE: Final = 4096
_CONTROL: Final = 2 * rings.CONTROL_SIZE


@dataclass(frozen=True, slots=True)
class RegionLayout:
    """Layout of a region. entries: capacity of each ring, a power of two. descriptors, heap: bytes of these parts. Raises
    ValueError for invalid values."""

    entries: int
    descriptors: int
    heap: int

    def __post_init__(self) -> None:
        if self.entries < 1 or self.entries & (self.entries - 1):
            raise ValueError(f"the capacity of a ring must be a power of two, got {self.entries}")
        for size in (self.descriptors, self.heap):
            if size < 0:
                raise ValueError(f"region size must be 0 or more, got {size}")

    @property
    def heap_offset(self) -> int:
        """Offset of the heap in the region, page-aligned."""
        end = _CONTROL + 2 * self.entries * rings.WORD + self.descriptors
        return (end + _PAGE - 1) // _PAGE * _PAGE

    @property
    def size(self) -> int:
        """Bytes of the region."""
        return self.heap_offset + self.heap


class Ring:
    """Control words and numbers of one ring, as views of 64-bit words for its reader or writer."""

    __slots__ = ("numbers", "words")

    def __init__(self, words: memoryview, numbers: memoryview) -> None:
        self.words = words.cast("Q")
        self.numbers = numbers.cast("Q")


class Region:
    """Mapping of a region. It stays mapped as long as the object or a view of its memory is referenced."""

    __slots__ = ("completions", "descriptors", "doorbells", "heap", "layout")

    def __init__(self, descriptor: int, layout: RegionLayout) -> None:
        """descriptor: file descriptor of memory of the layout's size; it can be closed afterwards."""
        self.layout = layout
        memory = memoryview(mmap.mmap(descriptor, layout.size))
        size = layout.entries * rings.WORD
        rings_end = _CONTROL + 2 * size
        self.doorbells = Ring(memory[: rings.CONTROL_SIZE], memory[_CONTROL : _CONTROL + size])
        self.completions = Ring(memory[rings.CONTROL_SIZE : _CONTROL], memory[_CONTROL + size : rings_end])
        self.descriptors = memory[rings_end : rings_end + layout.descriptors]
        self.heap = memory[layout.heap_offset :]
