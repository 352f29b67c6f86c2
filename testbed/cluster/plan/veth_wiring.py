"""Wiring of a layout's links: veth pairs, plugs and joins.

- A node's NIC and a switch: one pair; its far end, in the wire namespace, is plugged into the switch.
- Two switches: one pair, both ends in the wire namespace.
- Two nodes: each NIC has a pair that ends in the wire namespace, and the two far ends are joined there (each redirects
  its frames to the other), so that the link can be impaired, cut and moved without a change to the NICs.
- Two nodes, declared ``direct``: one pair, NIC to NIC, for the lowest latency. If they are on different machines, each
  NIC is the end of a tunnel (VXLAN) itself.

A link that the kernel impairs is *spliced*: in the wire namespace it has two free ends, A and B. Frames from its end a
arrive on A, and frames for end a leave by A; likewise for b and B.

- Two nodes: A and B are the far ends of the two pairs.
- A node's NIC and a switch: the far end is one of the two. A *patch*, one more pair, joins the switch beside it: one end
  is plugged in, the other is the other free end.
- Two switches: the pair stays plugged in at the first; its end at the second is A, and a patch at the second gives B.

A and B of a spliced link are joined by a *stage*, one more pair, V and W: frames that arrive on A leave by V, arrive on W
and leave by B, and vice versa. Queueing disciplines are set on V and W while no frames pass there, since setting one on a
running interface loses frames.

At a switch, the far end stays plugged in, too. Frames that arrive on it are redirected to the stage, and enter the switch
by the patch. Frames that the switch sends by the far end are redirected to the patch, come back from the stage, and leave.
The switch does not flood to the patch, and frames that it floods from the patch to the far end are dropped. So a link is
spliced and restored by redirections alone, and no frame is lost.

A link that the relay forwards is *diverted*: it stays plugged or joined, and its frames are diverted to the relay (see
`kernel.diversion`). A and B are as above. The relay receives on two *taps*, the ends of a patch that is not plugged in.

- Two nodes: frames that arrive on A go to one tap, frames that arrive on B to the other.
- A switch: frames that its port (say, A) receives from its cable go to the tap that is not B; frames that the switch
  sends by the port go to B, which is the other tap. Frames that the relay sends by B enter the switch by the port, as if
  from its cable.

A link to another machine that is not direct has a tunnel in the wire namespace, and is otherwise wired as if the tunnel
were the far end of a node's pair.

Modelled networks (Myrinet, ATM) exist only in the relay. A NIC in one of them has a pair whose far end, in the wire
namespace, is always free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from testbed.cluster.plan import namespace_names
from testbed.lazy_dataclass import dataclass
from testbed.spec.layout import End, Layout, Link, Nic, Node, Tunnel

Device: TypeAlias = tuple[str, str]  # (namespace key, interface name)


@dataclass(frozen=True, slots=True)
class Cable:
    """A veth pair.

    label: the link's name. near: the end that is made and set up first, in the wire namespace except on direct links.
    near_mac, far_mac: empty: chosen by the kernel. patch: whether the pair is a patch or stage.
    """

    label: str
    near: Device
    far: Device
    mtu: int
    near_mac: str = ""
    far_mac: str = ""
    patch: bool = False


@dataclass(frozen=True, slots=True)
class TunnelEnd:
    """The interface of a tunnel. label: the link's name. mac: empty: chosen by the kernel."""

    label: str
    tunnel: Tunnel
    mtu: int
    mac: str = ""


@dataclass(frozen=True, slots=True)
class Splice:
    """The free ends of a spliced or diverted link. senders: the devices that send towards A and towards B.

    Whether GSO frames sent by them must be segmented depends on the datapath of that direction (see `kernel.offloads`).
    """

    a: Device
    b: Device
    senders: tuple[Device, Device]


@dataclass(frozen=True, slots=True)
class Stage:
    """The pair that joins the free ends a and b of a link that the kernel impairs.

    forward, backward: the ends V and W, by which frames of each direction enter the pair, through the direction's qdisc.
    port: the free end that is the cable's end at a switch and stays plugged in; None between two nodes.
    """

    a: Device
    b: Device
    forward: Device
    backward: Device
    port: Device | None = None

    @property
    def redirections(self) -> tuple[tuple[Device, Device], ...]:
        """The redirections (from, to), in an order in which those that a frame takes later are made earlier."""
        return (
            (self.forward, self.a),
            (self.backward, self.b),
            *sorted(((self.a, self.forward), (self.b, self.backward)), key=lambda ends: ends[0] == self.port),
        )


