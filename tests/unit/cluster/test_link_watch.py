"""A change of a cluster ends once the kernel's link watch has noticed the carriers of its new cables: before, they drop
frames."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from testbed.cluster.plan import netlink_executor
from testbed.cluster.plan.kernel_operations import MakeCable, Operation, SetUp
from testbed.cluster.plan.netlink_executor import NetlinkExecutor
from testbed.kernel.rtnl_dump import Counters, Interface

CABLE = MakeCable("n1.eth0", "", "n1-eth0", 3, "", 0, up=True, peer_key="n1", peer_device="eth0", peer_index=2,
                  peer_mac="", mtu=1500)  # fmt: skip
READY = Interface(3, "n1-eth0", "veth", "", 1500, True, 0, 2, "", Counters(0, 0, 0, 0, 0, 0))


def await_watch(monkeypatch: pytest.MonkeyPatch, settling: int, operations: list[Operation]) -> int:
    """Run the wait of a change; return the number of times that it read the interfaces. settling: how often the interface
    is read before its carrier is noticed."""
    reads = 0

    def read(_: object) -> list[Interface]:
        nonlocal reads
        reads += 1
        return [replace(READY, settles=reads <= settling)]

    executor = NetlinkExecutor("c", lambda _: "", named=False)
    monkeypatch.setattr(executor, "open", lambda _: SimpleNamespace(route=None))
    monkeypatch.setattr(netlink_executor, "interfaces", read)
    executor.await_link_watch(operations)
    return reads


def test_a_change_waits_until_no_new_cable_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await_watch(monkeypatch, 3, [CABLE]) == 4


def test_a_change_without_new_cables_reads_no_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await_watch(monkeypatch, 3, [SetUp("", "n1-eth0", 3)]) == 0


def test_a_change_waits_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink_executor, "_CARRIER_TIMEOUT", 0.05)
    assert await_watch(monkeypatch, 1_000_000, [CABLE]) > 1
