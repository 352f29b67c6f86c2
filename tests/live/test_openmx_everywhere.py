"""Open-MX with every part of the testbed: clocks, rules, scenarios, captures, decoding, report, shared NICs, pytest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Unpack

import pytest

import testbed
from protocols.openmx.codec import TYPE_PULL_REPLY, TYPE_TINY
from protocols.openmx.profile import OPENMX_2009
from testbed import Cluster, RunningCluster, Scenario, share_nics
from testbed.controller.conformance.parity import differing_flows, fates_by_flow, received_messages
from testbed.controller.runs.run_options import Mode, Nics, RunOptions
from testbed.controller.verdict.verdicts import Grade
from testbed.observe.recorded import FATES
from testbed.runtime.logs import read_log
from testbed.spec.fault_models import Crash, Flap, Reset, Restart, Rule
from testbed.workloads.form import Comm, Node
from tests import inner_pytest
from tests.live.machine_state import Machine
from tests.live.testbed_command import output, tshark_field
from tests.live.testbed_command import testbed as command

import_module("testbed.pytest_plugin.cluster_life")  # pytester forgets modules that its runs import

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

SIZES = (0, 4, 100, 5_000, 70_000)
DILATE = 5
MILLISECOND = 1_000_000
LOST = f"drop openmx.type == {TYPE_PULL_REPLY} and nth(2)"
SCENARIO = f"""
[[fault]]
kind = "rule"
on = "all"
at = 0
rules = ["{LOST}"]

[[fault]]
kind = "impair"
on = "n2"
from = "200ms"
to = "600ms"
loss = "10%"
"""
PYTEST = """
import pytest

async def count(comm, node):
    received = []
    for number in range(20):
        if comm.rank == 0:
            await comm.send(number, 1, 7)
        else:
            received.append(await comm.recv(source=0, tag=7))
    return received

@pytest.mark.cluster("star-2", loss="5%", delay="1ms", seed=3)
def test_the_other_node_receives_every_number(cluster):
    assert cluster.run(count, protocol="openmx").results["n2"] == list(range(20))
"""
FIRST_LOST = Scenario(
    name="first-message",
    faults=(Rule(on="all", at=0, rules=[f"drop openmx.type == {TYPE_TINY} and nth(1)"]),),
)
ATTACHED = """
from testbed import attach

async def send_around(comm, node):
    sent = node.spawn(comm.send(f"from {node.name}", (comm.rank + 1) % comm.size, tag=3), "send")
    received = await comm.recv(source=(comm.rank - 1) % comm.size, tag=3)
    await sent
    return received

with attach("openmx") as nic:
    print(nic.comm.rank, nic.run(send_around))
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
def test_messages_of_every_size_class_arrive_over_lossy_links_with_two_ranks_per_node(mode: Mode) -> None:
    cluster = Cluster.star(3, rate="1gbit", delay="100us", loss="1%", seed=7)
    result = testbed.run(cluster, ring, protocol="openmx", mode=mode, ranks_per_node=2, timeout=60)
    assert set(map(tuple, result.results.values())) == {SIZES}
    if mode == "sim":  # with shared live NICs, the library's counters are in other processes
        assert sum(counted["resent"] for counted in result.counters.values())
    assert sum(counted["recv_pull_reply"] for counted in result.counters.values())
    # A third of the ring's messages stay on a node. What follows the first 4 KiB of the longest object is copied once.
    assert sum(counted["shared_pull"] for counted in result.counters.values()) == 3
    eager = ("shared_tiny", "shared_small", "shared_mediumsq_frag")
    assert sum(counted[name] for counted in result.counters.values() for name in eager) >= 3 * len(SIZES)


@pytest.mark.parametrize("mode", ["sim", "live"])
def test_a_rule_on_a_field_drops_the_matching_frames(mode: Mode) -> None:
    result = testbed.run(
        Cluster.star(2, delay="100us"), ring, protocol="openmx", mode=mode, scenario=FIRST_LOST, timeout=60
    )
    assert set(map(tuple, result.results.values())) == {SIZES}
    assert sum(counted["resent"] for counted in result.counters.values()) >= 1


def test_a_run_with_a_scenario_file_is_captured_decoded_dissected_and_reported(tmp_path: Path) -> None:
    faults, run, capture = tmp_path / "faults.toml", tmp_path / "run", tmp_path / "all.pcapng"
    faults.write_text(SCENARIO)
    with Cluster.star(3, delay="100us").up() as cluster, cluster.capture("all", capture) as captured:
        ran = command(
            "run", cluster.name, "random", "--protocol", "openmx", "--set", "messages=30", "--set", "over=1s",
            "--set", "largest=100000", "--scenario", str(faults), "--output", str(run), "--check",
        )  # fmt: skip
    assert ran.returncode in (0, 8), ran.stderr  # 8: a busy machine
    lost = captured.result.fates["rule"]
    assert 1 <= lost <= 6  # one per direction of three links
    decoded = [json.loads(line) for line in output("decode", str(capture), "--json")]
    replies = [document for document in decoded if document["fields"].get("openmx.type") == TYPE_PULL_REPLY]
    assert sum(reply["fate"].startswith("dropped by rule") for reply in replies) == lost
    assert any("Open-MX CONNECT" in line for line in output("decode", str(capture)))
    report = tmp_path / "report.html"
    output("report", str(run), "-o", str(report))
    assert "openmx" in report.read_text()
    dissector = tmp_path / "testbed.lua"
    output("dissector", "-o", str(dissector))
    dissected = tshark_field(dissector, capture, "openmx.type")
    assert dissected.count(str(TYPE_PULL_REPLY)) == len(replies) > lost
    assert Counter(filter(None, dissected)) == Counter(
        str(document["fields"]["openmx.type"]) for document in decoded if "openmx.type" in document["fields"]
    )


