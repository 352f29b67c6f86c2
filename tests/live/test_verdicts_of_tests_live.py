"""pytest tests fail if their live network deviated, and verdicts that cannot be determined."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.live.test_plugin_live import suite

import_module("testbed.pytest_plugin.cluster_life")  # pytester unloads modules that its runs import

__all__ = ["suite"]  # a fixture

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

HEAD = """
import os, signal
import pytest
from testbed.controller.cluster_check import baseline

def kill_the_relay(cluster):
    os.kill(baseline(cluster.live).relay["pid"], signal.SIGKILL)

lossy = pytest.mark.cluster("star-2", delay="1ms", datapath="relay")
"""


def test_a_killed_relay_fails_a_passing_test(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        HEAD
        + """
@lossy
def test_fails(cluster):
    kill_the_relay(cluster)

@lossy
@pytest.mark.cluster(on_invalid="xfail")
def test_is_expected(cluster):
    kill_the_relay(cluster)

@lossy
@pytest.mark.cluster(on_invalid="skip")
def test_an_own_failure_takes_precedence(cluster):
    kill_the_relay(cluster)
    assert cluster.nodes is None
"""
    )
    result = suite.runpytest("-rfx", "--junitxml=junit.xml")
    result.assert_outcomes(failed=2, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "the network was invalid: relay gap: *; the test's own assertions hold",
            "E *assert * is None*",
            "the network during the test: invalid; relay gap: *",
            "testbed: *::test_is_expected?live?: the network was invalid: relay gap: *",
            "XFAIL *the network was invalid: relay gap: *",
        ]
    )
    assert 'name="testbed-verdict" value="invalid: relay gap: ' in (suite.path / "junit.xml").read_text()


def test_a_verdict_that_cannot_be_determined_has_a_reason(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        HEAD
        + """
@pytest.mark.cluster("star-2")
def test_takes_the_cluster_down(cluster):
    cluster.live.down()

@pytest.mark.cluster("star-2")
def test_damages_the_state(cluster):
    path = cluster.directory / "state.json"
    content = path.read_text()
    path.write_text("[")
    damaged.append((path, content))

damaged = []

@pytest.fixture(autouse=True)
def repaired_files(cluster):
    yield
    for path, content in damaged:
        path.write_text(content)
    damaged.clear()
"""
    )
    result = suite.runpytest()
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "the network was invalid: the verdict cannot be determined: *state.json cannot be understood*",
            "testbed: *::test_takes_the_cluster_down?live?: the network was undecided: the cluster was taken down before *",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
