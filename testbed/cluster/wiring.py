"""How the links of a layout become veth pairs, plugs and joins.

- A node's NIC and a switch: one pair; its far end, in the wire namespace, is plugged into the switch.
- Two switches: one pair, both ends in the wire namespace.
- Two nodes: each NIC has a pair that ends in the wire namespace, and the two far ends are joined there, so that the link
  can be impaired, cut and plugged elsewhere without a change to the NICs.
- Two nodes, declared ``direct``: one pair, NIC to NIC, for the lowest latency.

A link whose frames are to be impaired is *spliced*: it is cut in the wire namespace and has two free ends there, A and B,
which are in no switch. What its end a sends comes in on A, and what is to reach end a goes out by A; B likewise. What
carries the frames between A and B is not the wiring's business.

- Two nodes: A and B are the far ends of the two pairs.
- A node's NIC and a switch: the far end leaves the switch and is a free end. A *patch*, one more pair, takes its place:
  one end is plugged in as the link's port, the other is the other free end.
- Two switches: the pair stays plugged in at the first; its end at the second is A, and a patch at the second gives B.

Myrinet's switches, with the cables between them, are in the relay, and nothing of the kernel's. A NIC at one of them has a
pair whose far end, in the wire namespace, is always free.
"""

from __future__ import annotations

from collections.abc import Collection
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
    patch: bool = False


@dataclass(frozen=True, slots=True)
class Splice:
    """The free ends of a spliced link, and the devices that send towards A and B: whether a frame that one of these sends
    must be finished is up to who carries that direction (see `kernel.offloads`)."""

    a: Device
    b: Device
    senders: tuple[Device, Device]


def free_ends(layout: Layout, name: str) -> tuple[str, str]:
    """The names of the free ends A and B that a link has in the wire namespace when it is spliced.

    Empty: that end is at one of Myrinet's switches. KeyError if the layout has no such link, ValueError if it is one pair
    from NIC to NIC, which cannot be spliced.
    """
    found = all_free_ends(layout)
    if name not in found and any(link.name == name for link in layout.links):
        raise ValueError(f"{name} is declared direct: one pair of interfaces, with nothing between them")
    return found[name]


def all_free_ends(layout: Layout) -> dict[str, tuple[str, str]]:
    """The same of all links that can be spliced, by name."""
    crossbars = layout.crossbars()
    switches = {switch.name for switch in layout.switches}
    found = {}
    for link, ends in zip(layout.links, wire_ends(layout), strict=True):
        if link.datapath == "direct":
            continue
        if crossbars & {link.a.owner, link.b.owner}:
            a, b = ("" if at.owner in crossbars else end for at, end in zip((link.a, link.b), ends, strict=True))
            found[link.name] = a, b
        else:
            found[link.name] = _free_ends(link, ends, switches)
    return found


