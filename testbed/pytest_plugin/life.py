"""The life of a test's cluster: made as the markers say, looked at when the test fails, and taken down."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final

import pytest

import testbed
from testbed.controller.running import protocol_of
from testbed.errors import NotFoundError, PermissionDeniedError, TestbedError, UnsupportedError
from testbed.pytest_plugin import CASE, artefacts, prompt, said
from testbed.pytest_plugin.asking import asked, beside
from testbed.pytest_plugin.requirements import unmet
from testbed.pytest_plugin.under_test import ClusterUnderTest, LiveCluster, SimulatedCluster

_LONGEST: Final = 40  # characters of a test's name in its cluster's; a name may have 63
_numbers = count(1)


@dataclass(slots=True)
class Case:
    """A test that has its cluster. ending: what takes the cluster down. captures: what ends before files are looked at."""

    cluster: ClusterUnderTest
    ending: ExitStack
    captures: ExitStack = field(default_factory=ExitStack)


def cluster_of(
    request: pytest.FixtureRequest, mode: str, protocol: str, scenario: object
) -> Iterator[ClusterUnderTest]:
    """The fixture's life. mode: "sim" or "live"."""
    item, config = request.node, request.config
    with tempfile.TemporaryDirectory(prefix="testbed-test-") as temporary, ExitStack() as ending:
        folder = Path(temporary)
        try:
            wanted = asked(item.iter_markers("cluster"), request.path.parent, getattr(request, "param", None))
            if reason := unmet(wanted):
                raise _unable(config, reason)
            if mode == "sim" and (reason := _not_simulated(protocol)):
                raise pytest.skip.Exception(reason)  # on any machine, so that --testbed-strict has nothing against it
            description = wanted.description()
            scenario = beside(request.path.parent, scenario)
            captures = config.getoption("--pcap-on-failure")
            if mode == "sim":
                case = Case(SimulatedCluster(description, folder, protocol, scenario, captures=captures), ending)
            else:
                running = description.up(
                    _name(item.name),
                    keep=config.getoption("--keep-cluster"),
                    origin=wanted.origin,
                    datapath=wanted.datapath,
                )
                ending.callback(running.down)
                case = Case(LiveCluster(description, folder, protocol, scenario, running=running), ending)
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
            del item.stash[CASE]  # what fails from now on has no cluster any more


def _unable(config: pytest.Config, reason: str) -> BaseException:
    """What skips the test with its reason; where nothing is to be skipped, what fails it."""
    if config.getoption("--testbed-strict"):
        return pytest.fail.Exception(f"--testbed-strict: {reason}", pytrace=False)
    return pytest.skip.Exception(reason)


def _not_simulated(protocol: str) -> str:
    """Why no simulation has it; empty if one has, and of a name that means none, which a run refuses."""
    try:
        protocol_of(protocol, "sim")
    except UnsupportedError as error:
        return str(error)
    except NotFoundError:
        pass
    return ""


def _name(test: str) -> str:
    """A cluster's name that no other test has, in whichever process."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", test).strip("-")[:_LONGEST]
    return f"{words}-{os.getpid()}-{next(_numbers)}"


def shorten(error: pytest.ExceptionInfo[BaseException]) -> None:
    """Leave of a TestbedError's traceback what is the test's own: its message says what went wrong, and where."""
    if not isinstance(error.value, TestbedError):
        return
    own = f"{Path(testbed.__file__).parent}/"
    entries: list[TracebackType] = []
    entry: TracebackType | None = error.tb
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    kept: TracebackType | None = None
    for one in reversed(entries):
        if not one.tb_frame.f_code.co_filename.startswith(own):
            kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    if kept is not None:
        error.traceback = type(error.traceback)(kept)
        error.value.__cause__, error.value.__suppress_context__ = None, True


def has_failed(item: pytest.Item, report: pytest.TestReport) -> None:
    """Keep what there is of the test, while its cluster is still up, and let somebody look at it."""
    case, config = item.stash[CASE], item.config
    folder = config.rootpath / said(config, "testbed_artefacts") / _slug(item.nodeid)
    lines, verdict = [f"artefacts: {folder}"], []
    if isinstance(case.cluster, LiveCluster):
        verdict = artefacts.verdict_in_words(case.cluster)
        lines.append(f"the network meanwhile: {'; '.join(verdict)}")
    for step in (case.captures.close, lambda: artefacts.keep(case.cluster, folder, report, verdict)):
        try:
            step()
        except (TestbedError, OSError) as error:  # the test's own failure is to be told, whatever else fails
            lines.append(f"the artefacts are not whole: {error}")
    if isinstance(case.cluster, LiveCluster) and config.getoption("--keep-cluster"):
        case.ending.pop_all()
        name = case.cluster.name
        commands = [*prompt.how_to(name, case.cluster.nodes), f"testbed down --name {name}"]
        lines += [f"cluster {name} stays up:", *(f"  {line}" for line in commands)]
    report.sections.append(("testbed", "\n".join(lines)))
    report.user_properties.append(("testbed-artefacts", f"{item.nodeid}: {folder}"))
    if isinstance(case.cluster, LiveCluster) and config.getoption("--cli-on-error"):
        _ask(item, case.cluster, report)


def _ask(item: pytest.Item, cluster: LiveCluster, report: pytest.TestReport) -> None:
    """Open the prompt, with the terminal as it is outside pytest."""
    plugins = item.config.pluginmanager
    terminal, capturing = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
    if terminal is None or capturing is None:
        return
    capturing.suspend_global_capture(in_=True)  # until pytest goes on to the next phase, as for its debugger
    terminal.ensure_newline()
    terminal.write_line(f"{item.nodeid} has failed:")
    terminal.write_line(report.longreprtext)
    prompt.ask(cluster.name, cluster.nodes, terminal.write_line)


def _slug(nodeid: str) -> str:
    """A folder's name for a test; the end tells apart what reads the same."""
    words = re.sub(r"[^\w.]+", "-", nodeid).strip("-")[-100:]
    return f"{words}-{hashlib.blake2b(nodeid.encode(), digest_size=3).hexdigest()}"
