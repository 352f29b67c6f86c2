"""SSAM on ATM with every part of the testbed: the simulation's results and fates, captures, rules, faults, scenarios,
reports, scripts, and the pytest plug-in."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import testbed
from protocols.ssam.fields import REPLY
from testbed import Cluster, RunResult
from testbed.controller.conformance.parity import differing_flows, fates_by_flow
from testbed.controller.runs.run_options import Mode
from testbed.observe.recorded import FATES
from testbed.runtime.logs import read_log
from testbed.spec.elements import Link, Node
from testbed.spec.toml_writer import to_toml
from tests.live.testbed_command import assert_error
from tests.live.testbed_command import testbed as command
from tests.sim.scapy_captures import read_capture

import_module("testbed.pytest_plugin.cluster_life")  # pytester unloads modules that its runs import

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine"), pytest.mark.timeout(120)]

REQUESTS = 60
SUCCESS = (0, 8, 9)
"""Exit codes of successful commands; the last two: the verdict on a busy machine is "degraded", "invalid"."""


def star(seed: int = 7) -> Cluster:
    """Three nodes at a switch; every link loses cells."""
    return Cluster.star(3, name="star", kind="atm", rate="140mbit", overhead=2, delay="100us", loss="2%", seed=seed)


# One workload in three modes.


def fibre() -> Cluster:
    """Two nodes without a switch; the fibre between them loses cells."""
    impairments = {"rate": "140mbit", "overhead": 2, "delay": "100us", "loss": "2%"}
    return Cluster(
        name="fibre", seed=7, nodes=[Node(name="n1"), Node(name="n2")],
        links=[Link(ends=["n1", "n2"], kind="atm", **impairments)],  # type: ignore[arg-type]  # keys of a link
    )  # fmt: skip


def run_requests(folder: Path, mode: Mode, seed: int = 7, cluster: Cluster | None = None) -> RunResult:
    """Run random requests between all nodes, of the star by default, with a checked history and logged fates."""
    return testbed.run(
        cluster or star(seed), "am-random", protocol="ssam", mode=mode, dilate=100 if mode == "dilated" else None,
        check=True, fates=True, settings={"requests": REQUESTS, "endpoints": 1, "largest": 200}, output=folder,
    )  # fmt: skip


def handled_and_replied(folder: Path) -> dict[str, Counter[tuple[object, ...]]]:
    """Count the requests handled and replies received by each node, by peer and content; different peers' messages are
    unordered."""
    messages = {}
    for path in sorted((folder / "history").iterdir()):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        messages[path.stem] = Counter(
            tuple(event[key] for key in ("what", "peer", "handler", "bytes", "digest"))
            for event in records
            if event["what"] in ("handled", "replied")
        )
    return messages


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "run"
    run_requests(folder, "sim")
    return folder


@pytest.mark.parametrize("mode", ["live", "dilated"])
def test_requests_and_fates_equal_the_simulations(mode: Mode, simulated: Path, tmp_path: Path) -> None:
    result = run_requests(tmp_path / "run", mode)
    assert result.checks is not None
    assert result.checks.passed, result.checks.to_text()
    run_folder = tmp_path / "run"
    assert handled_and_replied(run_folder) == handled_and_replied(simulated)
    assert [counts.total() >= REQUESTS for counts in handled_and_replied(run_folder).values()] == [True] * 3
    assert sum(counted["resent"] + counted["hurried"] for counted in result.counters.values()), "cells were lost"
    differing, compared = differing_flows(
        fates_by_flow(read_log(simulated / FATES)), fates_by_flow(read_log(run_folder / FATES))
    )
    assert not differing
    assert compared >= 20


@pytest.mark.parametrize("mode", ["live", "dilated"])
def test_requests_and_fates_on_a_fibre_between_two_nodes_equal_the_simulations(mode: Mode, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("sim", mode)}
    results = [run_requests(folder, name, cluster=fibre()) for name, folder in folders.items()]
    assert [result.checks is not None and result.checks.passed for result in results] == [True, True]
    simulated, real = folders.values()
    assert handled_and_replied(real) == handled_and_replied(simulated)
    differing, compared = differing_flows(
        fates_by_flow(read_log(simulated / FATES)), fates_by_flow(read_log(real / FATES))
    )
    assert (differing, compared >= 4) == ([], True), compared


def test_a_capture_at_a_fibre_between_two_nodes_marks_the_lost_cells(tmp_path: Path) -> None:
    path, log = tmp_path / "n1.pcapng", tmp_path / "fates.jsonl"
    with fibre().up(fates=log) as cluster:
        with cluster.capture("n1", path) as capture:
            testbed.run(cluster, "am-random", protocol="ssam", settings={"requests": REQUESTS, "endpoints": 1})
        assert capture.result is not None
    lost = [frame for _, _, frame, met in read_capture(path) if "dropped by loss" in met]
    assert len(lost) == len(list(read_log(log))) > 0, "both ends are interfaces, so that both directions are captured"
    assert {len(frame) for frame in lost} == {14 + 53}


def test_another_seed_has_other_fates(simulated: Path, tmp_path: Path) -> None:
    run_requests(tmp_path / "run", "sim", seed=8)
    run_folder = tmp_path / "run"
    assert handled_and_replied(run_folder) != handled_and_replied(simulated)
    differing, _ = differing_flows(
        fates_by_flow(read_log(simulated / FATES)), fates_by_flow(read_log(run_folder / FATES))
    )
    assert differing


# The commands.


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Bring up a cluster "star"; yield the folder of its description."""
    folder = tmp_path_factory.mktemp("cells")
    (folder / "star.toml").write_text(to_toml(star()))
    result = command("up", str(folder / "star.toml"))
    assert result.returncode == 0, result.stderr
    run_command("inject", "n1", "--loss", "0%")
    run_command("heal", "star")
    run()  # creates the files of the cluster's services
    yield folder
    assert command("down", "--all").returncode == 0


