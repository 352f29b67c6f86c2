"""Route-netlink requests: functions that return encoded messages.

Indexes are interface indexes. The caller chooses the index of a new interface, so that it need not be read back. Network
namespaces are passed as open file descriptors. Constants have the names of the kernel's headers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, TypeAlias

from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from testbed.kernel.netlink import (
    ETH_P_ALL,
    EXCEPTION_PRIORITY,
    JOIN_PRIORITY,
    MIRRED,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    NLM_F_REQUEST,
    PATCH_PRIORITY,
    RTM_DELQDISC,
    RTM_DELTFILTER,
    RTM_NEWQDISC,
    RTM_NEWTFILTER,
    TC_H_CLSACT,
    TC_H_CLSACT_EGRESS,
    TC_H_CLSACT_INGRESS,
    TC_H_ROOT,
    TC_MESSAGE,
    TCA_KIND,
    TCA_MIRRED_PARMS,
    TCA_OPTIONS,
    attribute,
    message,
)
from testbed.kernel.shapes import U32, Fixed, Ip, Mac, Message, Mtu, Text, shaped

RTM_NEWLINK, RTM_DELLINK = 16, 17
RTM_NEWADDR, RTM_DELADDR = 20, 21
RTM_NEWROUTE, RTM_DELROUTE = 24, 25
RTM_NEWNEIGH, RTM_DELNEIGH = 28, 29
CREATE = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL

AF_INET, AF_BRIDGE, AF_INET6 = 2, 7, 10
IFF_UP = 1
VXLAN_PORT = 4789
IFA_F_NODAD = 0x02
NUD_NOARP, NTF_MASTER = 0x40, 0x04
RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RTN_UNICAST = 254, 4, 0, 1
TCA_EGRESS_REDIR, TC_ACT_STOLEN, TC_U32_TERMINAL = 1, 4, 1
TCA_U32_SEL, TCA_U32_ACT, TCA_U32_INDEV = 5, 7, 8
_SELECTOR: Final = struct.Struct("=BBBxHHhhI")  # struct tc_u32_sel: flags, offset's shift, number of keys, ...
_KEY: Final = struct.Struct(">II8x")  # struct tc_u32_key: mask, value; at offset 0
_NEVER: Final = (_KEY.pack(1, 0), _KEY.pack(1, 1))
"""Keys of u32 that match no frame: they require a bit of the first 32 to be both 0 and 1."""

_CLSACT = attribute(TCA_KIND, b"clsact\0")

# Handles of u32 filters in table 0x800, the first that the kernel makes for the filters of a clsact qdisc: of a filter that
# matches nothing, and of a redirection, which precedes it.
_PLACEHOLDER, PREPARED = 0x8000_0900, 0x8000_0801

# Handles of the exceptions on the egress side, in any table that the kernel makes for them. The lower one comes first.
_FROM_PATCH, _FROM_STAGE = 1, 2

_LOOPBACK = 1  # index in every namespace

Attribute: TypeAlias = "tuple[str, object]"


def _message(
    message_class: type[ifinfmsg] | type[ifaddrmsg] | type[rtmsg] | type[ndmsg],
    message_type: int,
    flags: int,
    fields: Mapping[str, object],
    attributes: list[Attribute],
) -> Message:
    message = message_class()
    message["header"]["type"] = message_type
    message["header"]["flags"] = NLM_F_REQUEST | flags
    for name, value in fields.items():
        message[name] = value
    message["attrs"] = [attribute for attribute in attributes if attribute[1] is not None]
    encoded: Message = message
    return encoded


def _nested(*attributes: Attribute) -> dict[str, object]:
    return {"attrs": [attribute for attribute in attributes if attribute[1] is not None]}


@shaped
def make_bridge(name: Text, index: U32, mac: Mac) -> Message:
    """Make a bridge that is up, without spanning tree protocol and multicast snooping."""
    settings = _nested(("IFLA_BR_STP_STATE", 0), ("IFLA_BR_MCAST_SNOOPING", 0))
    return _message(
        ifinfmsg,
        RTM_NEWLINK,
        CREATE,
        {"index": index, "flags": IFF_UP, "change": IFF_UP},
        [
            ("IFLA_IFNAME", name),
            ("IFLA_ADDRESS", mac),
            ("IFLA_LINKINFO", _nested(("IFLA_INFO_KIND", "bridge"), ("IFLA_INFO_DATA", settings))),
        ],
    )


@shaped
def make_veth(
    name: Text,
    index: U32,
    mtu: Mtu,
    peer_namespace: U32,
    peer_name: Text,
    peer_index: U32,
    mac: Mac | None = None,
    peer_mac: Mac | None = None,
    bridge: U32 | None = None,
    up: Fixed = 1,
) -> Message:
    """Make a veth pair: `name` in the socket's namespace, and its peer, which is down, in `peer_namespace`.

    mac, peer_mac: None: chosen by the kernel. bridge: index of the bridge into which `name` is plugged; None: none. up: 1 to
    set `name` up, else 0.

    The peer cannot be set up in the same request: it is not paired yet when the kernel configures it.
    """
    peer = {
        "index": peer_index,
        "attrs": _nested(
            ("IFLA_IFNAME", peer_name),
            ("IFLA_ADDRESS", peer_mac),
            ("IFLA_MTU", mtu),
            ("IFLA_NET_NS_FD", peer_namespace),
        )["attrs"],
    }
    return _message(
        ifinfmsg,
        RTM_NEWLINK,
        CREATE,
        {"index": index, "flags": IFF_UP if up else 0, "change": IFF_UP if up else 0},
        [
            ("IFLA_IFNAME", name),
            ("IFLA_ADDRESS", mac),
            ("IFLA_MTU", mtu),
            ("IFLA_MASTER", bridge),
            (
                "IFLA_LINKINFO",
                _nested(("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", _nested(("VETH_INFO_PEER", peer)))),
            ),
        ],
    )


@shaped
def make_vxlan(
    name: Text, local: Ip, remote: Ip, vni: U32, index: U32, mtu: U32, namespace: U32, mac: Mac | None = None
) -> Message:
    """Make a point-to-point VXLAN interface in another namespace, down.

    Its encapsulated packets are sent and received in the namespace of the netlink socket, on UDP port 4789 (RFC 7348). It
    learns no addresses: all frames go to `remote`. vni: VXLAN id. namespace: of the interface. mac: None: chosen by the
    kernel.
    """
    group, source = (
        f"IFLA_VXLAN_{end}{'6' if ':' in address else ''}" for end, address in (("GROUP", remote), ("LOCAL", local))
    )
    settings = _nested(
        ("IFLA_VXLAN_ID", vni),
        (group, remote),
        (source, local),
        ("IFLA_VXLAN_LEARNING", 0),
        ("IFLA_VXLAN_PORT", VXLAN_PORT),
    )
    return _message(
        ifinfmsg,
        RTM_NEWLINK,
        CREATE,
        {"index": index},
        [
            ("IFLA_IFNAME", name),
            ("IFLA_MTU", mtu),
            ("IFLA_NET_NS_FD", namespace),
            ("IFLA_ADDRESS", mac),
            ("IFLA_LINKINFO", _nested(("IFLA_INFO_KIND", "vxlan"), ("IFLA_INFO_DATA", settings))),
        ],
    )


@shaped
def set_up(index: U32) -> Message:
    return _message(ifinfmsg, RTM_NEWLINK, 0, {"index": index, "flags": IFF_UP, "change": IFF_UP}, [])


@shaped
def set_down(index: U32) -> Message:
    return _message(ifinfmsg, RTM_NEWLINK, 0, {"index": index, "flags": 0, "change": IFF_UP}, [])


@shaped
def set_up_with_alias(index: U32, alias: Text) -> Message:
    """Set an interface up and give it an alias (shown by ``ip link``), in one request."""
    return _message(
        ifinfmsg,
        RTM_NEWLINK,
        0,
        {"index": index, "flags": IFF_UP, "change": IFF_UP},
        [("IFLA_IFALIAS", alias)],
    )


@shaped
def set_alias(index: U32, alias: Text) -> Message:
    """Set an interface's alias. The kernel ignores an alias in the request that makes the interface."""
    return _message(ifinfmsg, RTM_NEWLINK, 0, {"index": index}, [("IFLA_IFALIAS", alias)])


