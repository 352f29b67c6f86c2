"""MX's names and limits (`myriexpress.h`, `open-mx.h`, `omx_io.h`): status codes, and the size limits of message types."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

TINY_MAX: Final = 32
"""Maximum bytes of a tiny message, whose data Open-MX puts into its event."""
SMALL_MAX: Final = 128
"""Maximum bytes of a message whose data is in its command."""
MEDIUM_MAX: Final = 32_768
"""Maximum bytes of an eager message, sent in fragments; the receiver pulls longer ones."""
MAX_FRAGMENTS: Final = 32
MAX_FRAGMENT: Final = 8_192
"""Maximum bytes of a fragment, or of a pull reply, on links with jumbo frames."""
MAX_LENGTH: Final = (1 << 32) - 1
"""Maximum bytes of a message: its length is a field of 32 bits."""
MAX_SEGMENTS: Final = 256
"""Maximum number of buffers from which a message is gathered, or to which it is scattered."""
MAX_ENDPOINTS: Final = 256
RAW_ENDPOINT: Final = 255
"""Reserved for raw packets."""
MAX_CONTEXT_BITS: Final = 16

BLOCK_FRAMES: Final = 32
"""Frames (pull replies) of a block."""
BLOCKS: Final = 4
"""Blocks of a pull that are in flight at a time."""
PULL_MAGIC: Final = 0x2107_1980
"""The magic of an endpoint's pulls is its index XOR this constant (OMX_ENDPOINT_PULL_MAGIC_XOR)."""

SEQNUM_BITS: Final = 14
SEQNUM_MASK: Final = (1 << SEQNUM_BITS) - 1
SESSIONS: Final = 4
"""Number of sessions that a sequence number distinguishes."""
MAX_EARLY: Final = 0xFF
"""How far ahead of the next expected message a receiver keeps messages."""
MAX_UNACKED: Final = 8_191
"""Maximum number of unacknowledged messages to one endpoint; further ones wait."""

MATCH_NONE: Final = (1 << 64) - 1
"""The mask that compares all bits (MX_MATCH_MASK_NONE)."""


class Status(IntEnum):
    """Status code of a request or call (mx_status_code_t), numbered as in docs/protocols/openmx.md."""

    SUCCESS = 0
    PENDING = 1
    BUFFERED = 2
    REJECTED = 3
    TIMEOUT = 4
    TRUNCATED = 5
    CANCELLED = 6
    ENDPOINT_UNKNOWN = 7
    ENDPOINT_CLOSED = 8
    ENDPOINT_UNREACHABLE = 9
    BAD_SESSION = 10
    BAD_KEY = 11
    BAD_ENDPOINT = 12
    BAD_RDMAWIN = 13
    ABORTED = 14
    EVENTQ_FULL = 15
    NO_RESOURCES = 16


SUCCESS: Final = Status.SUCCESS
"""A plain name for code that runs for each message: each use of `Status.SUCCESS` looks the member up."""


class MxError(Exception):
    """A call of the library failed. status: its status code."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status: Final = status


def seqnum_after(seqnum: int, count: int = 1) -> int:
    """Return the sequence number `count` messages later, in the same session."""
    return seqnum & ~SEQNUM_MASK | (seqnum + count) & SEQNUM_MASK


def distance(later: int, earlier: int) -> int:
    """Return the difference of two sequence numbers of one session, modulo 2^14."""
    return (later - earlier) & SEQNUM_MASK
