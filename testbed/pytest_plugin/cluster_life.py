"""Life cycle of a test's cluster: brought up by the test's markers, examined if the test fails, and taken down."""

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

_MAX_NAME: Final = 40  # characters of a test's name in its cluster's, of at most 63
_MAX_SLUG: Final = 100  # bytes of a test's name in its folder's, of at most 255
_numbers = count(1)


@dataclass(slots=True)
class ClusterTest:
    """A test while it has a cluster. teardown: takes the cluster down. actions: outcomes by the network's grade. captures:
    are closed before their files are read. network: verdict, once it is known."""

    cluster: ClusterUnderTest
    teardown: ExitStack
    actions: Mapping[Grade, Action]
    captures: ExitStack = field(default_factory=ExitStack)
    network: Network | None = None


def cluster_of(
    request: pytest.FixtureRequest, mode: str, protocol: str, scenario: object
) -> Iterator[ClusterUnderTest]:
    """Bring a test's cluster up, yield it, and take it down. mode: "sim" or "live"."""
    item, config = request.node, request.config
    with tempfile.TemporaryDirectory(prefix="testbed-test-") as directory, ExitStack() as teardown:
        folder = Path(directory)
        try:
            arguments = read_markers(item.iter_markers("cluster"), request.path.parent, getattr(request, "param", None))
            if reason := unmet_requirement(arguments):
                raise _skip_or_fail(config, reason)
            if mode == "sim" and (reason := _not_simulated(protocol)):
                raise pytest.skip.Exception(reason)  # a skip on every machine, so --testbed-strict does not apply
            actions = actions_of(config, arguments)
            description = arguments.description()
            scenario = resolve_scenario(request.path.parent, scenario)
            captures = config.getoption("--pcap-on-failure")
            if mode == "sim":
                case = ClusterTest(
                    SimulatedCluster(description, folder, protocol, scenario, captures=captures), teardown, actions
                )
            elif arguments.machines is not None:
                cluster = _spread(config, arguments, description, _cluster_name(item.name), folder, teardown)
                cluster.protocol, cluster.scenario = protocol, scenario
                case = ClusterTest(cluster, teardown, actions)
                if captures:
                    from testbed.observe.machine_captures import capturing

                    pcap = capturing(cluster.running, cluster.name, "all", folder / artefacts.CAPTURE)
                    case.captures.enter_context(pcap)
            else:
                running = description.up(
                    _cluster_name(item.name),
                    keep=config.getoption("--keep-cluster"),
                    origin=arguments.origin,
                    datapath=arguments.datapath,
                )
                teardown.callback(running.down)
                live_cluster = LiveCluster(description, folder, protocol, scenario, running=running)
                case = ClusterTest(live_cluster, teardown, actions)
                if captures:
                    case.captures.enter_context(running.capture("all", folder / artefacts.CAPTURE))
        except (PermissionDeniedError, UnsupportedError) as error:
            raise _skip_or_fail(config, f"this machine cannot bring the cluster up: {error}") from None
        except TestbedError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        item.stash[CLUSTER_TEST] = case
        try:
            with case.captures:
                yield case.cluster
        finally:
            del item.stash[CLUSTER_TEST]  # the cluster is down for later failures


def _spread(
    config: pytest.Config,
    arguments: MarkerArguments,
    description: Cluster,
    name: str,
    folder: Path,
    teardown: ExitStack,
) -> SpreadUnderTest:
    """Bring a test's cluster up on machines. teardown: gets a callback that takes it down."""
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


def _not_simulated(protocol: str) -> str:
    """Return the reason why the protocol cannot be simulated; empty if it can, or if its name is unknown, which the run
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
    return f"{words}-{os.getpid()}-{next(_numbers)}"


def shorten_traceback(error: pytest.ExceptionInfo[BaseException]) -> None:
    """Remove the testbed's own frames from the traceback of a TestbedError, whose message is sufficient."""
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
    """Raise another outcome for a passed test if its network was not as configured."""
    raise_outcome(item.config, _network_verdict(item), item.stash[CLUSTER_TEST].actions)


def add_verdict(item: pytest.Item, report: pytest.TestReport) -> None:
    """Add the network's verdict to the report of the test's body."""
    network = _network_verdict(item)
    report.user_properties[:] = item.user_properties
    if network.grade is not Grade.TRUSTED:
        report.sections.append(("testbed", f"the network during the test: {network}"))


def _network_verdict(item: pytest.Item) -> Network:
    case = item.stash[CLUSTER_TEST]
    if case.network is None:
        case.network = network_of(case.cluster)
        item.user_properties.append((PROPERTY, case.network.summary))
    return case.network


def keep_artefacts(item: pytest.Item, report: pytest.TestReport) -> None:
    """Keep the artefacts of a failed test while its cluster is up; open the prompt if requested."""
    case, config = item.stash[CLUSTER_TEST], item.config
    folder = config.rootpath / option_or_ini(config, "testbed_artefacts") / _slug(item.nodeid)
    network = _network_verdict(item)
    report.user_properties[:] = item.user_properties
    lines = [f"artefacts: {folder}", f"the network during the test: {network}"]
    for step in (case.captures.close, lambda: artefacts.keep(case.cluster, folder, report, network)):
        try:
            step()
        except (TestbedError, OSError) as error:  # must not hide the test's own failure
            lines.append(f"the artefacts are incomplete: {error}")
    if case.cluster.mode == "live" and config.getoption("--keep-cluster"):
        case.teardown.pop_all()
        name = case.cluster.name
        commands = case.cluster.commands()
        lines += [f"cluster {name} stays up:", *(f"  {line}" for line in commands)]
    report.sections.append(("testbed", "\n".join(lines)))
    report.user_properties.append(("testbed-artefacts", f"{item.nodeid}: {folder}"))
    if isinstance(case.cluster, LiveCluster) and config.getoption("--cli-on-error"):
        _prompt(item, case.cluster, report)


def _prompt(item: pytest.Item, cluster: LiveCluster, report: pytest.TestReport) -> None:
    """Open the prompt, with the terminal's state outside pytest."""
    plugins = item.config.pluginmanager
    terminal, capturing = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
    if terminal is None or capturing is None:
        return
    capturing.suspend_global_capture(in_=True)  # until the next phase, as in pytest's debugger
    terminal.ensure_newline()
    terminal.write_line(f"{item.nodeid} failed:")
    terminal.write_line(report.longreprtext)
    prompt.run_prompt(cluster.name, cluster.nodes, terminal.write_line)


def _slug(nodeid: str) -> str:
    """Return the name of a test's folder; a hash distinguishes similar names."""
    words = re.sub(r"[^\w.]+", "-", nodeid).strip("-").encode()[-_MAX_SLUG:].decode(errors="ignore")
    return f"{words}-{hashlib.blake2b(nodeid.encode(errors='surrogatepass'), digest_size=3).hexdigest()}"
