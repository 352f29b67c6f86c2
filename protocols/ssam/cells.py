"""The format of an active message in a cell's 48 bytes of payload.

Section 3.1.1: 16 bits of flow control, 32 bits of handler address, 40 bytes of data, and a check as in AAL3/4's
trailer: 6 bits of length and a CRC-10 (x^10 + x^9 + x^5 + x^4 + x + 1, ITU-T I.363.3). The paper does not specify the
bits of the flow control; ours are kind (2 bits), session (8) and sequence number (6). The length counts handler and
data. Section 3.4.4 proposes a longer payload for cells of long messages: a cell of kind BYTES carries 44 bytes of data,
without a handler.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from protocols.atm.cell import PAYLOAD
from protocols.core.firmware import Buffer
from protocols.ssam.fields import ACKNOWLEDGEMENT as ACKNOWLEDGEMENT
from protocols.ssam.fields import BYTES as BYTES
from protocols.ssam.fields import REPLY as REPLY
from protocols.ssam.fields import REQUEST as REQUEST

DATA: Final = 40
"""Maximum bytes of data in a cell."""

INTRODUCTION: Final = 4
"""Kind of a message with the identities of sender and receiver (ours); an unknown receiver's identity is 0. The message
is encoded as an acknowledgement with the handler INTRODUCES."""

MISSING: Final = 1
"""Handler of a negative acknowledgement (ours): the request with the acknowledgement's number is missing."""
INTRODUCES: Final = 2
"""Handler of an introduction (ours)."""
LONG: Final = DATA + 4
"""Maximum bytes of data in a cell of kind BYTES."""

SEQUENCE_NUMBERS: Final = 64
"""Modulus of sequence numbers."""
SESSIONS: Final = 256
"""Modulus of sessions."""

_CELL: Final = Struct("!HI40sH")
"""Flow control, handler, data, length and check."""
_BYTES_CELL: Final = Struct("!H44sH")
"""Flow control, data, length and check."""
_CHECKED: Final = Struct(f"!{PAYLOAD - 2}sH")
"""All bytes before the length and the check; length and check. Packing takes the first bytes of a complete payload."""
_HANDLER_BYTES: Final = 4
_DATA_AT: Final = 2 + _HANDLER_BYTES
_CRC_BITS: Final = 10
"""Bits of the CRC, below the length."""
_GENERATOR: Final = 0x633


class Message:
    """A message in a cell. number: sequence number of the request, or of the answered request."""

    __slots__ = ("data", "handler", "kind", "number", "session")

    def __init__(self, kind: int, session: int, number: int, handler: int, data: bytes) -> None:
        self.kind: Final = kind
        self.session: Final = session
        self.number: Final = number
        self.handler: Final = handler
        self.data: Final = data


def _build_tables() -> tuple[list[int], list[int]]:
    """Build the tables of the CRC: the remainder of each 16-bit word times x^10, shifted left by 6 bits, so that it can
    be added to the next word; and the quotient of each remainder and x^10."""
    powers = [1]
    for _ in range(_CRC_BITS + 15):
        double = powers[-1] << 1
        powers.append(double ^ _GENERATOR if double >> _CRC_BITS else double)
    remainders = [0]
    for power in powers[_CRC_BITS:]:  # each step doubles the table: the new half has the next bit set
        remainders += [remainder ^ power for remainder in remainders]
    quotients = sorted(range(1 << _CRC_BITS), key=remainders.__getitem__)
    shifted = [remainder << 6 for remainder in range(1 << _CRC_BITS)]  # shared, since 65,536 objects would take 2 MB
    return [shifted[remainder] for remainder in remainders], quotients


_REMAINDERS, _QUOTIENTS = _build_tables()
_PAYLOAD_WORDS: Final = Struct(f"!{PAYLOAD // 2}H")


def crc10(payload: Buffer) -> int:
    """Return the CRC-10 remainder of a payload: 0 if its last 10 bits are the CRC of the bits before them."""
    words: tuple[int, ...] = _PAYLOAD_WORDS.unpack(payload)
    return _crc10_of_words(words)


def _crc10_of_words(words: tuple[int, ...]) -> int:
    remainders, remainder = _REMAINDERS, 0
    for word in words:  # `words` has a declared tuple type, which halves the time of compiled code
        remainder = remainders[remainder ^ word]
    return _QUOTIENTS[remainder >> 6]


def pack_into(
    buffer: bytearray, offset: int, kind: int, session: int, number: int, handler: int = 0, data: bytes = b""
) -> None:
    """Write the payload of a message, padded with zeros, without the CRC. Arguments: see `Message`."""
    if kind == INTRODUCTION:
        kind, handler = ACKNOWLEDGEMENT, INTRODUCES
    control = kind << 14 | session << 6 | number
    if kind == BYTES:
        _BYTES_CELL.pack_into(buffer, offset, control, data, len(data) << _CRC_BITS)
    else:
        _CELL.pack_into(buffer, offset, control, handler, data, len(data) + _HANDLER_BYTES << _CRC_BITS)


def with_crc(payload: Buffer) -> bytes:
    """Return a payload with its CRC, which the interface computes when it sends a cell."""
    words: tuple[int, ...] = _PAYLOAD_WORDS.unpack(payload)
    return _CHECKED.pack(payload, words[-1] ^ _crc10_of_words(words))


def unpack(payload: Buffer) -> Message | None:
    """Return the message in a payload; None if the length or the CRC is wrong."""
    words: tuple[int, ...] = _PAYLOAD_WORDS.unpack(payload)
    length = words[-1] >> _CRC_BITS
    if length > LONG or _crc10_of_words(words):
        return None
    control, handler = words[0], words[1] << 16 | words[2]
    kind, session, number = control >> 14, control >> 6 & 0xFF, control & 0x3F
    if kind == BYTES:
        return Message(BYTES, session, number, 0, bytes(payload[2 : 2 + length]))
    if length < _HANDLER_BYTES:
        return None
    if kind == ACKNOWLEDGEMENT and handler == INTRODUCES:
        kind, handler = INTRODUCTION, 0
    return Message(kind, session, number, handler, bytes(payload[_DATA_AT : _DATA_AT + length - _HANDLER_BYTES]))
