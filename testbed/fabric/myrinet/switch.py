"""Myrinet switch: choice of a frame's output, and arbitration between the requesters of an output.

A switch has no addresses and no topology: it uses only the first byte of the route.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Final

from testbed.fabric.myrinet.channel import Channel
from testbed.fabric.myrinet.route import port_delta
from testbed.fates.header_fields import ETHERNET_HEADER, ROUTE_BYTE

_MIN_FRAME: Final = ETHERNET_HEADER + 2
"""Minimum bytes of a frame: Ethernet header, one route byte and the CRC-8."""

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
        """Return the output of a frame, or the cause of its drop. port: the frame's input port."""
        byte = frame[ETHERNET_HEADER] if len(frame) >= _MIN_FRAME else 0
        if not byte & ROUTE_BYTE:
            return USED_UP
        output_port = port + port_delta(byte)
        if not 1 <= output_port <= self.ports:
            return NO_PORT
        return self.outputs.get(output_port, NO_CABLE)


def next_requester(requests: Mapping[int, object], last: int) -> int:
    """Choose the next requester of an output, round robin. requests: requests by requester. last: the previous
    requester."""
    return min(requests, key=lambda input_: (input_ <= last, input_))
