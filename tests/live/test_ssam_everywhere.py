"""All features of a live cluster, once with SSAM on ATM links: the simulation's results and fates, captures, rules,
faults, scenarios, reports, scripts, and the pytest plug-in."""

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
from testbed.spec.toml_writer import to_toml
from tests.live.testbed_command import refused
from tests.live.testbed_command import testbed as command

import_module("testbed.pytest_plugin.cluster_life")  # before pytester's inner run, which forgets what it imports

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine"), pytest.mark.timeout(120)]

REQUESTS = 60
DONE = (0, 8, 9)
"""All went well; the last two: the verdict on a busy machine is "degraded", "invalid"."""


def star(seed: int = 7) -> Cluster:
    """Three nodes at a switch; every link loses cells."""
    return Cluster.star(3, name="star", kind="atm", rate="140mbit", overhead=2, delay="100us", loss="2%", seed=seed)


# One program under three clocks.


def requests(folder: Path, mode: Mode, seed: int = 7) -> RunResult:
    """Random requests of everybody to everybody, with their histories checked and every fate logged."""
    return testbed.run(
        star(seed), "am-random", protocol="ssam", mode=mode, dilate=100 if mode == "dilated" else None, check=True,
        fates=True, settings={"requests": REQUESTS, "endpoints": 1, "largest": 200}, output=folder,
    )  # fmt: skip


def handled_and_replied(folder: Path) -> dict[str, Counter[tuple[object, ...]]]:
    """The messages that each node's program has handled, and the replies that it got, by peer and contents: those of
    different nodes have no order."""
    actual = {}
    for path in sorted((folder / "history").iterdir()):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        actual[path.stem] = Counter(
            tuple(event[key] for key in ("what", "peer", "handler", "bytes", "digest"))
            for event in records
            if event["what"] in ("handled", "replied")
        )
    return actual


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "run"
    requests(folder, "sim")
    return folder


@pytest.mark.parametrize("mode", ["live", "dilated"])
def test_requests_and_the_fates_of_every_circuit_equal_those_of_the_simulation(
    mode: Mode, simulated: Path, tmp_path: Path
) -> None:
    result = requests(tmp_path / "run", mode)
    assert result.checks is not None
    assert result.checks.passed, result.checks.to_text()
    remote, run_folder = simulated, tmp_path / "run"
    assert handled_and_replied(run_folder) == handled_and_replied(remote)
    assert [counts.total() >= REQUESTS for counts in handled_and_replied(run_folder).values()] == [True] * 3
    assert sum(counted["resent"] + counted["hurried"] for counted in result.counters.values()), "cells were lost"
    differing, compared = differing_flows(
        fates_by_flow(read_log(remote / FATES)), fates_by_flow(read_log(run_folder / FATES))
    )
    assert not differing
    assert compared >= 20


def test_another_seed_has_other_fates(simulated: Path, tmp_path: Path) -> None:
    requests(tmp_path / "run", "sim", seed=8)
    remote, run_folder = simulated, tmp_path / "run"
    assert handled_and_replied(run_folder) != handled_and_replied(remote)
    differing, _ = differing_flows(fates_by_flow(read_log(remote / FATES)), fates_by_flow(read_log(run_folder / FATES)))
    assert differing


# The commands.


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster "star" that is up, and the folder of its description."""
    folder = tmp_path_factory.mktemp("cells")
    (folder / "star.toml").write_text(to_toml(star()))
    result = command("up", str(folder / "star.toml"))
    assert result.returncode == 0, result.stderr
    done("inject", "n1", "--loss", "0%")
    done("heal", "star")
    run()  # the files of the cluster's services are there from now on
    yield folder
    assert command("down", "--all").returncode == 0


def done(*arguments: object) -> str:
    result = command(*map(str, arguments))
    assert result.returncode in DONE, result.stdout + result.stderr
    return result.stdout


def run(*options: object) -> None:
    """Run a few requests on the cluster that is up, and check their histories."""
    done("run", "star", "am-random", "--protocol", "ssam", "--set", "requests=30", "--check", *options)


def captured(folder: Path, *options: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done("decode", folder / "n1.pcapng", "--json", *options).splitlines()]


@pytest.fixture(scope="module")
def capture(up: Path) -> Path:
    """The folder of a capture of n1's cells in a run under rules by circuit and by message."""
    path = up / "n1.pcapng"
    rules = ("drop atm.vci == 33 and nth(3)", "drop ssam.kind == REPLY and nth(2)")
    done("inject", "n1", "--rule", rules[0], "--rule", rules[1], "--direction", "n1-s1")
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
    healed = done("heal", "star")
    assert "has decided no frame's fate" not in healed
    return up


