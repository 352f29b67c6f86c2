"""VIA with every part of the testbed: clocks, rules, scenarios, captures, decoding, report, shared NICs, pytest."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Unpack

import pytest

import testbed
from protocols.via.codec import TYPE_CONNECT, TYPE_RDMA_WRITE
from protocols.via.profile import LAM_VIA_2000
from testbed import Cluster, RunningCluster, RunResult, Scenario, share_nics
from testbed.controller.conformance.parity import differing_flows, fates_by_flow, received_messages
from testbed.controller.runs.run_options import Mode, RunOptions
from testbed.controller.verdict.verdicts import Grade
from testbed.observe.recorded import FATES
from testbed.runtime.logs import read_log
from testbed.spec.fault_models import Rule
from testbed.workloads.lookup import Form
from tests import inner_pytest
from tests.live.testbed_command import output, tshark_field
from tests.live.testbed_command import testbed as command
from tests.live.vip_connections import SIZES, VipConnections

import_module("testbed.pytest_plugin.cluster_life")  # pytester forgets modules that its runs import

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

LOSSY = Cluster.star(3, rate="1gbit", delay="100us", loss="2%", seed=7)
DILATE = 20
LOST = f"drop via.type == {TYPE_RDMA_WRITE} and nth(2)"
RUN = ("--protocol", "via", "--set", "messages=40", "--set", "over=1s", "--check")
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
ATTACHED = """
from testbed import attach

async def send_around(comm, node):
    sent = node.spawn(comm.send(f"from {node.name}", (comm.rank + 1) % comm.size, tag=3), "send")
    received = await comm.recv(source=(comm.rank - 1) % comm.size, tag=3)
    await sent
    return received

with attach("via") as nic:
    print(nic.comm.rank, nic.run(send_around))
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
    assert cluster.run(count, protocol="via").results["n2"] == list(range(20))
"""


def run_via(cluster: Cluster, workload: Form, mode: Mode, **options: Unpack[RunOptions]) -> RunResult:
    """Run a workload over VIA. A dilated run uses the paper's costs, which affect only times."""
    run_options: RunOptions = {**options, "protocol": "via", "mode": mode, "timeout": 60}
    if mode == "dilated":
        run_options |= {"profile": LAM_VIA_2000, "dilate": DILATE}
    return testbed.run(cluster, workload, **run_options)


def test_connections_have_the_same_outcome_in_every_mode(tmp_path: Path) -> None:
    """Client-server and peer connections, a rejection and a time-out under loss; every flow has the same fates."""
    results, fates = {}, {}
    modes: tuple[Mode, ...] = ("sim", "live", "dilated")
    for mode in modes:
        folder = tmp_path / mode
        result = run_via(LOSSY, VipConnections, mode, fates=True, output=folder)
        results[mode], fates[mode] = result.results, fates_by_flow(read_log(folder / FATES))
        assert any(counters["frames_resent"] for counters in result.counters.values())
    steps = results["sim"]["n1"]
    assert len(steps) == 2 * (1 + 2 * 2 * len(SIZES)) + 1
    assert steps[-1] == "TIMEOUT"
    assert results["live"] == results["dilated"] == results["sim"]
    for mode in ("live", "dilated"):
        differing, compared = differing_flows(fates["sim"], fates[mode])
        assert not differing
        assert compared >= 10


def test_messages_equal_the_simulations_with_all_ranks_connected(tmp_path: Path) -> None:
    modes: tuple[Mode, ...] = ("sim", "dilated", "live")
    for mode in modes:
        run_via(
            LOSSY, "random", mode, settings={"messages": 15}, check=True, output=tmp_path / mode,
            firmware={"connect_all": 1},
        )  # fmt: skip
    for node in ("n1", "n2", "n3"):
        simulated, dilated, live = (received_messages(tmp_path / mode, node) for mode in modes)
        assert simulated == dilated == live != {}


