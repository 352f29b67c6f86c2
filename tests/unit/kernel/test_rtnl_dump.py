"""Our decoding of the kernel's tables agrees with pyroute2's decoding of the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from testbed.kernel import namespaces, netlink, netlink_messages, rtnl_dump, syscalls
from testbed.kernel.netlink import RouteSocket

pytestmark = pytest.mark.requires("root")


class RecordedRun(RouteSocket):
    """Socket that keeps the kernel's answers to the last dump."""

    entries: list[memoryview]

    def dump(self, table: int, fields: bytes) -> list[memoryview]:
        self.entries = super().dump(table, fields)
        return self.entries


@pytest.fixture
def route() -> Iterator[RecordedRun]:
    """A namespace with two switches, cables of every kind, addresses and routes."""
    with namespaces.restore_namespace():
        syscalls.unshare(syscalls.CLONE_NEWNET)
        other = namespaces.make("the other", {})
        syscalls.unshare(syscalls.CLONE_NEWNET)
        socket = RecordedRun()
    requests = [
        netlink_messages.set_up_with_alias(1, "an alias with spaces"),
        netlink_messages.make_bridge("s1", 101, "06:00:00:00:00:01"),
        netlink_messages.make_bridge("s2", 102, "06:00:00:00:00:02"),
        netlink_messages.make_veth("n1.eth0", 1001, 9000, other.descriptor, "eth0", 7, None, "02:00:00:00:00:07", 101),
        netlink_messages.make_veth("s1.9", 1002, 1500, other.descriptor, "eth1", 8, bridge=102, up=0),
        netlink_messages.make_veth("loose", 1003, 1500, other.descriptor, "eth2", 9, "02:00:00:00:00:10"),
        netlink_messages.make_veth("joined", 1004, 1500, other.descriptor, "eth3", 10),
        netlink_messages.set_bridge_port(1001, 0, 0),
        netlink_messages.set_bridge_port(1002, 0, 1),
        netlink_messages.add_forwarding(1001, "02:00:00:00:00:77"),
        netlink_messages.add_forwarding(1002, "02:00:00:00:00:78"),
        netlink_messages.add_clsact(1003),
        netlink_messages.add_clsact(1004),
        netlink_messages.redirect_incoming(1003, 1004),
        netlink_messages.redirect_incoming(1004, 1003),
        netlink_messages.add_address(1003, "10.9.0.1/16"),
        netlink_messages.add_address(1003, "10.9.0.2/16"),
        netlink_messages.add_address(1003, "fd00:9::1/64"),
        netlink_messages.add_address(1003, "fe80::9/64"),
        netlink_messages.add_route("10.10.0.0/16", "10.9.0.200"),
        netlink_messages.add_route("fd00:10::/64", "fd00:9::200"),
    ]
    socket.execute(requests)
    other.route.execute([netlink_messages.set_up(7), netlink_messages.set_up(9)])
    yield socket
    socket.close()
    other.close()


def decoded(layer: Any, entries: list[memoryview]) -> list[Any]:
    """Decode the entries with pyroute2, which needs a netlink header before each."""
    actual = []
    for entry in entries:
        header = (len(entry) + 16).to_bytes(4, "little") + bytes(12)
        message = layer(header + bytes(entry))
        message.decode()
        actual.append(message)
    return actual


def test_interfaces_are_decoded_alike(route: RecordedRun) -> None:
    ours = rtnl_dump.interfaces(route)
    theirs = decoded(ifinfmsg, route.entries)
    assert len(ours) == len(theirs) == 7
    for mine, their in zip(ours, theirs, strict=True):
        kind = slave = None
        if info := their.get_attr("IFLA_LINKINFO"):
            kind, slave = info.get_attr("IFLA_INFO_KIND"), info.get_attr("IFLA_INFO_SLAVE_DATA")
        stats = their.get_attr("IFLA_STATS64")
        assert mine.index == their["index"]
        assert mine.name == their.get_attr("IFLA_IFNAME")
        assert mine.kind == (kind or "")
        assert mine.mac == their.get_attr("IFLA_ADDRESS")
        assert mine.mtu == their.get_attr("IFLA_MTU")
        assert mine.up == bool(their["flags"] & 1)
        assert mine.master == (their.get_attr("IFLA_MASTER") or 0)
        assert mine.peer == (their.get_attr("IFLA_LINK") or 0)
        assert mine.alias == (their.get_attr("IFLA_IFALIAS") or "")
        for field in ("rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_dropped", "tx_dropped"):
            assert getattr(mine.counters, field) == stats[field]
        if slave is not None:
            assert mine.learning == bool(slave.get_attr("IFLA_BRPORT_LEARNING"))
            assert mine.flooding == bool(slave.get_attr("IFLA_BRPORT_UNICAST_FLOOD"))
    by_name = rtnl_dump.by_name(ours)
    assert by_name["lo"].alias == "an alias with spaces"
    assert (by_name["n1.eth0"].master, by_name["n1.eth0"].peer) == (101, 7)
    assert (by_name["n1.eth0"].learning, by_name["n1.eth0"].flooding) == (False, False)
    assert (by_name["s1.9"].learning, by_name["s1.9"].flooding, by_name["s1.9"].up) == (False, True, False)


def test_addresses_are_decoded_alike(route: RecordedRun) -> None:
    ours = rtnl_dump.addresses(route)
    theirs: dict[int, set[str]] = {}
    for their in decoded(ifaddrmsg, route.entries):
        if their["scope"] <= rtnl_dump.RT_SCOPE_LINK:
            text = f"{their.get_attr('IFA_LOCAL') or their.get_attr('IFA_ADDRESS')}/{their['prefixlen']}"
            theirs.setdefault(their["index"], set()).add(text)
    assert ours == theirs
    assert {"10.9.0.1/16", "10.9.0.2/16", "fd00:9::1/64", "fe80::9/64"} <= ours[1003]  # and the kernel's own


def test_static_routes_are_decoded_alike(route: RecordedRun) -> None:
    ours = rtnl_dump.static_routes(route)
    theirs = {
        (f"{their.get_attr('RTA_DST')}/{their['dst_len']}", their.get_attr("RTA_GATEWAY"))
        for their in decoded(rtmsg, route.entries)
        if their["proto"] == rtnl_dump.RTPROT_STATIC
    }
    assert ours == theirs == {("10.10.0.0/16", "10.9.0.200"), ("fd00:10::/64", "fd00:9::200")}


def test_forwarding_entries_are_decoded_alike(route: RecordedRun) -> None:
    ours = rtnl_dump.forwarding(route)
    theirs = {
        (their.get_attr("NDA_MASTER"), their.get_attr("NDA_LLADDR")): their["ifindex"]
        for their in decoded(ndmsg, route.entries)
        if their["state"] & rtnl_dump.NUD_NOARP and their.get_attr("NDA_MASTER")
    }
    assert ours == theirs == {(101, "02:00:00:00:00:77"): 1001, (102, "02:00:00:00:00:78"): 1002}


def test_redirections_are_found_on_those_that_have_them(route: RecordedRun) -> None:
    assert rtnl_dump.redirections(route, [1001, 1002, 1003, 1004]) == {netlink.JOIN_PRIORITY: {1003: 1004, 1004: 1003}}


def test_a_hook_without_redirection_is_none(route: RecordedRun) -> None:
    route.execute([netlink_messages.remove_clsact(1003), netlink_messages.add_clsact(1003)])
    assert rtnl_dump.redirections(route, [1003, 1004]) == {netlink.JOIN_PRIORITY: {1004: 1003}}
