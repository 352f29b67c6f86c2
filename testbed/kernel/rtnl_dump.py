"""Dump of one network namespace by route netlink: interfaces with their counters, addresses, routes, forwarding entries,
offloads, queueing disciplines and filters.

The dumps are decoded with `struct`, since pyroute2's decoder would be too slow for the status of a hundred nodes.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from testbed.kernel import diversion, offloads, qdiscs
from testbed.kernel.diversion import Diversion
from testbed.kernel.filesystem import read_kernel_file
from testbed.kernel.netlink import (
    JOIN_PRIORITY,
    NLM_F_REQUEST,
    PATCH_PRIORITY,
    RTM_GETQDISC,
    STAGE_PRIORITY,
    TC_H_CLSACT,
    TC_H_CLSACT_EGRESS,
    TC_H_CLSACT_INGRESS,
    TC_MESSAGE,
    Filter,
    RequestError,
    RouteSocket,
    attribute,
    attributes,
    filters,
    message,
    redirected_to,
    text,
)
from testbed.kernel.offloads import Offloads
from testbed.kernel.qdiscs import Qdisc
from testbed.lazy_dataclass import dataclass

_LINK = struct.Struct("=BxHiII")  # family, type, index, flags, change
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
_ROUTE = struct.Struct("=BBBBBBBBI")  # family, dst len, src len, tos, table, protocol, scope, type, flags
_NEIGHBOUR = struct.Struct("=BxxxiHBB")  # family, index, state, flags, type
_U32 = struct.Struct("=I")
_STATS = struct.Struct("=8Q")  # rx/tx packets, rx/tx bytes, rx/tx errors, rx/tx dropped
_OTHERHOST = struct.Struct("=Q")  # rx_otherhost_dropped, the 25th counter; since Linux 5.19
_OTHERHOST_AT = 24 * 8

RTM_GETLINK, RTM_GETADDR, RTM_GETROUTE, RTM_GETNEIGH = 18, 22, 26, 30
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_MASTER = 1, 3, 4, 5, 10
IFLA_OPERSTATE, IFLA_LINKINFO, IFLA_IFALIAS, IFLA_STATS64, IFLA_EXT_MASK = 16, 18, 20, 23, 29
IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA = 1, 5
IFLA_BRPORT_LEARNING, IFLA_BRPORT_UNICAST_FLOOD = 8, 9
IFA_ADDRESS, IFA_LOCAL = 1, 2
RTA_DST, RTA_GATEWAY = 1, 5
NDA_LLADDR, NDA_MASTER = 2, 9
IFF_UP, IFF_LOWER_UP = 1, 0x10000
RTEXT_FILTER_SKIP_STATS = 8
IF_OPER_UNKNOWN, IF_OPER_UP = 0, 6
NUD_NOARP = 0x40
RTPROT_STATIC, RT_TABLE_MAIN = 4, 254
TCA_U32_ACT = 7
RT_SCOPE_LINK = 253

# Settings that make a namespace route, by IP version.
ROUTING = {4: "/proc/sys/net/ipv4/ip_forward", 6: "/proc/sys/net/ipv6/conf/all/forwarding"}


@dataclass(frozen=True, slots=True)
class Counters:
    """Frames and bytes of an interface since it was made.

    rx_dropped, tx_dropped: frames dropped by the kernel. rx_otherhost: IP frames for another hardware address; 0 before
    Linux 5.19, where they are not reported.
    """

    rx_packets: int
    tx_packets: int
    rx_bytes: int
    tx_bytes: int
    rx_dropped: int
    tx_dropped: int
    rx_otherhost: int = 0

    @property
    def rx_unclaimed(self) -> int:
        """Frames that came in and that no protocol accepted, as on a link's free end while nothing forwards its frames.

        Unicast IP and unknown protocols are counted. Broadcast ARP and IP are not, nor frames that a switch is forwarding
        while the interface is unplugged.
        """
        return self.rx_dropped + self.rx_otherhost


@dataclass(frozen=True, slots=True)
class Contents:
    """State of a namespace that a plan needs. Interfaces are identified by their indexes, except in `interfaces`.

    interfaces: by name. addresses: interface -> addresses with prefix length. routes: static ones, (network, gateway).
    forwarding: static entries of the switches, (switch, MAC) -> port. redirections: interface -> the interface to which its
    incoming frames are redirected (joined cables). staged: interface -> the interface to which its incoming frames are
    redirected before that, to or from a stage. patched: port -> the patch to which its outgoing frames are redirected.
    routing: the IP versions that the namespace routes. offloads: veth or VXLAN interface -> the GSO frames that it accepts.
    hooks: interfaces with a clsact qdisc. qdiscs: interface -> its root qdisc. classifiers: interface -> the name of its
    loss classifier. diversions: interface -> the interfaces to which its frames are diverted before all other filters.
    """

    interfaces: Mapping[str, Interface] = field(default_factory=dict)
    addresses: Mapping[int, frozenset[str]] = field(default_factory=dict)
    routes: frozenset[tuple[str, str]] = frozenset()
    forwarding: Mapping[tuple[int, str], int] = field(default_factory=dict)
    redirections: Mapping[int, int] = field(default_factory=dict)
    staged: Mapping[int, int] = field(default_factory=dict)
    patched: Mapping[int, int] = field(default_factory=dict)
    routing: frozenset[int] = frozenset()
    offloads: Mapping[int, Offloads] = field(default_factory=dict)
    hooks: frozenset[int] = frozenset()
    qdiscs: Mapping[int, Qdisc] = field(default_factory=dict)
    classifiers: Mapping[int, str] = field(default_factory=dict)
    diversions: Mapping[int, Diversion] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface.

    up: whether it is set up. master: index of the switch that it is plugged into; 0: none. peer: index of the other end of a
    veth pair, in that end's namespace; 0: none. learning, flooding: settings of a switch's port; True elsewhere.
    is_operational: whether its operational state is "up", some time after it and its peer are set up; until then, it drops
    the frames that it is to send. Never so for a loopback interface, whose state is "unknown".
    """

    index: int
    name: str
    kind: str
    mac: str
    mtu: int
    up: bool
    master: int
    peer: int
    alias: str
    counters: Counters
    learning: bool = True
    flooding: bool = True
    is_operational: bool = True


