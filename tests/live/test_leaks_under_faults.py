"""A small run with random faults under the leak monitor of ``ci/bench runs``, and the monitor itself on artificial leaks."""

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
from benchmarks.runs.storm import (
    DESCRIPTORS,
    LEFT,
    MEMORY,
    MESSAGES,
    WRONG,
    Storm,
    growth_by_kind,
    remains,
    rows,
    watch_storm,
)
from benchmarks.runs.storm import machine as machine_now
from benchmarks.runs.targets import STEADY, leaks

LEAK_OR_SLEEP = """
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(15, b"node n1", 0, 0, 0)  # PR_SET_NAME
leaked = []
print("ready", flush=True)
for _ in range(80):
    if sys.argv[1] == "leaks":
        leaked.append((bytearray(os.urandom(64_000)), os.open("/dev/null", os.O_RDONLY)))
    time.sleep(0.05)  # interval of the leaks
"""


def watch_process(behaviour: str) -> Watch:
    """Watch a process until it ends. behaviour: "leaks" 64 kB and a descriptor every 50 ms, or "sleeps"."""
    mark = f"leak-{os.getpid()}-{time.monotonic_ns()}"
    with subprocess.Popen(
        [sys.executable, "-c", LEAK_OR_SLEEP, behaviour], env={**os.environ, MARK: mark}, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        watch = Watch(mark, 0)
        while process.poll() is None:
            watch.sample()
            time.sleep(0.05)  # between two samples
    return watch


def test_an_artificial_leak_is_detected() -> None:
    memory, descriptors = growth_by_kind(watch_process("leaks"))["node processes"]
    assert memory.least > STEADY
    assert descriptors > 0


def test_a_process_without_a_leak_is_not_reported() -> None:
    memory, descriptors = growth_by_kind(watch_process("sleeps"))["node processes"]
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
        watch.sample()
        (network,) = watch.networks
        assert remains(watch, before) == [f"process {process.pid}", f"network namespace {network}"]
        process.communicate()
    assert remains(watch, before) == []


@pytest.mark.requires("root")
@pytest.mark.usefixtures("machine")
@pytest.mark.alone  # it needs a number of samples within its time
@pytest.mark.timeout(180)
@pytest.mark.parametrize("relay", [True, pytest.param(False, marks=pytest.mark.requires("bpf"))])
def test_random_traffic_under_loss_and_flaps_loses_and_leaks_nothing(tmp_path: Path, relay: bool) -> None:
    storm = Storm(nodes=4, messages=4_000, seconds=5, every=0.05, relay=relay)
    result_rows = list(rows(storm, watch_storm(storm, tmp_path)))
    assert value(result_rows, MESSAGES) == 4_000
    assert value(result_rows, WRONG) == value(result_rows, LEFT) == 0
    assert leaks(result_rows) == []
    node_memory = next(row for row in result_rows if row.measure == f"node processes: {MEMORY}")
    assert node_memory.settings["samples"] >= MIN
    kinds = {row.measure.partition(":")[0] for row in result_rows if row.measure.endswith(DESCRIPTORS)}
    assert kinds >= {"controller", "warm parent", "node processes"} | ({"relay", "supervisor"} if relay else set())


def value(rows: list[Row], measure: str) -> float:
    (row,) = [row for row in rows if row.measure == measure]
    return row.median
