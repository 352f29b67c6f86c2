"""What all tests share: hypothesis's profiles, requirements of the machine, and a report of what was not run and why.

- Seeds are fixed, so that a run says the same twice; TESTBED_LONG=1 draws a new one, which the head of the run prints.
- ``@pytest.mark.requires(NAME, ...)``: see requirements.py.
- TESTBED_STRICT=1: a skip that no requirement stands for fails the run.
- ``record_property("note", text)`` puts a line into the summary: a figure worth seeing in every run.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from requirements import REQUIREMENTS, missing

STRICT = bool(os.environ.get("TESTBED_STRICT"))
LONG = bool(os.environ.get("TESTBED_LONG"))

settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "long", max_examples=1000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("long" if LONG else "ci")

_unexplained = pytest.StashKey[list[str]]()
_unmet = pytest.StashKey[dict[str, int]]()
_notes = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # What a shell has its jobs in the background ignore, programs of tests would inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    config.addinivalue_line("markers", f"requires(name, ...): what the machine must have: {', '.join(REQUIREMENTS)}")
    config.stash[_unexplained] = []
    config.stash[_unmet] = {}
    config.stash[_notes] = []
    if LONG and config.getoption("--hypothesis-seed", None) is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))
    config.pluginmanager.register(_Reports(config), "testbed-reports")


def pytest_report_header(config: pytest.Config) -> list[str]:
    seed = config.getoption("--hypothesis-seed", None)
    return [f"seed: --hypothesis-seed={seed}" if seed else "seed: fixed (TESTBED_LONG=1 draws a new one)"]


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


def _reason(longrepr: object) -> str:
    return str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    yield
    if STRICT and session.config.stash[_unexplained] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for note in config.stash[_notes]:
        terminalreporter.line(f"note: {note}")
    for text, count in sorted(config.stash[_unmet].items()):
        terminalreporter.line(f"not met by this machine: {text} ({count} tests skipped)", yellow=True)
    for skip in config.stash[_unexplained]:
        terminalreporter.line(
            f"skipped without a requirement{' (strict: fails)' if STRICT else ''}: {skip}", red=STRICT
        )
