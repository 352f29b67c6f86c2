"""VIA with every part of the testbed once: clocks, rules, scenarios, captures, decoding, report, shared NICs, pytest."""

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
from tests.live.testbed_command import by_tshark, output
from tests.live.testbed_command import testbed as command
from tests.live.via_conversation import SIZES, Conversation

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

async def around(comm, node):
    sent = node.spawn(comm.send(f"from {node.name}", (comm.rank + 1) % comm.size, tag=3), "send")
    received = await comm.recv(source=(comm.rank - 1) % comm.size, tag=3)
    await sent
    return received

with attach("via") as nic:
    print(nic.comm.rank, nic.run(around))
"""
PYTEST = """
import pytest

async def count(comm, node):
    heard = []
    for number in range(20):
        if comm.rank == 0:
            await comm.send(number, 1, 7)
        else:
            heard.append(await comm.recv(source=0, tag=7))
    return heard

@pytest.mark.cluster("star-2", loss="5%", delay="1ms", seed=3)
def test_the_other_node_receives_every_number(cluster):
    assert cluster.run(count, protocol="via").results["n2"] == list(range(20))
"""


def run_via(cluster: Cluster, workload: Form, clock: Mode, **more: Unpack[RunOptions]) -> RunResult:
    """A run over VIA. A dilated one has the paper's costs, which change only times."""
    given: RunOptions = {**more, "protocol": "via", "mode": clock, "timeout": 60}
    if clock == "dilated":
        given |= {"profile": LAM_VIA_2000, "dilate": DILATE}
    return testbed.run(cluster, workload, **given)


def test_connections_have_the_same_outcome_under_every_clock(tmp_path: Path) -> None:
    """Server and client, peers, a refusal, a request to nobody; under loss. Every flow has the same fates."""
    actual, fates = {}, {}
    modes: tuple[Mode, ...] = ("sim", "live", "dilated")
    for mode in modes:
        folder = tmp_path / mode
        result = run_via(LOSSY, Conversation, mode, fates=True, output=folder)
        actual[mode], fates[mode] = result.results, fates_by_flow(read_log(folder / FATES))
        assert any(counters["frames_resent"] for counters in result.counters.values())
    steps = actual["sim"]["n1"]
    assert len(steps) == 2 * (1 + 2 * 2 * len(SIZES)) + 1
    assert steps[-1] == "TIMEOUT"
    assert actual["live"] == actual["dilated"] == actual["sim"]
    for mode in ("live", "dilated"):
        differing, compared = differing_flows(fates["sim"], fates[mode])
        assert not differing
        assert compared >= 10


def test_in_dilated_time_messages_and_connections_of_all_ranks_equal_those_of_the_simulation(tmp_path: Path) -> None:
    modes: tuple[Mode, ...] = ("sim", "dilated", "live")
    for mode in modes:
        run_via(
            LOSSY, "random", mode, settings={"messages": 15}, check=True, output=tmp_path / mode,
            firmware={"connect_all": 1},
        )  # fmt: skip
    for node in ("n1", "n2", "n3"):
        simulated, dilated, live = (received_messages(tmp_path / mode, node) for mode in modes)
        assert simulated == dilated == live != {}


def test_a_rule_names_the_second_rdma_write_and_loses_it_in_every_mode() -> None:
    scenario = Scenario(name="second-write", faults=(Rule(on="n1", direction="out", at=0, rules=[LOST]),))
    pair = Cluster.star(2, delay="100us")
    modes: tuple[Mode, ...] = ("sim", "live")
    for mode in modes:
        result = run_via(pair, "pingpong", mode, settings={"sizes": "4", "count": 20}, scenario=scenario)
        assert result.counters["n1"]["frames_resent"] >= 1
        if mode == "sim":  # on a busy machine a frame's acknowledgement is late at times
            assert result.counters["n2"]["frames_resent"] == 0
        assert result.counters["n1"]["timeouts"] + result.counters["n2"]["early"] >= 1


def test_a_run_with_a_scenario_file_is_captured_decoded_dissected_and_reported(tmp_path: Path) -> None:
    faults, run, capture = tmp_path / "faults.toml", tmp_path / "run", tmp_path / "all.pcapng"
    faults.write_text(SCENARIO)
    with Cluster.star(3, delay="100us").up() as cluster, cluster.capture("all", capture) as captured:
        ran = command("run", cluster.name, "random", *RUN, "--scenario", str(faults), "--output", str(run))
    assert ran.returncode in (0, 8), ran.stderr
    lost = captured.result.met["rule"]
    assert 1 <= lost <= 6  # of each direction of three links
    decoded = [json.loads(line) for line in output("decode", str(capture), "--json")]
    writes = [document for document in decoded if document["fields"].get("via.type") == TYPE_RDMA_WRITE]
    assert sum(write["met"].startswith("dropped by rule") for write in writes) == lost
    assert any("VIA CONNECT PEER_REQUEST" in line for line in output("decode", str(capture)))
    records = [json.loads(line) for line in output("decode", str(capture), "--messages", "--json")]
    assert sum(record["lost"] for record in records) >= lost
    report = tmp_path / "report.html"
    output("report", str(run), "-o", str(report))
    assert "dropped by rule" in report.read_text() or LOST in report.read_text()
    dissector = tmp_path / "testbed.lua"
    output("dissector", "-o", str(dissector))
    dissected = by_tshark(dissector, capture, "via.type")
    assert dissected.count(str(TYPE_RDMA_WRITE)) == len(writes)
    assert dissected.count(str(TYPE_CONNECT)) == sum(
        document["fields"].get("via.type") == TYPE_CONNECT for document in decoded
    )


def test_ranks_share_their_nodes_nics(tmp_path: Path) -> None:
    result = run_via(
        LOSSY, "random", "live", nics="shared", ranks_per_node=2, settings={"messages": 10}, check=True,
        output=tmp_path / "run",
    )  # fmt: skip
    assert result.verdict.grade in (Grade.TRUSTED, Grade.DEGRADED)
    assert len(result.results) == 6


def test_connections_of_a_native_program_on_shared_nics() -> None:
    shared = run_via(LOSSY, Conversation, "live", nics="shared")
    assert shared.results == run_via(LOSSY, Conversation, "sim").results


def test_two_scripts_of_each_node_attach_to_its_nic() -> None:
    def start(cluster: RunningCluster, node: str) -> subprocess.Popen[str]:
        return cluster[node].popen([sys.executable, "-c", ATTACHED], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    with Cluster.star(2).up() as cluster, share_nics(cluster, "via", functions=2):
        scripts = [start(cluster, node) for node in ("n1", "n2") for _ in range(2)]
        log = []
        for script in scripts:
            output, errors = script.communicate(timeout=30)
            assert script.returncode == 0, errors
            log.append(output)
    assert sorted(log) == ["0 from n2.1\n", "1 from n1.0\n", "2 from n1.1\n", "3 from n2.0\n"]


def test_a_test_of_the_plug_in_runs_over_it_in_both_modes(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\naddopts = --strict-markers -p no:cacheprovider\nfilterwarnings = error\n")
    pytester.makepyfile(PYTEST)
    pytester.runpytest("--testbed-mode=both").assert_outcomes(passed=2)
