"""The plug-in with live clusters in an inner pytest: both modes, artefacts, prompts, clean-up on two workers, time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from testbed import RunningCluster
from testbed.cluster.records.state import Store
from testbed.pytest_plugin import requires_marker
from tests import inner_pytest
from tests.live.forked_children import LONG
from tests.live.machine_state import Machine
from tests.live.ordinary_user import as_user, wait_for_success
from tests.live.terminals import Terminal

import_module("testbed.pytest_plugin.cluster_life")  # pytester unloads modules that its runs import

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.requires("root", "ping"), pytest.mark.usefixtures("machine")]

ONE_FAILING_TEST = """
import pytest

@pytest.mark.cluster("star-2", loss="100%", delay="1ms")
def test_fails(cluster):
    cluster["n1"].run(["ping", "-c1", "-W1", "n2"])

@pytest.mark.cluster("star-2")
def test_passes(cluster):
    cluster["n1"].run(["ping", "-c1", "n2"])
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A pytester directory without this project's settings; its clusters are in this test's sandbox."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makeini(inner_pytest.SETTINGS)
    return pytester


def artefact_folder(pytester: pytest.Pytester) -> Path:
    """Return the folder of the only failed test."""
    (folder,) = (pytester.path / "testbed-artefacts").iterdir()
    return folder


