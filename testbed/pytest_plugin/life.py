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
from typing import TYPE_CHECKING, Final

import pytest

from testbed.errors import PermissionDeniedError, TestbedError, UnsupportedError
from testbed.pytest_plugin import CASE, artefacts, prompt
from testbed.pytest_plugin.asking import Asked, asked
from testbed.pytest_plugin.requirements import unmet
from testbed.pytest_plugin.under_test import ClusterUnderTest, LiveCluster, SimulatedCluster

if TYPE_CHECKING:
    from testbed.cluster.api import Cluster

_LONGEST: Final = 40  # characters of a test's name in its cluster's; a name may have 63
_numbers = count(1)


@dataclass(slots=True)
class Case:
    """A test that has its cluster. captures: what is to end before the files are looked at. failed: it has."""

    cluster: ClusterUnderTest
    captures: ExitStack = field(default_factory=ExitStack)
    failed: bool = False


def cluster_of(
    request: pytest.FixtureRequest, mode: str, protocol: str, scenario: object
) -> Iterator[ClusterUnderTest]:
    """The fixture's life. mode: "sim" or "live"."""
    item, config = request.node, request.config
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="testbed-test-")))
        try:
            wanted = asked(item.iter_markers("cluster"), request.path.parent, getattr(request, "param", None))
            if reason := unmet(wanted):
                raise _unable(config, reason)
            description = wanted.description()
            if mode == "sim":
                case = Case(SimulatedCluster(description, folder, protocol, scenario))
            else:
                case = _bring_up(wanted, description, folder, protocol, scenario, request)
        except (PermissionDeniedError, UnsupportedError) as error:
            raise _unable(config, f"this machine cannot bring it up: {error}") from None
        except TestbedError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        item.stash[CASE] = case
        ending.callback(item.stash.__delitem__, CASE)
        if isinstance(case.cluster, LiveCluster):
            ending.callback(_take_down, case, config)
        ending.enter_context(case.captures)
        yield case.cluster


def _bring_up(
    wanted: Asked, description: Cluster, folder: Path, protocol: str, scenario: object, request: pytest.FixtureRequest
) -> Case:
    """A live one, with its captures if the command line asks for them."""
    captures = request.config.getoption("--pcap-on-failure")
    running = description.up(
        _name(request.node.name),
        keep=request.config.getoption("--keep-cluster"),
        origin=wanted.origin,
        datapath=wanted.datapath,
        fates=folder / artefacts.FATES if captures else "",
    )
    return Case(LiveCluster(description, folder, protocol, scenario, running=running))


def _take_down(case: Case, config: pytest.Config) -> None:
    if not (case.failed and config.getoption("--keep-cluster")):
        case.cluster.live.down()


def _unable(config: pytest.Config, reason: str) -> BaseException:
    """What skips the test with its reason; where nothing is to be skipped, what fails it."""
    if config.getoption("--testbed-strict"):
        return pytest.fail.Exception(f"--testbed-strict: {reason}", pytrace=False)
    return pytest.skip.Exception(reason)


def _name(test: str) -> str:
    """A cluster's name that no other test has, in whichever process."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", test).strip("-")[:_LONGEST]
    return f"{words}-{os.getpid()}-{next(_numbers)}"


def has_failed(item: pytest.Item, report: pytest.TestReport) -> None:
    """Keep what there is of the test, while its cluster is still up, and let somebody look at it."""
    case = item.stash[CASE]
    case.failed = True
    case.captures.close()
    config = item.config
    place = config.rootpath / (config.getoption("--testbed-artefacts") or config.getini("testbed_artefacts"))
    folder = place / _slug(item.nodeid)
    verdict = artefacts.verdict_in_words(case.cluster) if isinstance(case.cluster, LiveCluster) else []
    artefacts.keep(case.cluster, folder, report, verdict)
    lines = [f"artefacts: {folder}"]
    if isinstance(case.cluster, LiveCluster):
        lines.append(f"the network meanwhile: {'; '.join(verdict)}")
        if config.getoption("--keep-cluster"):
            name = case.cluster.name
            lines += [
                f"cluster {name} stays up:",
                *(f"  {line}" for line in [*prompt.how_to(name, case.cluster.nodes), f"testbed down --name {name}"]),
            ]
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
    with capturing.global_and_fixture_disabled():
        terminal.ensure_newline()
        terminal.write_line(f"{item.nodeid} has failed:")
        terminal.write_line(report.longreprtext)
        prompt.ask(cluster.name, cluster.nodes, terminal.write_line)


def _slug(nodeid: str) -> str:
    """A folder's name for a test; the end tells apart what reads the same."""
    words = re.sub(r"[^\w.]+", "-", nodeid).strip("-")[-100:]
    return f"{words}-{hashlib.blake2b(nodeid.encode(), digest_size=3).hexdigest()}"
