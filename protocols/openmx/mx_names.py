"""MX's names and limits (`myriexpress.h`, `open-mx.h`, `omx_io.h`): status codes, and where one kind of message begins."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

TINY_MAX: Final = 32
"""Bytes of a message that its event carries."""
SMALL_MAX: Final = 128
"""Bytes of a message that one command carries."""
MEDIUM_MAX: Final = 32_768
"""Bytes of a message that is sent eagerly, in fragments; longer ones are pulled by their receiver."""
SHARED_MEDIUM_MAX: Final = 4_096
"""Bytes of an eager message between endpoints of one node."""
MAX_FRAGMENTS: Final = 32
MAX_FRAGMENT: Final = 8_192
"""Bytes of a fragment, or of a pull reply, on links of jumbo frames."""
MAX_LENGTH: Final = (1 << 32) - 1
MAX_SEGMENTS: Final = 256
MAX_ENDPOINTS: Final = 256
RAW_ENDPOINT: Final = 255
"""Reserved for raw packets."""
MAX_CONTEXT_BITS: Final = 16

BLOCK_FRAMES: Final = 32
"""Pull replies of a block."""
BLOCKS: Final = 4
"""Blocks of a pull that are under way at once."""
MAGIC: Final = 0x2107_1980
"""Combined with an endpoint's index it makes the magic of its pulls (OMX_ENDPOINT_PULL_MAGIC_XOR)."""

SEQNUM_BITS: Final = 14
SEQNUM: Final = (1 << SEQNUM_BITS) - 1
SESSIONS: Final = 4
"""Sessions that a sequence number tells apart."""
EARLY: Final = 0xFF
"""Messages ahead of the next one that a receiver keeps."""
MAX_UNACKED: Final = 8_191
"""Unacknowledged messages to one endpoint, above which more are held back."""

MATCH_NONE: Final = (1 << 64) - 1
"""The mask with which all bits count (MX_MATCH_MASK_NONE)."""


class Status(IntEnum):
    """Result of a request (mx_status_code_t, by the numbers of the description in docs/protocols/openmx.md)."""

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


class MxError(Exception):
    """A call that the library refuses. status: its code."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status: Final = status


def seqnum_after(seqnum: int, count: int = 1) -> int:
    """Return the sequence number so many messages later, in the same session."""
    return seqnum & ~SEQNUM | (seqnum + count) & SEQNUM


def distance(later: int, earlier: int) -> int:
    """Return how many messages lie between two sequence numbers of one session, modulo 2^14."""
    return (later - earlier) & SEQNUM
