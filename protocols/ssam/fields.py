"""Location of an active message's fields in a cell, for rules and captures, and the summary of each kind of message.

No field of a cell identifies SSAM: the circuit does. On ATM networks all circuits between nodes belong to SSAM.
"""

from __future__ import annotations

from typing import Final

from protocols.atm.fields import ETHERTYPE as ETHERTYPE
from protocols.core.frame_kinds import Kind

ABOVE: Final = "atm"
"""Name of the header below. Offsets count from its first byte."""

REQUEST: Final = 0
REPLY: Final = 1
ACKNOWLEDGEMENT: Final = 2
BYTES: Final = 3
"""Further data of a long message: a request without a handler."""

FIELDS: Final[dict[str, tuple[object, ...]]] = {
    "kind": (5, 1, 0xC0),
    "session": (5, 2, 0x3FC0),
    "number": (6, 1, 0x3F),
    "handler": (7, 4),
    "length": (51, 1, 0xFC),
    "check": (51, 2, 0x03FF),
}
"""Fields for rules: offset, width and mask. In a message of kind BYTES, the handler field contains data."""

FLOW: Final = ()
"""A cell belongs to the flow of its circuit."""

NAMES: Final[dict[str, dict[int, str]]] = {
    "kind": {REQUEST: "REQUEST", REPLY: "REPLY", ACKNOWLEDGEMENT: "ACKNOWLEDGEMENT", BYTES: "BYTES"}
}
"""Names of field values."""

CHECK: Final = "check"
"""The field that is computed from the rest of the payload."""

KIND: Final = "kind"
KINDS: Final[dict[int, Kind]] = {
    REQUEST: Kind("data", "SSAM REQUEST {number} of session {session}, handler {handler:#x}, {length} bytes"),
    REPLY: Kind("data", "SSAM REPLY to {number} of session {session}, handler {handler:#x}, {length} bytes"),
    ACKNOWLEDGEMENT: Kind("ack", "SSAM ACKNOWLEDGEMENT of {number} of session {session}[, handler {handler:#x}]"),
    BYTES: Kind("data", "SSAM BYTES {number} of session {session}, {length} bytes"),
}
"""Summaries of messages. A message has no id here, since numbers repeat after 64 requests of a circuit."""


def unpack_cell(frame: bytes) -> bytes:
    """Return the payload of a frame's first cell. Raises MalformedError if it is not a valid message."""
    from protocols.atm.cell import CELL, ETHERNET, HEADER, PAYLOAD  # deferred: only decoders need these modules
    from protocols.core.malformed import MalformedError
    from protocols.ssam.cells import unpack

    payload = frame[ETHERNET + HEADER : ETHERNET + CELL]
    if len(payload) < PAYLOAD:
        raise MalformedError("short")
    if unpack(payload) is None:
        raise MalformedError(CHECK)
    return payload


def mended(frame: bytes, begin: int) -> bytes:
    """Return the frame with a message's CRC recomputed. begin: offset of the message's cell. Unchanged if the cell is
    incomplete."""
    from protocols.atm.cell import CELL, HEADER, PAYLOAD
    from protocols.ssam.cells import with_crc

    payload = frame[begin + HEADER : begin + CELL]
    return frame[: begin + HEADER] + with_crc(payload) + frame[begin + CELL :] if len(payload) == PAYLOAD else frame
