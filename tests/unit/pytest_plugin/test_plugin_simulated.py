"""The plug-in in an inner pytest with simulated clusters: parameters, skips, reports and artefacts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PROGRAM = '''
import pytest

async def count(comm, node, *, until: int = 20):
    """Rank 0 counts, and every other rank receives the numbers."""
    received = []
    for number in range(until):
        if comm.rank == 0:
            for peer in range(1, comm.size):
                await comm.send(number, peer, 7)
        else:
            received.append(await comm.recv(source=0, tag=7))
    print(node.name, "has received", len(received))
    return received
'''


def artefacts_of_failure(pytester: pytest.Pytester) -> Path:
    """Return the folder of the only failed test."""
    (folder,) = (pytester.path / "testbed-artefacts").iterdir()
    return folder


def test_a_program_runs_on_the_markers_cluster(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        PROGRAM
        + """
pytestmark = pytest.mark.cluster("star-3", loss="10%", delay="1ms", seed=4)

def test_every_node_receives_every_number(cluster):
    result = cluster.run(count, until=30)
    assert result.results["n2"] == result.results["n3"] == list(range(30))
    assert result.seed == 4
    assert (cluster.mode, list(cluster.nodes), cluster.nodes["n2"].address) == ("sim", ["n1", "n2", "n3"], "10.0.0.2")

@pytest.mark.cluster(loss="0%")
def test_without_loss_nothing_is_sent_again(cluster):
    counted = cluster.run(count).counters
    assert not any(nic["collections_resent"] for nic in counted.values())

def test_an_injected_fault_counts_within_its_block(cluster):
    def resent():
        return sum(nic["collections_resent"] for nic in cluster.run(count).counters.values())
    before = resent()
    with cluster.inject("n1", loss="0%", delay="0ms"), cluster.inject("all", loss="0%"):
        assert resent() == 0
    assert resent() == before > 0

def test_an_injected_fault_without_a_block_counts_at_once_and_until_it_is_lifted(cluster):
    def resent():
        return sum(nic["collections_resent"] for nic in cluster.run(count).counters.values())
    before = resent()
    fault = cluster.inject("all", loss="0%")
    assert resent() == 0
    fault.lift()
    fault.lift()
    assert resent() == before > 0

def test_a_simulated_node_runs_no_programs(cluster):
    with pytest.raises(Exception, match="use mode='live' in the test's marker"):
        cluster["n1"]
"""
    )
    result = suite.runpytest("--testbed-mode=sim", "-v")
    result.assert_outcomes(passed=5)
    assert not (suite.path / "testbed-artefacts").exists()


def test_these_tests_pass_when_run_by_the_pytest_command() -> None:
    """The pytest command imports the plug-in from the editable install, not from the current directory."""
    test = "test_a_test_runs_once_for_each_mode_protocol_and_cluster"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TESTBED_"))}
    command = [Path(sys.executable).with_name("pytest"), "-p", "no:cacheprovider", f"{__file__}::{test}"]
    subprocess.run(command, env=environment, cwd=Path(__file__).parents[3], check=True, stdout=subprocess.PIPE)


def test_a_test_runs_once_for_each_mode_protocol_and_cluster(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
import pytest

@pytest.mark.cluster("star-2")
def test_all(cluster): ...

@pytest.mark.cluster("star-2", mode="sim")
@pytest.mark.parametrize("protocol", ["emp", "other"])
def test_protocols(cluster, protocol):
    assert cluster.protocol == protocol

@pytest.mark.parametrize("cluster", ["star-2", "ring-4"], indirect=True)
@pytest.mark.cluster(mode="sim")
def test_clusters(cluster):
    assert cluster.name in ("star-2", "ring-4")

@pytest.mark.parametrize("cluster", ["a value"])
def test_own(cluster):
    assert cluster == "a value"
"""
    )
    result = suite.runpytest("--testbed-mode=both", "--collect-only", "-q")
    result.stdout.fnmatch_lines(
        [
            "*::test_all[[]sim]",
            "*::test_all[[]live]",
            "*::test_protocols[[]*emp*]",
            "*::test_protocols[[]*other*]",
            "*::test_clusters[[]*star-2*]",
            "*::test_clusters[[]*ring-4*]",
            "*::test_own[[]a value]",
            "7 tests collected*",
        ]
    )
    result = suite.runpytest("--testbed-mode=sim", "--testbed-protocol=emp,am2", "-v")
    result.assert_outcomes(passed=9)


