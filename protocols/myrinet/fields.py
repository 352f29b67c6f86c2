"""Location of a Myrinet packet's type, and the fields common to all types, for rules and captures.

A protocol with another packet type is registered separately (`protocols.core.protocol`): its codec has the same
EtherType, and its packet type as BEGINS. This module describes packets that no protocol claims.
"""

from __future__ import annotations

from typing import Final

ETHERTYPE: Final = 0x88B6
"""IEEE Std 802 - Local Experimental Ethertype 2."""

MAPPING: Final = 0x0005
"""Packet type of mapping packets."""

FIELDS: Final[dict[str, tuple[object, ...]]] = {"type": (0, 2)}
"""Fields for rules: offset after the route, and width."""

FLOW: Final[tuple[str, ...]] = ()
"""Packets of unclaimed types form one flow between two NICs."""

ROUTED: Final = True
"""A source route may precede the header."""


def stripped(frame: bytes) -> tuple[bytes, tuple[int, ...], bool]:
    """Remove route and CRC-8 from a frame captured on a link; see `envelope.stripped`."""
    from protocols.myrinet.envelope import stripped  # deferred: only decoders need CRCs

    return stripped(frame)


def mended(frame: bytes, begin: int) -> bytes:
    """Return a frame on a link with the packet's CRC-8 recomputed. begin: offset of the packet type."""
    from protocols.myrinet.envelope import crc8  # deferred, as above

    return frame[:-1] + bytes((crc8(frame[14:-1]),)) if len(frame) > begin + 2 else frame
