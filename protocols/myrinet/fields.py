"""Location of a Myrinet packet's type, and the fields common to all types, for rules and captures.

A protocol with another packet type is registered separately (`protocols.core.protocol`): its codec has the same
EtherType, and its packet type as BEGINS. This module describes packets that no protocol claims.
"""

from __future__ import annotations

from typing import Final

ETHERTYPE: Final = 0x88B6
"""IEEE Std 802 - Local Experimental Ethertype 2."""

MAPPING: Final = 0x0005
"""Packet type of mapping; AM-II's, 0x0004, is one of the types left to software."""

FIELDS: Final[dict[str, tuple[object, ...]]] = {"type": (0, 2)}
"""Fields for rules: offset after the route, and width."""

FLOW: Final[tuple[str, ...]] = ()
"""Packets of unclaimed types form one flow between two NICs."""

ROUTED: Final = True
"""A source route may precede the header."""


def stripped(frame: bytes) -> tuple[bytes, tuple[int, ...], bool]:
    """Remove route and CRC-8 from a frame captured on a link. Return the codec's form, its route, and whether its CRC-8
    is valid. A truncated frame yields the parts that are present."""
    from protocols.myrinet.envelope import stripped  # deferred: only decoders need CRCs

    return stripped(frame)


def mended(frame: bytes, begin: int) -> bytes:
    """Return the frame with the CRC-8 of a packet on a link recomputed. begin: offset of its type."""
    from protocols.myrinet.envelope import crc8

    return frame[:-1] + bytes((crc8(frame[14:-1]),)) if len(frame) > begin + 2 else frame