@shaped
def set_link(index: U32, mtu: U32 | None = None, mac: Mac | None = None, bridge: U32 | None = None) -> Message:
    """Change an interface. bridge: index of the bridge to plug it into; 0 unplugs it. None leaves a value unchanged."""
    return _message(
        ifinfmsg,
        RTM_NEWLINK,
        0,
        {"index": index},
        [("IFLA_MTU", mtu), ("IFLA_ADDRESS", mac), ("IFLA_MASTER", bridge)],
    )


@shaped
def remove_link(index: U32) -> Message:
    return _message(ifinfmsg, RTM_DELLINK, 0, {"index": index}, [])


@shaped
def set_group(index: U32, group: Fixed) -> Message:
    """Put an interface into a link group; 0: the default group."""
    return _message(ifinfmsg, RTM_NEWLINK, 0, {"index": index}, [("IFLA_GROUP", group)])


@shaped
def remove_group(group: Fixed) -> Message:
    """Remove all interfaces of a link group. The kernel waits once for all of them instead of once for each."""
    return _message(ifinfmsg, RTM_DELLINK, 0, {}, [("IFLA_GROUP", group)])


@shaped
def set_bridge_port(index: U32, learning: Fixed, flooding: Fixed) -> Message:
    """Set a bridge port. learning: 1 to learn addresses there, else 0. flooding: 1 to flood unknown, broadcast and multicast
    frames to it, else 0."""
    settings = _nested(
        ("IFLA_BRPORT_LEARNING", learning),
        ("IFLA_BRPORT_UNICAST_FLOOD", flooding),
        ("IFLA_BRPORT_MCAST_FLOOD", flooding),
        ("IFLA_BRPORT_BCAST_FLOOD", flooding),
    )
    slave = _nested(("IFLA_INFO_SLAVE_KIND", "bridge"), ("IFLA_INFO_SLAVE_DATA", settings))
    return _message(ifinfmsg, RTM_NEWLINK, 0, {"index": index}, [("IFLA_LINKINFO", slave)])


