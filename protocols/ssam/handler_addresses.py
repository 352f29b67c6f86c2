"""Encoding of endpoints' messages in one-cell messages: the handler address, and the header before the data.

A cell's 32 bits of handler address (section 3.1.1) contain, from the highest bit: the form (2 bits), number of words
before the data (4), destination endpoint (6), source endpoint (6), remainder of the tag (6), and handler number (8). A
request's data starts with its number, which identifies the request in histories.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from protocols.active_messages.endpoint_names import ANY, NONE
from protocols.core.firmware import Buffer

SHORT, MEDIUM, BULK, MORE = range(4)
"""Forms: words only; words and data for the handler; first cell of data for the segment; further such cells."""
MAX_ENDPOINTS: Final = 64
"""Maximum endpoints of a node."""
MAX_HANDLER: Final = 0xFF
MAX_BULK_WORDS: Final = 4
WORD: Final = 4
"""Bytes of a word."""
WANTS_WINDOW: Final = 8
"""Flag in the `words` field of a bulk message's first cell, which requests a larger window (section 3.5)."""
GRANTED: Final = 0
"""Status in the library's reply that grants a larger window; the next word is the window's size."""

_REMAINDERS: Final = 63
_MASK: Final = 0xFFFF_FFFF
_HEAD: Final = Struct("!II")


class Address(NamedTuple):
    """The parts of a cell's handler address. words: number of words in the cell. to, source: numbers of the destination
    and the source endpoint. tag_remainder: see `tag_remainder`; 0 in replies. handler: 0 for the library."""

    form: int
    words: int
    to: int
    source: int
    tag_remainder: int
    handler: int

    def pack(self) -> int:
        """Return the handler address."""
        form, words, to, source, remainder, handler = self
        return form << 30 | words << 26 | to << 20 | source << 14 | remainder << 8 | handler


def address_of(handler: int) -> Address:
    """Return the parts of a cell's handler address."""
    return Address(
        handler >> 30,
        handler >> 26 & 0xF,
        handler >> 20 & 0x3F,
        handler >> 14 & 0x3F,
        handler >> 8 & 0x3F,
        handler & 0xFF,
    )


def tag_remainder(tag: int) -> int:
    """Return the remainder that represents a tag in cells: 1 to 63; 0 for NONE."""
    return 1 + tag % _REMAINDERS if tag != NONE else 0


def accepts(tag: int, remainder: int) -> bool:
    """Whether an endpoint with a tag accepts a request with this remainder."""
    return tag == ANY or (tag != NONE and tag_remainder(tag) == remainder)


def checked_handler(number: int) -> int:
    """Return a handler's number if it is valid. Raises ValueError."""
    if not 1 <= number <= MAX_HANDLER:
        raise ValueError(f"handler must be 1 to {MAX_HANDLER}, got {number}")
    return number


def pack_words(words: tuple[int, ...], data: Buffer, room: int) -> bytes:
    """Encode words, followed by data. Raises ValueError if they take more than `room` bytes, or for an invalid word."""
    if any(not 0 <= word <= _MASK for word in words):
        raise ValueError(f"words must be integers from 0 to {_MASK}, got {words}")
    contents = memoryview(data).tobytes()  # the length of a view counts items
    size = WORD * len(words) + len(contents)
    if size > room:
        raise ValueError(
            f"{len(words)} words and {len(contents)} bytes of data take {size} bytes: a message has {room}"
        )
    return b"".join(word.to_bytes(WORD, "big") for word in words) + contents


def unpack_words(body: bytes, count: int) -> tuple[tuple[int, ...], bytes] | None:
    """Decode `count` words. Returns them and the data after them; None if the body is too short."""
    end = WORD * count
    if len(body) < end:
        return None
    return tuple(int.from_bytes(body[start : start + WORD], "big") for start in range(0, end, WORD)), body[end:]


def pack_head(offset: int, length: int, words: tuple[int, ...]) -> bytes:
    """Encode the header of a bulk message, which follows the request's number and precedes the data. Raises ValueError
    for an offset or words that a bulk message cannot have."""
    if offset < 0 or offset + length > _MASK:
        raise ValueError(f"{length} bytes at offset {offset}: a segment has at most {_MASK} bytes, from offset 0")
    if len(words) > MAX_BULK_WORDS:
        raise ValueError(f"{len(words)} words: a bulk message has {MAX_BULK_WORDS} at most")
    return _HEAD.pack(offset, length) + pack_words(words, b"", WORD * MAX_BULK_WORDS)


def unpack_head(body: bytes) -> tuple[int, int, bytes] | None:
    """Decode the header of a bulk message. Returns offset, length, and the bytes after these; None if the body is too
    short."""
    if len(body) < _HEAD.size:
        return None
    offset, length = _HEAD.unpack_from(body)
    return offset, length, body[_HEAD.size :]
