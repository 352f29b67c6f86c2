"""The plug-in with live clusters in an inner pytest: one test body in both modes, artefacts, prompts, clean-up after
many tests on two workers, costs."""

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
from tests.live.forked_children import LONG
from tests.live.machine_state import Machine
from tests.live.ordinary_user import as_user, wait_for_success
from tests.live.terminals import Terminal

import_module(
    "testbed.pytest_plugin.cluster_life"
)  # pytester forgets modules that its runs import; so they are imported once

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.requires("root", "ping"), pytest.mark.usefixtures("machine")]

ONE_FAILS = """
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
    """A place for tests that has none of our settings; their clusters are in our sandbox."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makeini("[pytest]\naddopts = --strict-markers -p no:cacheprovider\nfilterwarnings = error\n")
    return pytester


def only(pytester: pytest.Pytester) -> Path:
    """The folder of the one test that has failed."""
    (folder,) = (pytester.path / "testbed-artefacts").iterdir()
    return folder


def test_one_body_has_the_same_results_in_both_modes(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
import pytest

async def count(comm, node):
    heard = []
    for number in range(20):
        if comm.rank == 0:
            for other in range(1, comm.size):
                await comm.send(number, other, 7)
        else:
            heard.append(await comm.recv(source=0, tag=7))
    return heard

@pytest.mark.cluster("star-3", loss="5%", delay="1ms", seed=3)
def test_every_node_receives_every_number(cluster):
    results = [cluster.run(count).results]
    with cluster.inject("n2", loss="20%"):
        results.append(cluster.run(count).results)
    for heard in results:
        assert heard["n2"] == heard["n3"] == list(range(20))
"""
    )
    result = suite.runpytest("--testbed-mode=both", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([f"*test_every_node_receives_every_number?{mode}? PASSED*" for mode in ("sim", "live")])


def test_a_failing_test_leaves_its_clusters_description_and_its_links_frames(suite: pytest.Pytester) -> None:
    suite.makepyfile(ONE_FAILS)
    result = suite.runpytest("--pcap-on-failure")
    result.assert_outcomes(failed=1, passed=1)
    folder = only(suite)
    result.stdout.fnmatch_lines(
        [
            '>       cluster[[]"n1"].run(*',
            "E *100% packet loss*",
            f"artefacts: {folder}",
            "the network during the test: *",
        ]
    )
    result.stdout.fnmatch_lines([f"testbed: *::test_fails*: {folder}"])
    present = {path.name for path in folder.iterdir()}
    assert {
        "report.txt",
        "description.toml",
        "environment.json",
        "state.json",
        "processes.log",
        "verdict.txt",
    } <= present
    assert (folder / "capture.pcapng").read_bytes()[:4] == b"\x0a\x0d\x0d\x0a"
    assert b"dropped" in (folder / "capture.pcapng").read_bytes()
    assert json.loads((folder / "state.json").read_text())["datapaths"]


def test_a_cluster_of_a_failing_test_stays_up_on_request(suite: pytest.Pytester) -> None:
    suite.makepyfile(ONE_FAILS)
    result = suite.runpytest_subprocess("--keep-cluster")
    result.assert_outcomes(failed=1, passed=1)
    (name,) = (match[1] for line in result.outlines if (match := re.fullmatch(r"cluster (\S+) stays up:", line)))
    assert Store().names() == [name]
    kept = RunningCluster.attach(name)
    assert kept["n2"].run(["hostname"]).stdout == "n2\n"
    command = next(line for line in result.outlines if line.strip().startswith("testbed down"))
    subprocess.run([f"{Path(sys.executable).parent}/{command.strip()}"], shell=True, check=True, capture_output=True)


def test_a_prompt_opens_while_the_cluster_is_up(suite: pytest.Pytester) -> None:
    suite.makepyfile(ONE_FAILS)
    ours, theirs = os.openpty()
    try:
        os.write(ours, b"n2 hostname\nstatus\n'\n\x04")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--cli-on-error", "-k", "test_fails"],
            cwd=suite.path,
            stdin=theirs,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    output = done.stdout
    assert "test_fails[live] failed:" in output
    assert re.search(r"^(test\S*> )?n2$", output, re.MULTILINE), output
    assert "n1  eth0 10.0.0.1" in output
    assert "No closing quotation" in output
    assert "1 failed" in output


def test_ctrl_c_ends_a_program_at_the_prompt_and_not_the_tests(suite: pytest.Pytester) -> None:
    suite.makepyfile(ONE_FAILS)
    arguments = [sys.executable, "-m", "pytest", "--cli-on-error", "-p", "no:cacheprovider"]
    with contextlib.chdir(suite.path), Terminal(arguments) as terminal:
        terminal.shows("ctrl-D: continue")
        terminal.press("n2 sh -c 'echo the-$((40 + 2)); exec sleep 600'\n")
        terminal.shows("the-42")
        terminal.press("\x03")
        terminal.shows("> ")
        terminal.press("\x04")
        terminal.shows("1 failed, 1 passed")


def test_without_a_terminal_the_commands_for_another_one_are_printed(suite: pytest.Pytester) -> None:
    suite.makepyfile(ONE_FAILS)
    result = suite.runpytest("--cli-on-error", "-k", "test_fails")
    result.stdout.fnmatch_lines(["cluster test-fails-live-* is up:", "  testbed shell --name test-fails-live-* n1"])
    result.assert_outcomes(failed=1, deselected=1)


class Outcomes:
    """A plug-in that counts."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.found.append(f"{report.outcome} {report.longrepr or ''}")


@pytest.mark.requires("userns")
def test_an_ordinary_user_has_clusters_too(tmp_path: Path, home: Path) -> None:
    """The tests run in a child of this process, as all rootless tests do, with modules imported beforehand."""
    path = tmp_path / "test_users.py"
    path.write_text(
        """
import pytest

@pytest.mark.cluster("star-2", delay="1ms")
def test_as_anybody(cluster):
    cluster["n1"].run(["ping", "-c1", "-W5", "n2"])

@pytest.mark.cluster("star-2", requires="root")
def test_as_root(cluster): ...
"""
    )

    def outcomes() -> list[str]:
        actual = Outcomes()
        ignoring = "--testbed-on-invalid=ignore"  # a busy machine is not what this tests
        pytest.main([str(path), "-p", "no:cacheprovider", "-p", "no:faulthandler", ignoring], plugins=[actual])
        return actual.found

    def body() -> None:
        passed, skipped = outcomes()
        assert passed == "passed "
        assert "requires root: not run as root with its capabilities" in skipped

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
def test_doubts(cluster):
    from testbed.controller.verdict.verdicts import Finding, Grade, verdict_of
    finding = Finding("NIC lost", "n1", "", 0.0, 3.0, "frames", Grade.DEGRADED)
    cluster.verdicts.append(verdict_of([finding]))
"""
    )
    result = suite.runpytest_subprocess("-n2")
    result.assert_outcomes(passed=count + 1)
    result.stdout.fnmatch_lines(["testbed: *::test_doubts?live?: the network was degraded: NIC lost on n1: 3 frames"])
    machine.assert_unchanged("many tests")


@pytest.mark.alone
@pytest.mark.parametrize("impairments", ["", ', loss="1%", delay="2ms"'], ids=["direct", "relay"])
def test_the_cost_of_a_live_cluster(
    suite: pytest.Pytester, impairments: str, record_property: Callable[[str, object], None]
) -> None:
    """A figure, not a limit: the machine may be busy. ci/bench plugin measures it."""
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
TOOK = collections.defaultdict(float)

def pytest_runtest_logreport(report):
    TOOK[report.nodeid] += report.duration

def pytest_sessionfinish():
    open("took", "w").write(" ".join(map(str, TOOK.values())))
"""
    )
    suite.runpytest().assert_outcomes(passed=9)
    _, *warm = map(float, (suite.path / "took").read_text().split())
    assert len(warm) == 8
    record_property("note", f"a test with a live cluster of 4 nodes{impairments}: {statistics.median(warm):.3f} s more")