def _mac(value: memoryview) -> str:
    return bytes(value).hex(":")


def _ip(value: memoryview) -> str:
    return socket.inet_ntop(socket.AF_INET if len(value) == 4 else socket.AF_INET6, value)


def interfaces(route: RouteSocket) -> list[Interface]:
    """List all interfaces of the namespace in the order of their indexes."""
    return [_interface(entry) for entry in route.dump(RTM_GETLINK, bytes(_LINK.size))]


def counters(route: RouteSocket, names: Iterable[str]) -> dict[str, Counters]:
    """Read the counters of these interfaces of the namespace, by name. Interfaces that do not exist are left out."""
    entries = {name: entry for name in names if (entry := _entry_named(route, name)) is not None}
    return {name: _counters(attributes(entry[_LINK.size :])[IFLA_STATS64]) for name, entry in entries.items()}


def has_pending_carrier(route: RouteSocket) -> bool:
    """Whether an interface of the namespace has a carrier that the kernel's link watch has not noticed yet, so that the
    interface drops frames. Cheaper than `interfaces`, since a change of a cluster calls it repeatedly."""
    without_statistics = attribute(IFLA_EXT_MASK, _U32.pack(RTEXT_FILTER_SKIP_STATS))
    return any(_is_carrier_pending(entry) for entry in route.dump(RTM_GETLINK, bytes(_LINK.size) + without_statistics))


def _is_carrier_pending(entry: memoryview) -> bool:
    _, _, _, flags, _ = _LINK.unpack_from(entry)
    if not flags & IFF_LOWER_UP:
        return False
    state = attributes(entry[_LINK.size :]).get(IFLA_OPERSTATE)
    return state is not None and state[0] not in (IF_OPER_UP, IF_OPER_UNKNOWN)


def interface(route: RouteSocket, index: int) -> Interface:
    """Read one interface of the namespace. Raises RequestError if there is none."""
    return _interface(route.query(message(RTM_GETLINK, NLM_F_REQUEST, _LINK.pack(0, 0, index, 0, 0), sequence=1)))


def interface_named(route: RouteSocket, name: str) -> Interface | None:
    """Read the interface of that name in the namespace; None if there is none."""
    entry = _entry_named(route, name)
    return None if entry is None else _interface(entry)


