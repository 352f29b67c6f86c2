"""Open-MX with every part of the testbed once: clocks, rules, scenarios, captures, decoding, report, shared NICs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import testbed
from protocols.openmx.codec import TYPE_PULL_REPLY, TYPE_TINY
from testbed import Cluster, Comm, Node, Scenario, share_nics
from testbed.controller.runs.run_options import Mode
from testbed.controller.verdict.verdicts import Grade
from testbed.spec.fault_models import Rule
from tests.live.testbed_command import testbed as command

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

SIZES = (0, 4, 100, 5_000, 70_000)
LOST = f"drop openmx.type == {TYPE_PULL_REPLY} and nth(2)"
FIRST_LOST = Scenario().at(0, Rule("all", f"drop openmx.type == {TYPE_TINY} and nth(1)"))
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
    assert sum(counted["resent"] for counted in result.counted.values())
    assert sum(counted["recv_pull_reply"] for counted in result.counted.values())


@pytest.mark.parametrize("mode", ["sim", "live"])
def test_a_rule_by_field_loses_the_frames_that_it_names(mode: Mode) -> None:
    result = testbed.run(
        Cluster.star(2, delay="100us"), ring, protocol="openmx", mode=mode, scenario=FIRST_LOST, timeout=60
    )
    assert set(map(tuple, result.results.values())) == {SIZES}
    assert sum(counted["resent"] for counted in result.counted.values()) >= 1


def test_a_run_is_captured_decoded_and_reported(tmp_path: Path) -> None:
    ran = command(
        "run", "star-2", "pingpong", "--protocol", "openmx", "--set", "sizes=4,70000", "--capture", "--output",
        str(tmp_path / "run"), "--check",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    [capture, *_] = sorted((tmp_path / "run").rglob("*.pcapng"))
    lines = command("decode", str(capture), "--json").stdout.splitlines()
    types = {json.loads(line)["fields"].get("openmx.type") for line in lines}
    assert {TYPE_TINY, TYPE_PULL_REPLY} <= types
    assert command("report", str(tmp_path / "run")).returncode == 0


def test_shared_nics_serve_programs_that_attach() -> None:
    with Cluster.star(2).up() as cluster, share_nics(cluster, "openmx", functions=1):
        programs = [
            subprocess.Popen(
                [*cluster.nodes[name].prefix, sys.executable, "-c", ATTACHED], stdout=subprocess.PIPE, text=True
            )
            for name in ("n1", "n2")
        ]
        said = sorted(program.communicate(timeout=60)[0].strip() for program in programs)
    assert said == ["0 from n2", "1 from n1"]


def test_runs_with_shared_nics_come_to_the_same_end() -> None:
    result = testbed.run(Cluster.star(2, loss="1%", seed=3), ring, protocol="openmx", nics="shared", timeout=60)
    assert set(map(tuple, result.results.values())) == {SIZES}
    assert result.verdict.grade in (Grade.TRUSTED, Grade.DEGRADED)