@shaped
def flush_fdb(index: U32) -> Message:
    """Flush the addresses that a switch has learned; its static forwarding entries stay."""
    flush = _nested(("IFLA_BR_FDB_FLUSH", True))
    bridge = _nested(("IFLA_INFO_KIND", "bridge"), ("IFLA_INFO_DATA", flush))
    return _message(ifinfmsg, RTM_NEWLINK, 0, {"index": index}, [("IFLA_LINKINFO", bridge)])


@shaped
def flush_port_fdb(index: U32) -> Message:
    """Flush the addresses that a switch has learned at a port; static forwarding entries stay."""
    flush = _nested(("IFLA_BRPORT_FLUSH", True))
    slave = _nested(("IFLA_INFO_SLAVE_KIND", "bridge"), ("IFLA_INFO_SLAVE_DATA", flush))
    return _message(ifinfmsg, RTM_NEWLINK, 0, {"index": index}, [("IFLA_LINKINFO", slave)])


def _fdb_entry(message_type: int, flags: int, port: int, mac: str) -> Message:
    fields = {"family": AF_BRIDGE, "ifindex": port, "state": NUD_NOARP, "flags": NTF_MASTER}
    return _message(ndmsg, message_type, flags, fields, [("NDA_LLADDR", mac)])


@shaped
def add_fdb_entry(port: U32, mac: Mac) -> Message:
    """Add a static forwarding entry, or replace the existing one of `mac`: frames for `mac` leave the switch by `port`."""
    return _fdb_entry(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, port, mac)


@shaped
def remove_fdb_entry(port: U32, mac: Mac) -> Message:
    return _fdb_entry(RTM_DELNEIGH, 0, port, mac)


# Flags of additions. An address that exists already stays as it is; the gateway of an existing route is replaced.
_ADD = NLM_F_CREATE | NLM_F_REPLACE


