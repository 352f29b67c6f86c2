"""In namespaces: a receive that has matched the message of a rank that crashes fails, and the next one gets another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocols.mpi import ERR_PROC_FAILED
from testbed import Cluster
from tests.sim.crashed_senders import received_by_master

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]


@pytest.mark.parametrize("protocol", ["emp", "am2", "via", "openmx"])
def test_a_matched_receive_from_any_source_fails_when_its_sender_crashes(tmp_path: Path, protocol: str) -> None:
    first, second = received_by_master(tmp_path, Cluster.star(3, rate="10mbit"), mode="live", protocol=protocol)
    assert "1 has crashed" in first[0] or first[0] == "<endpoint 0 of node 1>: ENDPOINT_CLOSED"
    assert first[1] == ERR_PROC_FAILED
    assert second[:2] == ("", 2)
