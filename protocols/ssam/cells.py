"""The format of an active message in a cell's 48 bytes of payload.

Section 3.1.1: 16 bits of flow control, 32 bits of handler address, 40 bytes of data, and a check as in AAL3/4's trailer:
6 bits of length and a CRC-10 (x^10 + x^9 + x^5 + x^4 + x + 1, ITU-T I.363.3). The paper does not say what the flow
control's bits are; these are ours: kind (2 bits), session (8), sequence number (6). The length counts handler and data.
Section 3.4.4 plans cells of long messages with a longer payload; a cell of kind BYTES is that: it has data in the place of
the handler, 44 bytes in all.
"""

from __future__ import annotations

from functools import reduce
from operator import getitem, xor
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

_HEAD: Final = Struct("!HI")
_HANDLER: Final = 4
_GENERATOR: Final = 0x633
_BITS: Final = 10


class Message(NamedTuple):
    """A cell's message. number: its sequence number, or that of the request that it answers."""

    kind: int
    session: int
    number: int
    handler: int
    data: bytes


def _times_x8(value: int) -> int:
    """Return the remainder of a remainder times x^8."""
    for _ in range(8):
        value <<= 1
        if value >> _BITS:
            value ^= _GENERATOR
    return value


def _remainders() -> tuple[tuple[int, ...], ...]:
    """Return what each byte contributes to a payload's remainder, by its place and its value."""
    times_x8 = [_times_x8(value) for value in range(1 << _BITS)]
    places = [tuple(range(256))]
    for _ in range(PAYLOAD - 1):
        places.append(tuple([times_x8[value] for value in places[-1]]))
    return tuple(reversed(places))


_REMAINDERS: Final = _remainders()


def crc10(payload: Buffer) -> int:
    """Return the remainder of a payload: 0 where its last 10 bits are the check of what stands before them. It is the sum
    of what each byte contributes at its place."""
    return reduce(xor, map(getitem, _REMAINDERS, payload))


def pack_into(buffer: bytearray, offset: int, message: Message) -> None:
    """Write a message's payload without its check. The unused data is zero."""
    kind, session, number, handler, data = message
    length = len(data) if kind == BYTES else len(data) + _HANDLER
    if kind == INTRODUCTION:
        kind, handler = ACKNOWLEDGEMENT, INTRODUCES
    _HEAD.pack_into(buffer, offset, kind << 14 | session << 6 | number, handler)
    begin, end = offset + _HEAD.size - (_HANDLER if kind == BYTES else 0), offset + PAYLOAD - 2
    buffer[begin : begin + len(data)] = data
    buffer[begin + len(data) : end] = bytes(end - begin - len(data))
    buffer[end : end + 2] = bytes((length << 2, 0))


def checked(payload: Buffer) -> bytes:
    """Add the check to a payload, as the interface does."""
    whole = bytearray(payload)
    whole[-2] &= 0xFC
    whole[-1] = 0
    crc = crc10(whole)
    whole[-2] |= crc >> 8
    whole[-1] = crc & 0xFF
    return bytes(whole)


def unpack(payload: Buffer) -> Message | None:
    """Return a payload's message; None where its length or check is wrong."""
    length = payload[PAYLOAD - 2] >> 2
    if length > LONG or crc10(payload):
        return None
    control, handler = _HEAD.unpack_from(payload)
    kind, session, number = control >> 14, control >> 6 & 0xFF, control & 0x3F
    if kind == BYTES:
        return Message(BYTES, session, number, 0, bytes(payload[_HEAD.size - _HANDLER :][:length]))
    if length < _HANDLER:
        return None
    if kind == ACKNOWLEDGEMENT and handler == INTRODUCES:
        kind, handler = INTRODUCTION, 0
    return Message(kind, session, number, handler, bytes(payload[_HEAD.size :][: length - _HANDLER]))
