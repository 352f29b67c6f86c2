"""Pytest plug-in: a simulated or live cluster for a test, and its artefacts if the test fails.

::

    @pytest.mark.cluster("star-4", loss="1%", delay="2ms")
    def test_everything_arrives(cluster):
        assert cluster.run(exchange).results["n2"] == 100

``--testbed-mode both`` runs it in both modes. Every pytest run of a project loads this file, so it imports nothing slow
before a test needs a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from testbed.controller.assertions.sample_quantiles import assert_delay, assert_jitter, assert_rate
    from testbed.controller.assertions.sequential import until_sure
    from testbed.controller.assertions.shares import (
        SampleTooSmallError,
        assert_duplicates,
        assert_loss,
        assert_order,
        assert_reachable,
        assert_unreachable,
        out_of_order,
    )
    from testbed.pytest_plugin.cluster_life import ClusterTest
    from testbed.pytest_plugin.under_test import ClusterUnderTest

__all__ = [
    "ClusterUnderTest",
    "SampleTooSmallError",
    "assert_delay",
    "assert_duplicates",
    "assert_jitter",
    "assert_loss",
    "assert_order",
    "assert_rate",
    "assert_reachable",
    "assert_unreachable",
    "cluster",
    "out_of_order",
    "protocol",
    "scenario",
    "testbed_mode",
    "until_sure",
]

_MODULES = {
    "ClusterUnderTest": "testbed.pytest_plugin.under_test",
    "SampleTooSmallError": "testbed.controller.assertions.shares",
    "assert_delay": "testbed.controller.assertions.sample_quantiles",
    "assert_duplicates": "testbed.controller.assertions.shares",
    "assert_jitter": "testbed.controller.assertions.sample_quantiles",
    "assert_loss": "testbed.controller.assertions.shares",
    "assert_order": "testbed.controller.assertions.shares",
    "assert_rate": "testbed.controller.assertions.sample_quantiles",
    "assert_reachable": "testbed.controller.assertions.shares",
    "assert_unreachable": "testbed.controller.assertions.shares",
    "out_of_order": "testbed.controller.assertions.shares",
    "until_sure": "testbed.controller.assertions.sequential",
}

CLUSTER_TEST: pytest.StashKey[ClusterTest] = pytest.StashKey()
"""Stash key of a test while it has a cluster."""

_DEFAULTS = {"testbed_mode": "live", "testbed_protocol": "", "testbed_artefacts": "testbed-artefacts"}
_ACTIONS = {"testbed_on_invalid": "fail", "testbed_on_degraded": "ignore"}
_MAX_SHOWN = 20  # tests on degraded or invalid networks, in the summary


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("testbed", "clusters (testbed)")
    group.addoption(
        "--testbed-mode",
        choices=("sim", "live", "both"),
        help="where tests with a cluster run: in the simulation, in network namespaces (default), or in both",
    )
    group.addoption(
        "--testbed-protocol",
        metavar="NAME[,NAME]",
        help="protocols with which tests with a cluster run (default: that of `testbed run`)",
    )
    group.addoption(
        "--testbed-artefacts",
        metavar="DIR",
        help="directory for a folder of each failing test (default: testbed-artefacts)",
    )
    group.addoption(
        "--testbed-strict",
        action="store_true",
        help="fail tests whose requirements this machine does not meet, instead of skipping them",
    )
    group.addoption(
        "--pcap-on-failure", action="store_true", help="capture all links; keep the captures of failing tests"
    )
    group.addoption("--cli-on-error", action="store_true", help="after a failure, open shells in the cluster's nodes")
    group.addoption("--keep-cluster", action="store_true", help="leave the clusters of failing tests up")
    for grade in ("invalid", "degraded"):
        group.addoption(
            f"--testbed-on-{grade}",
            choices=("fail", "skip", "xfail", "ignore"),
            help=f"outcome of a test that passes while its network is {grade}, unless its marker says otherwise "
            f"(default: {_ACTIONS[f'testbed_on_{grade}']})",
        )
    for name, default in (_DEFAULTS | _ACTIONS).items():
        parser.addini(name, f"default of --{name.replace('_', '-')}", default=default)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "cluster(source, /, *, links=, seed=, datapath=, mode=, machines=, requires=, programs=, on_invalid=, "
        "on_degraded=, **impairments): the cluster of this test: the name of a topology, a TOML file or a description, and "
        "impairments of all its links.",
    )
    for name in _ACTIONS:
        if config.getini(name) not in ("fail", "skip", "xfail", "ignore"):
            raise pytest.UsageError(f"{name} = {config.getini(name)}: expected fail, skip, xfail or ignore")
    if config.getini("testbed_mode") not in ("sim", "live", "both"):
        raise pytest.UsageError(f"testbed_mode = {config.getini('testbed_mode')}: expected sim, live or both")
    distributed = config.getoption("numprocesses", None) or "PYTEST_XDIST_WORKER" in os.environ
    if distributed and config.getoption("--cli-on-error"):
        raise pytest.UsageError("--cli-on-error needs the terminal: run without -n")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test with a cluster by the requested modes and protocols."""
    if "cluster" not in metafunc.fixturenames or "testbed_mode" not in metafunc.fixturenames:
        return  # the project may have its own fixture of that name
    from testbed.pytest_plugin.marker import MarkerError, select_modes

    config, test = metafunc.config, metafunc.definition
    parameters = _parameters(test.iter_markers("parametrize"))
    if "testbed_mode" not in parameters:
        try:
            modes, skip_reason = select_modes(test.iter_markers("cluster"), option_or_ini(config, "testbed_mode"))
        except MarkerError as error:
            raise pytest.Collector.CollectError(f"{test.nodeid}: {error}") from None
        marks = [pytest.mark.skip(reason=skip_reason)] if skip_reason else []
        metafunc.parametrize("testbed_mode", [pytest.param(mode, marks=marks) for mode in modes])
    protocols = [name.strip() for name in protocols_option(config).split(",")]
    if len(protocols) > 1 and "protocol" not in parameters:
        metafunc.parametrize("protocol", protocols)


