"""Life cycle of a test's cluster: it is brought up as the markers describe, examined if the test fails, and taken down."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

import pytest

import testbed
from testbed.cluster.api import Cluster
from testbed.controller.runs.runner import protocol_of
from testbed.controller.verdict.verdicts import Grade
from testbed.errors import NotFoundError, PermissionDeniedError, TestbedError, UnsupportedError
from testbed.pytest_plugin import CLUSTER_TEST, artefacts, option_or_ini, prompt
from testbed.pytest_plugin.cluster_network import PROPERTY, Network, actions_of, network_of, raise_outcome
from testbed.pytest_plugin.marker import Action, MarkerArguments, read_markers, resolve_scenario
from testbed.pytest_plugin.requires_marker import unmet_requirement
from testbed.pytest_plugin.under_test import ClusterUnderTest, LiveCluster, SimulatedCluster

if TYPE_CHECKING:
    from testbed.pytest_plugin.spread_under_test import SpreadUnderTest

_MAX_NAME: Final = 40  # characters of the test's name in the cluster's name, which has at most 63
_MAX_SLUG: Final = 100  # bytes of the test's name in the folder's name, which has at most 255
_cluster_numbers = count(1)


@dataclass(slots=True)
class ClusterTest:
    """A test while it has a cluster. teardown: takes the cluster down. actions: outcome by the network's grade. captures:
    running captures, which are closed before their files are read. network: verdict on the network; None: not known yet."""

    cluster: ClusterUnderTest
    teardown: ExitStack
    actions: Mapping[Grade, Action]
    captures: ExitStack = field(default_factory=ExitStack)
    network: Network | None = None


def cluster_of(
    request: pytest.FixtureRequest, mode: str, protocol: str, scenario: object
) -> Iterator[ClusterUnderTest]:
    """Bring a test's cluster up, yield it, and take it down. mode: "sim" or "live". protocol, scenario: values of the
    fixtures. Skips or fails the test if its cluster cannot be brought up."""
    item, config = request.node, request.config
    with tempfile.TemporaryDirectory(prefix="testbed-test-") as directory, ExitStack() as teardown:
        folder = Path(directory)
        try:
            arguments = read_markers(item.iter_markers("cluster"), request.path.parent, getattr(request, "param", None))
            if reason := unmet_requirement(arguments):
                raise _skip_or_fail(config, reason)
            if mode == "sim" and (reason := _reason_not_simulated(protocol)):
                raise pytest.skip.Exception(reason)  # on every machine, so --testbed-strict does not apply
            actions = actions_of(config, arguments)
            description = arguments.description()
            scenario = resolve_scenario(request.path.parent, scenario)
            captures = config.getoption("--pcap-on-failure")
            if mode == "sim":
                cluster_test = ClusterTest(
                    SimulatedCluster(description, folder, protocol, scenario, captures=captures), teardown, actions
                )
            elif arguments.machines is not None:
                cluster = _spread(config, arguments, description, _cluster_name(item.name), folder, teardown)
                cluster.protocol, cluster.scenario = protocol, scenario
                cluster_test = ClusterTest(cluster, teardown, actions)
                if captures:
                    from testbed.observe.machine_captures import capturing

                    pcap = capturing(cluster.running, cluster.name, "all", folder / artefacts.CAPTURE)
                    cluster_test.captures.enter_context(pcap)
            else:
                running = description.up(
                    _cluster_name(item.name),
                    keep=config.getoption("--keep-cluster"),
                    origin=arguments.origin,
                    datapath=arguments.datapath,
                )
                teardown.callback(running.down)
                live_cluster = LiveCluster(description, folder, protocol, scenario, running=running)
                cluster_test = ClusterTest(live_cluster, teardown, actions)
                if captures:
                    cluster_test.captures.enter_context(running.capture("all", folder / artefacts.CAPTURE))
        except (PermissionDeniedError, UnsupportedError) as error:
            raise _skip_or_fail(config, f"this machine cannot bring the cluster up: {error}") from None
        except TestbedError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        item.stash[CLUSTER_TEST] = cluster_test
        try:
            with cluster_test.captures:
                yield cluster_test.cluster
        finally:
            del item.stash[CLUSTER_TEST]  # the cluster is no longer there for reports of later phases


def _spread(
    config: pytest.Config,
    arguments: MarkerArguments,
    description: Cluster,
    name: str,
    folder: Path,
    teardown: ExitStack,
) -> SpreadUnderTest:
    """Bring a test's cluster up on machines. teardown: a callback that takes the cluster down is added to it."""
    from testbed.machines.spread import down
    from testbed.pytest_plugin.spread_under_test import SpreadUnderTest, spread_for_test, workers_of

    assert arguments.machines is not None
    running = workers_of(config, arguments.machines)
    keep = config.getoption("--keep-cluster")
    spread_for_test(description, running, name, arguments.origin, arguments.datapath, keep=keep)
    teardown.callback(down, running, name)
    return SpreadUnderTest(description, folder, running=running, spread_name=name, file=arguments.machines)


