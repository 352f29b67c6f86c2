"""A receive that has matched the message of a rank that crashes fails, and the next one gets another rank's message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocols.mpi import ERR_PROC_FAILED
from testbed import Cluster
from tests.sim.crashed_senders import CRASH_TIME, failed_receives, received_by_master

LONG = bool(os.environ.get("TESTBED_LONG"))
PROTOCOLS = ["emp", "am2", "via", "ssam", "openmx"]
STAR = Cluster.star(3, rate="10mbit", delay="20us")
ATM = Cluster.star(3, kind="atm", rate="10mbit", overhead=2, delay="20us")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_matched_receive_from_any_source_fails_when_its_sender_crashes(tmp_path: Path, protocol: str) -> None:
    first, second = received_by_master(tmp_path, ATM if protocol == "ssam" else STAR, mode="sim", protocol=protocol)
    message, error_class, ended_at = first
    assert "1 has crashed" in message or message == "<endpoint 0 of node 1>: ENDPOINT_CLOSED"
    assert error_class == ERR_PROC_FAILED
    assert ended_at == CRASH_TIME
    assert second[:2] == ("", 2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_master_receives_all_messages_of_the_other_workers(tmp_path: Path, protocol: str) -> None:
    """The crashed worker sends messages of several sizes, and its frames still arrive: the links have a delay of 5 ms."""
    kind = {"kind": "atm", "overhead": 2} if protocol == "ssam" else {}
    cluster = Cluster.star(4, rate="10mbit", delay="5ms", **kind)
    times = range(21, 600, 37) if LONG else (243,) if protocol == "ssam" else (21, 243, 465)
    failures = [
        failed_receives(tmp_path / str(time), cluster, time * 1_000_000, mode="sim", protocol=protocol)
        for time in times
    ]
    assert max(failures) <= 1, "more than the receive that had matched its message has failed"
