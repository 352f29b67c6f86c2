"""Live tests run in a sandbox of their own (see sandbox.py) and can ask whether the machine is as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.kernel.userns import is_root
from tests.live import sandbox
from tests.live.machine_state import Machine


@pytest.fixture(scope="session", autouse=True)
def _sandbox() -> None:
    """Without root there is none: then only tests that need no root run, in user namespaces of their own."""
    if is_root():
        sandbox.enter()


@pytest.fixture
def machine(_sandbox: None) -> Iterator[Machine]:
    """The machine before the test; at its end everything must be as before."""
    machine = Machine()
    yield machine
    try:
        if not machine.spoilt:  # otherwise the test itself has said so
            machine.assert_unchanged("left behind by the test")
    finally:
        if machine.spoilt:
            machine.clear()
