"""A small storm is monitored like the large one of ``ci/bench runs``: nothing grows, nothing is left. An artificial leak of
memory and descriptors is found."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.harness.rows import Row
from benchmarks.runs.leaks import MIN
from benchmarks.runs.process_watch import MARK, Watch
from benchmarks.runs.storm import DESCRIPTORS, LEFT, MEMORY, MESSAGES, WRONG, Storm, gained, remains, rows, watched
from benchmarks.runs.storm import machine as machine_now
from benchmarks.runs.targets import STEADY, leaks

LEAKING = """
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(15, b"node n1", 0, 0, 0)  # PR_SET_NAME
kept = []
print("ready", flush=True)
for _ in range(80):
    if sys.argv[1] == "leaks":
        kept.append((bytearray(os.urandom(64_000)), os.open("/dev/null", os.O_RDONLY)))
    time.sleep(0.05)  # interval of the leaks
"""


def watched_process(behaviour: str) -> Watch:
    """Watch a process until it ends. "leaks": it leaks 64 kB and a descriptor every 50 ms; "sleeps": it does not."""
    mark = f"leak-{os.getpid()}-{time.monotonic_ns()}"
    with subprocess.Popen(
        [sys.executable, "-c", LEAKING, behaviour], env={**os.environ, MARK: mark}, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        watch = Watch(mark, 0)
        while process.poll() is None:
            watch.look()
            time.sleep(0.05)  # between two samples
    return watch


def test_an_artificial_leak_is_found() -> None:
    memory, descriptors = gained(watched_process("leaks"))["node processes"]
    assert memory.least > STEADY
    assert descriptors > 0


def test_a_process_that_does_not_leak_is_not_suspected() -> None:
    memory, descriptors = gained(watched_process("sleeps"))["node processes"]
    assert (memory.least, descriptors) == (0, 0)


@pytest.mark.requires("root")
def test_leaked_processes_and_namespaces_are_reported() -> None:
    before, mark = machine_now(), f"left-{os.getpid()}-{time.monotonic_ns()}"
    program = "import ctypes, sys; ctypes.CDLL(None).unshare(0x40000000); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, MARK: mark}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        watch = Watch(mark, process.pid)
        watch.look()
        (network,) = watch.networks
        assert remains(watch, before) == [f"process {process.pid}", f"network namespace {network}"]
        process.communicate()
    assert remains(watch, before) == []


@pytest.mark.requires("root")
@pytest.mark.usefixtures("machine")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("relay", [True, pytest.param(False, marks=pytest.mark.requires("bpf"))])
def test_random_traffic_over_losses_and_flaps_loses_nothing_and_leaves_nothing(tmp_path: Path, relay: bool) -> None:
    storm = Storm(nodes=4, messages=4_000, seconds=5, every=0.05, relay=relay)
    actual = list(rows(storm, watched(storm, tmp_path)))
    assert value(actual, MESSAGES) == 4_000
    assert value(actual, WRONG) == value(actual, LEFT) == 0
    assert leaks(actual) == []
    of_nodes = next(row for row in actual if row.measure == f"node processes: {MEMORY}")
    assert of_nodes.settings["samples"] >= MIN
    kinds = {row.measure.partition(":")[0] for row in actual if row.measure.endswith(DESCRIPTORS)}
    assert kinds >= {"controller", "warm parent", "node processes"} | ({"relay", "supervisor"} if relay else set())


def value(rows: list[Row], measure: str) -> float:
    (row,) = [row for row in rows if row.measure == measure]
    return row.median
