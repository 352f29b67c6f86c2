"""Life cycle of a test's cluster: made as the markers ask, examined when the test fails, taken down."""

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
from testbed.pytest_plugin import CASE, artefacts, option_or_ini, prompt
from testbed.pytest_plugin.cluster_network import PROPERTY, Network, actions_of, network_of, raise_outcome
from testbed.pytest_plugin.marker import Action, MarkerArguments, read_markers, resolve_scenario
from testbed.pytest_plugin.requires_marker import unmet
from testbed.pytest_plugin.under_test import ClusterUnderTest, LiveCluster, SimulatedCluster

if TYPE_CHECKING:
    from testbed.pytest_plugin.spread_under_test import SpreadUnderTest

_MAX_NAME: Final = 40  # characters of a test's name in its cluster's, of at most 63
_MAX_SLUG: Final = 100  # bytes of a test's name in its folder's, of at most 255
_numbers = count(1)


@dataclass(slots=True)
class Case:
    """A test that has its cluster. ending: takes the cluster down. actions: outcomes by the network's grade. captures:
    end before their files are read. network: the verdict, once taken."""

    cluster: ClusterUnderTest
    ending: ExitStack
    actions: Mapping[Grade, Action]
    captures: ExitStack = field(default_factory=ExitStack)
    network: Network | None = None


def cluster_of(
    request: pytest.FixtureRequest, mode: str, protocol: str, scenario: object
) -> Iterator[ClusterUnderTest]:
    """Generator of the fixture. mode: "sim" or "live"."""
    item, config = request.node, request.config
    with tempfile.TemporaryDirectory(prefix="testbed-test-") as temporary, ExitStack() as ending:
        folder = Path(temporary)
        try:
            wanted = read_markers(item.iter_markers("cluster"), request.path.parent, getattr(request, "param", None))
            if reason := unmet(wanted):
                raise _unable(config, reason)
            if mode == "sim" and (reason := _not_simulated(protocol)):
                raise pytest.skip.Exception(reason)  # a skip on every machine, so --testbed-strict does not apply
            actions = actions_of(config, wanted)
            description = wanted.description()
            scenario = resolve_scenario(request.path.parent, scenario)
            captures = config.getoption("--pcap-on-failure")
            if mode == "sim":
                case = Case(
                    SimulatedCluster(description, folder, protocol, scenario, captures=captures), ending, actions
                )
            elif wanted.machines is not None:
                cluster = _spread(config, wanted, description, _name(item.name), folder, ending)
                cluster.protocol, cluster.scenario = protocol, scenario
                case = Case(cluster, ending, actions)
                if captures:
                    from testbed.observe.machine_captures import capturing

                    pcap = capturing(cluster.running, cluster.name, "all", folder / artefacts.CAPTURE)
                    case.captures.enter_context(pcap)
            else:
                running = description.up(
                    _name(item.name),
                    keep=config.getoption("--keep-cluster"),
                    origin=wanted.origin,
                    datapath=wanted.datapath,
                )
                ending.callback(running.down)
                case = Case(LiveCluster(description, folder, protocol, scenario, running=running), ending, actions)
                if captures:
                    case.captures.enter_context(running.capture("all", folder / artefacts.CAPTURE))
        except (PermissionDeniedError, UnsupportedError) as error:
            raise _unable(config, f"this machine cannot bring it up: {error}") from None
        except TestbedError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        item.stash[CASE] = case
        try:
            with case.captures:
                yield case.cluster
        finally:
            del item.stash[CASE]  # later failures have no cluster


def _spread(
    config: pytest.Config, wanted: MarkerArguments, description: Cluster, name: str, folder: Path, ending: ExitStack
) -> SpreadUnderTest:
    """Spread a test's cluster over machines, until `ending` ends."""
    from testbed.machines.spread import down
    from testbed.pytest_plugin.spread_under_test import SpreadUnderTest, spread_for_test, workers_of

    assert wanted.machines is not None
    running = workers_of(config, wanted.machines)
    keep = config.getoption("--keep-cluster")
    spread_for_test(description, running, name, wanted.origin, wanted.datapath, keep=keep)
    ending.callback(down, running, name)
    return SpreadUnderTest(description, folder, running=running, spread_name=name, file=wanted.machines)


def _unable(config: pytest.Config, reason: str) -> BaseException:
    """Exception that skips the test with the reason; under --testbed-strict it fails the test."""
    if config.getoption("--testbed-strict"):
        return pytest.fail.Exception(f"--testbed-strict: {reason}", pytrace=False)
    return pytest.skip.Exception(reason)


