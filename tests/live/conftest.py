"""Fixtures of live tests: their sandbox (see sandbox.py), the machine before and after, and an ordinary user's directory."""

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
    """The machine before the test; at its end everything must be as before."""
    machine = Machine()
    yield machine
    try:
        if not machine.spoilt:  # otherwise the test itself has failed
            machine.assert_unchanged("left behind by the test")
    finally:
        if machine.spoilt:
            machine.clear()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The runtime directory of the ordinary user, which he can reach."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory.owner() == "root" and directory.stat().st_mode & 0o001 == 0:
            directory.chmod(directory.stat().st_mode | 0o011)
    tmp_path.chmod(0o777)
    place = tmp_path / "runtime"
    place.mkdir()
    os.chown(place, ordinary_user.NOBODY, ordinary_user.NOBODY)
    yield place
    assert list(place.iterdir()) == [], "left behind in the user's directory"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read what packages offer before a child loses the right to."""
    from testbed import registry

    present = {
        group: registry.offered(group)
        for group in (registry.FABRICS, registry.FIELDS, registry.PROTOCOLS, registry.WORKLOADS)
    }
    monkeypatch.setattr(registry, "offered", present.__getitem__)
