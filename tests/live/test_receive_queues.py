"""Receive queues in namespaces: the kernel distributes frames to the workers of a shared NIC by the protocol's hash."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import testbed
from testbed.controller.runs.runner import RunResult
from testbed.errors import DescriptionError, UnsupportedError
from testbed.workloads.form import Comm, Node
from testbed.workloads.pingpong import PingPong
from testbed.workloads.random_traffic import RandomTraffic
from tests.live.testbed_command import testbed as command

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

RANKS = 4


def run_traffic(queues: int, steering: str = "", **options: bool) -> RunResult:
    """Run random traffic with many pulled messages between two nodes of several ranks."""
    return testbed.run(
        "star-2", RandomTraffic, protocol="openmx", nics="shared", ranks_per_node=RANKS, queues=queues, steering=steering,
        settings={"messages": 40, "largest": 90_000}, seed=3, **options,
    )  # fmt: skip


def workers(result: RunResult, node: str, queues: int) -> list[tuple[int, int]]:
    """Return for each worker of a node the received frames and those handed over to another worker."""
    counted = [result.counters[f"{node}.{rank}"] for rank in range(queues)]
    return [(counts["worker_taken"], counts["worker_handed_over"]) for counts in counted]


@pytest.mark.parametrize("queues", [2, 3])
def test_the_corrected_hash_steers_every_frame_to_its_endpoints_worker(queues: int) -> None:
    result = run_traffic(queues)
    assert result.checks is not None
    assert not result.checks.failed
    for node in ("n1", "n2"):
        assert all(taken > 100 and not handed for taken, handed in workers(result, node, queues))


def test_the_shipped_hash_misroutes_pull_replies_unless_the_queues_divide_128() -> None:
    misrouted, correct = run_traffic(3, "myri10ge"), run_traffic(2, "myri10ge")
    for node in ("n1", "n2"):
        handed = sum(handed for _, handed in workers(misrouted, node, 3))
        replies = sum(misrouted.counters[f"{node}.{rank}"]["recv_pull_reply"] for rank in range(RANKS))
        # 128 mod 3 is 2: no reply from the wire reaches its endpoint's queue. Replies from ranks of the same node do not use
        # the wire.
        assert 0.25 * replies < handed < replies
        assert not sum(handed for _, handed in workers(correct, node, 2))
    for result in (misrouted, correct):
        assert result.checks is not None
        assert not result.checks.failed


def test_workers_without_an_endpoint_hand_packets_over(tmp_path: Path) -> None:
    """One rank per node, three workers: the shipped hash steers pull replies for endpoint 0 to worker 2."""
    result = testbed.run(
        "star-2", PingPong, protocol="openmx", nics="shared", queues=3, steering="myri10ge",
        settings={"sizes": (70_000,), "count": 20}, output=tmp_path / "run",
    )  # fmt: skip
    logs = {log.name: log.read_text() for log in (tmp_path / "run" / "logs").glob("*.nic*.log")}
    assert logs == {f"{node}.nic{worker}.log": "" for node in ("n1", "n2") for worker in ("", "1", "2")}
    counts = result.counters["n1"]
    assert counts["recv_pull_reply"] > 1_000, "each reply arrives at another worker"
    assert counts["worker_taken"] < counts["recv_pull_reply"]


def test_round_robin_steers_half_of_the_frames_to_the_wrong_worker() -> None:
    result = run_traffic(2, "round-robin", bind=False)
    for node in ("n1", "n2"):
        (first, handed), (second, also_handed) = workers(result, node, 2)
        # The workers are queried one after the other while the last acknowledgements arrive.
        assert abs(first - second) < 0.02 * (first + second)
        assert 0.25 < (handed + also_handed) / (first + second) < 0.75


async def allowed_cpus(comm: Comm, node: Node) -> list[int]:  # noqa: ARG001  signature of a workload
    await comm.Barrier()
    return sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("bind", [True, False])
def test_programs_are_pinned_to_the_core_of_their_worker_only_with_bind(bind: bool) -> None:
    result = testbed.run(
        "star-2", allowed_cpus, protocol="openmx", nics="shared", ranks_per_node=RANKS, queues=2, bind=bind
    )
    machine = sorted(os.sched_getaffinity(0))
    for rank in range(RANKS):
        expected = [machine[rank % 2 % len(machine)]] if bind else machine
        assert result.results[f"n1.{rank}"] == result.results[f"n2.{rank}"] == expected


PINGS = 100


async def ping_between_barriers(comm: Comm, node: Node) -> str:
    await comm.Barrier()
    address = "10.0.0.2" if node.name.startswith("n1") else "10.0.0.1"
    output = subprocess.run(
        ["ping", "-c", f"{PINGS}", "-i", "0.002", address], capture_output=True, text=True, check=False
    ).stdout
    await comm.Barrier()
    return output


@pytest.mark.requires("ping")
def test_ip_packets_keep_the_kernels_path_with_receive_workers() -> None:
    result = testbed.run(
        "star-2", ping_between_barriers, protocol="openmx", nics="shared", ranks_per_node=RANKS, queues=2
    )
    assert all(f"{PINGS} received" in output for output in result.results.values())
    dropped = ("drop_invalid_type", "drop_bad_header_datalen", "drop_bad_check")
    assert not [counts[name] for counts in result.counters.values() for name in dropped if counts.get(name)]
    assert (
        sum(taken for node in ("n1", "n2") for taken, _ in workers(result, node, 2)) <= frames_sent(result) < 2 * PINGS
    )


@pytest.mark.requires("ping")
def test_ip_packets_pass_no_receive_queue_of_a_modelled_nic() -> None:
    """The NIC's DMA engine stores the frames of the modelled queues, whose interrupts and softirqs cores spend time on."""
    result = testbed.run(
        "openmx-2009", ping_between_barriers, protocol="openmx", mode="dilated", dilate=100, profile="openmx-2009",
        ranks_per_node=2,
    )  # fmt: skip
    assert all(f"{PINGS} received" in output for output in result.results.values())
    stored = [result.usage[node]["writing DMA engine"]["jobs"] for node in ("n1", "n2")]
    assert min(stored) > 0
    assert sum(stored) <= frames_sent(result) < 2 * PINGS


def frames_sent(result: RunResult) -> int:
    """Return the number of frames that Open-MX has sent, on all nodes."""
    return sum(
        count for counts in result.counters.values() for name, count in counts.items() if name.startswith("send_")
    )


def test_unsupported_receive_queues_are_rejected_with_the_supported_ones() -> None:
    with pytest.raises(UnsupportedError, match="add --nics shared"):
        testbed.run("star-2", RandomTraffic, protocol="openmx", queues=2, settings={"messages": 1})
    with pytest.raises(UnsupportedError, match="protocol emp has no hash"):
        testbed.run("star-2", RandomTraffic, protocol="emp", nics="shared", queues=2, settings={"messages": 1})
    with pytest.raises(DescriptionError, match="one of endpoint, myri10ge, round-robin"):
        testbed.run(
            "star-2",
            RandomTraffic,
            protocol="openmx",
            nics="shared",
            queues=2,
            steering="toeplitz",
            settings={"messages": 1},
        )
    with pytest.raises(UnsupportedError, match="profile ideal cannot have several receive queues"):
        testbed.run("star-2", RandomTraffic, protocol="openmx", mode="sim", queues=2, settings={"messages": 1})
    done = command("run", "star-2", "random", "--protocol", "openmx", "--steering", "endpoint", "--nics", "shared")
    assert done.returncode == 2
    assert "only with several queues" in done.stderr
