"""Shared region: the memory that one host process shares with the agent of its NIC, and its layout.

    control words of the doorbells' ring (host -> agent), then of the completions' (agent -> host)
    the numbers of both rings
    descriptors: the NIC's memory that the host reaches by programmed output
    heap: the host's pinned memory; a descriptor's address is an offset here

The agent makes it and hands it over with the descriptors for wake-ups. The host may write anywhere at any time; so the
agent keeps the state of its decisions in memory of its own.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Final

from testbed.runtime.shared import rings

_PAGE: Final = 4096
_CONTROL: Final = 2 * rings.SIZE


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of a region. entries: capacity of each ring, a power of two. descriptors, heap: bytes. ValueError for invalid
    values."""

    entries: int
    descriptors: int
    heap: int

    def __post_init__(self) -> None:
        if self.entries < 1 or self.entries & (self.entries - 1):
            raise ValueError(f"a ring of {self.entries} numbers: a power of two")
        for size in (self.descriptors, self.heap):
            if size < 0:
                raise ValueError(f"region size must be 0 or more, got {size}")

    @property
    def heap_begins(self) -> int:
        """Offset of the heap in the region, page-aligned."""
        behind = _CONTROL + 2 * self.entries * rings.WORD + self.descriptors
        return (behind + _PAGE - 1) // _PAGE * _PAGE

    @property
    def size(self) -> int:
        """Bytes of the region."""
        return self.heap_begins + self.heap


class Ring:
    """The words and numbers of one ring, for its reader and its writer."""

    __slots__ = ("numbers", "words")

    def __init__(self, words: memoryview, numbers: memoryview) -> None:
        self.words = words.cast("Q")
        self.numbers = numbers.cast("Q")


class Region:
    """A mapping of a region, which lasts until nothing refers to it or to a view of it."""

    __slots__ = ("completions", "descriptors", "doorbells", "heap", "layout")

    def __init__(self, descriptor: int, layout: Layout) -> None:
        """descriptor: of memory of the layout's size; it can be closed afterwards."""
        self.layout = layout
        memory = memoryview(mmap.mmap(descriptor, layout.size))
        size = layout.entries * rings.WORD
        behind = _CONTROL + 2 * size
        self.doorbells = Ring(memory[: rings.SIZE], memory[_CONTROL : _CONTROL + size])
        self.completions = Ring(memory[rings.SIZE : _CONTROL], memory[_CONTROL + size : behind])
        self.descriptors = memory[behind : behind + layout.descriptors]
        self.heap = memory[layout.heap_begins :]