def _free_ends(link: Link, ends: tuple[str, str], switches: Collection[str]) -> tuple[str, str]:
    a, b = ends
    if link.b.owner in switches:
        patched = b if link.a.owner in switches else a
        return patched, names.patch(patched)[1]
    if link.a.owner in switches:
        return names.patch(b)[1], b
    return a, b


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
    """What a layout comes to in veth pairs, with some of its links spliced.

    cables: the pairs. plugged: wire-side device -> switch. joins: (label, device, device), of links that are not spliced.
    splices: link name -> its free ends. ports: switch -> port number -> device. planned_ports: devices at switches that
    forward by the plan; they must not come up before their settings are made, or the first broadcast would circulate.
    made_up: devices that are up once they are made. of_link: link name -> its devices in the wire namespace. uplinks: NICs
    at Myrinet's switches.
    """

    def __init__(self, layout: Layout, spliced: Collection[str] = ()) -> None:
        self._nics: dict[Device, Nic] = {(node.name, nic.name): nic for node in layout.nodes for nic in node.nics}
        self._trunk_mtu = max((nic.mtu for nic in self._nics.values()), default=1500)
        self.cables: list[Cable] = []
        self.plugged: dict[Device, str] = {}
        self.joins: list[tuple[str, Device, Device]] = []
        self.splices: dict[str, Splice] = {}
        self.uplinks: list[Device] = []
        self._crossbars = layout.crossbars()
        self.ports: dict[str, dict[int, Device]] = {
            switch.name: {} for switch in layout.switches if switch.name not in self._crossbars
        }
        self.of_link: dict[str, list[Device]] = {}
        for link, ends in zip(layout.links, wire_ends(layout), strict=True):
            first = len(self.cables)
            self._lay(link, ends, spliced=link.name in spliced)
            self.of_link[link.name] = _wire_side(self.cables[first:])
        learning = {switch.name: switch.learns for switch in layout.switches}
        self.planned_ports = {device for device, switch in self.plugged.items() if not learning[switch]}
        self.wire_devices = _wire_side(self.cables)
        self.made_up = {cable.near for cable in self.cables} - self.planned_ports

    def _lay(self, link: Link, devices: tuple[str, str], *, spliced: bool) -> None:
        ends = [link.a, link.b]
        if self._crossbars & {link.a.owner, link.b.owner}:
            self._lay_to_crossbars(link, devices)
            return
        nodes = [end for end in ends if end.owner not in self.ports]
        if link.datapath == "direct":
            if spliced:
                raise ValueError(f"{link.name} is declared direct and cannot be spliced")
            near, far = ((end.owner, end.port) for end in ends)
            nics = self._nics[near], self._nics[far]
            mtu = min(nic.mtu for nic in nics)
            self.cables.append(Cable(link.name, near, far, mtu, nics[0].mac, nics[1].mac))
            return
        wire_side = {end: (names.WIRE, device) for end, device in zip(ends, devices, strict=True)}
        for node in nodes:
            nic = self._nics[node.owner, node.port]
            self.cables.append(Cable(link.name, wire_side[node], (node.owner, node.port), nic.mtu, far_mac=nic.mac))
        senders = [(node.owner, node.port) for node in nodes]
        if len(nodes) == 2:
            if not spliced:
                self.joins.append((link.name, wire_side[link.a], wire_side[link.b]))
        elif len(nodes) == 1:
            (switch,) = [end for end in ends if end.owner in self.ports]
            device = wire_side[nodes[0]]
            if spliced:
                patch = self._patch(link, switch, device, self._nics[nodes[0].owner, nodes[0].port].mtu)
                senders = [*senders, patch] if switch is link.b else [patch, *senders]
            else:
                self._plug(switch, device)
        else:
            self.cables.append(Cable(link.name, wire_side[link.a], wire_side[link.b], self._trunk_mtu))
            self._plug(link.a, wire_side[link.a])
            if spliced:
                senders += [wire_side[link.a], self._patch(link, link.b, wire_side[link.b], self._trunk_mtu)]
            else:
                self._plug(link.b, wire_side[link.b])
        if spliced:
            a, b = _free_ends(link, devices, self.ports)
            to_a, to_b = senders
            self.splices[link.name] = Splice((names.WIRE, a), (names.WIRE, b), (to_a, to_b))

    def _lay_to_crossbars(self, link: Link, devices: tuple[str, str]) -> None:
        for end, device in zip((link.a, link.b), devices, strict=True):
            if end.owner not in self._crossbars:
                nic = self._nics[end.owner, end.port]
                self.cables.append(
                    Cable(link.name, (names.WIRE, device), (end.owner, end.port), nic.mtu, far_mac=nic.mac)
                )
                self.uplinks.append((end.owner, end.port))

    def _patch(self, link: Link, port: End, device: Device, mtu: int) -> Device:
        """Plug a patch into a port in place of `device`; its plugged end."""
        plugged, free = ((names.WIRE, name) for name in names.patch(device[1]))
        self.cables.append(Cable(link.name, plugged, free, mtu, patch=True))
        self._plug(port, plugged)
        return plugged

    def _plug(self, port: End, device: Device) -> None:
        self.plugged[device] = port.owner
        self.ports[port.owner][int(port.port)] = device


def _wire_side(cables: Collection[Cable]) -> list[Device]:
    return [end for cable in cables for end in (cable.near, cable.far) if end[0] == names.WIRE]
