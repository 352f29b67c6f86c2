"""The encoding of endpoints' messages in one-cell messages: handler address, and header before the data.

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
"""Forms: words; words and data for the handler; first cell of data for the segment; further cells."""
MAX_ENDPOINTS: Final = 64
MAX_HANDLER: Final = 0xFF
MAX_BULK_WORDS: Final = 4
WORD: Final = 4
WANTS_WINDOW: Final = 8
"""Flag in the `words` field of a bulk message's first cell: requests a larger window (section 3.5)."""
GRANTED: Final = 0
"""Status in the library's reply: a larger window is granted; the next word is its size."""

_REMAINDERS: Final = 63
_MASK: Final = 0xFFFF_FFFF
_HEAD: Final = Struct("!II")


class Address(NamedTuple):
    """A handler's address. words: number of words in the cell. tag_remainder: see `tag_remainder`; 0 in replies.
    handler: 0 for the library."""

    form: int
    words: int
    to: int
    source: int
    tag_remainder: int
    handler: int

    def pack(self) -> int:
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
    """Return the remainder of a tag for cells: 1 to 63; 0 for NONE."""
    return 1 + tag % _REMAINDERS if tag != NONE else 0


def accepts(tag: int, remainder: int) -> bool:
    """Whether an endpoint with a tag accepts a request with this remainder."""
    return tag == ANY or (tag != NONE and tag_remainder(tag) == remainder)


def checked_handler(number: int) -> int:
    """Return a handler's number. Raises ValueError."""
    if not 1 <= number <= MAX_HANDLER:
        raise ValueError(f"handler {number}: 1 to {MAX_HANDLER}")
    return number


def pack_words(words: tuple[int, ...], data: Buffer, room: int) -> bytes:
    """Return words and data. Raises ValueError if they take more than `room` bytes, or a word is wrong."""
    if any(not 0 <= word <= _MASK for word in words):
        raise ValueError(f"words {words}: integers from 0 to {_MASK}")
    size = WORD * len(words) + len(data)
    if size > room:
        raise ValueError(f"{len(words)} words and {len(data)} bytes of data take {size} bytes: a message has {room}")
    return b"".join(word.to_bytes(WORD, "big") for word in words) + bytes(data)


def unpack_words(body: bytes, count: int) -> tuple[tuple[int, ...], bytes] | None:
    """Return `count` words, and the data after them; None: the body is too short."""
    end = WORD * count
    if len(body) < end:
        return None
    return tuple(int.from_bytes(body[start : start + WORD], "big") for start in range(0, end, WORD)), body[end:]


def pack_head(offset: int, length: int, words: tuple[int, ...]) -> bytes:
    """Return the header of a bulk message, between its number and its data. Raises ValueError."""
    if offset < 0 or offset + length > _MASK:
        raise ValueError(f"{length} bytes from {offset} on: a segment has at most {_MASK}")
    if len(words) > MAX_BULK_WORDS:
        raise ValueError(f"{len(words)} words: a bulk message has {MAX_BULK_WORDS} at most")
    return _HEAD.pack(offset, length) + pack_words(words, b"", WORD * MAX_BULK_WORDS)


def unpack_head(body: bytes) -> tuple[int, int, bytes] | None:
    """Return a bulk message's offset, length, and remaining bytes; None: the body is too short."""
    if len(body) < _HEAD.size:
        return None
    offset, length = _HEAD.unpack_from(body)
    return offset, length, body[_HEAD.size :]
