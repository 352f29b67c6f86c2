"""Kind of the build, compiled or interpreted: it matches the loaded modules, and is reported."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import pytest

from protocols.core.compiled_build import COMPILED, INTERPRETED, build
from testbed.controller.runs.folders import run_environment
from testbed.machines import machine_report
from tests.unit.suite.test_compiled_sources import MODULES


def test_the_build_kind_matches_its_modules() -> None:
    suffixes = {COMPILED: EXTENSION_SUFFIXES, INTERPRETED: SOURCE_SUFFIXES}[build()]
    files = [str(import_module(module[:-3].replace("/", ".")).__file__) for module in MODULES]
    assert not [file for file in files if not file.endswith(tuple(suffixes))]
    names = ("testbed.fabric.native_heap", "testbed.fates.native_hash", "testbed.kernel.native_frames")
    assert [find_spec(name) is not None for name in names] == [build() == COMPILED] * 3


def test_the_checkout_of_the_compiled_build_is_compiled() -> None:
    """If the compiled modules were missing, the same tests would pass interpreted."""
    is_copy = Path(__file__).parents[3].parts[-3:] == ("build", "compiled", "checkout")
    assert build() == COMPILED or not is_copy


def test_the_version_and_a_run_report_the_build() -> None:
    command = [sys.executable, "-c", "from testbed.cli.entry import main; main()", "--version"]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert completed.stdout.rstrip().endswith(f", {build()}")
    assert run_environment()["build"] == build()


def test_doctor_reports_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_report, "probe", list)
    compiled = next(capability for capability in machine_report.capabilities() if capability.name == "compiled")
    assert compiled.available is (build() == COMPILED)
    assert compiled.detail == f"the modules that run per frame and per event are {build()}"
