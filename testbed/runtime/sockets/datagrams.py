"""Fragmentation of messages into datagrams, and their reassembly from datagrams in any order."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

HEADER: Final = struct.Struct("!IIIII")  # context, tag, message number, bytes of the message, offset of the fragment
MAX_FRAGMENT: Final = 65_507 - HEADER.size
"""Maximum bytes of a message in one datagram: the maximum payload of UDP over IPv4, less HEADER."""
MAX_MESSAGE_SIZE: Final = 1 << 24
"""Maximum bytes of a message."""
MAX_INCOMPLETE: Final = 64
"""Maximum number of incomplete messages that a receiver keeps; if there are more, the oldest is abandoned."""

Datagrams = list[tuple[bytes, memoryview]]
"""Datagrams of a message as (header, fragment), the last one first, so that the next one to send can be popped."""


class Message(NamedTuple):
    """A complete message. context, tag: of MPI. content: valid until the next datagram is added."""

    context: int
    tag: int
    content: memoryview


def split(context: int, tag: int, message_number: int, content: memoryview) -> Datagrams:
    """Split a message into datagrams. message_number: must differ from the numbers of all messages in flight to the
    receiver."""
    length = len(content)
    if length <= MAX_FRAGMENT:
        return [(HEADER.pack(context, tag, message_number, length, 0), content)]
    return [
        (HEADER.pack(context, tag, message_number, length, offset), content[offset : offset + MAX_FRAGMENT])
        for offset in reversed(range(0, length, MAX_FRAGMENT))
    ]


class _PartialMessage:
    """An incomplete message. missing: number of missing bytes. offsets: offsets of the fragments that have arrived."""

    __slots__ = ("content", "missing", "offsets")

    def __init__(self, length: int) -> None:
        self.content = memoryview(bytearray(length))
        self.missing = length
        self.offsets: set[int] = set()


class Assembly:
    """Reassembly at a receiver. abandoned: number of incomplete messages that were given up."""

    __slots__ = ("_partial", "abandoned")

    def __init__(self) -> None:
        self._partial: dict[tuple[int, int], _PartialMessage] = {}  # by sender and message number
        self.abandoned = 0

    @property
    def incomplete(self) -> int:
        """Number of incomplete messages, including the abandoned ones."""
        return self.abandoned + len(self._partial)

    def add(self, source: int, datagram: memoryview) -> Message | None:
        """Add a datagram; return its message if the message is complete now, else None. source: rank of the sender. Raises
        ValueError for an invalid datagram."""
        size = len(datagram) - HEADER.size
        if size < 0:
            raise ValueError(f"a datagram of {len(datagram)} bytes is shorter than its header ({HEADER.size} bytes)")
        context, tag, message_number, length, offset = HEADER.unpack_from(datagram)
        content = datagram[HEADER.size :]
        if size == length and not offset:
            return Message(context, tag, content)
        if length > MAX_MESSAGE_SIZE or offset % MAX_FRAGMENT or size != min(MAX_FRAGMENT, length - offset):
            raise ValueError(f"{size} bytes at offset {offset} are no fragment of a message of {length} bytes")
        partial = self._partial.get((source, message_number))
        if partial is None or len(partial.content) != length:
            partial = self._start(source, message_number, length)
        if offset in partial.offsets:
            return None
        partial.offsets.add(offset)
        partial.content[offset : offset + size] = content
        partial.missing -= size
        if partial.missing:
            return None
        del self._partial[source, message_number]
        return Message(context, tag, partial.content)

    def _start(self, source: int, message_number: int, length: int) -> _PartialMessage:
        if self._partial.pop((source, message_number), None) is not None:
            self.abandoned += 1
        elif len(self._partial) == MAX_INCOMPLETE:
            del self._partial[next(iter(self._partial))]
            self.abandoned += 1
        self._partial[source, message_number] = partial = _PartialMessage(length)
        return partial
