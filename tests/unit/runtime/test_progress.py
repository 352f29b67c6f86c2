"""Marks of progress, in memory that processes share."""

from __future__ import annotations

import os

import pytest

from testbed.runtime.nodes.progress import Progress


class Library:
    def __init__(self) -> None:
        self.told: list[int] = []

    def completed(self, index: int) -> None:
        self.told.append(index)

    def waiting(self) -> list[str]:
        return ["a message"]


def test_a_transfer_that_ends_is_told_to_the_library_and_seen_once() -> None:
    progress, library = Progress(3), Library()
    watched = progress.watched(1, library)
    assert not progress.look()
    watched.completed(7)
    watched.completed(8)
    assert library.told == [7, 8]
    assert progress.look()
    assert not progress.look()
    assert watched.waiting() == ["a message"]


@pytest.mark.parametrize("program", [0, 1, 999])
def test_every_programs_mark_is_seen_from_another_process(program: int) -> None:
    progress = Progress(1_000)
    watched = progress.watched(program, Library())
    child = os.fork()
    if not child:
        watched.completed(0)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert progress.look()
    assert not progress.look()


def test_it_lets_its_memory_go() -> None:
    progress = Progress(1)
    assert not progress.look()
    progress.close()
    with pytest.raises(ValueError, match="released"):
        progress.look()
