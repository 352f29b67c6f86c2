"""Unreliable delivery of M-VIA: the checkers report messages lost under loss; the reliable levels lose none."""

from __future__ import annotations

from pathlib import Path

import pytest

import testbed
from testbed import Cluster
from testbed.controller.checkers.check_report import Report
from testbed.controller.checkers.runs import read_reports
from testbed.errors import TestbedError
from testbed.observe.recorded import read_run
from testbed.spec.fault_models import Rule
from testbed.spec.scenario import Scenario
from testbed.workloads.form import Comm, Node

UNRELIABLE, RELIABLE = 1, (2, 4)


def run_checked(folder: Path, reliability: int, loss: str) -> tuple[Report, str]:
    """Return the report of a run's checkers and the run's error, or ""."""
    cluster = Cluster.star(2, delay="20us", rate="1gbit", loss=loss, seed=3)
    failure = ""
    try:
        testbed.run(
            cluster, "random", protocol="via", mode="sim", firmware={"reliability": reliability}, check=True,
            settings={"messages": 60}, output=folder, timeout=10,
        )  # fmt: skip
    except TestbedError as error:
        failure = str(error)
    (report,) = read_reports(read_run(folder))
    return report, failure


def test_the_checkers_name_messages_lost_with_their_frames(tmp_path: Path) -> None:
    report, failure = run_checked(tmp_path / "run", UNRELIABLE, "1%")
    assert "a message from rank" in failure
    assert "nothing lost" in report.failed
    assert report.checks["nothing lost"].violations
    assert not {"content", "order", "nothing twice"} & set(report.failed), "a received message failed a check"


@pytest.mark.parametrize(("reliability", "loss"), [(UNRELIABLE, "0%"), *[(level, "1%") for level in RELIABLE]])
def test_nothing_is_lost_without_loss_or_at_a_reliable_level(tmp_path: Path, reliability: int, loss: str) -> None:
    report, failure = run_checked(tmp_path / "run", reliability, loss)
    assert not failure
    assert report.passed, report.to_text()
    assert report.message_count >= 120


def test_duplicates_are_dropped_at_the_unreliable_level() -> None:
    cluster = Cluster.star(2, delay="20us", rate="1gbit", duplicate="10%", seed=3)
    result = testbed.run(
        cluster, "random", protocol="via", mode="sim", firmware={"reliability": UNRELIABLE}, check=True,
        settings={"messages": 60}, timeout=10,
    )  # fmt: skip
    assert result.checks is not None
    assert sum(counters["duplicates"] for counters in result.counters.values()) > 10


async def send_three(comm: Comm, node: Node) -> list[bytes]:  # noqa: ARG001
    if comm.rank == 0:
        for number in range(3):
            await comm.Send(bytes([number + 1]) * 4, 1, number)
        return []
    buffers = [bytearray(4) for _ in range(3)]
    for number, buffer in enumerate(buffers):
        await comm.Recv(buffer, 0, number)
    return [bytes(buffer) for buffer in buffers]


@pytest.mark.parametrize("lost", ["RDMA_WRITE", "SEND"])
def test_memory_of_a_lost_message_is_not_returned_as_a_message(lost: str) -> None:
    """Rank 1 is notified of a later message and looks for the lost one in its memory."""
    rule = f"drop via.type == {lost} and nth(1)"
    cluster = Cluster.back_to_back(delay="20us")
    scenario = Scenario(name="lost", faults=[Rule(on="n1", direction="out", at=0, rules=[rule])])
    with pytest.raises(TestbedError, match="a message from rank 0 was lost"):
        testbed.run(
            cluster, send_three, protocol="via", mode="sim", firmware={"reliability": UNRELIABLE}, scenario=scenario,
            timeout=10,
        )  # fmt: skip


def test_the_checkers_name_a_lost_last_message(tmp_path: Path) -> None:
    """The ranks cannot detect the loss: the receiver waits, and the run stalls."""
    scenario = Scenario(
        name="lost", faults=[Rule(on="n1", direction="out", at=0, rules=["drop via.type == RDMA_WRITE and nth(3)"])]
    )
    with pytest.raises(TestbedError, match=r"n2 waits for a receive from rank 0, tag 2"):
        testbed.run(
            Cluster.back_to_back(delay="20us"), send_three, protocol="via", mode="sim", check=True, scenario=scenario,
            firmware={"reliability": UNRELIABLE}, timeout=10, output=tmp_path / "run",
        )  # fmt: skip
    (report,) = read_reports(read_run(tmp_path / "run"))
    assert report.failed == ("nothing lost",)
    (violation,) = report.checks["nothing lost"].violations
    assert "message 3 of n1 to n2" in str(violation)


@pytest.mark.parametrize("seed", range(3))
def test_a_sender_detects_lost_parts_by_the_reply_to_its_query(seed: int) -> None:
    """The receiver never counts descriptors of lost parts: without the reply, the sender would repeat its query for ever."""
    cluster = Cluster.star(2, delay="100us", reorder="5%", seed=seed)
    with pytest.raises(TestbedError, match=r"a message from rank \d was lost|rank \d has restarted or ended"):
        testbed.run(
            cluster, "random", protocol="via", mode="sim", firmware={"reliability": UNRELIABLE},
            settings={"messages": 50}, timeout=5,
        )  # fmt: skip
