"""Receive queues in namespaces: workers of a shared NIC, among which the kernel distributes frames by the protocol's
hash."""

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


def exchanged(queues: int, steering: str = "", **options: bool) -> RunResult:
    """Exchange messages of which many are pulled, between two nodes of several ranks."""
    return testbed.run(
        "star-2", RandomTraffic, protocol="openmx", nics="shared", ranks_per_node=RANKS, queues=queues, steering=steering,
        settings={"messages": 40, "largest": 90_000}, seed=3, **options,
    )  # fmt: skip


def workers(result: RunResult, node: str, queues: int) -> list[tuple[int, int]]:
    """Frames that each worker of a node has taken from the wire, and those of them that were another one's."""
    counted = [result.counters[f"{node}.{rank}"] for rank in range(queues)]
    return [(counts["worker_taken"], counts["worker_handed_over"]) for counts in counted]


@pytest.mark.parametrize("queues", [2, 3])
def test_the_corrected_hash_leads_every_frame_to_its_endpoints_worker(queues: int) -> None:
    result = exchanged(queues)
    assert result.checks is not None
    assert not result.checks.failed
    for node in ("n1", "n2"):
        assert all(taken > 100 and not handed for taken, handed in workers(result, node, queues))


def test_the_shipped_hash_leads_pull_replies_astray_unless_the_queues_divide_128() -> None:
    astray, right = exchanged(3, "myri10ge"), exchanged(2, "myri10ge")
    for node in ("n1", "n2"):
        handed = sum(handed for _, handed in workers(astray, node, 3))
        replies = sum(astray.counters[f"{node}.{rank}"]["recv_pull_reply"] for rank in range(RANKS))
        # 128 leaves 2 when it is divided by 3: no reply from the wire comes to its endpoint's queue. Others come from ranks
        # of the same node, without the wire.
        assert 0.25 * replies < handed < replies
        assert not sum(handed for _, handed in workers(right, node, 2))
    for result in (astray, right):
        assert result.checks is not None
        assert not result.checks.failed


def test_workers_without_a_function_pass_packets_on(tmp_path: Path) -> None:
    """One rank a node, three workers: pull replies for endpoint 0 come to worker 2, as the hash was shipped."""
    result = testbed.run(
        "star-2", PingPong, protocol="openmx", nics="shared", queues=3, steering="myri10ge",
        settings={"sizes": (70_000,), "count": 20}, output=tmp_path / "run",
    )  # fmt: skip
    logs = {log.name: log.read_text() for log in (tmp_path / "run" / "logs").glob("*.nic*.log")}
    assert logs == {f"{node}.nic{worker}.log": "" for node in ("n1", "n2") for worker in ("", "1", "2")}
    counts = result.counters["n1"]
    assert counts["recv_pull_reply"] > 1_000, "each arrived at another worker"
    assert counts["worker_taken"] < counts["recv_pull_reply"]


def test_in_turn_half_of_the_frames_come_to_the_other_worker() -> None:
    result = exchanged(2, "round-robin", bind=False)
    for node in ("n1", "n2"):
        (first, handed), (second, also_handed) = workers(result, node, 2)
        # The workers are queried one after the other, while the last acknowledgements arrive.
        assert abs(first - second) < 0.02 * (first + second)
        assert 0.25 < (handed + also_handed) / (first + second) < 0.75


async def usable_processors(comm: Comm, node: Node) -> list[int]:  # noqa: ARG001  as a workload is called
    await comm.Barrier()
    return sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("bind", [True, False])
def test_programs_run_on_the_processor_of_their_functions_worker_unless_the_kernel_places_them(bind: bool) -> None:
    result = testbed.run(
        "star-2", usable_processors, protocol="openmx", nics="shared", ranks_per_node=RANKS, queues=2, bind=bind
    )
    machine = sorted(os.sched_getaffinity(0))
    for rank in range(RANKS):
        expected = [machine[rank % 2 % len(machine)]] if bind else machine
        assert result.results[f"n1.{rank}"] == result.results[f"n2.{rank}"] == expected


async def pings_between_messages(comm: Comm, node: Node) -> str:  # noqa: ARG001  as a workload is called
    await comm.Barrier()
    address = "10.0.0.2" if comm.rank < RANKS else "10.0.0.1"
    output = subprocess.run(
        ["ping", "-c", "3", "-i", "0.02", address], capture_output=True, text=True, check=False
    ).stdout
    await comm.Barrier()
    return output


@pytest.mark.requires("ping")
def test_ip_packets_keep_the_kernels_path_with_receive_workers() -> None:
    result = testbed.run(
        "star-2", pings_between_messages, protocol="openmx", nics="shared", ranks_per_node=RANKS, queues=2
    )
    assert all("3 received" in output for output in result.results.values())
    dropped = ("drop_invalid_type", "drop_bad_header_datalen", "drop_bad_check")
    assert not [counts[name] for counts in result.counters.values() for name in dropped if counts.get(name)]


def test_impossible_queues_are_refused_with_the_possible_ones() -> None:
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