def _skip_or_fail(config: pytest.Config, reason: str) -> BaseException:
    """Return the exception that skips the test; with --testbed-strict, the one that fails it."""
    if config.getoption("--testbed-strict"):
        return pytest.fail.Exception(f"--testbed-strict: {reason}", pytrace=False)
    return pytest.skip.Exception(reason)


def _reason_not_simulated(protocol: str) -> str:
    """Return the reason why the protocol cannot be simulated; empty if it can. Also empty for an unknown name, which the run
    reports."""
    try:
        protocol_of(protocol, "sim")
    except UnsupportedError as error:
        return str(error).replace("--mode", "--testbed-mode")  # the plug-in's option
    except NotFoundError:
        pass
    return ""


def _cluster_name(test: str) -> str:
    """Return a name for a test's cluster that is unique among all processes."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", test).strip("-")[:_MAX_NAME]
    return f"{words}-{os.getpid()}-{next(_cluster_numbers)}"


def shorten_traceback(error: pytest.ExceptionInfo[BaseException]) -> None:
    """Remove the frames of testbed's own code from the traceback of a TestbedError, whose message is sufficient."""
    if not isinstance(error.value, TestbedError):
        return
    own_directory = f"{Path(testbed.__file__).parent}/"
    entries: list[TracebackType] = []
    entry: TracebackType | None = error.tb
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    trimmed: TracebackType | None = None
    for traced in reversed(entries):
        if not traced.tb_frame.f_code.co_filename.startswith(own_directory):
            trimmed = TracebackType(trimmed, traced.tb_frame, traced.tb_lasti, traced.tb_lineno)
    if trimmed is not None:
        error.traceback = type(error.traceback)(trimmed)
        error.value.__cause__, error.value.__suppress_context__ = None, True


def judge_passed(item: pytest.Item) -> None:
    """Replace the outcome of a passed test, if the action for the grade of its network requires it."""
    raise_outcome(item.config, _network_verdict(item), item.stash[CLUSTER_TEST].actions)


def add_verdict(item: pytest.Item, report: pytest.TestReport) -> None:
    """Add the network's verdict to the report of the test's body."""
    network = _network_verdict(item)
    report.user_properties[:] = item.user_properties
    if network.grade is not Grade.TRUSTED:
        report.sections.append(("testbed", f"the network during the test: {network}"))


def _network_verdict(item: pytest.Item) -> Network:
    cluster_test = item.stash[CLUSTER_TEST]
    if cluster_test.network is None:
        cluster_test.network = network_of(cluster_test.cluster)
        item.user_properties.append((PROPERTY, cluster_test.network.summary))
    return cluster_test.network


def keep_artefacts(item: pytest.Item, report: pytest.TestReport) -> None:
    """Write the artefacts of a failed test while its cluster is up, and open the prompt if requested."""
    cluster_test, config = item.stash[CLUSTER_TEST], item.config
    folder = config.rootpath / option_or_ini(config, "testbed_artefacts") / _slug(item.nodeid)
    network = _network_verdict(item)
    report.user_properties[:] = item.user_properties
    lines = [f"artefacts: {folder}", f"the network during the test: {network}"]
    for step in (
        cluster_test.captures.close,
        lambda: artefacts.write_artefacts(cluster_test.cluster, folder, report, network),
    ):
        try:
            step()
        except (TestbedError, OSError) as error:  # must not hide the test's own failure
            lines.append(f"the artefacts are incomplete: {error}")
    if cluster_test.cluster.mode == "live" and config.getoption("--keep-cluster"):
        cluster_test.teardown.pop_all()
        name = cluster_test.cluster.name
        commands = cluster_test.cluster.commands()
        lines += [f"cluster {name} stays up:", *(f"  {line}" for line in commands)]
    report.sections.append(("testbed", "\n".join(lines)))
    report.user_properties.append(("testbed-artefacts", f"{item.nodeid}: {folder}"))
    if isinstance(cluster_test.cluster, LiveCluster) and config.getoption("--cli-on-error"):
        _prompt(item, cluster_test.cluster, report)


def _prompt(item: pytest.Item, cluster: LiveCluster, report: pytest.TestReport) -> None:
    """Open the prompt, without pytest's capture of standard input and output."""
    plugins = item.config.pluginmanager
    terminal, capturing = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
    if terminal is None or capturing is None:
        return
    capturing.suspend_global_capture(in_=True)  # the next phase resumes it, as after pytest's debugger
    terminal.ensure_newline()
    terminal.write_line(f"{item.nodeid} failed:")
    terminal.write_line(report.longreprtext)
    prompt.run_prompt(cluster.name, cluster.nodes, terminal.write_line)


def _slug(nodeid: str) -> str:
    """Return the name of a test's folder; a hash distinguishes tests whose names become equal."""
    words = re.sub(r"[^\w.]+", "-", nodeid).strip("-").encode()[-_MAX_SLUG:].decode(errors="ignore")
    return f"{words}-{hashlib.blake2b(nodeid.encode(errors='surrogatepass'), digest_size=3).hexdigest()}"