def _parameters(marks: Iterable[pytest.Mark]) -> set[str]:
    """Return the names of the parameters in a test's ``parametrize`` marks."""
    names: set[str] = set()
    for mark in marks:
        argnames = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names.update(name.strip() for name in (argnames.split(",") if isinstance(argnames, str) else argnames))
    return names


@pytest.fixture
def testbed_mode(pytestconfig: pytest.Config) -> str:
    """Mode of this test: "sim" or "live"."""
    return option_or_ini(pytestconfig, "testbed_mode")


@pytest.fixture
def protocol(pytestconfig: pytest.Config) -> str:
    """Default protocol of `cluster.run`. A test can parametrize it: ``parametrize("protocol", ["emp", "tcp"])``."""
    return protocols_option(pytestconfig)


@pytest.fixture
def scenario() -> None:
    """Faults during every `cluster.run`. None by default; a test can parametrize it with a `Scenario`, a TOML file relative
    to the test's directory, or a companion as in `testbed.run`'s parameter 'companions'."""


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, testbed_mode: str, protocol: str, scenario: object
) -> Iterator[ClusterUnderTest]:
    """Cluster of the test's marker; in live mode it is up until the test has ended."""
    from testbed.pytest_plugin.cluster_life import cluster_of

    yield from cluster_of(request, testbed_mode, protocol, scenario)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test whose own marker names a cluster, but which does not use the fixture: it would run on this machine."""
    fixtures = getattr(item, "fixturenames", ())
    if "cluster" in fixtures or "request" in fixtures:  # the test can request "cluster" by the fixture "request"
        return
    if any(marker.name == "cluster" for marker in item.own_markers):
        from testbed.pytest_plugin.marker import has_cluster

        if has_cluster(item.iter_markers("cluster"), item.path.parent):
            message = (
                "the test is marked with a cluster, but does not use the fixture 'cluster', and would run on this machine: "
                "give it the parameter 'cluster', or @pytest.mark.usefixtures(\"cluster\")"
            )
            raise pytest.fail.Exception(message, pytrace=False)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Judge the network of a test that has passed."""
    result = yield
    if CLUSTER_TEST in item.stash:
        from testbed.pytest_plugin.cluster_life import judge_passed

        judge_passed(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if CLUSTER_TEST not in item.stash:
        return (yield)
    from testbed.pytest_plugin.cluster_life import add_verdict, keep_artefacts, shorten_traceback

    if call.excinfo is not None and not item.config.getoption("fulltrace"):
        shorten_traceback(call.excinfo)
    report = yield
    if report.failed:
        keep_artefacts(item, report)
    elif report.when == "call":
        add_verdict(item, report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tests on degraded or invalid networks, and the artefact folders of failed tests."""
    untrusted = {
        report.nodeid: str(text)
        for kind in ("passed", "failed", "skipped", "xfailed", "xpassed", "error")
        for report in terminalreporter.getreports(kind)
        if isinstance(report, pytest.TestReport)
        for name, text in report.user_properties
        if name == "testbed-verdict" and text != "trusted"
    }
    for nodeid, verdict in list(untrusted.items())[:_MAX_SHOWN]:
        terminalreporter.line(f"testbed: {nodeid}: the network was {verdict}")
    if len(untrusted) > _MAX_SHOWN:
        terminalreporter.line(
            f"testbed: and {len(untrusted) - _MAX_SHOWN} more tests on networks that were not as configured"
        )
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


def protocols_option(config: pytest.Config) -> str:
    """Return the requested protocols, separated by commas."""
    from testbed.registry import DEFAULT_PROTOCOL

    return option_or_ini(config, "testbed_protocol") or DEFAULT_PROTOCOL


def option_or_ini(config: pytest.Config, name: str) -> str:
    """Return the value of an option, else that of the ini file."""
    return str(config.getoption(name) or config.getini(name))
