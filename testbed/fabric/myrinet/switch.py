"""Myrinet switch: a frame's output, and arbitration between requesters of an output.

A switch has no addresses and no topology: it only uses the first byte of the route.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Final

from testbed.fabric.myrinet.channel import Channel
from testbed.fabric.myrinet.route import delta
from testbed.fates.header_fields import ETHERNET_HEADER, ROUTE_BYTE

_MIN_FRAME: Final = ETHERNET_HEADER + 2
"""Bytes of a frame with one route byte and a CRC."""

USED_UP: Final = "route_used_up"
NO_PORT: Final = "no_port"
NO_CABLE: Final = "no_cable"
TRUNCATED: Final = "truncated"
SWALLOWED: Final = "swallowed"

CAUSES: Final = {
    USED_UP: "the route is used up",
    NO_PORT: "the route leads to a port that does not exist",
    NO_CABLE: "the route leads to a port without a cable",
    TRUNCATED: "truncated, blocked for too long",
    SWALLOWED: "swallowed, blocked for too long",
}
"""Causes of drops and truncations: names of a switch's counters, with descriptions."""


class Switch:
    """A switch. ports: number of ports. outputs: channels of the ports with a cable, by number."""

    __slots__ = ("counters", "name", "outputs", "ports")

    def __init__(self, name: str, ports: int, outputs: MutableMapping[int, Channel]) -> None:
        self.name: Final = name
        self.ports = ports
        self.outputs: Final = outputs
        self.counters: Final = dict.fromkeys(CAUSES, 0)
        """Number of dropped or truncated frames, by cause."""

    def output(self, port: int, frame: bytes) -> Channel | str:
        """Return the output of a frame from an input port, or the cause of its drop."""
        byte = frame[ETHERNET_HEADER] if len(frame) >= _MIN_FRAME else 0
        if not byte & ROUTE_BYTE:
            return USED_UP
        out = port + delta(byte)
        if not 1 <= out <= self.ports:
            return NO_PORT
        return self.outputs.get(out, NO_CABLE)


def next_requester(requests: Mapping[int, object], last: int) -> int:
    """Choose the next requester of an output, round robin. last: the previous requester."""
    return min(requests, key=lambda input_: (input_ <= last, input_))
