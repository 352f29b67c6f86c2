"""Where the frames of a link can be heard, as it is wired now.

Everything but a direct link ends in the wire namespace, and is heard there: before whoever carries the link has taken a
frame, and after it has given one out. What an end sends comes in on its far end there, and leaves by it when it is meant
for that end. A link that is plugged straight into a switch has one such place, others have two.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.cluster import names
from testbed.cluster.injections import BOTH, DirectionName
from testbed.cluster.state import State
from testbed.cluster.wiring import free_ends, wire_ends
from testbed.spec.layout import End, Link


@dataclass(frozen=True, slots=True)
class Point:
    """An interface of the kernel's that stands for an end of a link. namespace: its path. mirrored: it is the other end of
    a cable from there, so that what leaves the end comes in here. direction: the link's direction that enters at the end.
    datapath: who carries the link. mac: of the NIC that the end is; empty: it is a switch's port."""

    link: str
    end: End
    direction: DirectionName
    namespace: str
    device: str
    mirrored: bool
    datapath: str
    mac: str = ""


def points(state: State, links: list[Link]) -> list[Point]:
    """Of these links; of both ends where there are two places."""
    ends = dict(zip((link.name for link in state.layout.links), wire_ends(state.layout), strict=True))
    switches = {switch.name for switch in state.layout.switches}
    macs = state.layout.macs()
    wire = state.namespaces[names.WIRE]
    found: list[Point] = []
    for link in links:
        carrier = state.datapaths.get(link.name, "direct")
        at_switch = [end.owner in switches for end in (link.a, link.b)]
        if link.datapath == "direct":
            places = [(state.namespaces[end.owner], end.port, False) for end in (link.a, link.b)]
        elif carrier != "direct":
            places = [(wire, device, True) for device in free_ends(state.layout, link.name)]
        else:  # the ends of a cable between two switches are ports themselves
            places = [(wire, device, not all(at_switch)) for device in ends[link.name]]
        for end, direction, place, port in zip((link.a, link.b), BOTH, places, at_switch, strict=True):
            # A NIC's cable is plugged into the switch: there is no second place.
            if not place[1]:  # at one of Myrinet's switches, in the relay
                continue
            if carrier != "direct" or not port or all(at_switch):
                found.append(Point(link.name, end, direction, *place, carrier, macs.get(end, "")))
    return found
