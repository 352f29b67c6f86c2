"""Collective calls under a crash in namespaces: every survivor gets MPI's error, over NICs and over the kernel's TCP."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocols.mpi import ERR_PROC_FAILED
from testbed import Cluster
from tests.sim.collective_crashes import CALLS, MILLISECOND, survivors_errors

pytestmark = pytest.mark.requires("root")


@pytest.mark.parametrize("protocol", ["emp", "am2", "via", "openmx", "tcp"])
@pytest.mark.parametrize("name", ["Barrier", "Bcast", "allreduce"])
def test_every_survivor_gets_err_proc_failed_at_once(tmp_path: Path, name: str, protocol: str) -> None:
    reports = survivors_errors(tmp_path, CALLS[name], 64, 2, Cluster.star(4), 3, mode="live", protocol=protocol)
    assert set(reports) == {"n1", "n2", "n4"}
    for error_class, message, after in reports.values():
        assert error_class == ERR_PROC_FAILED
        assert "rank 2 has crashed" in message or "the connection with rank 2 has ended" in message
        assert after < 1_000 * MILLISECOND