@dataclass(frozen=True, slots=True)
class Detour:
    """The diversion of a link that the relay forwards.

    near, far: the ends of its patch. ends: its port at a switch, or, between two nodes, its two ends in the wire
    namespace. The relay receives on `near` frames that arrive on the first end, and on `far` frames that arrive on the
    second end or leave by the port.
    """

    near: Device
    far: Device
    ends: tuple[Device, ...]


def taps(a: str, b: str) -> tuple[str, str]:
    """Return the names of the interfaces on which the relay receives the frames that arrive on the ends A and B of a
    diverted link."""
    if a == namespace_names.patch(b)[1]:
        return a, namespace_names.patch(b)[0]
    return namespace_names.patch(a)


def free_ends(layout: Layout, name: str) -> tuple[str, str]:
    """Return the names of the free ends A and B that a link has in the wire namespace when it is spliced.

    A name is empty if the end is at a modelled switch. Raises KeyError for an unknown link, ValueError for a link that is
    declared direct and cannot be spliced.
    """
    ends_by_link = all_free_ends(layout)
    if name not in ends_by_link and any(link.name == name for link in layout.links):
        raise ValueError(f"{name} is declared direct: one pair of interfaces, with nothing between them")
    return ends_by_link[name]


def all_free_ends(layout: Layout) -> dict[str, tuple[str, str]]:
    """Return the free ends of all links that can be spliced or diverted, as by `free_ends`, by link name."""
    switches = {switch.name for switch in layout.switches}
    ends_by_link = {}
    for link, ends in zip(layout.links, wire_ends(layout), strict=True):
        if link.datapath == "direct":
            continue
        if link.model:
            a, b = ("" if at.owner in switches else end for at, end in zip((link.a, link.b), ends, strict=True))
            ends_by_link[link.name] = a, b
        else:
            ends_by_link[link.name] = _free_ends(link, ends, switches)
    return ends_by_link


def stage_ends(layout: Layout, name: str) -> tuple[str, str]:
    """Return the names of the interfaces by which the directions forward and backward enter a link's stage. Raises the
    errors of `free_ends`."""
    a, b = free_ends(layout, name)
    return namespace_names.stage(_stage_of(a, b))


def _stage_of(a: str, b: str) -> str:
    """Return the free end after which a link's stage is named: A, or B if A is a patch of B."""
    return b if a == namespace_names.patch(b)[1] else a


def _free_ends(link: Link, ends: tuple[str, str], switches: Collection[str]) -> tuple[str, str]:
    a, b = ends
    if link.b.owner in switches:
        patched = b if link.a.owner in switches else a
        return patched, namespace_names.patch(patched)[1]
    if link.a.owner in switches:
        return namespace_names.patch(b)[1], b
    return a, b


def wire_ends(layout: Layout) -> list[tuple[str, str]]:
    """Return the names of each link's two ends in the wire namespace, in the order of the links.

    A direct link has no such ends: the names that it would have are returned. An end at a node's NIC is named after the
    NIC. The ends of a cable between switches are named after the two switches, not their ports: adding a node to a switch
    can renumber the ports of its other cables, which must not be disturbed.
    """
    switches = {switch.name for switch in layout.switches}
    tunnels = {tunnel.end for tunnel in layout.part.tunnels} if layout.part is not None else set()
    parallel: dict[frozenset[str], int] = {}
    names = []
    for link in layout.links:
        a, b = link.a.owner, link.b.owner
        if a in switches and b in switches:
            pair = frozenset((a, b))
            number = parallel[pair] = parallel.get(pair, 0) + 1
            names.append((namespace_names.trunk_end(a, b, number), namespace_names.trunk_end(b, a, number)))
        else:
            near, far = (
                (namespace_names.tunnel if end in tunnels else namespace_names.far_end)(end.owner, end.port)
                for end in (link.a, link.b)
            )
            names.append((near, far))
    return names


