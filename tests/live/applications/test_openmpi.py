"""Open MPI over ssh between nodes, and the same script on NICs with firmware."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.pytest_plugin.under_test import ClusterUnderTest

pytestmark = [pytest.mark.requires("root", "ssh", "sshd", "mpirun", "mpi4py"), pytest.mark.usefixtures("machine")]

SCRIPT = Path(__file__).parent / "round_trips.py"
SIZES = (1, 1024, 65536)
MPIRUN = [
    *("mpirun", "--allow-run-as-root", "--host", "n1,n2", "-np", "2"),
    *("--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0"),
    *("--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"),
]


def min_half_trips(text: str) -> dict[int, int]:
    """Return the minimal half round trip by message size, ns."""
    rows = [json.loads(line) for line in text.splitlines()]
    return {row["size_bytes"]: row["min_ns"] for row in rows}


@pytest.mark.alone  # measures time
@pytest.mark.cluster("star-2", mode="live")
def test_open_mpi_starts_its_ranks_by_ssh_and_communicates_over_the_links(
    cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    cluster.live.ssh()

    def measure(count: int) -> dict[int, int]:
        script = ["/usr/bin/python3", str(SCRIPT), str(count), *map(str, SIZES)]
        return min_half_trips(cluster["n1"].run([*MPIRUN, *script], cwd=tmp_path, timeout=60).stdout)

    near = measure(200)  # enough for one undisturbed trip on a busy machine
    with cluster.inject("n2", delay="3ms"):
        far = measure(20)
    assert tuple(near) == tuple(far) == SIZES
    assert near[1] < 3_000_000
    assert all(half_trip >= 3_000_000 for half_trip in far.values())


@pytest.mark.cluster("star-2", mode="live")
def test_the_same_script_runs_on_nics_with_firmware(cluster: ClusterUnderTest) -> None:
    with cluster.inject("n2", delay="3ms"):
        done = cluster.run(str(SCRIPT), args="20 1 1024 65536")
    assert done.folder is not None
    far = min_half_trips((done.folder / "logs" / "n1.log").read_text())
    assert tuple(far) == SIZES
    assert all(half_trip >= 3_000_000 for half_trip in far.values())
