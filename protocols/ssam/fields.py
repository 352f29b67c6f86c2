"""Location of an active message's fields in a cell, for rules and captures, and the words for each kind of message.

Nothing in a cell says that it is SSAM's: its circuit does, and on these networks all circuits between nodes are SSAM's.
"""

from __future__ import annotations

from typing import Final

from protocols.atm.fields import ETHERTYPE as ETHERTYPE
from protocols.core.frame_kinds import Kind

ABOVE: Final = "atm"
"""The header in front, from whose first byte offsets count."""

REQUEST: Final = 0
REPLY: Final = 1
ACKNOWLEDGEMENT: Final = 2
BYTES: Final = 3
"""More data of a long message: a request without a handler of its own."""

FIELDS: Final[dict[str, tuple[object, ...]]] = {
    "kind": (5, 1, 0xC0),
    "session": (5, 2, 0x3FC0),
    "number": (6, 1, 0x3F),
    "handler": (7, 4),
    "length": (51, 1, 0xFC),
    "check": (51, 2, 0x03FF),
}
"""Fields for rules: offset, width and mask. Of a message of kind BYTES, the handler is data."""

FLOW: Final = ()
"""Cells have the flows of their circuits."""

NAMES: Final[dict[str, dict[int, str]]] = {
    "kind": {REQUEST: "REQUEST", REPLY: "REPLY", ACKNOWLEDGEMENT: "ACKNOWLEDGEMENT", BYTES: "BYTES"}
}
"""Names of values."""

CHECK: Final = "check"
"""The field that is computed from the rest of the payload."""

KIND: Final = "kind"
KINDS: Final[dict[int, Kind]] = {
    REQUEST: Kind("data", "SSAM REQUEST {number} of session {session}, handler {handler:#x}, {length} bytes"),
    REPLY: Kind("data", "SSAM REPLY to {number} of session {session}, handler {handler:#x}, {length} bytes"),
    ACKNOWLEDGEMENT: Kind("ack", "SSAM ACKNOWLEDGEMENT of {number} of session {session}[, handler {handler:#x}]"),
    BYTES: Kind("data", "SSAM BYTES {number} of session {session}, {length} bytes"),
}
"""How messages are described. They have no id among those of a circuit, since a number comes again after 64 requests."""


def unpack_cell(frame: bytes) -> bytes:
    """Return the payload of a frame's first cell. Raises MalformedError where it is no message."""
    from protocols.atm.cell import CELL, ETHERNET, HEADER, PAYLOAD  # loaded by who decodes cells, not by who has fields
    from protocols.core.malformed import MalformedError
    from protocols.ssam.cells import unpack

    payload = frame[ETHERNET + HEADER : ETHERNET + CELL]
    if len(payload) < PAYLOAD:
        raise MalformedError("short")
    if unpack(payload) is None:
        raise MalformedError(CHECK)
    return payload


def mended(frame: bytes, begin: int) -> bytes:
    """Compute a message's check anew. begin: of its cell."""
    from protocols.atm.cell import CELL, HEADER, PAYLOAD
    from protocols.ssam.cells import with_crc

    payload = frame[begin + HEADER : begin + CELL]
    return frame[: begin + HEADER] + with_crc(payload) + frame[begin + CELL :] if len(payload) == PAYLOAD else frame
