"""The route-netlink requests that testbed sends, each a function that returns encoded bytes.

Indexes are interface indexes, chosen by us where an interface is made, so that nothing has to be asked for afterwards.
Network namespaces are given as open file descriptors. Numbers that the kernel's headers name carry that name.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TypeAlias

from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.kernel.shapes import U32, Fixed, Ip4, Ip6, Mac, Message, Text, shaped

RTM_NEWLINK, RTM_DELLINK = 16, 17
RTM_NEWADDR, RTM_DELADDR = 20, 21
RTM_NEWROUTE, RTM_DELROUTE = 24, 25
RTM_NEWNEIGH, RTM_DELNEIGH = 28, 29
RTM_NEWQDISC, RTM_DELQDISC = 36, 37
RTM_NEWTFILTER = 44

NLM_F_REQUEST, NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x1, 0x100, 0x200, 0x400
CREATE = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL

AF_INET, AF_BRIDGE, AF_INET6 = 2, 7, 10
IFF_UP = 1
IFA_F_NODAD = 0x02
NUD_NOARP, NTF_MASTER = 0x40, 0x04
RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RTN_UNICAST = 254, 4, 0, 1
TC_H_CLSACT, TC_H_CLSACT_INGRESS, TC_H_ROOT = 0xFFFF_FFF1, 0xFFFF_FFF2, 0xFFFF_FFFF
ETH_P_ALL = socket.htons(0x0003)
TCA_EGRESS_REDIR, TC_ACT_STOLEN, TC_U32_TERMINAL = 1, 4, 1

# The order of the filters on one hook: what decides about a frame comes before what sends it on.
DECIDING, REDIRECTING = 1, 2

Attribute: TypeAlias = "tuple[str, object]"


def _message(
    layer: type[ifinfmsg] | type[ifaddrmsg] | type[rtmsg] | type[ndmsg] | type[tcmsg],
    kind: int,
    flags: int,
    fields: Mapping[str, object],
    attributes: list[Attribute],
) -> Message:
    message = layer()
    message["header"]["type"] = kind
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
    """An Ethernet switch: no spanning-tree protocol, no multicast snooping, up."""
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
    mtu: U32,
    peer_namespace: U32,
    peer_name: Text,
    peer_index: U32,
    peer_mtu: U32,
    mac: Mac | None = None,
    peer_mac: Mac | None = None,
    bridge: U32 | None = None,
    up: Fixed = 1,
) -> Message:
    """A veth pair: `name` here, up (1) or not (0), plugged into `bridge` if given; its peer in `peer_namespace`, down.

    The peer cannot be set up in the same request: it has no partner yet when the kernel configures it.
    """
    peer = {
        "index": peer_index,
        "attrs": _nested(
            ("IFLA_IFNAME", peer_name),
            ("IFLA_ADDRESS", peer_mac),
            ("IFLA_MTU", peer_mtu),
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
def set_link(index: U32, mtu: U32 | None = None, mac: Mac | None = None, bridge: U32 | None = None) -> Message:
    """Change an interface; `bridge` is the switch to plug it into, 0 unplugs it."""
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
    """Put an interface into a group (0 is everybody's)."""
    return _message(ifinfmsg, RTM_NEWLINK, 0, {"index": index}, [("IFLA_GROUP", group)])


@shaped
def remove_group(group: Fixed) -> Message:
    """Remove all interfaces of a group: the kernel waits once for all instead of once for each."""
    return _message(ifinfmsg, RTM_DELLINK, 0, {}, [("IFLA_GROUP", group)])


@shaped
def set_bridge_port(index: U32, learning: Fixed, flooding: Fixed) -> Message:
    """How a port of a switch behaves: whether it learns addresses (0/1), and whether frames for all leave by it (0/1)."""
    settings = _nested(
        ("IFLA_BRPORT_LEARNING", learning),
        ("IFLA_BRPORT_UNICAST_FLOOD", flooding),
        ("IFLA_BRPORT_MCAST_FLOOD", flooding),
        ("IFLA_BRPORT_BCAST_FLOOD", flooding),
    )
    slave = _nested(("IFLA_INFO_SLAVE_KIND", "bridge"), ("IFLA_INFO_SLAVE_DATA", settings))
    return _message(ifinfmsg, RTM_NEWLINK, 0, {"index": index}, [("IFLA_LINKINFO", slave)])


@shaped
def forget_learned(index: U32) -> Message:
    """Let a switch forget where it learned addresses; its static forwarding entries stay."""
    flush = _nested(("IFLA_BR_FDB_FLUSH", True))
    bridge = _nested(("IFLA_INFO_KIND", "bridge"), ("IFLA_INFO_DATA", flush))
    return _message(ifinfmsg, RTM_NEWLINK, 0, {"index": index}, [("IFLA_LINKINFO", bridge)])


def _forwarding(kind: int, flags: int, port: int, mac: str) -> Message:
    fields = {"family": AF_BRIDGE, "ifindex": port, "state": NUD_NOARP, "flags": NTF_MASTER}
    return _message(ndmsg, kind, flags, fields, [("NDA_LLADDR", mac)])


@shaped
def add_forwarding(port: U32, mac: Mac) -> Message:
    """Frames for `mac` leave the switch by `port`; replaces what the switch had for it."""
    return _forwarding(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, port, mac)


@shaped
def remove_forwarding(port: U32, mac: Mac) -> Message:
    return _forwarding(RTM_DELNEIGH, 0, port, mac)


def _address(kind: int, flags: int, family: int, index: int, prefix: int, address: str) -> Message:
    # IPv6 duplicate-address detection would keep the address unusable for a second, and the plan has no duplicates.
    fields = {
        "family": family,
        "prefixlen": prefix,
        "index": index,
        "flags": IFA_F_NODAD if family == AF_INET6 else 0,
    }
    attribute = "IFA_LOCAL" if family == AF_INET else "IFA_ADDRESS"
    return _message(ifaddrmsg, kind, flags, fields, [(attribute, address)])


# An interface may have the address already: what adds it then changes nothing.
_ADD = NLM_F_CREATE | NLM_F_REPLACE


@shaped
def add_ip4(index: U32, address: Ip4, prefix: Fixed) -> Message:
    return _address(RTM_NEWADDR, _ADD, AF_INET, index, prefix, address)


@shaped
def add_ip6(index: U32, address: Ip6, prefix: Fixed) -> Message:
    return _address(RTM_NEWADDR, _ADD, AF_INET6, index, prefix, address)


@shaped
def remove_ip4(index: U32, address: Ip4, prefix: Fixed) -> Message:
    return _address(RTM_DELADDR, 0, AF_INET, index, prefix, address)


@shaped
def remove_ip6(index: U32, address: Ip6, prefix: Fixed) -> Message:
    return _address(RTM_DELADDR, 0, AF_INET6, index, prefix, address)


def _route(kind: int, flags: int, family: int, network: str, prefix: int, gateway: str) -> Message:
    fields = {
        "family": family,
        "dst_len": prefix,
        "table": RT_TABLE_MAIN,
        "proto": RTPROT_STATIC,
        "scope": RT_SCOPE_UNIVERSE,
        "type": RTN_UNICAST,
    }
    return _message(rtmsg, kind, flags, fields, [("RTA_DST", network), ("RTA_GATEWAY", gateway)])


@shaped
def add_route4(network: Ip4, prefix: Fixed, gateway: Ip4) -> Message:
    return _route(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, AF_INET, network, prefix, gateway)


@shaped
def add_route6(network: Ip6, prefix: Fixed, gateway: Ip6) -> Message:
    return _route(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, AF_INET6, network, prefix, gateway)


@shaped
def remove_route4(network: Ip4, prefix: Fixed, gateway: Ip4) -> Message:
    return _route(RTM_DELROUTE, 0, AF_INET, network, prefix, gateway)


@shaped
def remove_route6(network: Ip6, prefix: Fixed, gateway: Ip6) -> Message:
    return _route(RTM_DELROUTE, 0, AF_INET6, network, prefix, gateway)


@shaped
def add_clsact(index: U32) -> Message:
    """The hook on which an interface's incoming frames can be redirected; it may have it already."""
    fields = {"index": index, "handle": 0xFFFF_0000, "parent": TC_H_CLSACT}
    return _message(tcmsg, RTM_NEWQDISC, NLM_F_CREATE, fields, [("TCA_KIND", "clsact")])


@shaped
def redirect_incoming(index: U32, out: U32) -> Message:
    """Every frame that comes in on `index` leaves by `out`: half of a cable between two interfaces."""
    fields = {"index": index, "parent": TC_H_CLSACT_INGRESS, "info": REDIRECTING << 16 | ETH_P_ALL}
    parameters = {"action": TC_ACT_STOLEN, "eaction": TCA_EGRESS_REDIR, "ifindex": out}
    action = _nested(("TCA_ACT_KIND", "mirred"), ("TCA_ACT_OPTIONS", _nested(("TCA_MIRRED_PARMS", parameters))))
    # u32 with a key that always matches: kernels without cls_matchall have it.
    everything = {"flags": TC_U32_TERMINAL, "keys": ["0x0/0x0+0"]}
    options = _nested(("TCA_U32_SEL", everything), ("TCA_U32_ACT", _nested(("TCA_ACT_PRIO_1", action))))
    return _message(
        tcmsg,
        RTM_NEWTFILTER,
        CREATE,
        fields,
        [("TCA_KIND", "u32"), ("TCA_OPTIONS", options)],
    )


@shaped
def remove_clsact(index: U32) -> Message:
    """Take the hook away with all that hangs on it."""
    fields = {"index": index, "handle": 0xFFFF_0000, "parent": TC_H_CLSACT}
    return _message(tcmsg, RTM_DELQDISC, 0, fields, [("TCA_KIND", "clsact")])


def add_qdisc(index: int, kind: str) -> bytes:
    """A queueing discipline with default options at the root of an interface."""
    message = _message(
        tcmsg, RTM_NEWQDISC, CREATE, {"index": index, "parent": TC_H_ROOT, "handle": 0x1_0000}, [("TCA_KIND", kind)]
    )
    message.encode()
    return bytes(message.data)


@shaped
def remove_qdisc(index: U32) -> Message:
    """Take the queueing discipline at an interface's root away."""
    return _message(tcmsg, RTM_DELQDISC, 0, {"index": index, "parent": TC_H_ROOT}, [])


def add_address(index: int, address: str) -> bytes:
    """Give an interface an address, written with its prefix length: ``10.0.0.1/16``."""
    text, _, prefix = address.partition("/")
    return (add_ip6 if ":" in text else add_ip4)(index, text, int(prefix))


def remove_address(index: int, address: str) -> bytes:
    text, _, prefix = address.partition("/")
    return (remove_ip6 if ":" in text else remove_ip4)(index, text, int(prefix))


def add_route(destination: str, gateway: str) -> bytes:
    """A static route to a network, written ``10.1.0.0/16``, by a gateway."""
    network, _, prefix = destination.partition("/")
    return (add_route6 if ":" in network else add_route4)(network, int(prefix), gateway)


def remove_route(destination: str, gateway: str) -> bytes:
    network, _, prefix = destination.partition("/")
    return (remove_route6 if ":" in network else remove_route4)(network, int(prefix), gateway)
