"""I/O vectors: messages that are not contiguous in memory, as derived datatypes define them. A NIC with scatter/gather
descriptors transfers them without a copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""A segment's offset in its buffer, and its length, in bytes."""


class IoVec:
    """A message that consists of several segments of a buffer, in order. len() is its size in bytes."""

    __slots__ = ("_size", "buffer", "spans")

    def __init__(self, buffer: memoryview, spans: Sequence[Span]) -> None:
        """buffer: the buffer, as bytes. spans: its segments."""
        self.buffer = buffer
        self.spans = spans
        self._size = sum(length for _, length in spans)

    def __len__(self) -> int:
        return self._size

    def views(self) -> list[memoryview]:
        """Return a view of each segment."""
        buffer = self.buffer
        return [buffer[begin : begin + length] for begin, length in self.spans]

    def gather(self) -> memoryview:
        """Return a contiguous copy."""
        return memoryview(b"".join(self.views()))

    def scatter(self, data: memoryview) -> None:
        """Copy a message to the segments; a shorter message leaves the rest of the segments unchanged."""
        position = 0
        for begin, length in self.spans:
            segment = data[position : position + length]
            self.buffer[begin : begin + len(segment)] = segment
            position += length
            if position >= len(data):
                return


Data: TypeAlias = memoryview | IoVec
"""A message's memory: contiguous bytes, or an I/O vector."""


def to_contiguous(data: Data) -> memoryview:
    """Return the message's bytes as contiguous memory; only an I/O vector is copied."""
    return data if isinstance(data, memoryview) else data.gather()


def merge_adjacent(spans: Iterable[Span]) -> list[Span]:
    """Merge adjacent spans and remove empty ones, in order."""
    merged: list[Span] = []
    end = -1
    for begin, length in spans:
        if not length:
            continue
        if begin == end:
            merged[-1] = (merged[-1][0], merged[-1][1] + length)
        else:
            merged.append((begin, length))
        end = begin + length
    return merged
