"""How the links of a layout become veth pairs, plugs and joins.

- A node's NIC and a switch: one pair; its far end, in the wire namespace, is plugged into the switch.
- Two switches: one pair, both ends in the wire namespace.
- Two nodes: each NIC has a pair that ends in the wire namespace, and the two far ends are joined there, so that the link
  can be impaired, cut and plugged elsewhere without a change to the NICs.
- Two nodes, declared ``direct``: one pair, NIC to NIC, for the lowest latency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from testbed.cluster import names
from testbed.spec.layout import End, Layout, Link, Nic

Device: TypeAlias = tuple[str, str]  # (namespace key, interface name)


@dataclass(frozen=True, slots=True)
class Cable:
    """A veth pair. near is made first and up; in all but direct links it is in the wire namespace. An empty MAC is the
    kernel's choice."""

    label: str
    near: Device
    far: Device
    mtu: int
    near_mac: str = ""
    far_mac: str = ""


def wire_ends(layout: Layout) -> list[tuple[str, str]]:
    """For each link what its two ends are called in the wire namespace (of a direct link: would be).

    An end at a node's NIC is named after it. Those of a cable between switches are named after the two switches, not
    after their ports: a node more on a switch can move the ports of its other cables, and must not disturb them.
    """
    switches = {switch.name for switch in layout.switches}
    parallel: dict[frozenset[str], int] = {}
    found = []
    for link in layout.links:
        a, b = link.a.owner, link.b.owner
        if a in switches and b in switches:
            pair = frozenset((a, b))
            number = parallel[pair] = parallel.get(pair, 0) + 1
            found.append((names.trunk_end(a, b, number), names.trunk_end(b, a, number)))
        else:
            found.append((names.far_end(a, link.a.port), names.far_end(b, link.b.port)))
    return found


class Wiring:
    """What a layout comes to in veth pairs.

    cables: the pairs. plugged: wire-side device -> switch. joins: (label, device, device). ports: switch -> port number ->
    device. planned_ports: devices at switches that forward by the plan; they must not come up before their settings are
    made, or the first broadcast would circulate. made_up: devices that are up once they are made.
    """

    def __init__(self, layout: Layout) -> None:
        self._nics: dict[Device, Nic] = {(node.name, nic.name): nic for node in layout.nodes for nic in node.nics}
        self._trunk_mtu = max((nic.mtu for nic in self._nics.values()), default=1500)
        self.cables: list[Cable] = []
        self.plugged: dict[Device, str] = {}
        self.joins: list[tuple[str, Device, Device]] = []
        self.ports: dict[str, dict[int, Device]] = {switch.name: {} for switch in layout.switches}
        for link, ends in zip(layout.links, wire_ends(layout), strict=True):
            self._lay(link, ends)
        learning = {switch.name: switch.learns for switch in layout.switches}
        self.planned_ports = {device for device, switch in self.plugged.items() if not learning[switch]}
        self.wire_devices = [end for cable in self.cables for end in (cable.near, cable.far) if end[0] == names.WIRE]
        self.made_up = {cable.near for cable in self.cables} - self.planned_ports

    def _lay(self, link: Link, devices: tuple[str, str]) -> None:
        ends = [link.a, link.b]
        nodes = [end for end in ends if end.owner not in self.ports]
        if link.datapath == "direct":
            near, far = ((end.owner, end.port) for end in ends)
            nics = self._nics[near], self._nics[far]
            mtu = min(nic.mtu for nic in nics)
            self.cables.append(Cable(link.name, near, far, mtu, nics[0].mac, nics[1].mac))
            return
        wire_side = {end: (names.WIRE, device) for end, device in zip(ends, devices, strict=True)}
        for node in nodes:
            nic = self._nics[node.owner, node.port]
            self.cables.append(Cable(link.name, wire_side[node], (node.owner, node.port), nic.mtu, far_mac=nic.mac))
        if len(nodes) == 2:
            self.joins.append((link.name, wire_side[link.a], wire_side[link.b]))
        elif len(nodes) == 1:
            (switch,) = [end for end in ends if end.owner in self.ports]
            self._plug(switch, wire_side[nodes[0]])
        else:
            self.cables.append(Cable(link.name, wire_side[link.a], wire_side[link.b], self._trunk_mtu))
            for end in ends:
                self._plug(end, wire_side[end])

    def _plug(self, port: End, device: Device) -> None:
        self.plugged[device] = port.owner
        self.ports[port.owner][int(port.port)] = device