def _not_simulated(protocol: str) -> str:
    """Reason why the protocol cannot be simulated; empty if it can, and for an unknown name, which a run refuses."""
    try:
        protocol_of(protocol, "sim")
    except UnsupportedError as error:
        return str(error)
    except NotFoundError:
        pass
    return ""


def _name(test: str) -> str:
    """Name for a test's cluster, unique among all processes."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", test).strip("-")[:_MAX_NAME]
    return f"{words}-{os.getpid()}-{next(_numbers)}"


def shorten(error: pytest.ExceptionInfo[BaseException]) -> None:
    """Remove testbed's own frames from a TestbedError's traceback: its message says what went wrong, and where."""
    if not isinstance(error.value, TestbedError):
        return
    own = f"{Path(testbed.__file__).parent}/"
    entries: list[TracebackType] = []
    entry: TracebackType | None = error.tb
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    kept: TracebackType | None = None
    for traced in reversed(entries):
        if not traced.tb_frame.f_code.co_filename.startswith(own):
            kept = TracebackType(kept, traced.tb_frame, traced.tb_lasti, traced.tb_lineno)
    if kept is not None:
        error.traceback = type(error.traceback)(kept)
        error.value.__cause__, error.value.__suppress_context__ = None, True


def end_passed(item: pytest.Item) -> None:
    """Raise the outcome of a test that has passed, where its network was not as configured."""
    raise_outcome(item.config, _network_verdict(item), item.stash[CASE].actions)


def add_verdict(item: pytest.Item, report: pytest.TestReport) -> None:
    """Add the network's verdict to the report of the test's body."""
    network = _network_verdict(item)
    report.user_properties[:] = item.user_properties
    if network.grade is not Grade.TRUSTED:
        report.sections.append(("testbed", f"the network meanwhile: {network}"))


def _network_verdict(item: pytest.Item) -> Network:
    case = item.stash[CASE]
    if case.network is None:
        case.network = network_of(case.cluster)
        item.user_properties.append((PROPERTY, case.network.summary))
    return case.network


def keep_failed(item: pytest.Item, report: pytest.TestReport) -> None:
    """Keep the artefacts of a failed test while its cluster is still up, and open the prompt if requested."""
    case, config = item.stash[CASE], item.config
    folder = config.rootpath / option_or_ini(config, "testbed_artefacts") / _slug(item.nodeid)
    network = _network_verdict(item)
    report.user_properties[:] = item.user_properties
    lines = [f"artefacts: {folder}", f"the network meanwhile: {network}"]
    for step in (case.captures.close, lambda: artefacts.keep(case.cluster, folder, report, network)):
        try:
            step()
        except (TestbedError, OSError) as error:  # must not hide the test's own failure
            lines.append(f"the artefacts are incomplete: {error}")
    if case.cluster.mode == "live" and config.getoption("--keep-cluster"):
        case.ending.pop_all()
        name = case.cluster.name
        commands = case.cluster.commands()
        lines += [f"cluster {name} stays up:", *(f"  {line}" for line in commands)]
    report.sections.append(("testbed", "\n".join(lines)))
    report.user_properties.append(("testbed-artefacts", f"{item.nodeid}: {folder}"))
    if isinstance(case.cluster, LiveCluster) and config.getoption("--cli-on-error"):
        _prompt(item, case.cluster, report)


def _prompt(item: pytest.Item, cluster: LiveCluster, report: pytest.TestReport) -> None:
    """Open the prompt, with the terminal as it is outside pytest."""
    plugins = item.config.pluginmanager
    terminal, capturing = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
    if terminal is None or capturing is None:
        return
    capturing.suspend_global_capture(in_=True)  # until the next phase, as pytest's debugger does
    terminal.ensure_newline()
    terminal.write_line(f"{item.nodeid} has failed:")
    terminal.write_line(report.longreprtext)
    prompt.ask(cluster.name, cluster.nodes, terminal.write_line)


def _slug(nodeid: str) -> str:
    """Folder name of a test; a hash distinguishes similar names."""
    words = re.sub(r"[^\w.]+", "-", nodeid).strip("-").encode()[-_MAX_SLUG:].decode(errors="ignore")
    return f"{words}-{hashlib.blake2b(nodeid.encode(errors='surrogatepass'), digest_size=3).hexdigest()}"
