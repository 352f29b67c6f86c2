"""Time of the last progress of each program, in memory shared by processes."""

from __future__ import annotations

import os
import time

import pytest

from testbed.kernel.children import fork
from testbed.runtime.nodes.run_progress import Progress


class FakeLibrary:
    def __init__(self) -> None:
        self.completions: list[int] = []

    def on_completion(self, index: int) -> None:
        self.completions.append(index)

    def pending_work(self) -> list[str]:
        return ["a message"]


def test_a_completion_reaches_the_library_and_sets_the_time() -> None:
    progress, library = Progress(3), FakeLibrary()
    wrapped_library = progress.wrap(1, library)
    assert progress.last_times() == [0, 0, 0]
    start_time = time.monotonic_ns()
    wrapped_library.on_completion(7)
    wrapped_library.on_completion(8)
    assert library.completions == [7, 8]
    first, second, third = progress.last_times()
    assert (first, third) == (0, 0)
    assert start_time <= second <= time.monotonic_ns()
    assert wrapped_library.pending_work() == ["a message"]


def test_an_answered_probe_is_no_progress() -> None:
    class ProbedLibrary(FakeLibrary):
        def on_completion(self, index: int) -> bool:  # type: ignore[override]
            self.completions.append(index)
            return False

    progress, library = Progress(1), ProbedLibrary()
    progress.wrap(0, library).on_completion(7)
    assert library.completions == [7]
    assert progress.last_times() == [0]


@pytest.mark.parametrize("program", [0, 1, 999])
def test_the_time_of_each_program_is_visible_in_another_process(program: int) -> None:
    progress = Progress(1_000)
    wrapped_library = progress.wrap(program, FakeLibrary())
    child = fork()
    if not child:
        wrapped_library.on_completion(0)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert [number for number, last_time in enumerate(progress.last_times()) if last_time] == [program]


def test_a_closed_progress_has_released_its_memory() -> None:
    progress = Progress(1)
    assert progress.last_times() == [0]
    progress.close()
    with pytest.raises(ValueError, match="released"):
        progress.last_times()