def _family(address: str) -> int:
    return AF_INET6 if ":" in address else AF_INET


def _address(message_type: int, flags: int, index: int, prefix: int, address: str) -> Message:
    family = _family(address)
    # IPv6 duplicate address detection would make the address unusable for a second, and a layout has no duplicates.
    fields = {
        "family": family,
        "prefixlen": prefix,
        "index": index,
        "flags": IFA_F_NODAD if family == AF_INET6 else 0,
    }
    attribute = "IFA_LOCAL" if family == AF_INET else "IFA_ADDRESS"
    return _message(ifaddrmsg, message_type, flags, fields, [(attribute, address)])


@shaped
def add_ip(index: U32, address: Ip, prefix: Fixed) -> Message:
    return _address(RTM_NEWADDR, _ADD, index, prefix, address)


@shaped
def remove_ip(index: U32, address: Ip, prefix: Fixed) -> Message:
    return _address(RTM_DELADDR, 0, index, prefix, address)


def _route(message_type: int, flags: int, network: str, prefix: int, gateway: str) -> Message:
    fields = {
        "family": _family(network),
        "dst_len": prefix,
        "table": RT_TABLE_MAIN,
        "proto": RTPROT_STATIC,
        "scope": RT_SCOPE_UNIVERSE,
        "type": RTN_UNICAST,
    }
    return _message(rtmsg, message_type, flags, fields, [("RTA_DST", network), ("RTA_GATEWAY", gateway)])


@shaped
def add_ip_route(network: Ip, prefix: Fixed, gateway: Ip) -> Message:
    return _route(RTM_NEWROUTE, _ADD, network, prefix, gateway)


@shaped
def remove_ip_route(network: Ip, prefix: Fixed, gateway: Ip) -> Message:
    return _route(RTM_DELROUTE, 0, network, prefix, gateway)


def add_clsact(index: int) -> bytes:
    """Add the clsact qdisc, the hook for filters on an interface's frames, unless the interface has one."""
    return _clsact(RTM_NEWQDISC, NLM_F_REQUEST | NLM_F_CREATE, index)


def redirect_ingress(index: int, out: int, priority: int = JOIN_PRIORITY, handle: int = 0) -> bytes:
    """Redirect all frames that come in on `index`, so that they leave by `out`.

    handle: `PREPARED` after `prepare_redirection`; 0: chosen by the kernel.
    """
    return _u32(index, TC_H_CLSACT_INGRESS, priority, handle, _redirection(out))


def redirect_egress(index: int, out: int) -> bytes:
    """Redirect frames that leave by `index` and that match no exception, so that they leave by `out`."""
    return _u32(index, TC_H_CLSACT_EGRESS, PATCH_PRIORITY, 0, _redirection(out))


def discard_from(index: int, input_name: str) -> bytes:
    """Discard frames that leave by `index` and arrived on the interface `input_name`, by redirection to the loopback
    interface."""
    options = _arrived_on(input_name) + _redirection(_LOOPBACK)
    return _u32(index, TC_H_CLSACT_EGRESS, EXCEPTION_PRIORITY, _FROM_PATCH, options)


def allow_from(index: int, input_name: str) -> bytes:
    """Exempt frames that leave by `index` and arrived on the interface `input_name` from `redirect_egress`."""
    return _u32(index, TC_H_CLSACT_EGRESS, EXCEPTION_PRIORITY, _FROM_STAGE, _arrived_on(input_name))


def _u32(index: int, side: int, priority: int, handle: int, options: bytes, keys: tuple[bytes, ...] = ()) -> bytes:
    """Add a u32 filter, which matches every frame unless it has keys. cls_matchall may be missing in the kernel.

    A key, even one with mask 0, would only match frames that have all 4 bytes at its offset.
    """
    selector = _SELECTOR.pack(TC_U32_TERMINAL, 0, len(keys), 0, 0, 0, 0, 0) + b"".join(keys)
    options += attribute(TCA_U32_SEL, selector)
    body = attribute(TCA_KIND, b"u32\0") + attribute(TCA_OPTIONS, options)
    return message(RTM_NEWTFILTER, CREATE, TC_MESSAGE.pack(0, index, handle, side, priority << 16 | ETH_P_ALL) + body)


