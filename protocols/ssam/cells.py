"""The format of an active message in a cell's 48 bytes of payload.

Section 3.1.1: 16 bits of flow control, 32 bits of handler address, 40 bytes of data, and a check as in AAL3/4's trailer:
6 bits of length and a CRC-10 (x^10 + x^9 + x^5 + x^4 + x + 1, ITU-T I.363.3). The paper does not say what the flow
control's bits are; these are ours: kind (2 bits), session (8), sequence number (6). The length counts handler and data.
Section 3.4.4 plans cells of long messages with a longer payload; a cell of kind BYTES is that: it has data in the place of
the handler, 44 bytes in all.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from protocols.atm.cell import PAYLOAD
from protocols.core.firmware import Buffer
from protocols.ssam.fields import ACKNOWLEDGEMENT as ACKNOWLEDGEMENT
from protocols.ssam.fields import BYTES as BYTES
from protocols.ssam.fields import REPLY as REPLY
from protocols.ssam.fields import REQUEST as REQUEST

DATA: Final = 40
"""Bytes of a message."""

INTRODUCTION: Final = 4
"""States the sender's identity, and the receiver's as the sender knows it, 0 if it does not (our addition). In the cell it
is an acknowledgement whose handler is INTRODUCES."""

MISSING: Final = 1
"""In the place of an acknowledgement's handler: the request of that number is missing before others (ours)."""
INTRODUCES: Final = 2
LONG: Final = DATA + 4
"""Bytes of data in a cell of kind BYTES."""

NUMBERS: Final = 64
"""Sequence numbers are modulo this."""
SESSIONS: Final = 256
"""Sessions are modulo this."""

_CELL: Final = Struct("!HI40sH")
"""Flow control, handler, data, length and check."""
_BYTES_CELL: Final = Struct("!H44sH")
_HANDLER: Final = 4
_CHECK: Final = 10
"""Bits of the check, below the length."""
_GENERATOR: Final = 0x633


class Message(NamedTuple):
    """A cell's message. number: its sequence number, or that of the request that it answers."""

    kind: int
    session: int
    number: int
    handler: int
    data: bytes


def _parities() -> tuple[int, ...]:
    """Return for each bit of the check, the highest first, the bits of a payload whose parity it is: bit n of the payload
    contributes x^n modulo the generator."""
    masks, remainder = [0] * _CHECK, 1
    for place in range(8 * PAYLOAD):
        for bit in range(_CHECK):
            masks[_CHECK - 1 - bit] |= (remainder >> bit & 1) << place
        remainder <<= 1
        if remainder >> _CHECK:
            remainder ^= _GENERATOR
    return tuple(masks)


_PARITIES: Final = _parities()


def crc10(payload: Buffer) -> int:
    """Return the remainder of a payload: 0 where its last 10 bits are the check of what stands before them."""
    bits, remainder = int.from_bytes(payload, "big"), 0
    for mask in _PARITIES:
        remainder = remainder << 1 | (bits & mask).bit_count() & 1
    return remainder


def pack_into(buffer: bytearray, offset: int, message: Message) -> None:
    """Write a message's payload without its check. The unused data is zero."""
    kind, session, number, handler, data = message
    if kind == INTRODUCTION:
        kind, handler = ACKNOWLEDGEMENT, INTRODUCES
    control = kind << 14 | session << 6 | number
    if kind == BYTES:
        _BYTES_CELL.pack_into(buffer, offset, control, data, len(data) << _CHECK)
    else:
        _CELL.pack_into(buffer, offset, control, handler, data, len(data) + _HANDLER << _CHECK)


def checked(payload: Buffer) -> bytes:
    """Add the check to a payload, as the interface does, whatever stands in its place."""
    end = (payload[-2] << 8 | payload[-1]) ^ crc10(payload)
    return bytes(payload[:-2]) + end.to_bytes(2, "big")


def unpack(payload: Buffer) -> Message | None:
    """Return a payload's message; None where its length or check is wrong."""
    control, handler, data, end = _CELL.unpack(payload)
    length = end >> _CHECK
    if length > LONG or crc10(payload):
        return None
    kind, session, number = control >> 14, control >> 6 & 0xFF, control & 0x3F
    if kind == BYTES:
        return Message(BYTES, session, number, 0, _BYTES_CELL.unpack(payload)[1][:length])
    if length < _HANDLER:
        return None
    if kind == ACKNOWLEDGEMENT and handler == INTRODUCES:
        kind, handler = INTRODUCTION, 0
    return Message(kind, session, number, handler, data[: length - _HANDLER])
