"""Common parts of all tests: Hypothesis profiles, requirements of the machine, and a report of skipped tests with the
reasons.

- Seeds are fixed, so that a run says the same twice; TESTBED_LONG=1 draws a new one, which the head of the run prints.
- ``@pytest.mark.requires(NAME, ...)``: see requirements.py.
- TESTBED_STRICT=1: a skip that no requirement stands for fails the run.
- ``@pytest.mark.alone``: measures time or memory, and runs when nothing else does; see parts.py.
- TESTBED_STRICT=1 also fails a run in which a process of the tests has taken more than a gigabyte.
- ``record_property("note", text)`` puts a line into the summary: a figure worth seeing in every run.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import parts
from tests.requirements import REQUIREMENTS, missing

STRICT = bool(os.environ.get("TESTBED_STRICT"))
LONG = bool(os.environ.get("TESTBED_LONG"))

settings.register_profile(
    "ci", max_examples=28, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "long", max_examples=1000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("long" if LONG else "ci")

_collector = parts.Collector()
_peak = parts.Peak()
_unexplained = pytest.StashKey[list[str]]()
_unmet = pytest.StashKey[dict[str, int]]()
_notes = pytest.StashKey[list[str]]()
_peaks = pytest.StashKey[list[tuple[int, str]]]()


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folders() -> Iterator[None]:
    """Let pytests that tests start have another root of their temporary folders: each makes its root private again, while
    tests of an ordinary user have opened this one's to him."""
    with tempfile.TemporaryDirectory(prefix="pytest-", ignore_cleanup_errors=True) as root:
        Path(root).chmod(0o1777)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = root
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # What a shell has its jobs in the background ignore, programs of tests would inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    config.addinivalue_line("markers", f"requires(name, ...): what the machine must have: {', '.join(REQUIREMENTS)}")
    config.addinivalue_line("markers", "alone: measures time or memory: nothing else runs meanwhile")
    config.stash[_unexplained] = []
    config.stash[_peaks] = []
    config.stash[_unmet] = {}
    config.stash[_notes] = []
    if LONG and config.getoption("--hypothesis-seed", None) is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))
    config.pluginmanager.register(_Reports(config), "testbed-reports")


def pytest_runtest_logfinish(nodeid: str) -> None:
    _peak.note(nodeid)
    _collector.collect()


def pytest_report_header(config: pytest.Config) -> list[str]:
    seed = config.getoption("--hypothesis-seed", None)
    third = [f"third: TESTBED_THIRD={parts.THIRD} draws the files that run interpreted, too"] if parts.THIRD else []
    return [f"seed: --hypothesis-seed={seed}" if seed else "seed: fixed (TESTBED_LONG=1 draws a new one)", *third]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if parts.is_left_out(collection_path, config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    parts.select(config, items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("requires"):
        for name in marker.args:
            if name not in REQUIREMENTS:
                pytest.fail(f"no requirement is named {name!r}; there are {', '.join(REQUIREMENTS)}", pytrace=False)
            if reason := missing(name):
                if STRICT and REQUIREMENTS[name].ours:
                    pytest.fail(f"requires {name}, which ci/test installs: {reason}", pytrace=False)
                item.user_properties.append(("requirement", f"{name}: {reason}"))
                pytest.skip(f"requires {name}: {reason}")


class _Reports:
    """Reads every report, also those that come from other processes of a distributed run."""

    def __init__(self, config: pytest.Config) -> None:
        self.stash = config.stash

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.stash[_notes] += [str(text) for name, text in report.user_properties if name == "note"]
        if report.skipped and not hasattr(report, "wasxfail"):
            unmet = [str(text) for name, text in report.user_properties if name == "requirement"]
            for text in unmet:
                self.stash[_unmet][text] = self.stash[_unmet].get(text, 0) + 1
            if not unmet:
                self.stash[_unexplained].append(f"{report.nodeid}: {_reason(report.longrepr)}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.stash[_unexplained].append(f"{report.nodeid}: {_reason(report.longrepr)}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect the skipped files of an ended process of a distributed run, which no report names."""
        report = getattr(node, "workeroutput", {})
        self.stash[_peaks].append(tuple(report.get("peak", (0, ""))))
        self.stash[_unexplained] += [skip for skip in report.get("files", ()) if skip not in self.stash[_unexplained]]


def _reason(longrepr: object) -> str:
    return str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)


def _too_much(config: pytest.Config) -> bool:
    return max(config.stash[_peaks])[0] > parts.MAX_MEMORY


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    config = session.config
    _peak.note("the end of the tests")
    config.stash[_peaks].append(_peak.value)
    if (output := getattr(config, "workeroutput", None)) is not None:
        files = [skip for skip in config.stash[_unexplained] if "::" not in skip.partition(": ")[0]]
        output.update(peak=_peak.value, files=files)
    yield
    spoilt = config.stash[_unexplained] or _too_much(config)
    if STRICT and spoilt and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    fails = " (strict: fails)" if STRICT else ""
    notes = [f"note: {note}" for note in config.stash[_notes]]
    unmet = [
        f"not met by this machine: {text} ({count} tests skipped)"
        for text, count in sorted(config.stash[_unmet].items())
    ]
    wrong = [f"skipped without a requirement{fails}: {skip}" for skip in config.stash[_unexplained]]
    peak, test = max(config.stash[_peaks])
    if _too_much(config):
        most = f"more than {parts.MAX_MEMORY / 1e6:,.0f}"
        wrong.append(
            f"a process of the tests has taken {peak / 1e6:,.0f} MB, {most}{fails}, by {test}: what does it keep?"
        )
    for line in notes:
        terminalreporter.line(line)
    for line in unmet:
        terminalreporter.line(line, yellow=True)
    for line in wrong:
        terminalreporter.line(line, red=STRICT)
    if not hasattr(config, "workerinput"):  # a worker process has its own, which is not read
        parts.add_summary(terminalreporter, notes + unmet + wrong, peak)
