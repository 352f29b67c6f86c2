"""Marks of progress, in memory that processes share."""

from __future__ import annotations

import os
import time

import pytest

from testbed.runtime.nodes.run_progress import Progress


class Library:
    def __init__(self) -> None:
        self.told: list[int] = []

    def completed(self, index: int) -> None:
        self.told.append(index)

    def waiting(self) -> list[str]:
        return ["a message"]


def test_a_transfer_that_ends_is_told_to_the_library_and_its_time_is_seen() -> None:
    progress, library = Progress(3), Library()
    watched = progress.watched(1, library)
    assert progress.last() == [0, 0, 0]
    begun = time.monotonic_ns()
    watched.completed(7)
    watched.completed(8)
    assert library.told == [7, 8]
    first, second, third = progress.last()
    assert (first, third) == (0, 0)
    assert begun <= second <= time.monotonic_ns()
    assert watched.waiting() == ["a message"]


def test_a_probe_that_is_answered_is_no_progress() -> None:
    class Probing(Library):
        def completed(self, index: int) -> bool:  # type: ignore[override]
            self.told.append(index)
            return False

    progress, library = Progress(1), Probing()
    progress.watched(0, library).completed(7)
    assert library.told == [7]
    assert progress.last() == [0]


@pytest.mark.parametrize("program", [0, 1, 999])
def test_every_programs_mark_is_seen_from_another_process(program: int) -> None:
    progress = Progress(1_000)
    watched = progress.watched(program, Library())
    child = os.fork()
    if not child:
        watched.completed(0)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert [number for number, when in enumerate(progress.last()) if when] == [program]


def test_it_lets_its_memory_go() -> None:
    progress = Progress(1)
    assert progress.last() == [0]
    progress.close()
    with pytest.raises(ValueError, match="released"):
        progress.last()
