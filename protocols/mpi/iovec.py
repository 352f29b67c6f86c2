"""Messages that are not contiguous, as derived datatypes define them. A NIC with scatter/gather descriptors moves them
in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""A segment's offset in its buffer, and its length, in bytes."""


class IoVec:
    """A message that consists of several segments of a buffer, in order. len() is its size in bytes."""

    __slots__ = ("_size", "spans", "whole")

    def __init__(self, whole: memoryview, spans: Sequence[Span]) -> None:
        """whole: the buffer, as bytes. spans: its segments."""
        self.whole = whole
        self.spans = spans
        self._size = sum(length for _, length in spans)

    def __len__(self) -> int:
        return self._size

    def views(self) -> list[memoryview]:
        """Return a view of each segment."""
        whole = self.whole
        return [whole[begin : begin + length] for begin, length in self.spans]

    def gathered(self) -> memoryview:
        """Return a contiguous copy."""
        return memoryview(b"".join(self.views()))

    def scatter(self, data: memoryview) -> None:
        """Copy a message to the segments; it may be shorter."""
        at = 0
        for begin, length in self.spans:
            segment = data[at : at + length]
            self.whole[begin : begin + len(segment)] = segment
            at += length
            if at >= len(data):
                return


Data: TypeAlias = memoryview | IoVec
"""A message's memory: contiguous bytes, or an I/O vector."""


def gathered(data: Data) -> memoryview:
    """Return the message's bytes contiguously; only an I/O vector is copied."""
    return data if isinstance(data, memoryview) else data.gathered()


def joined(spans: Iterable[Span]) -> list[Span]:
    """Merge adjacent spans and remove empty ones, in order."""
    out: list[Span] = []
    end = -1
    for begin, length in spans:
        if not length:
            continue
        if begin == end:
            out[-1] = (out[-1][0], out[-1][1] + length)
        else:
            out.append((begin, length))
        end = begin + length
    return out
