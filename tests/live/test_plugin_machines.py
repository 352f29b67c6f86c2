"""The plug-in with clusters over several machines: an inner pytest on the controller's machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.live.machine_state import eventually
from tests.live.machines_lab import Lab, lab

pytestmark = [pytest.mark.requires("root", "ip", "ssh", "sshd", "ping")]

TESTS = """
import pytest
from testbed import Cluster

STAR = Cluster.from_toml('defaults = { mtu = 1400 }\\nname = "star"\\ngenerate = { shape = "star", nodes = 4 }\\n')
pytestmark = pytest.mark.cluster(STAR, machines="lab.toml")


async def count(comm, node, *, until: int = 3):
    if comm.rank == 0:
        for peer in range(1, comm.size):
            await comm.send(until, peer)
        return until
    return await comm.recv(source=0)


def test_a_run_under_a_fault(cluster):
    with cluster.inject("n4", loss="30%"):
        result = cluster.run(count, until=5, check=True)
    assert result.results == dict.fromkeys(["n1", "n2", "n3", "n4"], 5)
    if cluster.mode == "live":
        cluster.assert_reachable("n1", "n4")
        assert cluster["n2"].run(["sh", "-c", "exit 4"], check=False).returncode == 4


@pytest.mark.cluster(mode="live")
def test_fails(cluster):
    with cluster.inject("n2", loss="100%"):
        cluster["n1"].run(["ping", "-c1", "-W1", "n2"])
"""


@pytest.fixture(scope="module")
def machines(_sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("lab"), names=("a", "b")) as running_lab:
        yield running_lab


def pytest_at(machines: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an inner pytest on the controller's machine."""
    (machines.folder / "test_inner.py").write_text(TESTS)
    (machines.folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\nfilterwarnings = error\n")
    with machines.at_desk(sys.executable, "-m", "pytest", "-q", *arguments) as inner:
        stdout, stderr = inner.communicate(timeout=100)
    return subprocess.CompletedProcess(inner.args, inner.returncode, stdout, stderr)


def test_one_test_body_passes_in_simulation_and_on_machines_and_a_failure_leaves_artefacts(machines: Lab) -> None:
    done = pytest_at(machines, "--testbed-mode", "both", "--pcap-on-failure", "--keep-cluster")
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    (folder,) = (machines.folder / "testbed-artefacts").glob("*test_fails*")
    placement = json.loads((folder / "machines.json").read_text())
    assert sorted(name for names in placement.values() for name in names) == ["n1", "n2", "n3", "n4"]
    assert {*placement} == {"a", "b"}
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert any(event["event"] == "inject" for event in events)
    assert (folder / "capture.pcapng").stat().st_size > 0
    assert (folder / "verdict.txt").read_text().startswith("trusted")
    (shell,) = (line for line in done.stdout.splitlines() if line.startswith("  testbed machines shell "))
    assert machines.testbed("machines", "down", "lab.toml", shell.split()[4]).returncode == 0
    for machine in machines.names:
        eventually(lambda machine=machine: machines.programs(machine) == [], f"no program is left on {machine}", 30)  # type: ignore[misc]
        assert machines.namespaces(machine) == []
