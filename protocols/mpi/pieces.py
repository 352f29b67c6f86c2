"""Messages in pieces, as a derived datatype defines them, which a NIC with scatter/gather descriptors moves in
place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""A piece's offset in its buffer, and its length, in bytes."""


class Pieces:
    """A message that consists of the bytes of spans, in order. len() is its size in bytes."""

    __slots__ = ("_size", "spans", "whole")

    def __init__(self, whole: memoryview, spans: Sequence[Span]) -> None:
        """whole: the buffer that contains them, as bytes."""
        self.whole = whole
        self.spans = spans
        self._size = sum(length for _, length in spans)

    def __len__(self) -> int:
        return self._size

    def pieces(self) -> list[memoryview]:
        """Return a view of each piece."""
        whole = self.whole
        return [whole[begin : begin + length] for begin, length in self.spans]

    def gathered(self) -> memoryview:
        """Return a contiguous copy."""
        return memoryview(b"".join(self.pieces()))

    def scatter(self, data: memoryview) -> None:
        """Copy a message to the pieces; it may be shorter."""
        at = 0
        for begin, length in self.spans:
            piece = data[at : at + length]
            self.whole[begin : begin + len(piece)] = piece
            at += length
            if at >= len(data):
                return


Data: TypeAlias = memoryview | Pieces
"""A message's memory: contiguous bytes, or pieces."""


def gathered(data: Data) -> memoryview:
    """Return the message's bytes contiguously; copies only pieces."""
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