class Wiring:
    """The veth pairs of a layout, with some of its links spliced and some diverted.

    cables: the pairs. plugged: wire-side device -> switch. port_numbers: wire-side device -> port number. ports: switch ->
    port number -> device. joins: (link name, device, device) for links between two nodes. link_devices: link name -> its
    devices in the wire namespace. wire_devices: all devices in the wire namespace except bridges. uplinks: NICs in modelled
    networks. tunnels: device -> its tunnel to another machine; the device is a NIC on direct links, and otherwise in the
    wire namespace.

    splices: link name -> its free ends, if it is spliced or diverted. stages: link name -> its stage, if it is spliced.
    detours: link name -> its diversion, if it is diverted.

    planned_ports: devices at switches that must stay down until their port settings are made; otherwise the first broadcast
    would circulate at switches with planned forwarding, and a patch would duplicate it. initially_up: devices that are set
    up when they are made. hooked: ports whose frames can be diverted.
    """

    def __init__(self, layout: Layout, spliced: Collection[str] = (), diverted: Collection[str] = ()) -> None:
        self._nics = _nics_of(layout.nodes)
        self._all_nics = _nics_of(layout.part.nodes) if layout.part is not None else self._nics  # on all machines
        self._trunk_mtu = max((nic.mtu for nic in self._nics.values()), default=1500)
        self._tunnels = {tunnel.end: tunnel for tunnel in layout.part.tunnels} if layout.part is not None else {}
        self._tunnel_mtu = layout.part.mtu if layout.part is not None else 0
        self.tunnels: dict[Device, TunnelEnd] = {}
        self.cables: list[Cable] = []
        self.plugged: dict[Device, str] = {}
        self.port_numbers: dict[Device, int] = {}
        self.joins: list[tuple[str, Device, Device]] = []
        self.splices: dict[str, Splice] = {}
        self.stages: dict[str, Stage] = {}
        self.detours: dict[str, Detour] = {}
        self.uplinks: list[Device] = []
        modelled = layout.simulated_switches()
        self.ports: dict[str, dict[int, Device]] = {
            switch.name: {} for switch in layout.switches if switch.name not in modelled
        }
        self.link_devices: dict[str, list[Device]] = {}
        for link, ends in zip(layout.links, wire_ends(layout), strict=True):
            first = len(self.cables)
            self._wire_link(link, ends, spliced=link.name in spliced, diverted=link.name in diverted)
            self.link_devices[link.name] = _wire_side(self.cables[first:])
        tunnels_in_wire = [device for device in self.tunnels if device[0] == namespace_names.WIRE]
        for device in tunnels_in_wire:
            self.link_devices[self.tunnels[device].label].append(device)
        learning = {switch.name: switch.learns for switch in layout.switches}
        self.wire_devices = [*_wire_side(self.cables), *tunnels_in_wire]
        patches = {end for cable in self.cables if cable.patch for end in (cable.near, cable.far)}
        self.planned_ports = {
            device for device, switch in self.plugged.items() if device in patches or not learning[switch]
        }
        self.hooked = self.plugged.keys() - patches
        self.initially_up = {cable.near for cable in self.cables} - self.planned_ports

    @classmethod
    def from_datapaths(cls, layout: Layout, datapaths: Mapping[str, str]) -> Wiring:
        """Make the wiring of a layout whose links have these datapaths. datapaths: link name -> datapath; a missing link is
        direct."""
        diverted = {name for name, datapath in datapaths.items() if datapath == "relay"}
        return cls(layout, {name for name, datapath in datapaths.items() if datapath != "direct"} - diverted, diverted)

    def _wire_link(self, link: Link, devices: tuple[str, str], *, spliced: bool, diverted: bool) -> None:
        ends = [link.a, link.b]
        if link.model:
            self._wire_modelled(link, devices)
            return
        outer = [end for end in ends if end.owner not in self.ports]  # nodes, and ends on other machines
        if link.datapath == "direct":
            if spliced or diverted:
                raise ValueError(f"{link.name} is declared direct and cannot be spliced")
            self._wire_direct(link)
            return
        wire_side = {end: (namespace_names.WIRE, device) for end, device in zip(ends, devices, strict=True)}
        senders: list[Device] = []
        for end in outer:
            if end in self._tunnels:
                self.tunnels[wire_side[end]] = TunnelEnd(link.name, self._tunnels[end], self._tunnel_mtu)
                senders.append(wire_side[end])
                continue
            nic = self._nics[end.owner, end.port]
            self.cables.append(Cable(link.name, wire_side[end], (end.owner, end.port), nic.mtu, far_mac=nic.mac))
            senders.append((end.owner, end.port))
        if len(outer) == 2:
            device, mtu = wire_side[link.a], self._trunk_mtu
            self.joins.append((link.name, wire_side[link.a], wire_side[link.b]))
            if diverted:
                self._add_patch(link, device, mtu)
        else:
            mtu = self._trunk_mtu
            switch = link.b if link.b.owner in self.ports else link.a  # the second end of a trunk
            if outer:
                local_nic = self._nics.get((outer[0].owner, outer[0].port))
                mtu = local_nic.mtu if local_nic is not None else self._trunk_mtu
                device = wire_side[outer[0]]
            else:
                self.cables.append(Cable(link.name, wire_side[link.a], wire_side[link.b], mtu))
                self._plug(link.a, wire_side[link.a])
                senders, device = [wire_side[link.a]], wire_side[link.b]
            self._plug(switch, device)
            if spliced:
                self.plugged[_patch(device)[0]] = switch.owner
            if spliced or diverted:
                self._add_patch(link, device, mtu)
                senders.insert(1 if switch is link.b else 0, _patch(device)[0])
        if spliced or diverted:
            a, b = _free_ends(link, devices, self.ports)
            to_a, to_b = senders
            self.splices[link.name] = Splice((namespace_names.WIRE, a), (namespace_names.WIRE, b), (to_a, to_b))
        if spliced:
            forward, backward = ((namespace_names.WIRE, name) for name in namespace_names.stage(device[1]))
            self.cables.append(Cable(link.name, forward, backward, mtu, patch=True))
            port = device if len(outer) < 2 else None
            self.stages[link.name] = Stage(
                (namespace_names.WIRE, a), (namespace_names.WIRE, b), forward, backward, port
            )
        if diverted:
            diverted_ends = (wire_side[link.a], wire_side[link.b]) if len(outer) == 2 else (device,)
            self.detours[link.name] = Detour(*_patch(diverted_ends[0]), diverted_ends)

    def _wire_direct(self, link: Link) -> None:
        near, far = ((end.owner, end.port) for end in (link.a, link.b))
        mtu = min(self._all_nics[near].mtu, self._all_nics[far].mtu)
        for device, other_end in ((near, link.b), (far, link.a)):
            if other_end in self._tunnels:
                self.tunnels[device] = TunnelEnd(link.name, self._tunnels[other_end], mtu, self._nics[device].mac)
                return
        self.cables.append(Cable(link.name, near, far, mtu, self._nics[near].mac, self._nics[far].mac))

    def _wire_modelled(self, link: Link, devices: tuple[str, str]) -> None:
        for end, device in zip((link.a, link.b), devices, strict=True):
            nic = self._nics.get((end.owner, end.port))
            if nic is not None:
                self.cables.append(
                    Cable(link.name, (namespace_names.WIRE, device), (end.owner, end.port), nic.mtu, far_mac=nic.mac)
                )
                self.uplinks.append((end.owner, end.port))

    def _add_patch(self, link: Link, device: Device, mtu: int) -> None:
        self.cables.append(Cable(link.name, *_patch(device), mtu, patch=True))

    def _plug(self, port: End, device: Device) -> None:
        number = int(port.port)
        self.plugged[device] = port.owner
        self.port_numbers[device] = number
        self.ports[port.owner][number] = device


def _nics_of(nodes: Iterable[Node]) -> dict[Device, Nic]:
    return {(node.name, nic.name): nic for node in nodes for nic in node.nics}


def _patch(device: Device) -> tuple[Device, Device]:
    plugged, free = namespace_names.patch(device[1])
    return (namespace_names.WIRE, plugged), (namespace_names.WIRE, free)


def _wire_side(cables: Collection[Cable]) -> list[Device]:
    return [end for cable in cables for end in (cable.near, cable.far) if end[0] == namespace_names.WIRE]