def _entry_named(route: RouteSocket, name: str) -> memoryview | None:
    body = bytes(_LINK.size) + attribute(IFLA_IFNAME, name.encode() + b"\0")
    try:
        return route.query(message(RTM_GETLINK, NLM_F_REQUEST, body, sequence=1))
    except RequestError as error:
        if error.refusals[0].errno == errno.ENODEV:
            return None
        raise


def _interface(entry: memoryview) -> Interface:
    _, _, index, flags, _ = _LINK.unpack_from(entry)
    values = attributes(entry[_LINK.size :])
    link_info = attributes(values[IFLA_LINKINFO]) if IFLA_LINKINFO in values else {}
    port = attributes(link_info[IFLA_INFO_SLAVE_DATA]) if IFLA_INFO_SLAVE_DATA in link_info else {}
    name, kind, alias = (
        text(attributes_by_type[kind]) if kind in attributes_by_type else ""
        for attributes_by_type, kind in ((values, IFLA_IFNAME), (link_info, IFLA_INFO_KIND), (values, IFLA_IFALIAS))
    )
    mtu, master, peer = (
        int(_U32.unpack(values[number])[0]) if number in values else 0 for number in (IFLA_MTU, IFLA_MASTER, IFLA_LINK)
    )
    learning, flooding = (
        setting not in port or bool(port[setting][0]) for setting in (IFLA_BRPORT_LEARNING, IFLA_BRPORT_UNICAST_FLOOD)
    )
    mac = _mac(values[IFLA_ADDRESS]) if IFLA_ADDRESS in values else ""
    state = values[IFLA_OPERSTATE][0] if IFLA_OPERSTATE in values else IF_OPER_UP
    is_operational = state == IF_OPER_UP
    counters = _counters(values[IFLA_STATS64]) if IFLA_STATS64 in values else Counters(0, 0, 0, 0, 0, 0)
    return Interface(
        index,
        name,
        kind,
        mac,
        mtu,
        bool(flags & IFF_UP),
        master,
        peer,
        alias,
        counters,
        learning,
        flooding,
        is_operational,
    )


def _counters(value: memoryview) -> Counters:
    rx, tx, rx_bytes, tx_bytes, _, _, rx_dropped, tx_dropped = _STATS.unpack_from(value)
    has_otherhost = len(value) >= _OTHERHOST_AT + _OTHERHOST.size
    (otherhost,) = _OTHERHOST.unpack_from(value, _OTHERHOST_AT) if has_otherhost else (0,)
    return Counters(rx, tx, rx_bytes, tx_bytes, rx_dropped, tx_dropped, otherhost)


def addresses(route: RouteSocket) -> dict[int, frozenset[str]]:
    """Read the addresses with prefix length, by interface index: those of global and site scope, and IPv6 addresses of link
    scope."""
    texts_of: dict[int, set[str]] = {}
    for entry in route.dump(RTM_GETADDR, bytes(_ADDRESS.size)):
        family, prefix, _, scope, index = _ADDRESS.unpack_from(entry)
        if scope > RT_SCOPE_LINK or (scope == RT_SCOPE_LINK and family == socket.AF_INET):
            continue
        values = attributes(entry[_ADDRESS.size :])
        value = values.get(IFA_LOCAL, values.get(IFA_ADDRESS))
        if value is not None:
            texts_of.setdefault(index, set()).add(f"{_ip(value)}/{prefix}")
    return {index: frozenset(texts) for index, texts in texts_of.items()}


def static_routes(route: RouteSocket) -> frozenset[tuple[str, str]]:
    """Read the static routes of the main table: (destination network, gateway)."""
    routes = set()
    for entry in route.dump(RTM_GETROUTE, bytes(_ROUTE.size)):
        family, prefix, _, _, table, protocol, *_ = _ROUTE.unpack_from(entry)
        if protocol != RTPROT_STATIC or table != RT_TABLE_MAIN:
            continue
        values = attributes(entry[_ROUTE.size :])
        if RTA_GATEWAY in values:
            default = "0.0.0.0" if family == socket.AF_INET else "::"
            network = _ip(values[RTA_DST]) if RTA_DST in values else default
            routes.add((f"{network}/{prefix}", _ip(values[RTA_GATEWAY])))
    return frozenset(routes)