def test_only_a_parameter_named_protocol_replaces_the_options_protocols(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
import pytest

@pytest.mark.cluster("star-2")
@pytest.mark.parametrize("protocol_version", [1, 2])
def test_another(cluster, protocol, protocol_version): ...

@pytest.mark.cluster("star-2")
@pytest.mark.parametrize(argnames="protocol", argvalues=["via"])
def test_by_keyword(cluster, protocol): ...

@pytest.mark.cluster("star-2")
@pytest.mark.parametrize(["size", "protocol"], [(4, "via")])
def test_in_a_list(cluster, protocol, size): ...

@pytest.mark.cluster("star-2")
@pytest.mark.parametrize("size, protocol", [(4, "via")])
def test_in_a_text(cluster, protocol, size): ...
"""
    )
    result = suite.runpytest("--testbed-mode=sim", "--testbed-protocol=emp,am2", "--collect-only", "-q")
    result.stdout.fnmatch_lines(
        [
            "*::test_another[[]sim-emp-1]",
            "*::test_another[[]sim-emp-2]",
            "*::test_another[[]sim-am2-1]",
            "*::test_another[[]sim-am2-2]",
            "*::test_by_keyword[[]*via*]",
            "*::test_in_a_list[[]*via*]",
            "*::test_in_a_text[[]*via*]",
            "7 tests collected*",
        ]
    )


def test_a_failure_with_a_file_name_that_is_not_utf8_is_kept(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
import pytest

@pytest.mark.cluster("star-2")
def test_fails(cluster):
    raise ValueError("caf\\udce9 is not there")
"""
    )
    suite.runpytest("--testbed-mode=sim").assert_outcomes(failed=1)
    assert "caf\\udce9 is not there" in (artefacts_of_failure(suite) / "report.txt").read_text()


def test_artefacts_of_a_long_non_ascii_name_are_kept(suite: pytest.Pytester) -> None:
    name = f"test_{90 * chr(0x7DE8)}"  # three bytes each in UTF-8, and a file name has at most 255
    suite.makepyfile(f"import pytest\n@pytest.mark.cluster('star-2')\ndef {name}(cluster):\n    assert not cluster\n")
    suite.runpytest("--testbed-mode=sim").assert_outcomes(failed=1)
    assert name in (artefacts_of_failure(suite) / "report.txt").read_text()


def test_a_scenario_or_companion_can_be_a_parameter(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        PROGRAM
        + """
class Cut:
    def simulated(self, simulation, rules):
        directions = simulation.network.link_directions
        (link,) = [link for link, direction in directions if link.startswith("n2") and direction == "forward"]
        simulation.cut(link)
        simulation.loop.at(50_000_000, lambda now: simulation.restore(link))

    def live(self, cluster, run): ...

@pytest.mark.cluster("star-2", delay="1ms")
@pytest.mark.parametrize("scenario", [None, Cut()], ids=["none", "cut"])
def test_cut(cluster, scenario):
    result = cluster.run(count, check=False)
    assert result.results["n2"] == list(range(20))
    assert (sum(nic["collections_resent"] for nic in result.counters.values()) > 0) == (scenario is not None)

@pytest.mark.cluster("star-2")
@pytest.mark.parametrize("scenario", ["storm"])
def test_words(cluster):
    cluster.run(count)
"""
    )
    result = suite.runpytest("--testbed-mode=sim")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["E *scenario: found 'storm', expected a Scenario, a TOML file, or a companion as of `testbed.run`"]
    )


def test_a_scenario_file_is_found_in_the_tests_directory(suite: pytest.Pytester) -> None:
    folder = suite.mkdir("deeper")
    (folder / "storm.toml").write_text('[[fault]]\nkind = "down"\non = "n2"\nat = "1ms"\nfor = "20ms"\n')
    (folder / "test_deeper.py").write_text(
        PROGRAM
        + """
from pathlib import Path

@pytest.mark.cluster("star-2", delay="1ms")
@pytest.mark.parametrize("scenario", ["storm.toml", Path("storm.toml"), Path("missing.toml")], ids=str)
def test_storm(cluster, scenario):
    result = cluster.run(count)
    assert sum(nic["collections_resent"] for nic in result.counters.values()) > 0
"""
    )
    result = suite.runpytest("--testbed-mode=sim")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["E *missing.toml*"])


