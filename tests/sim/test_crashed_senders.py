"""A receive that has matched the message of a rank that crashes fails, and the next one gets another rank's message."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocols.mpi import ERR_PROC_FAILED
from testbed import Cluster
from tests.sim.crashed_senders import CRASH_TIME, received_by_master

STAR = Cluster.star(3, rate="10mbit", delay="20us")


@pytest.mark.parametrize("protocol", ["emp"])
def test_a_matched_receive_from_any_source_fails_when_its_sender_crashes(tmp_path: Path, protocol: str) -> None:
    first, second = received_by_master(tmp_path, STAR, mode="sim", protocol=protocol)
    message, error_class, ended_at = first
    assert "1 has crashed" in message
    assert error_class == ERR_PROC_FAILED
    assert ended_at == CRASH_TIME
    assert second[:2] == ("", 2)