def random_traffic(folder: Path, mode: Mode, seed: int = 7, **options: Unpack[RunOptions]) -> None:
    """Run random traffic between all nodes with a checked history and logged fates. A dilated run uses the paper's costs,
    which affect only times."""
    costs: RunOptions = {"profile": OPENMX_2009, "dilate": DILATE} if mode == "dilated" else {}
    testbed.run(
        Cluster.star(3, rate="1gbit", delay="100us", loss="2%", seed=seed), "random", protocol="openmx", mode=mode,
        settings={"messages": 30, "largest": 60_000}, check=True, fates=True, output=folder, timeout=60, **costs, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "run"
    random_traffic(folder, "sim")
    return folder


@pytest.mark.parametrize(("mode", "nics"), [("live", "inline"), ("live", "shared"), ("dilated", "inline")])
def test_messages_and_fates_equal_the_simulations(mode: Mode, nics: Nics, simulated: Path, tmp_path: Path) -> None:
    random_traffic(tmp_path / "run", mode, nics=nics)
    for node in ("n1", "n2", "n3"):
        assert received_messages(tmp_path / "run", node) == received_messages(simulated, node) != {}
    simulated_fates, live_fates = (fates_by_flow(read_log(run / FATES)) for run in (simulated, tmp_path / "run"))
    differing, compared = differing_flows(simulated_fates, live_fates)
    assert not differing
    assert compared >= 5


def test_another_seed_has_other_fates_and_messages(simulated: Path, tmp_path: Path) -> None:
    random_traffic(tmp_path / "run", "live", seed=8)
    differing, _ = differing_flows(*(fates_by_flow(read_log(run / FATES)) for run in (simulated, tmp_path / "run")))
    assert differing
    assert any(received_messages(tmp_path / "run", node) != received_messages(simulated, node) for node in ("n1", "n2"))


@pytest.mark.parametrize("nics", ["inline", "shared"])
def test_traffic_survives_restarts_crashes_and_cuts_which_leave_nothing(nics: Nics, machine: Machine) -> None:
    faults = (
        Restart(on="n2", at="300ms"),
        Reset(on="n3", at="500ms"),
        Crash(on="n1", at="400ms", for_="200ms"),
        Flap(on="n4", at="600ms", for_="200ms"),
        Crash(on="n4", at="3500ms"),  # late enough for the others to restart and hear it on a slow machine
    )
    firmware = {"tick": MILLISECOND, "resends": 40} if nics == "inline" else None
    result = testbed.run(
        Cluster.star(4, delay="50us"), "churn", protocol="openmx", nics=nics, scenario=Scenario(faults=faults),
        settings={"time": "4s", "settle": "300ms"}, firmware=firmware, timeout=60,
    )  # fmt: skip
    assert result.checks is not None
    assert result.checks.passed
    rows = {row["node"]: row for row in result.rows}
    assert {name: row["lives"] for name, row in rows.items()} == {"n1": 2, "n2": 2, "n3": 2}
    few = [row for row in rows.values() if row["received"] <= 10 or row["sent"] <= 10 or row["from_lives"] < 3]
    assert few == []
    machine.assert_unchanged("left behind by restarted nodes")


def test_attached_programs_communicate_over_shared_nics() -> None:
    def start(cluster: RunningCluster, node: str) -> subprocess.Popen[str]:
        return cluster[node].popen([sys.executable, "-c", ATTACHED], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    with Cluster.star(2).up() as cluster, share_nics(cluster, "openmx", functions=1):
        outputs = []
        for script in [start(cluster, node) for node in ("n1", "n2")]:
            output, errors = script.communicate(timeout=60)
            assert script.returncode == 0, errors
            outputs.append(output)
    assert sorted(outputs) == ["0 from n2\n", "1 from n1\n"]


def test_a_run_on_shared_nics_transfers_every_size_class() -> None:
    result = testbed.run(
        Cluster.star(2, loss="1%", seed=3), ring, protocol="openmx", mode="live", nics="shared", timeout=60
    )
    assert set(map(tuple, result.results.values())) == {SIZES}
    assert result.verdict.grade in (Grade.TRUSTED, Grade.DEGRADED)


def test_a_pytest_test_runs_in_both_modes(pytester: pytest.Pytester) -> None:
    pytester.makeini(inner_pytest.SETTINGS)
    pytester.makepyfile(PYTEST)
    pytester.runpytest("--testbed-mode=both").assert_outcomes(passed=2)
