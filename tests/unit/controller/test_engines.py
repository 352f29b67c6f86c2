"""Engines compute independent points: in this process or in several, with the same results and errors."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed.controller.engines import Engine, EngineError, ProcessEngine, SerialEngine, map_unordered
from testbed.errors import DescriptionError, FirmwareError, Problem

ROOT = Path(__file__).parents[3]
OWNER_SCRIPT = """
from testbed.controller.engines import ProcessEngine, map_unordered
from tests.unit.controller.test_engines import sleep_and_return_pid
for _, number in map_unordered(ProcessEngine(2), sleep_and_return_pid, [0, 0, 60, 60]):
    print(number, flush=True)
"""


KILLED_OWNER_SCRIPT = """
import os, signal
from testbed.controller.engines import ProcessEngine
with ProcessEngine(1).open() as executor:
    executor.submit(print)
    os.kill(os.getpid(), signal.SIGKILL)
"""
"""Script of an owner that is killed before its child has started."""


def square(number: int) -> int:
    return number * number


def current_pid(_: int) -> int:
    return os.getpid()


def sleep_and_return_pid(seconds: int) -> int:
    time.sleep(seconds)
    return os.getpid()


def refuse(number: int) -> int:
    if number == 2:
        raise DescriptionError("a file", [Problem("key", "2", "another number")])
    return number


def fail(_: int) -> int:
    raise FirmwareError("a descriptor without an owner", 17, "n1")


def die(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("engine", [SerialEngine(), ProcessEngine(2)], ids=["serial", "processes"])
def test_each_item_is_returned_with_its_result(engine: Engine) -> None:
    assert sorted(map_unordered(engine, square, range(5))) == [(number, number**2) for number in range(5)]
    assert list(map_unordered(engine, square, [])) == []


@pytest.mark.parametrize("engine", [SerialEngine(), ProcessEngine(2)], ids=["serial", "processes"])
def test_an_error_of_the_project_keeps_its_type_and_attributes(engine: Engine) -> None:
    with pytest.raises(DescriptionError, match="found 2, expected another number") as caught:
        list(map_unordered(engine, refuse, [2]))
    assert caught.value.problems == [Problem("key", "2", "another number")]
    assert caught.value.exit_code == 2
    with pytest.raises(FirmwareError, match="n1: at 17 ns") as failed:
        list(map_unordered(engine, fail, [0]))
    assert failed.value.when == 17


def test_a_child_whose_owner_dies_before_it_starts_exits() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_OWNER_SCRIPT], cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
    ) as owner:
        try:
            assert owner.communicate(timeout=30) == (
                b"",
                None,
            )  # end of file: the child, which inherits the pipe, has exited
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(owner.pid, signal.SIGKILL)
    assert owner.returncode == -signal.SIGKILL


def test_an_error_names_its_point_and_follows_the_earlier_results() -> None:
    results = map_unordered(SerialEngine(), refuse, [0, 1, 2, 3])
    assert [next(results), next(results)] == [(0, 0), (1, 1)]
    with pytest.raises(DescriptionError) as caught:
        next(results)
    assert caught.value.__notes__ == ["2"]


def test_the_death_of_a_process_is_a_one_line_error() -> None:
    with pytest.raises(EngineError, match="died while it computed 7 or a point in parallel"):
        list(map_unordered(ProcessEngine(2), die, [7]))


def test_an_interruption_leaves_neither_a_process_nor_a_thread() -> None:
    threads = threading.enumerate()
    opened = ProcessEngine(2).open()
    executor = opened.__enter__()
    started = executor.submit(current_pid, 0).result()
    pending = [executor.submit(sleep_and_return_pid, 60) for _ in range(5)]
    assert not opened.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert threading.enumerate() == threads
    assert not Path(f"/proc/{started}").exists()
    assert all(future.cancelled() or isinstance(future.exception(), BrokenExecutor) for future in pending)


def test_the_process_engine_uses_other_processes_and_the_serial_engine_this_one() -> None:
    assert {pid for _, pid in map_unordered(SerialEngine(), current_pid, range(3))} == {os.getpid()}
    assert os.getpid() not in {pid for _, pid in map_unordered(ProcessEngine(2), current_pid, range(3))}


class ThreadEngine:
    """Third-party engine that counts the points in progress."""

    width = 3

    def __init__(self) -> None:
        self.in_progress = self.max_in_progress = 0

    @contextmanager
    def open(self) -> Iterator[Executor]:
        engine = self

        class CountingExecutor(ThreadPoolExecutor):
            def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
                engine.in_progress += 1
                engine.max_in_progress = max(engine.max_in_progress, engine.in_progress)
                return super().submit(function, *arguments, **options)

        with CountingExecutor(self.width) as executor:
            yield executor


def test_a_third_party_engine_has_no_more_points_in_progress_than_its_width() -> None:
    engine, results = ThreadEngine(), []
    for _, result in map_unordered(engine, square, range(6)):
        engine.in_progress -= 1
        results.append(result)
    assert sorted(results) == [0, 1, 4, 9, 16, 25]
    assert engine.max_in_progress == engine.width


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_workers_exit_with_their_owner(signal_number: signal.Signals) -> None:
    command = [sys.executable, "-c", OWNER_SCRIPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        workers = {int(owner.stdout.readline()) for _ in range(2)}
        owner.send_signal(signal_number)
        assert owner.wait(20) != 0
    deadline = time.monotonic() + 20
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, workers))
