"""A message that lies in pieces, as a derived datatype says: so a NIC with scatter/gather descriptors moves it in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""Where a piece begins in its buffer, and how long it is; bytes."""


class Pieces:
    """The message's bytes are those of the spans, one behind the other. len() is how many they are."""

    __slots__ = ("_size", "spans", "whole")

    def __init__(self, whole: memoryview, spans: Sequence[Span]) -> None:
        """whole: the buffer in which they lie, as bytes."""
        self.whole = whole
        self.spans = spans
        self._size = sum(length for _, length in spans)

    def __len__(self) -> int:
        return self._size

    def pieces(self) -> list[memoryview]:
        """They themselves."""
        whole = self.whole
        return [whole[begin : begin + length] for begin, length in self.spans]

    def gathered(self) -> memoryview:
        """A copy, in one piece."""
        return memoryview(b"".join(self.pieces()))

    def scatter(self, data: memoryview) -> None:
        """Put a message there; it may be shorter."""
        at = 0
        for begin, length in self.spans:
            piece = data[at : at + length]
            self.whole[begin : begin + len(piece)] = piece
            at += length
            if at >= len(data):
                return


Data: TypeAlias = memoryview | Pieces
"""A message's place in memory: as bytes in one piece, or in several."""


def gathered(data: Data) -> memoryview:
    """In one piece; a copy only where it has several."""
    return data if isinstance(data, memoryview) else data.gathered()


def joined(spans: Iterable[Span]) -> list[Span]:
    """With one span for those that lie one behind the other, and none that is empty. Their order stays."""
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