def run_command(*arguments: object) -> str:
    result = command(*map(str, arguments))
    assert result.returncode in SUCCESS, result.stdout + result.stderr
    return result.stdout


def run(*options: object) -> None:
    """Run a few requests on the running cluster and check their history."""
    run_command("run", "star", "am-random", "--protocol", "ssam", "--set", "requests=30", "--check", *options)


def decode_capture(folder: Path, *options: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run_command("decode", folder / "n1.pcapng", "--json", *options).splitlines()]


@pytest.fixture(scope="module")
def capture(up: Path) -> Path:
    """Capture n1's cells in a run under rules by circuit and by message; return the capture's folder."""
    path = up / "n1.pcapng"
    rules = ("drop atm.vci == 33 and nth(3)", "drop ssam.kind == REPLY and nth(2)")
    run_command("inject", "n1", "--rule", rules[0], "--rule", rules[1], "--direction", "n1-s1")
    with subprocess.Popen(
        [Path(sys.executable).with_name("testbed"), "capture", "n1", "-w", path], stderr=subprocess.PIPE, text=True
    ) as recorder:
        assert recorder.stderr is not None
        recorder.stderr.readline()
        try:
            run()
        finally:
            recorder.send_signal(signal.SIGINT)
            recorder.communicate(timeout=30)
    healed = run_command("heal", "star")
    assert "has decided no frame's fate" not in healed
    return up


def test_a_capture_lists_messages_and_frames_dropped_by_rules(capture: Path) -> None:
    lines = run_command("decode", capture / "n1.pcapng").splitlines()
    assert any(" SSAM REQUEST " in line for line in lines)
    dropped = [document for document in decode_capture(capture) if document["fate"].startswith("dropped by rule")]
    assert len(dropped) == 2
    assert {document["fields"]["atm.vci"] for document in dropped} >= {33}
    assert REPLY in {document["fields"]["ssam.kind"] for document in dropped}
    replies = decode_capture(capture, "--filter", "ssam.kind == REPLY")
    assert replies
    assert {document["fields"]["ssam.kind"] for document in replies} == {REPLY}
    details = run_command("decode", capture / "n1.pcapng", "-v", "--filter", "ssam.kind == REPLY")
    assert "    ATM: gfc 0, vpi 0, vci " in details
    assert "    SSAM: kind REPLY, session " in details


