"""Every collective call under a crash raises an MPI error at every survivor, and does not hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocols.mpi import ERR_PROC_FAILED
from testbed import Cluster
from tests.sim.collective_crashes import CALLS, COMPOSED, MILLISECOND, survivors_errors

LONG = bool(os.environ.get("TESTBED_LONG"))
STAR = Cluster.star(4, delay="20us")
PROTOCOLS = ["emp", "am2", "via", "ssam", "openmx"]
ALL = CALLS | COMPOSED
CASES = [
    (name, protocol)
    for number, name in enumerate(ALL)
    for turn, protocol in enumerate(PROTOCOLS)
    if LONG or name in CALLS or number % len(PROTOCOLS) == turn
]
ATM = Cluster.star(4, kind="atm", rate="140mbit", overhead=2, delay="20us")


@pytest.mark.parametrize(("name", "protocol"), CASES)
def test_every_survivor_gets_err_proc_failed_at_once(tmp_path: Path, name: str, protocol: str) -> None:
    variants = ((2, 64), (0, 9_600))
    variant = (list(ALL).index(name) + len(protocol)) % 2  # the long mode runs both
    for victim, size in variants if LONG else variants[variant : variant + 1]:
        folder = tmp_path / str(victim)
        cluster = ATM if protocol == "ssam" else STAR
        report = survivors_errors(
            folder, ALL[name], size, victim, cluster, 3, mode="sim", protocol=protocol, check=True
        )
        assert set(report) == {f"n{rank + 1}" for rank in range(4) if rank != victim}
        for error_class, message, after in report.values():
            assert error_class == ERR_PROC_FAILED
            assert message.endswith(f"rank {victim} has crashed")
            assert 0 <= after < 5 * MILLISECOND, "a survivor has waited for a time-out"
