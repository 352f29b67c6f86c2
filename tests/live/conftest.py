"""Fixtures of live tests: the sandbox (see sandbox.py), the check of the machine's state, an ordinary user's directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.kernel.userns import is_root
from tests.live import ordinary_user, sandbox
from tests.live.machine_state import Machine


@pytest.fixture(scope="session", autouse=True)
def _sandbox() -> None:
    """Enter a sandbox as root; without root only tests run that make their own user namespaces."""
    if is_root():
        sandbox.enter()


@pytest.fixture
def machine(_sandbox: None) -> Iterator[Machine]:
    """Snapshot of the machine; the test must leave it unchanged."""
    machine = Machine()
    yield machine
    try:
        if not machine.has_leftovers:  # otherwise the test itself has already failed
            machine.assert_unchanged("left behind by the test")
    finally:
        if machine.has_leftovers:
            machine.clear()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Runtime directory of the ordinary user."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory.owner() == "root" and directory.stat().st_mode & 0o001 == 0:
            directory.chmod(directory.stat().st_mode | 0o011)
    tmp_path.chmod(0o777)
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    os.chown(runtime, ordinary_user.NOBODY, ordinary_user.NOBODY)
    yield runtime
    assert list(runtime.iterdir()) == [], "left behind in the user's directory"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the registry before a child drops its privileges."""
    from testbed import registry

    offered = {
        group: registry.offered(group)
        for group in (registry.FABRICS, registry.FIELDS, registry.PROTOCOLS, registry.WORKLOADS)
    }
    monkeypatch.setattr(registry, "offered", offered.__getitem__)