@pytest.mark.requires("tshark")
def test_the_dissector_decodes_the_same_messages(capture: Path) -> None:
    script = capture / "testbed.lua"
    run_command("dissector", "-o", script)
    fields = [f"-essam.{name}" for name in ("kind", "session", "number")] + ["-etestbed_atm.vci"]
    command_line = ["tshark", "-n", "-X", f"lua_script:{script}", "-r", str(capture / "n1.pcapng"), "-T", "fields"]
    result = subprocess.run([*command_line, *fields], capture_output=True, text=True, timeout=60, check=True)
    decoded = [
        [str(document["fields"][name]) for name in ("ssam.kind", "ssam.session", "ssam.number", "atm.vci")]
        for document in decode_capture(capture)
    ]
    assert [line.split("\t") for line in result.stdout.splitlines()] == decoded
    assert len({kind for kind, *_ in decoded}) >= 3


def test_status_and_top_show_the_rule(up: Path) -> None:  # noqa: ARG001
    run_command("inject", "n1", "--rule", "drop atm.vci == 33 and nth(2)")
    assert "rule 'drop atm.vci == 33 and nth(2)'" in run_command("status", "star")
    run()
    snapshot = json.loads(run_command("top", "star", "--once", "--interval", "100ms", "--json"))
    assert "drop atm.vci == 33 and nth(2)" in json.dumps(snapshot)
    run_command("heal", "star")


SCENARIO = """
[[fault]]
kind = "partition"
groups = [["n1"], ["n2", "n3"]]
at = "0s"
for = "300ms"

[[fault]]
kind = "rule"
on = "n2"
at = "0s"
rules = "drop ssam.kind == REPLY and every(3)"
"""


def test_requests_are_answered_after_a_partition_and_the_report_shows_it(up: Path) -> None:
    scenario = up / "partition.toml"
    scenario.write_text(SCENARIO)
    run("--scenario", scenario, "--output", up / "out")
    result = json.loads((up / "out" / "result.json").read_text())
    assert [check["passed"] for check in result["checks"]] == [True]
    events = [json.loads(line) for line in (up / "out" / "events.jsonl").read_text().splitlines()]
    assert {"partition", "rule"} <= {event.get("kind") for event in events}
    run_command("report", up / "out", "-o", up / "report.html")
    assert "am-random" in (up / "report.html").read_text()
    assert "partition" in (up / "report.html").read_text()


def test_shared_nics_are_rejected_with_the_reason(up: Path) -> None:  # noqa: ARG001
    run = command("run", "star", "am-random", "--protocol", "ssam", "--nics", "shared")
    assert_error(run, 3, "NICs of protocol ssam cannot be shared")
    assert_error(command("nics", "star", "--protocol", "ssam"), 3, "protocol ssam does not support shared NICs")


SCRIPT = """
from testbed import attach

async def greet(comm, node):
    if comm.rank == 0:
        for peer in range(1, comm.size):
            await comm.send(f"hello {node.names[peer]} from {node.name}", peer, tag=7)
        return "sent"
    return await comm.recv(source=0, tag=7)

with attach("ssam") as nic:
    print(nic.run(greet))
"""


def test_a_script_attaches_to_its_nodes_nic(up: Path) -> None:
    (up / "greet.py").write_text(SCRIPT)
    program = f"{sys.executable} {up / 'greet.py'}"
    on = [word for node in ("n1", "n2", "n3") for word in ("--on", node, program)]
    run_command("run", "star", *on, "--output", up / "greetings")
    reported = [(up / "greetings" / "logs" / f"{node}.log").read_text() for node in ("n1", "n2", "n3")]
    assert reported == ["sent\n", "hello n2 from n1\n", "hello n3 from n1\n"]


TEST = """
import pytest

async def count(comm, node):
    received = []
    for number in range(10):
        if comm.rank == 0:
            await comm.send(number, 1, 7)
        elif comm.rank == 1:
            received.append(await comm.recv(source=0, tag=7))
    return received

@pytest.mark.cluster("ssam-1995", loss="5%", seed=3)
def test_receives_every_number(cluster):
    assert cluster.run(count, protocol="ssam").results["n2"] == list(range(10))
"""


def test_a_pytest_test_runs_in_both_modes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makepyfile(TEST)
    pytester.runpytest("-p", "no:cacheprovider", "--testbed-mode", "both").assert_outcomes(passed=2)


def test_an_mpi_workload_runs_over_ssam(up: Path) -> None:  # noqa: ARG001
    settings = ("--set", "count=5", "--set", "sizes=0,1024")
    document = json.loads(run_command("run", "star", "pingpong", "--protocol", "ssam", *settings, "--check", "--json"))
    assert [row["size_bytes"] for row in document["rows"]] == [0, 1024]
