"""Fixtures of tests of kernel features that many machines lack.

ci/vm runs them in a virtual machine that has these features, where a skip is a failure. Elsewhere only those run that the
machine supports, in the sandbox of the live tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from testbed.kernel.userns import is_root
from tests.live import sandbox
from tests.live.machine_state import Machine


@pytest.fixture(scope="session", autouse=True)
def _sandbox() -> None:
    if is_root():
        sandbox.enter()


@pytest.fixture
def machine(_sandbox: None) -> Iterator[Machine]:
    """Yield the machine's state; at the end of the test everything must be as before."""
    machine = Machine()
    yield machine
    try:
        machine.assert_unchanged("left behind by the test", deadline=30)
    finally:
        if machine.has_leftovers:
            machine.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    if report.skipped and os.environ.get("TESTBED_VM"):
        report.outcome = "failed"
    return report
