"""The pytest plug-in: a cluster for a test, in simulation or in namespaces, and everything about it when the test fails.

::

    @pytest.mark.cluster("star-4", loss="1%", delay="2ms")
    def test_everything_arrives(cluster):
        assert cluster.run(exchange).results["n2"] == 100

``--testbed-mode both`` runs it in both. Every pytest run loads this file: it imports nothing that a project without
clusters would pay for.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from testbed.pytest_plugin.assertions import SampleTooSmallError, assert_loss
    from testbed.pytest_plugin.life import Case
    from testbed.pytest_plugin.under_test import ClusterUnderTest

__all__ = ["ClusterUnderTest", "SampleTooSmallError", "assert_loss", "cluster", "protocol", "scenario", "testbed_mode"]

_HOMES = {
    "ClusterUnderTest": "testbed.pytest_plugin.under_test",
    "SampleTooSmallError": "testbed.pytest_plugin.assertions",
    "assert_loss": "testbed.pytest_plugin.assertions",
}

CASE: pytest.StashKey[Case] = pytest.StashKey()
"""Of a test that has its cluster."""

_DEFAULTS = {"testbed_mode": "live", "testbed_protocol": "emp", "testbed_artefacts": "testbed-artefacts"}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("testbed", "clusters (testbed)")
    group.addoption(
        "--testbed-mode",
        choices=("sim", "live", "both"),
        help="where tests with a cluster run: in simulation, in network namespaces (default), or in both",
    )
    group.addoption(
        "--testbed-protocol", metavar="NAME[,NAME]", help="protocols that such tests run with (default: emp)"
    )
    group.addoption(
        "--testbed-artefacts",
        metavar="DIR",
        help="where failing tests leave a folder each (default: testbed-artefacts)",
    )
    group.addoption(
        "--testbed-strict", action="store_true", help="a test whose requirement this machine does not meet fails"
    )
    group.addoption("--pcap-on-failure", action="store_true", help="capture all links; of failing tests the files stay")
    group.addoption("--cli-on-error", action="store_true", help="after a failure, open shells in the cluster's nodes")
    group.addoption("--keep-cluster", action="store_true", help="leave the clusters of failing tests up")
    for name, default in _DEFAULTS.items():
        parser.addini(name, f"what --{name.replace('_', '-')} is if not said", default=default)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "cluster(source, *, links=, seed=, datapath=, mode=, requires=, programs=, **impairments): the cluster of this "
        "test: a topology's name, a TOML file or a description, and what all its links do to frames.",
    )
    distributed = config.getoption("numprocesses", None) or "PYTEST_XDIST_WORKER" in os.environ
    if distributed and config.getoption("--cli-on-error"):
        raise pytest.UsageError("--cli-on-error needs the terminal: run without -n")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a cluster, once per mode and protocol that is asked for."""
    if "cluster" not in metafunc.fixturenames or "testbed_mode" not in metafunc.fixturenames:
        return  # or a project's own fixture of that name
    from testbed.pytest_plugin.asking import MarkerError, modes

    config, test = metafunc.config, metafunc.definition
    parametrised = [str(mark.args[0]) for mark in test.iter_markers("parametrize") if mark.args]
    if not any("testbed_mode" in names for names in parametrised):
        try:
            found, refusal = modes(test.iter_markers("cluster"), said(config, "testbed_mode"))
        except MarkerError as error:
            raise pytest.Collector.CollectError(f"{test.nodeid}: {error}") from None
        marks = [pytest.mark.skip(reason=refusal)] if refusal else []
        metafunc.parametrize("testbed_mode", [pytest.param(mode, marks=marks) for mode in found])
    protocols = said(config, "testbed_protocol").split(",")
    if len(protocols) > 1 and not any("protocol" in names for names in parametrised):
        metafunc.parametrize("protocol", protocols)


@pytest.fixture
def testbed_mode(pytestconfig: pytest.Config) -> str:
    """Where this test runs: "sim" or "live"."""
    return said(pytestconfig, "testbed_mode")


@pytest.fixture
def protocol(pytestconfig: pytest.Config) -> str:
    """What `cluster.run` runs programs over if not told; ``@pytest.mark.parametrize("protocol", ["emp", "tcp"])``."""
    return said(pytestconfig, "testbed_protocol")


@pytest.fixture
def scenario() -> None:
    """What happens to the cluster in every `cluster.run`; nothing, unless a test parametrises it: with a `Scenario`, with a
    TOML file beside the test, or with what `testbed.run` takes as 'beside'."""


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, testbed_mode: str, protocol: str, scenario: object
) -> Iterator[ClusterUnderTest]:
    """The cluster that the test's marker asks for; in live mode it is up until the test has ended."""
    from testbed.pytest_plugin.life import cluster_of

    yield from cluster_of(request, testbed_mode, protocol, scenario)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if CASE not in item.stash:
        return (yield)
    from testbed.pytest_plugin.life import has_failed, shorten

    if call.excinfo is not None and not item.config.getoption("fulltrace"):
        shorten(call.excinfo)
    report = yield
    if report.failed:
        has_failed(item, report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where the failing tests' folders are, the last thing that is said of them."""
    folders = [
        str(text)
        for kind in ("failed", "error")
        for report in terminalreporter.getreports(kind)
        if isinstance(report, pytest.TestReport)
        for name, text in report.user_properties
        if name == "testbed-artefacts"
    ]
    for folder in dict.fromkeys(folders):
        terminalreporter.line(f"testbed: {folder}")


def said(config: pytest.Config, name: str) -> str:
    """An option, or else the ini file's value."""
    return str(config.getoption(name) or config.getini(name))
