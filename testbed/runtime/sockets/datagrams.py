"""Fragmentation of messages into datagrams, and their reassembly from datagrams in any order."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

HEADER: Final = struct.Struct("!IIIII")  # context, tag, number of the message, its bytes, where this datagram's begin
MAX: Final = 65_507 - HEADER.size
"""Maximum number of bytes of a message in one datagram: IPv4's 65,535 without headers."""
MAX_MESSAGE: Final = 1 << 24
"""Maximum number of bytes of a message."""
MAX_INCOMPLETE: Final = 64
"""Maximum number of incomplete messages of several datagrams; beyond it the oldest is given up."""

Datagrams = list[tuple[bytes, memoryview]]
"""Datagrams as head and content, the last one first."""


class Message(NamedTuple):
    """A message. content: valid until the next datagram is taken."""

    context: int
    tag: int
    content: memoryview


def split(context: int, tag: int, number: int, content: memoryview) -> Datagrams:
    """Split a message into datagrams. number: differs from that of any message under way to the same receiver."""
    length = len(content)
    if length <= MAX:
        return [(HEADER.pack(context, tag, number, length, 0), content)]
    return [
        (HEADER.pack(context, tag, number, length, begin), content[begin : begin + MAX])
        for begin in reversed(range(0, length, MAX))
    ]


class _Partial:
    """A message of which some datagrams have come. begins: their offsets. missing: bytes."""

    __slots__ = ("begins", "content", "missing")

    def __init__(self, length: int) -> None:
        self.content = memoryview(bytearray(length))
        self.missing = length
        self.begins: set[int] = set()


class Assembly:
    """Reassembly at a receiver. given_up: messages of which a datagram was lost."""

    __slots__ = ("_partial", "given_up")

    def __init__(self) -> None:
        self._partial: dict[tuple[int, int], _Partial] = {}  # by sender and number
        self.given_up = 0

    @property
    def incomplete(self) -> int:
        """Messages of which a datagram is missing, and those that were given up."""
        return self.given_up + len(self._partial)

    def take(self, source: int, datagram: memoryview) -> Message | None:
        """Add a datagram; return its message if it is complete now, else None. Raises ValueError for an invalid
        datagram."""
        size = len(datagram) - HEADER.size
        if size < 0:
            raise ValueError("the datagram is shorter than its header")
        context, tag, number, length, begin = HEADER.unpack_from(datagram)
        content = datagram[HEADER.size :]
        if size == length and not begin:
            return Message(context, tag, content)
        if length > MAX_MESSAGE or begin % MAX or size != min(MAX, length - begin):
            raise ValueError("the datagram is no fragment of a message")
        partial = self._partial.get((source, number))
        if partial is None or len(partial.content) != length:
            partial = self._begin(source, number, length)
        if begin in partial.begins:
            return None
        partial.begins.add(begin)
        partial.content[begin : begin + size] = content
        partial.missing -= size
        if partial.missing:
            return None
        del self._partial[source, number]
        return Message(context, tag, partial.content)

    def _begin(self, source: int, number: int, length: int) -> _Partial:
        if self._partial.pop((source, number), None) is not None:
            self.given_up += 1
        elif len(self._partial) == MAX_INCOMPLETE:
            del self._partial[next(iter(self._partial))]
            self.given_up += 1
        self._partial[source, number] = partial = _Partial(length)
        return partial
