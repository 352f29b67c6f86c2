"""``ci/bench plugin``: a cluster's cost per test, and the plug-in's cost for pytest without clusters."""

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.harness import session
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.harness.targets import Target

OUTPUT = REPOSITORY / "results" / "bench-plugin.jsonl"
NODES = 4
PLUGIN, PLAIN = "testbed's plug-in", "pytest alone"
WITHOUT = "a test without a cluster"
TEST, COLLECT = "set-up, test and tear-down", "pytest --collect-only of one test, CPU"
COST_LIMIT, IDLE_LIMIT = 0.25, 0.02  # s

KINDS = {
    "simulated": 'mark("star-4", loss="1%", delay="2ms", mode="sim")',
    "live, unimpaired": 'mark("star-4", mode="live")',
    "live, by relay": 'mark("star-4", loss="1%", delay="2ms", datapath="relay", mode="live")',
    WITHOUT: "",
}

_CONFTEST = """
import collections, json
TOOK = collections.defaultdict(float)

def pytest_runtest_logreport(report):
    TOOK[report.nodeid] += report.duration

def pytest_sessionfinish(session):
    with open("took.json", "w") as file:
        json.dump(TOOK, file)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--tests", "40", "tests of each kind, after a warm-up")
    session.add_option(parser, "--repeat", "15", "runs of pytest with the plug-in and without it, alternately")
    session.add_subjects(parser, ("test", "idle"))
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def measure_tests(directory: Path, tests: int) -> Iterator[Row]:
    """Measure one pytest run with tests of all kinds in turn; the first repetition includes the imports."""
    functions = [
        f"{'@' + decorator if decorator else ''}\ndef test_{place}({'cluster' if decorator else ''}): pass\n"
        for place, decorator in enumerate(KINDS.values())
    ]
    # A module for each repetition: within a module, pytest would run all tests of a mode one after the other.
    for number in range(tests + 1):
        head = "import pytest\nmark = pytest.mark.cluster\n"
        (directory / f"test_{number:04}.py").write_text("\n".join([head, *functions]))
    (directory / "conftest.py").write_text(_CONFTEST)
    _pytest(directory, "--testbed-mode=both")
    durations: dict[str, float] = json.loads((directory / "took.json").read_text())
    for place, kind in enumerate(KINDS):
        _, *samples = [seconds for name, seconds in durations.items() if f"::test_{place}" in name]
        yield Row("test", kind, TEST, 0 if kind == WITHOUT else NODES, "s", tuple(samples), {"tests": tests})


def idle(directory: Path, repeat: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """Measure the processor time of pytest with one plain test, to a few milliseconds."""
    (directory / "test_plain.py").write_text("def test_nothing(): pass\n")
    samples: dict[str, list[float]] = {PLUGIN: [], PLAIN: []}
    for turn in range(repeat + 1):
        progress(f"idle: {turn} of {repeat}")
        for contender, options in ((PLUGIN, ()), (PLAIN, ("-p", "no:testbed"))):
            start = _children_cpu_time()
            _pytest(directory, "--collect-only", *options)
            if turn:
                samples[contender].append(_children_cpu_time() - start)
    for contender, values in samples.items():
        yield Row("idle", contender, COLLECT, 0, "s", tuple(values), {"runs": repeat})


def _children_cpu_time() -> float:
    """Return the CPU time of child processes that have ended, seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _pytest(directory: Path, *options: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ContenderError(f"pytest ended with code {done.returncode}: {done.stdout.strip().rpartition(chr(10))[2]}")


def targets(rows: Sequence[Row]) -> list[Target]:
    results = {(row.subject, row.contender): row for row in rows}
    plain = results.get(("test", WITHOUT))
    result = []
    for kind in KINDS:
        row = results.get(("test", kind))
        if kind != WITHOUT:
            cost = row.median - plain.median if row and plain else None
            result.append(
                Target(f"a cluster of {NODES} nodes, {kind}, beyond the test's own work", COST_LIMIT, "s", cost)
            )
    plugin, pytest = results.get(("idle", PLUGIN)), results.get(("idle", PLAIN))
    cost = None
    if plugin and pytest:
        pairs = zip(plugin.samples, pytest.samples, strict=True)
        cost = statistics.median(with_plugin - without for with_plugin, without in pairs)
    return [*result, Target("the plug-in in a project without clusters", IDLE_LIMIT, "s", cost)]


def run(options: argparse.Namespace, session: Session) -> None:
    for subject in ("test", "idle"):
        (session.directory / subject).mkdir()
    if "test" in options.subjects:
        session.progress("tests")
        session.attempt("test", lambda: measure_tests(session.directory / "test", int(options.tests)))
    if "idle" in options.subjects:
        session.attempt("idle", lambda: idle(session.directory / "idle", int(options.repeat), session.progress))
    session.report("pytest plug-in", targets)


def main(options: argparse.Namespace) -> int:
    return session.main("plugin", options.output, lambda session: run(options, session), root=False)
