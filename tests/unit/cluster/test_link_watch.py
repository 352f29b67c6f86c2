"""A change of a cluster waits for the kernel's link watch: new cables drop frames until it has noticed their carriers."""

from __future__ import annotations

import errno
import struct
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from testbed.cluster.plan import netlink_executor
from testbed.cluster.plan.kernel_operations import AwaitCarrier, MakeCable, Operation, SetUp
from testbed.cluster.plan.netlink_executor import NetlinkExecutor
from testbed.errors import KernelError
from testbed.kernel.netlink import Refusal, RequestError, attribute
from testbed.kernel.rtnl_dump import has_pending_carrier

CABLE = MakeCable("n1.eth0", "", "n1-eth0", 3, "", 0, up=True, peer_key="n1", peer_device="eth0", peer_index=2,
                  peer_mac="", mtu=1500)  # fmt: skip
UP, LOWER_UP = 1, 0x10000
STATE_DOWN, STATE_UP, STATE_UNKNOWN = 2, 6, 0


def await_watch(monkeypatch: pytest.MonkeyPatch, settling_reads: int, operations: list[Operation]) -> int:
    """Wait as a change does; return the number of reads of the interfaces. settling_reads: reads before the carrier is
    noticed."""
    reads = 0

    def read(_: object) -> bool:
        nonlocal reads
        reads += 1
        return reads <= settling_reads

    executor = NetlinkExecutor("c", lambda _: "", named=False)
    monkeypatch.setattr(executor, "open", lambda _: SimpleNamespace(route=None))
    monkeypatch.setattr(netlink_executor, "has_pending_carrier", read)
    executor.await_link_watch(operations)
    return reads


def test_a_change_waits_until_no_new_cable_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await_watch(monkeypatch, 3, [CABLE]) == 4


def test_an_interface_that_is_gone_is_an_error_of_the_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise RequestError([Refusal(0, errno.ENODEV, "No such device")])

    executor = NetlinkExecutor("c", lambda _: "", named=False)
    monkeypatch.setattr(executor, "open", lambda _: SimpleNamespace(route=None))
    monkeypatch.setattr(netlink_executor, "interface", read)
    monkeypatch.setattr(netlink_executor.namespaces, "restore_namespace", nullcontext)
    with pytest.raises(KernelError, match=r"n1-eth0.* failed: No such device"):
        executor.apply([AwaitCarrier("n1-eth0", 3)], lambda _: None)


def test_a_namespace_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise RequestError([Refusal(0, errno.EINVAL, "Invalid argument")])

    executor = NetlinkExecutor("c", lambda _: "", named=False)
    monkeypatch.setattr(executor, "open", lambda _: SimpleNamespace(route=None, descriptor=0))
    monkeypatch.setattr(netlink_executor, "node_contents", read)
    monkeypatch.setattr(netlink_executor.namespaces, "restore_namespace", nullcontext)
    monkeypatch.setattr(netlink_executor.syscalls, "setns", lambda *_: None)
    with pytest.raises(KernelError, match=r"^namespace c\.n1 cannot be read: Invalid argument$"):
        executor.contents(["n1"])


def test_a_change_without_new_cables_reads_no_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await_watch(monkeypatch, 3, [SetUp("", "n1-eth0", 3)]) == 0


def test_a_change_waits_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink_executor, "_CARRIER_TIMEOUT", 0.05)
    assert await_watch(monkeypatch, 1_000_000, [CABLE]) > 1


@pytest.mark.parametrize(
    ("flags", "state", "settles"),
    [
        (UP | LOWER_UP, STATE_DOWN, True),
        (UP | LOWER_UP, STATE_UP, False),
        (UP | LOWER_UP, STATE_UNKNOWN, False),  # a loopback interface
        (UP, STATE_DOWN, False),
    ],
)
def test_an_interface_settles_while_its_carrier_is_not_noticed(flags: int, state: int, settles: bool) -> None:
    link = struct.pack("=BxHiII", 0, 1, 3, flags, 0)
    entry = memoryview(link + attribute(3, b"n1-eth0\0") + attribute(16, bytes([state])))
    requests: list[bytes] = []

    class Route:
        def dump(self, _: int, fields: bytes) -> list[memoryview]:
            requests.append(fields)
            return [entry]

    assert has_pending_carrier(Route()) is settles  # type: ignore[arg-type]
    assert requests == [bytes(len(link)) + attribute(29, struct.pack("=I", 8))], "without statistics"
