"""``ci/bench install``: time, size and packages of an installation, of the base and with each extra."""

import argparse
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness import session
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.harness.targets import Target

OUTPUT = REPOSITORY / "results" / "bench-install.jsonl"
BASE = "base"
TIME, SIZE, PACKAGES = "time of pip install", "size of the environment's packages", "packages"
MAX_PACKAGES = 23
"""Packages of the base installation, including the project itself; one more package fails the target."""


def extras() -> list[str]:
    """Return the names of the project's extras."""
    document = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return sorted(document["project"]["optional-dependencies"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_subjects(parser, [BASE, *(extra for extra in extras() if extra not in ("dev", "docs"))])
    session.add_option(parser, "--repeat", "1", "number of times that each subject is installed")
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def measure(what: str, wheel: Path, directory: Path, repeat: int) -> Iterator[Row]:
    """Install the wheel with an extra, or without one, into empty environments; pip's cache of downloads is used."""
    requirement = str(wheel) if what == BASE else f"{wheel}[{what}]"
    times, sizes, counts = [], [], []
    for number in range(repeat):
        environment = directory / f"{what}-{number}"
        _run(sys.executable, "-m", "venv", str(environment))
        empty, preinstalled = _size(environment), len(_packages(environment))
        started = time.monotonic()
        _run(str(environment / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", requirement)
        times.append(time.monotonic() - started)
        sizes.append(float(_size(environment) - empty))
        counts.append(float(len(_packages(environment)) - preinstalled))
    for measure_name, unit, samples in ((TIME, "s", times), (SIZE, "B", sizes), (PACKAGES, "1", counts)):
        yield Row("install", what, measure_name, 0, unit, tuple(samples), {})


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ContenderError(f"{' '.join(command[1:4])} ended with code {done.returncode}: {done.stderr[-500:]}")


def _packages(environment: Path) -> list[Path]:
    """Return the metadata directories of an environment's packages."""
    return list(environment.glob("lib/python*/site-packages/*.dist-info"))


def _size(environment: Path) -> int:
    """Return the bytes of an environment's files."""
    return sum(
        os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(environment) for name in names
    )


def targets(rows: Sequence[Row]) -> list[Target]:
    measured = next((row.median for row in rows if (row.contender, row.measure) == (BASE, PACKAGES)), None)
    return [Target("install, base: packages", MAX_PACKAGES, "1", measured)]


def run(options: argparse.Namespace, session: Session) -> None:
    session.progress("wheel")
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir",
         str(session.directory), str(REPOSITORY))  # fmt: skip
    (wheel,) = session.directory.glob("*.whl")
    for what in options.subjects:
        session.progress(what)
        session.attempt(what, partial(measure, what, wheel, session.directory, int(options.repeat)))
    session.report("installs", targets)


def main(options: argparse.Namespace) -> int:
    return session.main("install", options.output, lambda session: run(options, session), root=False)