def _arrived_on(name: str) -> bytes:
    return attribute(TCA_U32_INDEV, name.encode() + b"\0")


def _redirection(out: int) -> bytes:
    parameters = attribute(TCA_MIRRED_PARMS, MIRRED.pack(0, 0, TC_ACT_STOLEN, 0, 0, TCA_EGRESS_REDIR, out))
    action = attribute(TCA_KIND, b"mirred\0") + attribute(TCA_OPTIONS, parameters)
    return attribute(TCA_U32_ACT, attribute(1, action))  # TCA_ACT_PRIO_1


def prepare_redirection(index: int, priority: int) -> bytes:
    """Add a filter that matches no frame, so that redirections of that priority can be added and removed at once.

    Adding the first filter of a priority, and removing the last one, takes milliseconds. The kernel rejects the request with
    EEXIST if the filter exists already.
    """
    return _u32(index, TC_H_CLSACT_INGRESS, priority, _PLACEHOLDER, b"", _NEVER)


def remove_redirection(index: int, priority: int, handle: int = 0) -> bytes:
    """Undo `redirect_ingress`. handle: `PREPARED`: the filter of `prepare_redirection` stays; 0: it is removed, too.

    The kernel rejects the request with ENOENT if there is no redirection, and with EINVAL if there is no clsact qdisc.
    """
    return _remove_filter(index, TC_H_CLSACT_INGRESS, priority, handle)


def remove_egress_filters(index: int, priority: int = PATCH_PRIORITY) -> bytes:
    """Undo `redirect_egress`, or, with EXCEPTION_PRIORITY, `discard_from` and `allow_from`. Rejected like
    `remove_redirection`."""
    return _remove_filter(index, TC_H_CLSACT_EGRESS, priority, 0)


def _remove_filter(index: int, side: int, priority: int, handle: int) -> bytes:
    fields = TC_MESSAGE.pack(0, index, handle, side, priority << 16 | ETH_P_ALL)
    return message(RTM_DELTFILTER, NLM_F_REQUEST, fields + (attribute(TCA_KIND, b"u32\0") if handle else b""))


def remove_clsact(index: int) -> bytes:
    """Remove the clsact qdisc with all its filters."""
    return _clsact(RTM_DELQDISC, NLM_F_REQUEST, index)


def _clsact(message_type: int, flags: int, index: int) -> bytes:
    """Encode a request about an interface's clsact qdisc, without pyroute2's messages for traffic control: their import is
    slow, and every port of a switch has a clsact qdisc."""
    return message(message_type, flags, TC_MESSAGE.pack(0, index, 0xFFFF_0000, TC_H_CLSACT, 0) + _CLSACT)


def add_qdisc(index: int, kind: str) -> bytes:
    """Add a qdisc without options at the root of an interface."""
    fields = TC_MESSAGE.pack(0, index, 0x1_0000, TC_H_ROOT, 0)
    return message(RTM_NEWQDISC, CREATE, fields + attribute(TCA_KIND, kind.encode() + b"\0"))


def remove_qdisc(index: int) -> bytes:
    """Remove the qdisc at the root of an interface."""
    return message(RTM_DELQDISC, NLM_F_REQUEST, TC_MESSAGE.pack(0, index, 0, TC_H_ROOT, 0))


def _split(network: str) -> tuple[str, int]:
    address, _, prefix = network.partition("/")
    return address, int(prefix)


def add_address(index: int, address: str) -> bytes:
    """Add an address, written with its prefix length (``10.0.0.1/16``), to an interface."""
    return add_ip(index, *_split(address))


def remove_address(index: int, address: str) -> bytes:
    return remove_ip(index, *_split(address))


def add_route(destination: str, gateway: str) -> bytes:
    """Add a static route by a gateway. destination: a network, written ``10.1.0.0/16``."""
    return add_ip_route(*_split(destination), gateway)


def remove_route(destination: str, gateway: str) -> bytes:
    return remove_ip_route(*_split(destination), gateway)
