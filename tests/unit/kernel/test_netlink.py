"""Batches of netlink requests: some are rejected, or the batch is too large for one call."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from testbed.kernel import namespaces, netlink_messages, rtnl_dump, syscalls
from testbed.kernel.changes import observed_by
from testbed.kernel.netlink import BATCH_BYTES, RequestError, RouteSocket

pytestmark = pytest.mark.requires("root")

MAC = "06:00:00:00:00:01"


@pytest.fixture
def route() -> Iterator[RouteSocket]:
    """Yield a route socket in a network namespace of the test."""
    with namespaces.restore_namespace():
        syscalls.unshare(syscalls.CLONE_NEWNET)
        socket = RouteSocket()
    yield socket
    socket.close()


def names(route: RouteSocket) -> set[str]:
    return set(rtnl_dump.by_name(rtnl_dump.interfaces(route)))


def test_all_requests_of_a_batch_are_executed_in_one_call(route: RouteSocket) -> None:
    calls: list[str] = []
    with observed_by(calls.append):
        route.execute([netlink_messages.make_bridge(f"s{n}", 100 + n, MAC) for n in range(5)], "five switches")
    assert calls == ["five switches"]
    assert {f"s{n}" for n in range(5)} < names(route)


def test_rejected_requests_of_a_batch_are_reported_and_the_others_are_executed(route: RouteSocket) -> None:
    requests = [
        netlink_messages.make_bridge("s1", 101, MAC),
        netlink_messages.make_bridge("s1", 102, MAC),  # the name is taken
        netlink_messages.make_bridge("s3", 103, MAC),
        netlink_messages.set_link(101, mtu=10**9),
        netlink_messages.remove_link(999),
        netlink_messages.make_bridge("s6", 106, MAC),
    ]
    with pytest.raises(RequestError) as caught:
        route.execute(requests)
    assert [(refusal.position, refusal.errno) for refusal in caught.value.refusals] == [
        (1, errno.EEXIST),
        (3, errno.EINVAL),
        (4, errno.ENODEV),
    ]
    assert "mtu greater than device maximum" in caught.value.refusals[1].reason  # the kernel's extended acknowledgement
    assert {"s1", "s3", "s6"} < names(route)


def test_a_rejected_last_request_is_reported(route: RouteSocket) -> None:
    with pytest.raises(RequestError, match="No such device"):
        route.execute([netlink_messages.make_bridge("s1", 101, MAC), netlink_messages.remove_link(999)])
    assert "s1" in names(route)


def test_a_batch_larger_than_a_call_takes_is_split(route: RouteSocket) -> None:
    addresses = [f"10.{n >> 8}.{n & 255}.1/30" for n in range(3000)]
    requests = [netlink_messages.add_address(1, address) for address in addresses]
    calls: list[str] = []
    with observed_by(calls.append):
        route.execute(requests, "addresses")
    assert sum(map(len, requests)) > BATCH_BYTES
    assert len(calls) == -(-len(requests) // (BATCH_BYTES // len(requests[0])))
    assert len(rtnl_dump.addresses(route)[1]) == len(addresses)


def test_positions_of_rejected_requests_count_across_a_split_batch(route: RouteSocket) -> None:
    requests = [netlink_messages.add_address(1, f"10.{n >> 8}.{n & 255}.1/30") for n in range(3000)]
    requests[2900] = netlink_messages.remove_link(999)
    with pytest.raises(RequestError) as caught:
        route.execute(requests)
    assert [refusal.position for refusal in caught.value.refusals] == [2900]


def test_an_empty_batch_makes_no_call(route: RouteSocket) -> None:
    calls: list[str] = []
    with observed_by(calls.append):
        route.execute([])
    assert calls == []


def test_a_rejected_dump_is_an_error(route: RouteSocket) -> None:
    changes_mask = bytes(12) + b"\1\0\0\0"  # a field of struct ifinfomsg that must be 0 in a dump
    with pytest.raises(RequestError, match=r"Invalid argument \(.*dump"):
        route.dump(rtnl_dump.RTM_GETLINK, changes_mask)
    assert "lo" in names(route)
