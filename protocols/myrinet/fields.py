"""Where a Myrinet packet's type stands, and what all its types have in common, for rules and for captures.

A protocol with a packet type of its own is registered beside this (`protocols.core.protocol`): its codec has the same
EtherType, and BEGINS, its packet type. What no protocol claims is told of as this says.
"""

from __future__ import annotations

from typing import Final

ETHERTYPE: Final = 0x88B6
"""IEEE Std 802 - Local Experimental Ethertype 2."""

MAPPING: Final = 0x0005
"""The packet type of mapping; AM-II's, 0x0004, is one of those that are left to software."""

FIELDS: Final[dict[str, tuple[object, ...]]] = {"type": (0, 2)}
"""For rules: offset behind the route, and width."""

FLOW: Final[tuple[str, ...]] = ()
"""Packets of types that nobody claims are of one flow between two NICs."""

ROUTED: Final = True
"""A source route may stand in front."""


def stripped(frame: bytes) -> tuple[bytes, tuple[int, ...], bool]:
    """A frame as it is on a link, without what changes on its way: as the codecs of packet types have it; its route; and
    whether its CRC-8 is right. Of one that is cut off within these what there is."""
    from protocols.myrinet.envelope import stripped  # CRCs are loaded by who decodes frames, not by who has fields

    return stripped(frame)
