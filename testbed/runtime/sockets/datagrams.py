"""Messages as datagrams: one, or as many as a longer message takes, and whole messages from datagrams in any order."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

HEAD: Final = struct.Struct("!IIIII")  # context, tag, number of the message, its bytes, where this datagram's begin
MOST: Final = 65_507 - HEAD.size
"""Bytes of a message in one datagram: what IPv4 leaves of its 65,535."""
LONGEST: Final = 1 << 24
"""Bytes of a message."""
UNFINISHED: Final = 64
"""Messages of several datagrams that may be incomplete at a time; of more the oldest is given up."""

Pieces = list[tuple[bytes, memoryview]]
"""Datagrams, the last one first: head and content."""


class Message(NamedTuple):
    """content: valid until the next datagram is taken."""

    context: int
    tag: int
    content: memoryview


def split(context: int, tag: int, number: int, content: memoryview) -> Pieces:
    """The datagrams of a message. number: another one than that of any message under way to the same receiver."""
    length = len(content)
    if length <= MOST:
        return [(HEAD.pack(context, tag, number, length, 0), content)]
    return [
        (HEAD.pack(context, tag, number, length, begin), content[begin : begin + MOST])
        for begin in reversed(range(0, length, MOST))
    ]


class _Partial:
    """A message of which some datagrams have come. begins: where those begin. missing: bytes."""

    __slots__ = ("begins", "content", "missing")

    def __init__(self, length: int) -> None:
        self.content = memoryview(bytearray(length))
        self.missing = length
        self.begins: set[int] = set()


class Assembly:
    """A receiver's. given_up: messages of which a datagram was lost."""

    __slots__ = ("_partial", "given_up")

    def __init__(self) -> None:
        self._partial: dict[tuple[int, int], _Partial] = {}  # by sender and number
        self.given_up = 0

    @property
    def incomplete(self) -> int:
        """Messages of which a datagram is missing, and those that were given up."""
        return self.given_up + len(self._partial)

    def take(self, source: int, datagram: memoryview) -> Message | None:
        """The message that is whole now; None where more of it is to come. Raises ValueError for no datagram of ours."""
        size = len(datagram) - HEAD.size
        if size < 0:
            raise ValueError("no head")
        context, tag, number, length, begin = HEAD.unpack_from(datagram)
        content = datagram[HEAD.size :]
        if size == length and not begin:
            return Message(context, tag, content)
        if length > LONGEST or begin % MOST or size != min(MOST, length - begin):
            raise ValueError("no piece of a message")
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
        elif len(self._partial) == UNFINISHED:
            del self._partial[next(iter(self._partial))]
            self.given_up += 1
        self._partial[source, number] = partial = _Partial(length)
        return partial
