"""Licences of the installed packages: each is recorded, and no process imports Scapy and a package that cannot be combined
with it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

RECORD = tomllib.loads((Path(__file__).parents[3] / "ci" / "licences.toml").read_text())
COMBINABLE: Mapping[str, str] = RECORD["combinable"]
SEPARATE: Mapping[str, Mapping[str, str]] = RECORD["apart"]
PROJECT = "netns-testbed"
COMPATIBLE_WITH_GPL_2 = {
    "0BSD", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "GPL-2.0-only", "GPL-2.0-or-later", "LGPL-2.1", "MIT", "MIT-0",
    "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib",
}  # fmt: skip
"""Licences of programs that can be combined with one under GPL-2.0-only."""
SPDX = {
    "Apache 2.0": "Apache-2.0", "Apache Software License": "Apache-2.0", "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause", "MIT License": "MIT", "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}  # fmt: skip
"""Names of licences in older metadata."""


def is_combinable(expression: str) -> bool:
    """Return whether a licence, as an SPDX expression without nested alternatives, can be combined with GPL-2.0-only."""
    return any(
        all(licence.strip("() ") in COMPATIBLE_WITH_GPL_2 for licence in alternative.split(" AND "))
        for alternative in expression.split(" OR ")
    )


@cache
def installed() -> Mapping[str, Distribution]:
    """Return the packages that the project requires, with all extras, as far as they are installed."""
    packages: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(PROJECT, extra) for extra in ["", *distribution(PROJECT).metadata.get_all("Provides-Extra", [])]]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            packages[name] = distribution(name)
        except PackageNotFoundError:  # of an extra that is not installed
            continue
        waiting += required(packages[name], extra)
    del packages[PROJECT]
    return packages


def required(package: Distribution, extra: str) -> Iterator[tuple[str, str]]:
    for requirement in map(Requirement, package.requires or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            yield from ((name, requested_extra) for requested_extra in ["", *requirement.extras])


def declared(package: Distribution) -> list[str]:
    """Return the licences that a package's metadata names."""
    metadata = package.metadata
    if expressions := metadata.get_all("License-Expression", []):
        return expressions
    names = [text.rpartition(" :: ")[2] for text in metadata.get_all("Classifier", []) if text.startswith("License")]
    return [SPDX.get(name, name) for name in [*names, *metadata.get_all("License", [])]]


def test_each_installed_package_is_recorded_with_the_licence_that_it_declares() -> None:
    packages = installed()
    assert {"scapy", "paramiko", "bcrypt"} <= packages.keys()
    assert sorted(packages.keys() - COMBINABLE.keys() - SEPARATE.keys()) == [], "not in ci/licences.toml"
    assert sorted(COMBINABLE.keys() & SEPARATE.keys()) == []
    mismatches = {
        name: declared(package)
        for name, package in packages.items()
        if any(map(is_combinable, declared(package))) is not (name in COMBINABLE)
    }
    assert mismatches == {}


def test_the_record_classifies_licences_correctly() -> None:
    assert [name for name, licence in COMBINABLE.items() if not is_combinable(licence)] == []
    assert [name for name, package in SEPARATE.items() if is_combinable(package["licence"])] == []


MODULES = """
import sys
from click.testing import CliRunner
from testbed.cli.main import testbed
for words in COMMANDS:
    result = CliRunner().invoke(testbed, words)
    assert result.exit_code == 0, result.output
print(*sorted(name for name in sys.modules if "." not in name))
"""


def modules_of(folder: Path, program: str) -> set[str]:
    """Run a program in another process; return the modules that it prints."""
    completed = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return set(completed.stdout.split())


SEPARATE_MODULES = {module for package in SEPARATE.values() for module in package["modules"]}


@pytest.mark.timeout(120)
def test_commands_that_import_scapy_import_no_package_with_an_incompatible_licence(tmp_path: Path) -> None:
    run = ["run", "star-2", "pingpong", "--mode", "sim", "--set", "count=2", "--set", "sizes=4", "--output", "run"]
    commands = [[*run, "--codec", "scapy", "--capture"], ["decode", "run"], ["dissector", "-o", "testbed.lua"]]
    modules = modules_of(tmp_path, f"COMMANDS = {commands}\n{MODULES}")
    assert "scapy" in modules
    assert modules & SEPARATE_MODULES == set()


ROOMS = """
import pkgutil, sys
from importlib import import_module
for room in ("testbed.ssh", "testbed.machines", "testbed.studies"):
    for module in pkgutil.iter_modules(import_module(room).__path__, f"{room}."):
        import_module(module.name)
print(*sorted(name for name in sys.modules if "." not in name))
"""


def test_modules_that_import_packages_of_incompatible_licences_import_no_scapy(tmp_path: Path) -> None:
    modules = modules_of(tmp_path, ROOMS)
    assert {"bcrypt", "nacl", "paramiko"} <= modules
    assert "scapy" not in modules