def forwarding(route: RouteSocket) -> dict[tuple[int, str], int]:
    """Read the static forwarding entries of the switches: (switch's index, MAC) -> port's index."""
    entries = {}
    for entry in route.dump(RTM_GETNEIGH, _NEIGHBOUR.pack(socket.AF_BRIDGE, 0, 0, 0, 0)):
        _, index, state, _, _ = _NEIGHBOUR.unpack_from(entry)
        if not state & NUD_NOARP:
            continue
        values = attributes(entry[_NEIGHBOUR.size :])
        if NDA_MASTER in values:
            (switch,) = _U32.unpack(values[NDA_MASTER])
            entries[switch, _mac(values[NDA_LLADDR])] = index
    return entries


def hooks(route: RouteSocket) -> frozenset[int]:
    """Return the indexes of the interfaces that have the hook for filters (clsact)."""
    qdiscs = (TC_MESSAGE.unpack_from(entry) for entry in route.dump(RTM_GETQDISC, bytes(TC_MESSAGE.size)))
    return frozenset(index for _, index, _, parent, _ in qdiscs if parent == TC_H_CLSACT)


def redirections(filters_by_index: Mapping[int, Sequence[Filter]]) -> dict[int, dict[int, int]]:
    """Return the redirections among the filters of interfaces: priority of the filter -> interface index -> index of the
    interface by which frames leave; 0 if that was removed."""
    by_priority: dict[int, dict[int, int]] = {}
    for index, hook_filters in filters_by_index.items():
        for priority, kind, options in hook_filters:
            # Other filters on the hook number their options differently.
            if kind == "u32" and TCA_U32_ACT in options and (out := redirected_to(options[TCA_U32_ACT])) is not None:
                by_priority.setdefault(priority, {})[index] = out
    return by_priority


def node_contents(route: RouteSocket) -> Contents:
    """Read the contents of a node's namespace. The calling thread must be in it, to read the settings of routing."""
    routing = frozenset(version for version, path in ROUTING.items() if _setting(path) == "1")
    interfaces_by_name = by_name(interfaces(route))
    return Contents(
        interfaces_by_name,
        addresses(route),
        static_routes(route),
        routing=routing,
        offloads=_offloads(route, interfaces_by_name.values()),
    )


def _offloads(route: RouteSocket, interfaces: Iterable[Interface]) -> dict[int, Offloads]:
    reported = {
        link.index: offloads.accepted(route.fileno(), link.name)
        for link in interfaces
        if link.kind in ("veth", "vxlan")
    }
    return {index: accepted for index, accepted in reported.items() if accepted is not None}


def _setting(path: str) -> str:
    """Read a kernel setting; empty if this kernel does not have it."""
    try:
        return read_kernel_file(path).strip()
    except FileNotFoundError:
        return ""


def wire_contents(route: RouteSocket) -> Contents:
    """Read the contents of a wire namespace: switches, ends of cables, their qdiscs and filters."""
    interfaces_by_name = by_name(interfaces(route))
    hooked = hooks(route)
    # Most ports of switches have no filters. Only interfaces with ingress filters can have egress filters.
    incoming = {
        index: ingress_filters for index in hooked if (ingress_filters := filters(route, index, TC_H_CLSACT_INGRESS))
    }
    outgoing = {index: filters(route, index, TC_H_CLSACT_EGRESS) for index in incoming}
    redirected = redirections(incoming)
    return Contents(
        interfaces_by_name,
        forwarding=forwarding(route),
        redirections=redirected.get(JOIN_PRIORITY, {}),
        staged=redirected.get(STAGE_PRIORITY, {}),
        patched=redirections(outgoing).get(PATCH_PRIORITY, {}),
        offloads=_offloads(route, interfaces_by_name.values()),
        hooks=hooked,
        qdiscs=qdiscs.qdiscs(route),
        classifiers=_classifiers(incoming) if incoming else {},
        diversions=diversion.diversions(incoming, outgoing),
    )


def _classifiers(filters_by_index: Mapping[int, Sequence[Filter]]) -> dict[int, str]:
    from testbed.kernel import loss_classifier

    attached = (
        (index, loss_classifier.attached_among(hook_filters)) for index, hook_filters in filters_by_index.items()
    )
    return {index: classifier.name for index, classifier in attached if classifier is not None}


def by_name(interfaces: Iterable[Interface]) -> dict[str, Interface]:
    return {interface.name: interface for interface in interfaces}
