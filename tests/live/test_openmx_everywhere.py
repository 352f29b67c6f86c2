"""Open-MX with every part of the testbed once: clocks, rules, scenarios, captures, decoding, report, shared NICs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import testbed
from protocols.openmx.codec import TYPE_PULL_REPLY, TYPE_TINY
from testbed import Cluster, RunningCluster, Scenario, share_nics
from testbed.controller.runs.run_options import Mode
from testbed.controller.verdict.verdicts import Grade
from testbed.spec.fault_models import Rule
from testbed.workloads.form import Comm, Node
from tests.live.testbed_command import testbed as command

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

SIZES = (0, 4, 100, 5_000, 70_000)
FIRST_LOST = Scenario(
    name="first-message",
    faults=(Rule(on="all", at=0, rules=[f"drop openmx.type == {TYPE_TINY} and nth(1)"]),),
)
ATTACHED = """
from testbed import attach

async def around(comm, node):
    sent = node.spawn(comm.send(f"from {node.name}", (comm.rank + 1) % comm.size, tag=3), "send")
    received = await comm.recv(source=(comm.rank - 1) % comm.size, tag=3)
    await sent
    return received

with attach("openmx") as nic:
    print(nic.comm.rank, nic.run(around))
"""


async def ring(comm: Comm, node: Node) -> list[int]:
    """Send messages of every size class to the next rank; return the received sizes."""
    received = []
    for size in SIZES:
        sent = node.spawn(comm.send(bytes(size), (comm.rank + 1) % comm.size, tag=1), "send")
        received.append(len(await comm.recv(source=(comm.rank - 1) % comm.size, tag=1)))
        await sent
    return received


@pytest.mark.parametrize("mode", ["sim", "live"])
def test_messages_of_every_size_go_round_under_loss_with_ranks_on_a_node(mode: Mode) -> None:
    cluster = Cluster.star(3, rate="1gbit", delay="100us", loss="1%", seed=7)
    result = testbed.run(cluster, ring, protocol="openmx", mode=mode, ranks_per_node=2, timeout=60)
    assert set(map(tuple, result.results.values())) == {SIZES}
    if mode == "sim":  # ranks that share a live NIC have their library, and its counters, in other processes
        assert sum(counted["resent"] for counted in result.counted.values())
    assert sum(counted["recv_pull_reply"] for counted in result.counted.values())


@pytest.mark.parametrize("mode", ["sim", "live"])
def test_a_rule_by_field_loses_the_frames_that_it_names(mode: Mode) -> None:
    result = testbed.run(
        Cluster.star(2, delay="100us"), ring, protocol="openmx", mode=mode, scenario=FIRST_LOST, timeout=60
    )
    assert set(map(tuple, result.results.values())) == {SIZES}
    assert sum(counted["resent"] for counted in result.counted.values()) >= 1


def output(*arguments: str) -> list[str]:
    """Lines of a command that succeeds."""
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_run_is_captured_decoded_and_reported(tmp_path: Path) -> None:
    run, capture, report = tmp_path / "run", tmp_path / "all.pcapng", tmp_path / "report.html"
    with Cluster.star(2, delay="100us").up() as cluster, cluster.capture("all", capture):
        ran = command(
            "run", cluster.name, "pingpong", "--protocol", "openmx", "--set", "sizes=4,70000", "--set", "count=5",
            "--output", str(run), "--check",
        )  # fmt: skip
    assert ran.returncode in (0, 8), ran.stderr  # 8: a busy machine
    types = {json.loads(line)["fields"].get("openmx.type") for line in output("decode", str(capture), "--json")}
    assert {TYPE_TINY, TYPE_PULL_REPLY} <= types
    assert any("Open-MX CONNECT" in line for line in output("decode", str(capture)))
    output("report", str(run), "-o", str(report))
    assert "openmx" in report.read_text()


def test_shared_nics_serve_programs_that_attach() -> None:
    def start(cluster: RunningCluster, node: str) -> subprocess.Popen[str]:
        return cluster[node].popen([sys.executable, "-c", ATTACHED], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    with Cluster.star(2).up() as cluster, share_nics(cluster, "openmx", functions=1):
        heard = []
        for script in [start(cluster, node) for node in ("n1", "n2")]:
            said, errors = script.communicate(timeout=60)
            assert script.returncode == 0, errors
            heard.append(said)
    assert sorted(heard) == ["0 from n2\n", "1 from n1\n"]


def test_runs_with_shared_nics_come_to_the_same_end() -> None:
    result = testbed.run(
        Cluster.star(2, loss="1%", seed=3), ring, protocol="openmx", mode="live", nics="shared", timeout=60
    )
    assert set(map(tuple, result.results.values())) == {SIZES}
    assert result.verdict.grade in (Grade.TRUSTED, Grade.DEGRADED)
