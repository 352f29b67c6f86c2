"""A link that is cut for longer than a protocol retransmits: sends fail, and succeed again after the repair.

A sender without acknowledgements gives up after the protocol's time limit. Open-MX's receiver notices the new connection,
which fails a pending receive; in the other protocols the receive stays pending.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

import testbed
from protocols.mpi import ERR_PROC_FAILED
from protocols.mpi.mpi_errors import MPIError
from testbed import Cluster, Scenario
from testbed.spec.fault_models import Down
from testbed.workloads.form import Comm, Node

SECOND = 1_000_000_000
LONG = bool(os.environ.get("TESTBED_LONG"))
CUT = 900_000_000
LAST = 0xFFFF


class RankRecord(NamedTuple):
    """Record of one rank. numbers: of messages sent or received. failures: number and time of each failed call."""

    numbers: list[int]
    failures: list[tuple[int, int]]


async def send_numbered(comm: Comm, node: Node, *, until: int = 0, size: int = 40) -> RankRecord:
    """Rank 0 sends numbered messages synchronously, one every 200 ms until `until`, and then the last one; rank 1 receives
    them."""
    log, buffer = RankRecord([], []), bytearray(size)
    number = 0
    while number != LAST:
        if comm.rank == 0:
            number = LAST if node.now() > until else len(log.numbers) + len(log.failures)
            buffer[:2] = number.to_bytes(2, "big")
        try:
            await (comm.Ssend(buffer, 1) if comm.rank == 0 else comm.Recv(buffer, 0))
        except MPIError as error:
            if error.Get_error_class() != ERR_PROC_FAILED:
                raise
            log.failures.append((number, node.now()))
            number = 0
        else:
            number = int.from_bytes(buffer[:2], "big")
            log.numbers.append(number)
        if comm.rank == 0:
            await node.sleep(SECOND // 5)
    return log


def run(
    folder: Path, protocol: str, firmware: dict[str, int], seconds: int, cluster: Cluster | None = None, size: int = 40
) -> tuple[RankRecord, RankRecord]:
    """Cut the receiver's link for `seconds` s; return both ranks' logs."""
    result = testbed.run(
        cluster or Cluster.star(2), send_numbered, protocol=protocol, mode="sim", firmware=firmware or None, check=True,
        settings={"until": CUT + (seconds + 2) * SECOND, "size": size}, timeout=seconds + 60, output=folder / "run",
        scenario=Scenario(name="long-cut", faults=[Down(on="n2", at="900ms", for_=f"{seconds}s")]),
    )  # fmt: skip
    assert result.checks is not None
    assert result.checks.passed, result.checks.to_text()
    sender, receiver = result.results["n1"], result.results["n2"]
    assert sender.numbers[-1] == receiver.numbers[-1] == LAST
    assert receiver.numbers == sorted(set(receiver.numbers)), "messages are out of order or duplicate"
    assert {*sender.numbers} <= {*receiver.numbers}
    return sender, receiver


@pytest.mark.parametrize(
    ("protocol", "firmware", "time_limit", "failed_receives"),
    [
        ("openmx", {"resends": 3}, 2, 1),
        ("emp", {"give_up": SECOND}, 1, 0),
        ("am2", {}, 5.8, 0),
        ("ssam", {"give_up": 10}, 1.3, 0),
        ("via", {"give_up": SECOND}, 1, 0),
    ],
)
def test_sends_fail_after_the_protocols_time_limit_and_succeed_after_the_repair(
    tmp_path: Path, protocol: str, firmware: dict[str, int], time_limit: float, failed_receives: int
) -> None:
    sender, receiver = run(tmp_path, protocol, firmware, 8)
    first = sender.failures[0][1]
    assert CUT + time_limit * SECOND < first < CUT + 1.5 * time_limit * SECOND
    assert sender.failures[-1][1] < CUT + (8 + 1.5 * time_limit) * SECOND, "a send has failed too late"
    assert len(receiver.failures) == failed_receives


@pytest.mark.parametrize("protocol", ["emp", "via"])
def test_sends_wait_for_the_repair_if_the_protocol_does_not_give_up(tmp_path: Path, protocol: str) -> None:
    sender, receiver = run(tmp_path, protocol, {}, 8)
    assert sender.failures == receiver.failures == []


def test_open_mx_gives_up_after_its_number_of_resends_at_two_a_second(tmp_path: Path) -> None:
    """`OMX_RESENDS_MAX` is 1000, as with TESTBED_LONG=1; otherwise the test uses 20."""
    resends = 1000 if LONG else 20
    sender, receiver = run(tmp_path, "openmx", {"resends": resends}, resends // 2 + 4)
    assert 0 < sender.failures[0][1] - CUT - resends * SECOND // 2 < SECOND
    assert len(receiver.failures) == 1


def test_a_pull_over_a_cut_link_fails_at_both_ends_without_further_sends(tmp_path: Path) -> None:
    """The rendezvous request is acknowledged, so that the sender's library has nothing to retransmit."""
    slow_cluster = Cluster.star(2, rate="1mbit")
    sender, receiver = run(
        tmp_path, "openmx", {"resends": 3, "pull_timeout": SECOND // 2}, 3, slow_cluster, size=120_000
    )
    assert len(sender.failures) == len(receiver.failures) == 1
    assert sender.failures[0][1] > CUT + 3 * SECOND, "the sender's library has failed before the repair"
