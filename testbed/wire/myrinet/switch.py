"""A Myrinet switch: which output a frame asks for, and who gets an output that several ask for.

It knows no addresses and no topology: only the first byte of the route counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from testbed.wire.fields import ETHERNET_HEADER, ROUTE_BYTE
from testbed.wire.myrinet.route import delta

if TYPE_CHECKING:
    from testbed.wire.myrinet.channel import Channel

_SMALLEST: Final = ETHERNET_HEADER + 2
"""Bytes of a frame with one byte of route and a CRC."""

USED_UP: Final = "route_used_up"
NO_PORT: Final = "no_port"
NO_CABLE: Final = "no_cable"
TRUNCATED: Final = "truncated"
SWALLOWED: Final = "swallowed"

CAUSES: Final = (USED_UP, NO_PORT, NO_CABLE, TRUNCATED, SWALLOWED)
"""Why a frame does not go on from a switch, or not whole: the names of its counters."""


class Switch:
    """ports: how many it has. outputs: those with a cable, by number."""

    __slots__ = ("counters", "name", "outputs", "ports")

    def __init__(self, name: str, ports: int, outputs: Mapping[int, Channel]) -> None:
        self.name: Final = name
        self.ports = ports
        self.outputs: Final = outputs
        self.counters: Final = dict.fromkeys(CAUSES, 0)
        """Frames that did not go on or were truncated, by cause."""

    def output(self, port: int, frame: bytes) -> Channel | str:
        """Where a frame leaves that has come in by that port, or why it does not."""
        byte = frame[ETHERNET_HEADER] if len(frame) >= _SMALLEST else 0
        if not byte & ROUTE_BYTE:
            return USED_UP
        out = port + delta(byte)
        if not 1 <= out <= self.ports:
            return NO_PORT
        return self.outputs.get(out, NO_CABLE)


def next_of(asking: Mapping[int, object], last: int) -> int:
    """Who has an output next, of those who ask for it: round robin from the one that had it last."""
    return min(asking, key=lambda input_: (input_ <= last, input_))