def test_a_rule_can_drop_the_second_rdma_write() -> None:
    scenario = Scenario(name="second-write", faults=(Rule(on="n1", direction="out", at=0, rules=[LOST]),))
    pair = Cluster.star(2, delay="100us")
    modes: tuple[Mode, ...] = ("sim", "live")
    for mode in modes:
        result = run_via(pair, "pingpong", mode, settings={"sizes": "4", "count": 20}, scenario=scenario)
        assert result.counters["n1"]["frames_resent"] >= 1
        if mode == "sim":  # on a busy machine acknowledgements may be late
            assert result.counters["n2"]["frames_resent"] == 0
        assert result.counters["n1"]["timeouts"] + result.counters["n2"]["early"] >= 1


def test_a_run_with_a_scenario_file_is_captured_decoded_dissected_and_reported(tmp_path: Path) -> None:
    faults, run, capture = tmp_path / "faults.toml", tmp_path / "run", tmp_path / "all.pcapng"
    faults.write_text(SCENARIO)
    with Cluster.star(3, delay="100us").up() as cluster, cluster.capture("all", capture) as captured:
        ran = command("run", cluster.name, "random", *RUN, "--scenario", str(faults), "--output", str(run))
    assert ran.returncode in (0, 8), ran.stderr
    lost = captured.result.fates["rule"]
    assert 1 <= lost <= 6  # one per direction of three links
    decoded = [json.loads(line) for line in output("decode", str(capture), "--json")]
    writes = [document for document in decoded if document["fields"].get("via.type") == TYPE_RDMA_WRITE]
    assert sum(write["fate"].startswith("dropped by rule") for write in writes) == lost
    assert any("VIA CONNECT PEER_REQUEST" in line for line in output("decode", str(capture)))
    records = [json.loads(line) for line in output("decode", str(capture), "--messages", "--json")]
    assert sum(record["lost"] for record in records) >= lost
    report = tmp_path / "report.html"
    output("report", str(run), "-o", str(report))
    assert "dropped by rule" in report.read_text() or LOST in report.read_text()
    dissector = tmp_path / "testbed.lua"
    output("dissector", "-o", str(dissector))
    dissected = tshark_field(dissector, capture, "via.type")
    assert dissected.count(str(TYPE_RDMA_WRITE)) == len(writes)
    assert dissected.count(str(TYPE_CONNECT)) == sum(
        document["fields"].get("via.type") == TYPE_CONNECT for document in decoded
    )


def test_two_ranks_per_node_share_its_nic(tmp_path: Path) -> None:
    result = run_via(
        LOSSY, "random", "live", nics="shared", ranks_per_node=2, settings={"messages": 10}, check=True,
        output=tmp_path / "run",
    )  # fmt: skip
    assert result.verdict.grade in (Grade.TRUSTED, Grade.DEGRADED)
    assert len(result.results) == 6


def test_connections_on_shared_nics_have_the_simulations_outcome() -> None:
    shared = run_via(LOSSY, VipConnections, "live", nics="shared")
    assert shared.results == run_via(LOSSY, VipConnections, "sim").results


def test_two_scripts_per_node_attach_to_its_nic() -> None:
    def start(cluster: RunningCluster, node: str) -> subprocess.Popen[str]:
        return cluster[node].popen([sys.executable, "-c", ATTACHED], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    with Cluster.star(2).up() as cluster, share_nics(cluster, "via", functions=2):
        scripts = [start(cluster, node) for node in ("n1", "n2") for _ in range(2)]
        outputs = []
        for script in scripts:
            output, errors = script.communicate(timeout=30)
            assert script.returncode == 0, errors
            outputs.append(output)
    assert sorted(outputs) == ["0 from n2.1\n", "1 from n1.0\n", "2 from n1.1\n", "3 from n2.0\n"]


def test_a_pytest_test_runs_in_both_modes(pytester: pytest.Pytester) -> None:
    pytester.makeini(inner_pytest.SETTINGS)
    pytester.makepyfile(PYTEST)
    pytester.runpytest("--testbed-mode=both").assert_outcomes(passed=2)
