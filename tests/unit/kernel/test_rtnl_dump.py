"""Testbed decodes rtnetlink dumps as pyroute2 does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from testbed.kernel import namespaces, netlink_messages, rtnl_dump, syscalls
from testbed.kernel.netlink import RouteSocket

pytestmark = pytest.mark.requires("root")


class RecordingSocket(RouteSocket):
    """Route socket that keeps the entries of its last dump."""

    entries: list[memoryview]

    def dump(self, table: int, fields: bytes) -> list[memoryview]:
        self.entries = super().dump(table, fields)
        return self.entries


@pytest.fixture
def route() -> Iterator[RecordingSocket]:
    """Yield a socket in a namespace with two bridges, veth pairs of every kind, addresses and routes."""
    with namespaces.restore_namespace():
        syscalls.unshare(syscalls.CLONE_NEWNET)
        namespace = namespaces.make("the other", {})
        syscalls.unshare(syscalls.CLONE_NEWNET)
        socket = RecordingSocket()
    requests = [
        netlink_messages.set_up_with_alias(1, "an alias with spaces"),
        netlink_messages.make_bridge("s1", 101, "06:00:00:00:00:01"),
        netlink_messages.make_bridge("s2", 102, "06:00:00:00:00:02"),
        netlink_messages.make_veth(
            "n1.eth0", 1001, 9000, namespace.descriptor, "eth0", 7, None, "02:00:00:00:00:07", 101
        ),
        netlink_messages.make_veth("s1.9", 1002, 1500, namespace.descriptor, "eth1", 8, bridge=102, up=0),
        netlink_messages.make_veth("loose", 1003, 1500, namespace.descriptor, "eth2", 9, "02:00:00:00:00:10"),
        netlink_messages.make_veth("joined", 1004, 1500, namespace.descriptor, "eth3", 10),
        netlink_messages.set_bridge_port(1001, 0, 0),
        netlink_messages.set_bridge_port(1002, 0, 1),
        netlink_messages.add_fdb_entry(1001, "02:00:00:00:00:77"),
        netlink_messages.add_fdb_entry(1002, "02:00:00:00:00:78"),
        netlink_messages.add_clsact(1003),
        netlink_messages.add_clsact(1004),
        netlink_messages.redirect_ingress(1003, 1004),
        netlink_messages.redirect_ingress(1004, 1003),
        netlink_messages.add_address(1003, "10.9.0.1/16"),
        netlink_messages.add_address(1003, "10.9.0.2/16"),
        netlink_messages.add_address(1003, "fd00:9::1/64"),
        netlink_messages.add_address(1003, "fe80::9/64"),
        netlink_messages.add_route("10.10.0.0/16", "10.9.0.200"),
        netlink_messages.add_route("fd00:10::/64", "fd00:9::200"),
    ]
    socket.execute(requests)
    namespace.route.execute([netlink_messages.set_up(7), netlink_messages.set_up(9)])
    yield socket
    socket.close()
    namespace.close()


def decode_entries(layer: Any, entries: list[memoryview]) -> list[Any]:
    """Decode the entries with pyroute2, which needs a netlink header before each."""
    messages = []
    for entry in entries:
        header = (len(entry) + 16).to_bytes(4, "little") + bytes(12)
        message = layer(header + bytes(entry))
        message.decode()
        messages.append(message)
    return messages


def test_interfaces_are_decoded_identically(route: RecordingSocket) -> None:
    decoded = rtnl_dump.interfaces(route)
    by_pyroute2 = decode_entries(ifinfmsg, route.entries)
    assert len(decoded) == len(by_pyroute2) == 7
    for interface, reference in zip(decoded, by_pyroute2, strict=True):
        kind = slave = None
        if info := reference.get_attr("IFLA_LINKINFO"):
            kind, slave = info.get_attr("IFLA_INFO_KIND"), info.get_attr("IFLA_INFO_SLAVE_DATA")
        stats = reference.get_attr("IFLA_STATS64")
        assert interface.index == reference["index"]
        assert interface.name == reference.get_attr("IFLA_IFNAME")
        assert interface.kind == (kind or "")
        assert interface.mac == reference.get_attr("IFLA_ADDRESS")
        assert interface.mtu == reference.get_attr("IFLA_MTU")
        assert interface.up == bool(reference["flags"] & 1)
        assert interface.master == (reference.get_attr("IFLA_MASTER") or 0)
        assert interface.peer == (reference.get_attr("IFLA_LINK") or 0)
        assert interface.alias == (reference.get_attr("IFLA_IFALIAS") or "")
        for field in ("rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_dropped", "tx_dropped"):
            assert getattr(interface.counters, field) == stats[field]
        if slave is not None:
            assert interface.learning == bool(slave.get_attr("IFLA_BRPORT_LEARNING"))
            assert interface.flooding == bool(slave.get_attr("IFLA_BRPORT_UNICAST_FLOOD"))
    by_name = rtnl_dump.by_name(decoded)
    assert by_name["lo"].alias == "an alias with spaces"
    assert (by_name["n1.eth0"].master, by_name["n1.eth0"].peer) == (101, 7)
    assert (by_name["n1.eth0"].learning, by_name["n1.eth0"].flooding) == (False, False)
    assert (by_name["s1.9"].learning, by_name["s1.9"].flooding, by_name["s1.9"].up) == (False, True, False)


def test_addresses_are_decoded_identically(route: RecordingSocket) -> None:
    decoded = rtnl_dump.addresses(route)
    by_pyroute2: dict[int, set[str]] = {}
    for reference in decode_entries(ifaddrmsg, route.entries):
        if reference["scope"] <= rtnl_dump.RT_SCOPE_LINK:
            text = f"{reference.get_attr('IFA_LOCAL') or reference.get_attr('IFA_ADDRESS')}/{reference['prefixlen']}"
            by_pyroute2.setdefault(reference["index"], set()).add(text)
    assert decoded == by_pyroute2
    assert {"10.9.0.1/16", "10.9.0.2/16", "fd00:9::1/64", "fe80::9/64"} <= decoded[
        1003
    ]  # beside link-local addresses of the kernel


def test_static_routes_are_decoded_identically(route: RecordingSocket) -> None:
    decoded = rtnl_dump.static_routes(route)
    by_pyroute2 = {
        (f"{reference.get_attr('RTA_DST')}/{reference['dst_len']}", reference.get_attr("RTA_GATEWAY"))
        for reference in decode_entries(rtmsg, route.entries)
        if reference["proto"] == rtnl_dump.RTPROT_STATIC
    }
    assert decoded == by_pyroute2 == {("10.10.0.0/16", "10.9.0.200"), ("fd00:10::/64", "fd00:9::200")}


def test_forwarding_entries_are_decoded_identically(route: RecordingSocket) -> None:
    decoded = rtnl_dump.forwarding(route)
    by_pyroute2 = {
        (reference.get_attr("NDA_MASTER"), reference.get_attr("NDA_LLADDR")): reference["ifindex"]
        for reference in decode_entries(ndmsg, route.entries)
        if reference["state"] & rtnl_dump.NUD_NOARP and reference.get_attr("NDA_MASTER")
    }
    assert decoded == by_pyroute2 == {(101, "02:00:00:00:00:77"): 1001, (102, "02:00:00:00:00:78"): 1002}


def test_redirections_are_read_with_their_targets(route: RecordingSocket) -> None:
    assert rtnl_dump.wire_contents(route).redirections == {1003: 1004, 1004: 1003}


def test_a_clsact_qdisc_without_a_filter_is_no_redirection(route: RecordingSocket) -> None:
    route.execute([netlink_messages.remove_clsact(1003), netlink_messages.add_clsact(1003)])
    assert rtnl_dump.wire_contents(route).redirections == {1004: 1003}
