"""Conformance checks that need namespaces: of a generated package and the default protocol; with TESTBED_LONG=1 of all
protocols."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from protocols.core.protocol import Protocol
from testbed.controller.conformance.suite import CHECKS, State, check
from testbed.registry import DEFAULT_PROTOCOL, PROTOCOLS, load, offered
from tests.sim.package_mutants import LIVE_MUTANT
from tests.sim.written_packages import copy_template, on_path, write_template

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

LONG = bool(os.environ.get("TESTBED_LONG"))
NIC_PROTOCOLS = [
    name
    for name in offered(PROTOCOLS)
    if isinstance(protocol := load(PROTOCOLS, name), Protocol) and protocol.ethertype
]
LIVE = [check.name for check in CHECKS if check.needs_namespaces]


@pytest.fixture(scope="module")
def generated_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_template("parcel", tmp_path_factory.mktemp("written"))


@pytest.mark.parametrize("name", LIVE)
@pytest.mark.parametrize("protocol", NIC_PROTOCOLS if LONG else [DEFAULT_PROTOCOL])
def test_a_shipped_protocol_passes_every_simulated_check(
    protocol: str, name: str, record_property: Callable[[str, object], None]
) -> None:
    result = check(protocol, name)
    if result.state is State.NOT_APPLICABLE:
        assert load(PROTOCOLS, protocol).split_driver is None  # type: ignore[attr-defined]
        assert "no split driver" in result.reason
    else:
        assert result.state is State.PASSED, result.reason
    record_property("note", f"conformance: {protocol}, {name}: {result.state.value} {result.reason}")


@pytest.mark.parametrize("name", LIVE if LONG else [LIVE_MUTANT.check])
def test_a_generated_package_passes(name: str, generated_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tutorial runs all checks on it, live ones too."""
    monkeypatch.setenv("PYTHONPATH", str(generated_package))  # for the programs that attach
    with on_path(generated_package):
        result = check("parcel", name)
    assert result.state is State.PASSED, result.reason


def test_a_broken_package_fails_on_real_frames(generated_package: Path, tmp_path: Path) -> None:
    folder = copy_template(generated_package, "mutant", tmp_path)
    LIVE_MUTANT.apply(folder / "mutant")
    with on_path(folder):
        result = check("mutant", LIVE_MUTANT.check)
    assert result.state is State.FAILED, f"the check does not find the defect: {LIVE_MUTANT.fault}"
    assert "live" in result.reason
