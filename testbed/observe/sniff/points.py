"""Points at which the frames of a link can be captured in its current wiring.

Every link except a direct one ends in the wire namespace and is captured there: before its datapath receives a frame, and
after the datapath has delivered it. The veth peer of a link's end receives the frames that the end sends, and sends the
frames for it. A link without a datapath that ends at a switch has one capture point; other links have two.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.cluster.faults.injections import BOTH, DirectionName
from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.veth_wiring import free_ends, wire_ends
from testbed.cluster.records.state import State
from testbed.spec.layout import End, Link


@dataclass(frozen=True, slots=True)
class Point:
    """The kernel interface at which one end of a link is captured. direction: direction of the link that enters at the end.
    namespace: path of the interface's network namespace. device: name of the interface. mirrored: whether the interface is
    the veth peer of the end, so that it receives the frames that the end sends. datapath: name of the link's datapath. mac:
    MAC address of the NIC at the end; empty for a switch's port."""

    link: str
    end: End
    direction: DirectionName
    namespace: str
    device: str
    mirrored: bool
    datapath: str
    mac: str = ""


def points(state: State, links: list[Link]) -> list[Point]:
    """Return the capture points of these links, one or two for each."""
    ends = dict(zip((link.name for link in state.layout.links), wire_ends(state.layout), strict=True))
    switches = {switch.name for switch in state.layout.switches}
    macs = state.layout.macs()
    wire = state.namespaces[namespace_names.WIRE]
    result: list[Point] = []
    for link in links:
        datapath = state.datapaths.get(link.name, "direct")
        at_switch = [end.owner in switches for end in (link.a, link.b)]
        if link.datapath == "direct":
            interfaces = [
                (state.namespaces[end.owner], end.port, False) if end.owner in state.namespaces else ("", "", False)
                for end in (link.a, link.b)
            ]
        elif datapath != "direct":
            interfaces = [(wire, device, True) for device in free_ends(state.layout, link.name)]
        else:  # the ends of a link between two switches are the ports themselves
            interfaces = [(wire, device, not all(at_switch)) for device in ends[link.name]]
        for end, direction, interface, port in zip((link.a, link.b), BOTH, interfaces, at_switch, strict=True):
            if not interface[1]:  # at a modelled switch, within the relay, or on another machine
                continue
            # Without a datapath, the interface of a NIC's link at a switch is the peer at which the NIC's end is captured.
            if datapath != "direct" or not port or all(at_switch):
                result.append(Point(link.name, end, direction, *interface, datapath, macs.get(end, "")))
    return result