def test_one_test_body_passes_in_both_modes(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
import pytest

async def count(comm, node):
    received = []
    for number in range(20):
        if comm.rank == 0:
            for peer in range(1, comm.size):
                await comm.send(number, peer, 7)
        else:
            received.append(await comm.recv(source=0, tag=7))
    return received

@pytest.mark.cluster("star-3", loss="5%", delay="1ms", seed=3)
def test_every_node_receives_every_number(cluster):
    results = [cluster.run(count).results]
    with cluster.inject("n2", loss="20%"):
        results.append(cluster.run(count).results)
    for received in results:
        assert received["n2"] == received["n3"] == list(range(20))
"""
    )
    result = suite.runpytest("--testbed-mode=both", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([f"*test_every_node_receives_every_number?{mode}? PASSED*" for mode in ("sim", "live")])


def test_a_failing_test_leaves_the_clusters_description_and_a_capture(suite: pytest.Pytester) -> None:
    suite.makepyfile(ONE_FAILING_TEST)
    result = suite.runpytest("--pcap-on-failure")
    result.assert_outcomes(failed=1, passed=1)
    folder = artefact_folder(suite)
    result.stdout.fnmatch_lines(
        [
            '>       cluster[[]"n1"].run(*',
            "E *100% packet loss*",
            f"artefacts: {folder}",
            "the network during the test: *",
        ]
    )
    result.stdout.fnmatch_lines([f"testbed: *::test_fails*: {folder}"])
    files = {path.name for path in folder.iterdir()}
    assert {
        "report.txt",
        "description.toml",
        "environment.json",
        "state.json",
        "processes.log",
        "verdict.txt",
    } <= files
    assert (folder / "capture.pcapng").read_bytes()[:4] == b"\x0a\x0d\x0d\x0a"
    assert b"dropped" in (folder / "capture.pcapng").read_bytes()
    assert json.loads((folder / "state.json").read_text())["datapaths"]


def test_keep_cluster_keeps_the_cluster_of_a_failing_test_up(suite: pytest.Pytester) -> None:
    suite.makepyfile(ONE_FAILING_TEST)
    result = suite.runpytest_subprocess("--keep-cluster")
    result.assert_outcomes(failed=1, passed=1)
    (name,) = (match[1] for line in result.outlines if (match := re.fullmatch(r"cluster (\S+) stays up:", line)))
    assert Store().names() == [name]
    kept = RunningCluster.attach(name)
    assert kept["n2"].run(["hostname"]).stdout == "n2\n"
    command = next(line for line in result.outlines if line.strip().startswith("testbed down"))
    subprocess.run([f"{Path(sys.executable).parent}/{command.strip()}"], shell=True, check=True, capture_output=True)


def test_cli_on_error_opens_a_prompt_while_the_cluster_is_up(suite: pytest.Pytester) -> None:
    suite.makepyfile(ONE_FAILING_TEST)
    master, slave = os.openpty()
    try:
        os.write(master, b"n2 hostname\nstatus\n'\n\x04")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--cli-on-error", "-k", "test_fails"],
            cwd=suite.path,
            stdin=slave,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(master)
        os.close(slave)
    output = done.stdout
    assert "test_fails[live] failed:" in output
    assert re.search(r"^(test\S*> )?n2$", output, re.MULTILINE), output
    assert "n1  eth0 10.0.0.1" in output
    assert "No closing quotation" in output
    assert "1 failed" in output


def test_ctrl_c_ends_a_program_at_the_prompt_but_not_the_tests(suite: pytest.Pytester) -> None:
    suite.makepyfile(ONE_FAILING_TEST)
    arguments = [sys.executable, "-m", "pytest", "--cli-on-error", "-p", "no:cacheprovider"]
    with contextlib.chdir(suite.path), Terminal(arguments) as terminal:
        terminal.wait_for("ctrl-D: continue")
        terminal.press("n2 sh -c 'echo the-$((40 + 2)); exec sleep 600'\n")
        terminal.wait_for("the-42")
        terminal.press("\x03")
        terminal.wait_for("> ")
        terminal.press("\x04")
        terminal.wait_for("1 failed, 1 passed")


def test_without_a_terminal_cli_on_error_prints_the_commands(suite: pytest.Pytester) -> None:
    suite.makepyfile(ONE_FAILING_TEST)
    result = suite.runpytest("--cli-on-error", "-k", "test_fails")
    result.stdout.fnmatch_lines(["cluster test-fails-live-* is up:", "  testbed shell --name test-fails-live-* n1"])
    result.assert_outcomes(failed=1, deselected=1)


class OutcomeRecorder:
    """A plug-in that records outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.outcomes.append(f"{report.outcome} {report.longrepr or ''}")


@pytest.mark.requires("userns")
def test_an_ordinary_user_can_use_the_cluster_fixture(tmp_path: Path, home: Path) -> None:
    """The tests run in a child of this process, as all rootless tests do, with modules imported beforehand."""
    path = tmp_path / "test_users.py"
    path.write_text(
        """
import pytest

@pytest.mark.cluster("star-2", delay="1ms")
def test_as_any_user(cluster):
    cluster["n1"].run(["ping", "-c1", "-W5", "n2"])

@pytest.mark.cluster("star-2", requires="root")
def test_as_root(cluster): ...
"""
    )

    def outcomes() -> list[str]:
        recorder = OutcomeRecorder()
        ignore_invalid = "--testbed-on-invalid=ignore"  # independent of a busy machine
        pytest.main([str(path), "-p", "no:cacheprovider", "-p", "no:faulthandler", ignore_invalid], plugins=[recorder])
        return recorder.outcomes

    def body() -> None:
        passed, skipped = outcomes()
        assert passed == "passed "
        assert "requires root: pytest does not run as root with all capabilities" in skipped

    assert outcomes() == ["passed ", "passed "]
    requires_marker.missing_reason.cache_clear()
    wait_for_success(as_user(home, body))


@pytest.mark.timeout(300)
def test_many_tests_on_two_workers_leave_nothing_behind(suite: pytest.Pytester, machine: Machine) -> None:
    count = 50 if LONG else 20
    suite.makepyfile(
        f"""
import pytest

@pytest.mark.parametrize("number", range({count}))
@pytest.mark.cluster("star-4", delay="1ms")
def test_reaches(cluster, number):
    cluster[f"n{{number % 4 + 1}}"].run(["ping", "-c1", "-W5", f"n{{(number + 1) % 4 + 1}}"])
    assert [node.name for node in cluster.live] == ["n1", "n2", "n3", "n4"]

@pytest.mark.cluster("star-2")
def test_degraded(cluster):
    from testbed.controller.verdict.verdicts import Finding, Grade, verdict_of
    finding = Finding("NIC lost", "n1", "", 0.0, 3.0, "frames", Grade.DEGRADED)
    cluster.verdicts.append(verdict_of([finding]))
"""
    )
    result = suite.runpytest_subprocess("-n2")
    result.assert_outcomes(passed=count + 1)
    result.stdout.fnmatch_lines(["testbed: *::test_degraded?live?: the network was degraded: NIC lost on n1: 3 frames"])
    machine.assert_unchanged("many tests")


@pytest.mark.alone
@pytest.mark.parametrize("impairments", ["", ', loss="1%", delay="2ms"'], ids=["direct", "relay"])
def test_the_time_of_a_live_cluster_is_recorded(
    suite: pytest.Pytester, impairments: str, record_property: Callable[[str, object], None]
) -> None:
    """Recorded without a limit, because the machine may be busy; ci/bench plugin measures it."""
    suite.makepyfile(
        f"""
import pytest

@pytest.mark.parametrize("number", range(9))
@pytest.mark.cluster("star-4"{impairments})
def test_nothing(cluster, number): ...
"""
    )
    suite.makeconftest(
        """
import collections
DURATIONS = collections.defaultdict(float)

def pytest_runtest_logreport(report):
    DURATIONS[report.nodeid] += report.duration

def pytest_sessionfinish():
    open("durations", "w").write(" ".join(map(str, DURATIONS.values())))
"""
    )
    suite.runpytest().assert_outcomes(passed=9)
    _, *warm = map(float, (suite.path / "durations").read_text().split())
    assert len(warm) == 8
    record_property("note", f"a test with a live cluster of 4 nodes{impairments}: {statistics.median(warm):.3f} s more")
