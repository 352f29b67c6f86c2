"""Alltoall among many ranks begins no more transfers at once than links and NICs hold: no queue overflows, no frame arrives
without a posted receive, and nothing waits for a time-out."""

from __future__ import annotations

from collections import Counter

import pytest

import testbed
from testbed import Cluster
from testbed.workloads.form import Comm, Node

RANKS = 40
RESENT = {"emp": "collections_resent", "via": "frames_resent", "openmx": "resent"}


async def exchange(comm: Comm, node: Node, *, size: int) -> int:
    """Exchange blocks of one size. Returns the nanoseconds."""
    out = b"".join(bytes([comm.rank ^ destination]) * size for destination in range(comm.size))
    received = bytearray(size * comm.size)
    await comm.Barrier()
    began = node.now()
    await comm.Alltoall(out, received)
    taken = node.now() - began
    assert received == b"".join(bytes([source ^ comm.rank]) * size for source in range(comm.size))
    return taken


async def exchange_unequal(comm: Comm, node: Node) -> None:  # noqa: ARG001
    """Exchange blocks whose sizes differ by sender, so that ranks have different numbers of transfers at once."""
    sizes = [1000 * (1 + rank % 7) ** 2 for rank in range(comm.size)]
    received = bytearray(sum(sizes))
    out = bytes([comm.rank]) * (sizes[comm.rank] * comm.size)
    await comm.Alltoallv([out, [sizes[comm.rank]] * comm.size], [received, sizes])
    assert received == b"".join(bytes([rank]) * size for rank, size in enumerate(sizes))


def total(result: testbed.RunResult) -> Counter[str]:
    return sum((Counter(counters) for counters in result.counters.values()), Counter())


@pytest.mark.parametrize("size", [4096, 16_384])
@pytest.mark.parametrize("protocol", ["emp", "via", "openmx"])
def test_no_queue_overflows(protocol: str, size: int) -> None:
    cluster = Cluster.star(RANKS, rate="1gbit", delay="5us")
    result = testbed.run(cluster, exchange, protocol=protocol, mode="sim", settings={"size": size})
    assert total(result)[RESENT[protocol]] == 0
    line_time = (RANKS - 1) * size * 8
    assert line_time < max(result.results.values()) < 3 * line_time


def test_slots_of_emps_mailboxes_suffice() -> None:
    """With the costs of the paper's hardware, hosts copy offers and grants more slowly than they may arrive."""
    cluster = Cluster.star(RANKS, rate="1gbit", delay="5us")
    result = testbed.run(
        cluster, exchange, protocol="emp", mode="sim", profile="emp-2001", settings={"size": 4096}
    )  # fmt: skip
    counters = total(result)
    assert counters["unmatched"] == counters["collections_resent"] == 0


@pytest.mark.parametrize("protocol", ["emp", "openmx"])
def test_ranks_with_different_numbers_of_transfers_at_once(protocol: str) -> None:
    cluster = Cluster.star(RANKS, rate="1gbit", delay="5us")
    result = testbed.run(cluster, exchange_unequal, protocol=protocol, mode="sim")
    assert len(result.results) == RANKS