def test_a_capture_lists_messages_and_frames_dropped_by_rules(capture: Path) -> None:
    lines = done("decode", capture / "n1.pcapng").splitlines()
    assert any(" SSAM REQUEST " in line for line in lines)
    dropped = [document for document in captured(capture) if document["met"].startswith("dropped by rule")]
    assert len(dropped) == 2
    assert {document["fields"]["atm.vci"] for document in dropped} >= {33}
    assert REPLY in {document["fields"]["ssam.kind"] for document in dropped}
    replies = captured(capture, "--filter", "ssam.kind == REPLY")
    assert replies
    assert {document["fields"]["ssam.kind"] for document in replies} == {REPLY}
    details = done("decode", capture / "n1.pcapng", "-v", "--filter", "ssam.kind == REPLY")
    assert "    ATM: gfc 0, vpi 0, vci " in details
    assert "    SSAM: kind REPLY, session " in details


@pytest.mark.requires("tshark")
def test_wireshark_finds_the_same_messages_by_the_dissector(capture: Path) -> None:
    script = capture / "testbed.lua"
    done("dissector", "-o", script)
    requested = [f"-essam.{name}" for name in ("kind", "session", "number")] + ["-etestbed_atm.vci"]
    command_line = ["tshark", "-n", "-X", f"lua_script:{script}", "-r", str(capture / "n1.pcapng"), "-T", "fields"]
    result = subprocess.run([*command_line, *requested], capture_output=True, text=True, timeout=60, check=True)
    local = [
        [str(document["fields"][name]) for name in ("ssam.kind", "ssam.session", "ssam.number", "atm.vci")]
        for document in captured(capture)
    ]
    assert [line.split("\t") for line in result.stdout.splitlines()] == local
    assert len({kind for kind, *_ in local}) >= 3


def test_status_and_top_count_cells_and_show_faults(up: Path) -> None:  # noqa: ARG001
    done("inject", "n1", "--rule", "drop atm.vci == 33 and nth(2)")
    assert "rule 'drop atm.vci == 33 and nth(2)'" in done("status", "star")
    run()
    snapshot = json.loads(done("top", "star", "--once", "--interval", "100ms", "--json"))
    assert "drop atm.vci == 33 and nth(2)" in json.dumps(snapshot)
    done("heal", "star")


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


def test_a_partition_lets_no_cell_pass_and_requests_are_answered_when_it_is_healed(up: Path) -> None:
    scenario = up / "partition.toml"
    scenario.write_text(SCENARIO)
    run("--scenario", scenario, "--output", up / "out")
    result = json.loads((up / "out" / "result.json").read_text())
    assert [check["passed"] for check in result["checks"]] == [True]
    events = [json.loads(line) for line in (up / "out" / "events.jsonl").read_text().splitlines()]
    assert {"partition", "rule"} <= {event.get("kind") for event in events}
    done("report", up / "out", "-o", up / "report.html")
    assert "am-random" in (up / "report.html").read_text()
    assert "partition" in (up / "report.html").read_text()


def test_shared_nics_are_refused_with_an_explanation(up: Path) -> None:  # noqa: ARG001
    run = command("run", "star", "am-random", "--protocol", "ssam", "--nics", "shared")
    refused(run, 3, "NICs of protocol ssam cannot be shared")
    refused(command("nics", "star", "--protocol", "ssam"), 3, "protocol ssam has no NICs that could be shared")


SCRIPT = """
from testbed import attach

async def greet(comm, node):
    if comm.rank == 0:
        for other in range(1, comm.size):
            await comm.send(f"hello {node.names[other]} from {node.name}", other, tag=7)
        return "sent"
    return await comm.recv(source=0, tag=7)

with attach("ssam") as nic:
    print(nic.run(greet))
"""


def test_a_script_attaches_to_its_nodes_interface(up: Path) -> None:
    (up / "greet.py").write_text(SCRIPT)
    program = f"{sys.executable} {up / 'greet.py'}"
    on = [word for node in ("n1", "n2", "n3") for word in ("--on", node, program)]
    done("run", "star", *on, "--output", up / "greetings")
    reported = [(up / "greetings" / "logs" / f"{node}.log").read_text() for node in ("n1", "n2", "n3")]
    assert reported == ["sent\n", "hello n2 from n1\n", "hello n3 from n1\n"]


TEST = """
import pytest

async def count(comm, node):
    heard = []
    for number in range(10):
        if comm.rank == 0:
            await comm.send(number, 1, 7)
        elif comm.rank == 1:
            heard.append(await comm.recv(source=0, tag=7))
    return heard

@pytest.mark.cluster("ssam-1995", loss="5%", seed=3)
def test_receives_every_number(cluster):
    assert cluster.run(count, protocol="ssam").results["n2"] == list(range(10))
"""


def test_the_plug_in_runs_a_test_on_it_in_both_modes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makepyfile(TEST)
    pytester.runpytest("-p", "no:cacheprovider", "--testbed-mode", "both").assert_outcomes(passed=2)


def test_mpis_messages_are_streams_of_cells(up: Path) -> None:  # noqa: ARG001
    settings = ("--set", "count=5", "--set", "sizes=0,1024")
    document = json.loads(done("run", "star", "pingpong", "--protocol", "ssam", *settings, "--check", "--json"))
    assert [row["size_bytes"] for row in document["rows"]] == [0, 1024]