def test_a_test_with_an_unmet_requirement_is_skipped_or_fails_with_the_reason(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
import pytest

@pytest.mark.cluster("star-2", mode="live")
def test_live(cluster): ...

@pytest.mark.cluster("star-2", programs="no-such-program")
def test_program(cluster): ...

@pytest.mark.cluster("star-2", requires="no-such-requirement")
def test_requirement(cluster): ...
"""
    )
    result = suite.runpytest("--testbed-mode=sim", "-rs")
    result.assert_outcomes(skipped=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "unknown requirement 'no-such-requirement'; use one of root, *",
            "SKIPPED * the test needs mode live, and --testbed-mode is sim",
            "SKIPPED * requires programs that are not installed: no-such-program",
        ]
    )
    result = suite.runpytest("--testbed-mode=sim", "--testbed-strict", "-k", "test_program")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["--testbed-strict: requires programs that are not installed: no-such-program"])


def test_a_failing_test_leaves_one_folder_and_prints_its_path(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        PROGRAM
        + """
@pytest.mark.cluster("star-2", delay="1ms")
def test_wrong(cluster):
    (cluster.folder / "mine.txt").write_text("kept")
    assert cluster.run(count).results["n2"] == []

@pytest.mark.cluster("star-2")
def test_right(cluster):
    (cluster.folder / "mine.txt").write_text("not kept")
"""
    )
    result = suite.runpytest("--testbed-mode=sim", "--pcap-on-failure")
    result.assert_outcomes(failed=1, passed=1)
    folder = artefacts_of_failure(suite)
    result.stdout.fnmatch_lines([f"artefacts: {folder}", f"testbed: *::test_wrong?sim?: {folder}"])
    artefacts = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {
        "report.txt",
        "description.toml",
        "environment.json",
        "mine.txt",
        "runs/1/result.json",
        "runs/1/logs/n2.log",
        "runs/1/capture.pcapng",
    } <= artefacts
    assert "assert" in (folder / "report.txt").read_text()
    assert "n2 has received 20" in (folder / "runs/1/logs/n2.log").read_text()
    repeat_command = json.loads((folder / "environment.json").read_text())["again"]
    completed = subprocess.run(repeat_command, shell=True, cwd=suite.path, capture_output=True, text=True, check=False)
    assert "1 failed" in completed.stdout


def test_a_program_that_raises_is_reported_with_its_node_and_without_internal_frames(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
import pytest

async def broken(comm, node):
    raise ValueError("this is it")

@pytest.mark.cluster("star-2")
def test_broken(cluster):
    cluster.run(broken)
"""
    )
    result = suite.runpytest("--testbed-mode=sim")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [">       cluster.run(broken)", "E *ProgramError: n1: Traceback*", "E *ValueError: this is it"]
    )
    result.stdout.no_fnmatch_line("*running.py:*")


def test_an_invalid_marker_is_a_one_line_error(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
import pytest

@pytest.mark.cluster("star-2", los="1%")
def test_typing_error(cluster): ...

def test_none(cluster): ...
"""
    )
    result = suite.runpytest("--testbed-mode=sim", "--tb=short")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        ["*did you mean 'loss'?", '*names no cluster: add a marker such as @pytest.mark.cluster("star-4")']
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    suite.makepyfile('import pytest\n@pytest.mark.cluster("star-2", mode="real")\ndef test_mode(cluster): ...\n')
    result = suite.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*mode: found 'real', expected 'sim', 'live' or 'both'"])


def test_an_invalid_mode_in_the_ini_file_is_an_error_and_skips_nothing(suite: pytest.Pytester) -> None:
    suite.makeini("[pytest]\ntestbed_mode = simulation\n")
    result = suite.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: testbed_mode = simulation: expected sim, live or both"])


def test_spaces_between_protocols_are_ignored(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        PROGRAM
        + """
@pytest.mark.cluster("star-2")
def test_all(cluster):
    cluster.run(count, until=1)
"""
    )
    suite.runpytest("--testbed-mode=sim", "--testbed-protocol=emp, via").assert_outcomes(passed=2)


def test_a_prompt_needs_the_terminal(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("--cli-on-error", "-n2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--cli-on-error needs the terminal: run without -n"])


def test_a_project_without_clusters_imports_only_the_plugin_of_the_testbed(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
import sys

def test_on_this_machine():
    assert [name for name in sys.modules if name.split(".")[0] in ("testbed", "protocols", "pyroute2")] == [
        "testbed", "testbed.pytest_plugin"
    ]
"""
    )
    suite.runpytest_subprocess().assert_outcomes(passed=1)


def test_tests_of_kernel_only_protocols_are_skipped_in_the_simulation_on_every_machine(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
import pytest

@pytest.mark.cluster("star-2")
@pytest.mark.parametrize("protocol", ["emp", "tcp"])
def test_protocols(cluster, protocol):
    assert cluster.run("pingpong", count=1, sizes=[0]).rows
"""
    )
    result = suite.runpytest("--testbed-mode=sim", "--testbed-strict", "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * tcp is a kernel protocol, which needs --testbed-mode live: *"])


def test_a_marked_test_without_the_fixture_is_an_error_and_does_not_run(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
import pytest

@pytest.mark.cluster("star-2")
def test_forgotten():
    print("it ran")
    raise SystemExit

@pytest.mark.cluster("star-2")
@pytest.mark.usefixtures("cluster")
def test_unnamed():
    pass

@pytest.mark.cluster("star-2")
def test_requested(request):
    request.getfixturevalue("cluster")

@pytest.mark.cluster(3)
def test_of_another_plug_in():
    pass

@pytest.mark.cluster("star-2")
class TestSome:
    def test_with(self, cluster):
        pass

    def test_without(self):
        pass
"""
    )
    result = suite.runpytest("--testbed-mode=sim")
    result.assert_outcomes(passed=5, errors=1)
    result.stdout.fnmatch_lines(["*the test is marked with a cluster, but does not use the fixture 'cluster'*"])
    result.stdout.no_fnmatch_line("*it ran*")
