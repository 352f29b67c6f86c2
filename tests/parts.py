"""Parts of the suite, which ``ci/test`` runs one after the other: TESTBED_PART selects one.

beside: tests that run in parallel processes. live: parallel too; each process has a sandbox, and waits more than it
works. alone: one test at a time: those marked ``alone``, which measure time or memory, files with that mark, and tests
that share clusters. Where the parts also run on the compiled build, TESTBED_THIRD is a seed: the interpreted parts then
run the unit tests, the files of a third of the others, drawn with it, and the tests that compiled code does not permit.
"""

from __future__ import annotations

import gc
import os
import random
import resource
from functools import cache
from pathlib import Path

import pytest

from protocols.core.compiled_build import build

PART = os.environ.get("TESTBED_PART", "")
THIRD = os.environ.get("TESTBED_THIRD", "")
SUMMARY = os.environ.get("TESTBED_SUMMARY", "")
"""A file to which a part adds the lines of its summary, so that ``ci/test`` can repeat them at the end."""

MAX_MEMORY = 10**9
"""Bytes that a process of the tests may have taken at its peak."""

GROWTH = 50_000_000
"""Bytes by which a process of the tests may grow before its garbage is collected."""

_HERE = Path(__file__).parent
_UNIT = _HERE / "unit"
_LIVE = _HERE / "live"
_ALONE = tuple(_HERE / name for name in ("semantics", "vm"))

_LONGEST = tuple(
    _HERE / name
    for name in (
        "live/test_tutorial.py", "live/test_splices.py", "live/test_documentation.py", "live/test_relay.py",
        "live/test_command.py", "live/test_plugin_live.py", "live/test_top_web.py", "live/test_datapath_changes.py",
        "live/test_check.py", "live/test_spread_faults.py", "live/test_inject.py", "live/test_converge.py",
        "live/test_spread_clusters.py", "live/test_plugin_machines.py", "live/test_machines_check.py",
        "live/test_machines_benchmark.py", "live/test_collectives_benchmark.py", "live/test_via_benchmark.py",
        "live/test_am2_benchmark.py", "live/test_inline_benchmark.py", "live/test_benchmarks.py",
        "live/applications/test_stacks_benchmark.py", "live/test_kill_points.py", "live/test_shared_nics.py",
        "live/test_openmx_everywhere.py", "live/test_collect.py", "live/test_ssam_everywhere.py", "live/test_udp.py",
        "live/test_secure_shell.py", "live/test_ranks_live.py", "live/test_shared_attaching.py", "live/test_am2_shared.py",
        "live/test_topologies.py", "live/test_kill_points_of_faults.py", "live/test_leaks_under_faults.py",
        "live/test_tags_live.py", "live/test_random_kills.py", "live/test_relay_leaks.py",
        "unit/protocols/test_codec.py", "unit/protocols/test_scapy_codec.py", "unit/documentation/test_build.py",
        "sim/test_workloads.py", "sim/test_conformance.py", "sim/test_studies.py", "sim/test_reproduce_command.py",
        "sim/test_progress_in_a_terminal.py", "sim/test_a_thousand_nodes.py", "sim/test_reproducing_openmx.py",
        "sim/test_am2_swarm.py", "sim/test_swarm.py", "sim/test_request_swarm.py", "sim/test_via_swarm.py",
    )
)  # fmt: skip
"""Files that take longest. They run first, so that no process has one left when the others have ended; those that mostly
wait run beside those that mostly work."""

_TITLES = {"beside": "beside each other", "live": "live, beside each other", "alone": "alone", "": "all"}
_OUTCOMES = ("failed", "error", "passed", "skipped", "xfailed")


@cache
def _drawn() -> frozenset[Path]:
    """Files of other tests than the unit tests that the interpreted parts run: a third. A file is drawn as a whole, since
    its tests share clusters."""
    others = [path for path in _HERE.rglob("test_*.py") if not path.is_relative_to(_UNIT)]
    others.sort(key=lambda path: random.Random(f"{THIRD} {path.relative_to(_HERE)}").random())
    return frozenset(others[: round(len(others) / 3)])


def _is_drawn(path: Path) -> bool:
    """Whether the interpreted parts run all tests of a file."""
    return not THIRD or path.is_relative_to(_UNIT) or path in _drawn()


def _is_for_compiled_only(item: pytest.Item) -> bool:
    requirements = (name for marker in item.iter_markers("requires") for name in marker.args)
    return not _is_drawn(item.path) and "interpreted" not in requirements


def part_of(item: pytest.Item) -> str:
    """The part that a test is of."""
    if item.get_closest_marker("alone") is not None or _is_in(item.path, _ALONE):
        return "alone"
    return "live" if item.path.is_relative_to(_LIVE) else "beside"


def is_left_out(path: Path, config: pytest.Config) -> bool:
    """Return whether a file or folder need not even be imported for this part. What is named on the command line always
    is."""
    if not PART or config.args_source is pytest.Config.ArgsSource.ARGS:
        return False
    if PART == "beside" and path in (*_ALONE, _LIVE):
        return True
    if PART == "live" and path.is_relative_to(_HERE) and path != _HERE and not path.is_relative_to(_LIVE):
        return True
    if path.suffix != ".py" or not path.name.startswith("test_"):
        return False
    if PART == "alone" and not _is_in(path, _ALONE) and "mark.alone" not in path.read_text():
        return True
    return not _is_drawn(path) and '"interpreted"' not in path.read_text()


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of the other parts."""
    if not PART:
        return
    others = [item for item in items if part_of(item) != PART or _is_for_compiled_only(item)]
    config.hook.pytest_deselected(items=others)
    left_out = set(others)
    items[:] = [item for item in items if item not in left_out]
    order = {path: index for index, path in enumerate(_LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def memory() -> int:
    """Memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak_memory() -> int:
    """Peak memory of this process, in bytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


class Peak:
    """Peak memory of this process, and the test in which it was reached."""

    def __init__(self) -> None:
        self.value: tuple[int, str] = (0, "")

    def note(self, test: str) -> None:
        """Note that a test has ended."""
        self.value = max(self.value, (peak_memory(), test), key=lambda reached: reached[0])


class Collector:
    """Collects garbage when the process has grown: Python does so only once a quarter of all objects are new, which in a
    process of thousands of tests lets some simulations' memory add up to a gigabyte."""

    def __init__(self) -> None:
        self._before = memory()

    def collect(self) -> None:
        """Call after each test."""
        if memory() > self._before + GROWTH:
            gc.collect()
            self._before = memory()


def add_summary(reporter: pytest.TerminalReporter, lines: list[str], peak: int) -> None:
    """Add this part's result to the common summary."""
    if not SUMMARY:
        return
    counts = [f"{len(reports):,} {outcome}" for outcome in _OUTCOMES if (reports := reporter.stats.get(outcome))]
    broken = [
        f"{outcome.upper()} {report.nodeid}"
        for outcome in ("failed", "error")
        for report in reporter.stats.get(outcome, ())
    ]
    head = f"{build()}, {_TITLES[PART]}: {', '.join(counts) or 'no tests'}; at most {peak / 1e6:,.0f} MB in a process"
    with Path(SUMMARY).open("a") as file:
        file.write("\n".join([head, *lines, *broken, ""]))


def _is_in(path: Path, folders: tuple[Path, ...]) -> bool:
    """Return whether a path is one of these files, or in one of these folders."""
    return any(path.is_relative_to(folder) for folder in folders)
