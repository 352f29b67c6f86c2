"""Kernel UDP as a baseline: losses are counted or requests repeated, and no program waits forever."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import testbed
from testbed import Cluster, RunningCluster, Scenario
from testbed.errors import TestbedError
from testbed.runtime.nodes.node_run import StuckError
from testbed.runtime.sockets.datagrams import MAX_FRAGMENT
from testbed.spec.fault_models import Crash, Flap
from testbed.workloads.form import Comm, Node, Workload

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

SMALL: Mapping[str, Mapping[str, object]] = {
    "pingpong": {"count": 20, "sizes": "0,4,64KiB,200KiB"},
    "bandwidth": {"count": 20, "sizes": "0,1,64KiB,200KiB", "window": 4},
    "rate": {"count": 100},
    "permutation": {"count": 5, "window": 2},
    "contention": {"time": "30ms"},
    "service": {"requests": 100},
}
LOSSY = Cluster.star(3, loss="5%", duplicate="5%", delay="200us", seed=6)
STREAMS = ("bandwidth", "rate", "permutation")


class Exchange(Workload):
    """Send a message of several datagrams to a neighbour, one to the own rank, and control messages between nodes."""

    supports_loss = True

    async def rank(self, comm: Comm, node: Node) -> list[Any]:
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        message, own_message = bytearray(3 * MAX_FRAGMENT), bytearray(5)
        arrival = await comm.Irecv(message, left, 1)
        await node.barrier()
        await comm.Send(bytes([comm.rank]) * (2 * MAX_FRAGMENT + 5), right, 1)
        await comm.Send(b"self!", comm.rank, 2)
        await arrival.Wait()
        await comm.Recv(own_message, comm.rank, 2)
        await node.say(f"from {node.name}", right)
        return [
            message.rstrip(b"\0") == bytes([left]) * (2 * MAX_FRAGMENT + 5) if left else True,
            bytes(own_message),
            await node.heard(left),
        ]


class UnansweredReceive(Workload):
    """Rank 0 waits for a message that is never sent."""

    supports_loss = True

    async def rank(self, comm: Comm, node: Node) -> None:  # noqa: ARG002
        if comm.rank == 0:
            await comm.Recv(bytearray(1), 1)


@pytest.fixture(scope="module")
def star() -> Iterator[RunningCluster]:
    with Cluster.star(3, seed=2).up() as cluster:
        yield cluster


@pytest.mark.parametrize("name", SMALL)
def test_workloads_run_over_udp(star: RunningCluster, name: str) -> None:
    result = testbed.run(star, name, protocol="udp", settings=SMALL[name])
    assert all(("lost" if name in STREAMS else "asked_again") in row for row in result.rows)
    assert sum(count["came"] for count in result.counters.values()) > 0
    assert sum(count["strange"] for count in result.counters.values()) == 0


@pytest.mark.parametrize("name", STREAMS)
def test_rows_of_streaming_workloads_count_the_losses(name: str) -> None:
    """A frame can be lost on two links, and a message of 45 fragments needs all of them."""
    overrides = {
        "bandwidth": {"sizes": "4,64KiB", "count": 200, "pattern": "one-way"}, "permutation": {"size": "4KiB", "count": 20},
    }  # fmt: skip
    settings = {**SMALL[name], **overrides.get(name, {})}
    result = testbed.run(LOSSY, name, protocol="udp", settings=settings)
    assert sum(row["lost"] for row in result.rows) > 0
    if name == "bandwidth":
        short = [row for row in result.rows if row["size_bytes"] == 4]
        assert all(0 < row["lost"] < row["count"] for row in short)
        assert all(row["lost"] > row["count"] / 2 for row in result.rows if row["size_bytes"] == 65_536)
        assert all(row["bandwidth_bit_s"] < 1e12 for row in result.rows)


@pytest.mark.parametrize("name", ["pingpong", "contention", "service"])
def test_lost_requests_are_repeated(name: str) -> None:
    settings = {**SMALL[name], "retry": "5ms"}
    settings |= {"pingpong": {"sizes": "0,4", "count": 100}, "contention": {"size": 100}}.get(name, {})
    result = testbed.run(LOSSY, name, protocol="udp", settings=settings)
    assert all(row["asked_again"] > 0 for row in result.rows)
    assert all(row["p999_ns"] >= (2_000_000 if name == "pingpong" else 5_000_000) for row in result.rows)


def test_large_messages_self_sends_and_control_messages_arrive(star: RunningCluster) -> None:
    results = testbed.run(star, Exchange, protocol="udp").results
    assert results == {f"n{n}": [True, b"self!", f"from n{(n - 2) % 3 + 1}"] for n in (1, 2, 3)}


def test_an_unanswered_request_fails_after_its_retries() -> None:
    silent = Cluster.star(2, rules=["drop udp"])
    with pytest.raises(
        TestbedError, match=r"n1: (?s:.*)rank 1 has not answered request 0 of 4 bytes, which was sent 250 times"
    ):
        testbed.run(silent, "pingpong", protocol="udp", settings={"sizes": 4, "retry": "1ms"}, timeout=30)


def test_a_stalled_udp_receive_reports_udps_counters(star: RunningCluster) -> None:
    with pytest.raises(StuckError) as caught:
        testbed.run(star, UnansweredReceive, protocol="udp", timeout=1.0)
    text = " ".join(caught.value.waiting["n1"])
    assert "1 receives have found no message, which may be lost: this is UDP" in text
    assert "datagrams: sent 0, came 0" in text


def test_a_run_survives_a_flapping_link() -> None:
    flap = Scenario(name="flap", faults=(Flap(on="n2", at="200ms", for_="60ms", every="300ms"),))
    settings = {"sizes": "4", "count": 20_000, "most": "1s", "retry": "20ms"}
    result = testbed.run(Cluster.star(2), "pingpong", protocol="udp", settings=settings, scenario=flap)
    (row,) = result.rows
    assert row["asked_again"] > 0
    assert row["p50_ns"] < 50_000_000


@pytest.mark.parametrize("name", ["pingpong", "bandwidth"])
def test_a_crashed_peer_ends_the_run_with_the_reason(name: str) -> None:
    crash = Scenario(name="crash", faults=(Crash(on="n2", at="300ms"),))
    settings = {"sizes": "4", "count": 1_000_000, "most": "10s"}
    with pytest.raises(TestbedError, match=r"the connection with rank 1 has ended|rank 1 has not answered"):
        testbed.run(Cluster.star(2), name, protocol="udp", settings=settings, scenario=crash, timeout=40)
