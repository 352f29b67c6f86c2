"""Rings in shared memory: no entry or wake-up is lost, and invalid writes of the other end are detected."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.kernel.children import fork
from testbed.kernel.filesystem import make_sealed
from testbed.kernel.processes import wait_for_end
from testbed.runtime.shared.region import Region, RegionLayout
from testbed.runtime.shared.rings import ProtocolViolationError, Reader, Writer
from tests.unit.runtime.attached_hosts import ASLEEP, HEAD, TAIL

LONG = bool(os.environ.get("TESTBED_LONG"))
TIMEOUT = 60.0  # s

LAYOUT = RegionLayout(entries=8, descriptors=100, heap=5_000)


def region() -> Region:
    descriptor = make_sealed("test", LAYOUT.size)
    try:
        return Region(descriptor, LAYOUT)
    finally:
        os.close(descriptor)


def ends(memory: Region, wake: Callable[[], object] = lambda: None) -> tuple[Writer, Reader]:
    ring = memory.doorbells
    return Writer(ring.words, ring.numbers, wake), Reader(ring.words, ring.numbers)


@given(st.lists(st.integers(-5, 5)))
def test_numbers_are_taken_once_and_in_order(steps: list[int]) -> None:
    """A positive step puts that many entries; a negative one takes at most that many."""
    writer, reader = ends(region())
    model: deque[int] = deque()
    number = 0
    for step in steps:
        for _ in range(step):
            number += 1
            was_put = writer.put(number)
            assert was_put == (len(model) < LAYOUT.entries)
            if was_put:
                model.append(number)
        if step < 0:
            assert reader.take(-step) == [model.popleft() for _ in range(min(-step, len(model)))]
    assert reader.take(100) == list(model)


def test_the_reader_of_a_ring_with_numbers_may_not_sleep() -> None:
    writer, reader = ends(region())
    writer.put(1)
    assert not reader.announce_sleep()
    assert reader.take(1) == [1]
    assert reader.announce_sleep()


def test_a_sleeping_reader_is_woken_once_for_each_sleep() -> None:
    woken: list[int] = []
    writer, reader = ends(region(), lambda: woken.append(1))
    writer.put(1)
    assert woken == []
    reader.take(8)
    for sleeps in range(1, 4):
        assert reader.announce_sleep()
        writer.put(1)
        writer.put(2)
        assert len(woken) == sleeps
        reader.end_sleep()
        assert reader.take(8) == [1, 2]


def test_a_number_put_while_the_reader_announces_its_sleep_keeps_it_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is put between the reader's store of its sleep flag and its check of the tail."""
    memory = region()
    writer, _ = ends(memory)

    class PuttingFence:
        """Stand-in for the lock that acts as a memory fence."""

        def __enter__(self) -> None:
            writer.put(7)

        def __exit__(self, *_: object) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Lock", PuttingFence)
        _, reader = ends(memory)
    assert not reader.announce_sleep()
    assert memory.doorbells.words[ASLEEP] == 0
    assert reader.take(8) == [7]


@pytest.mark.parametrize("claimed_tail", [9, 2**64 - 1, 1 << 63])
def test_an_impossible_tail_is_a_violation(claimed_tail: int) -> None:
    memory = region()
    _, reader = ends(memory)
    memory.doorbells.words[TAIL] = claimed_tail
    with pytest.raises(ProtocolViolationError):
        reader.take(8)


def test_a_tail_that_moves_backwards_is_a_violation() -> None:
    memory = region()
    writer, reader = ends(memory)
    writer.put(1)
    reader.take(1)
    memory.doorbells.words[TAIL] = 0
    with pytest.raises(ProtocolViolationError):
        reader.take(8)


@pytest.mark.parametrize("claimed_head", [9, 2**64 - 1])
def test_an_impossible_head_is_a_violation(claimed_head: int) -> None:
    memory = region()
    writer, _ = ends(memory)
    while writer.put(1):
        pass
    memory.doorbells.words[HEAD] = claimed_head
    with pytest.raises(ProtocolViolationError):
        writer.put(1)


def test_the_size_of_sealed_memory_cannot_change() -> None:
    descriptor = make_sealed("test", 8192)
    try:
        for size in (0, 4096, 16384):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
        assert os.fstat(descriptor).st_size == 8192
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("layout", [(3, 0, 0), (0, 0, 0), (8, -1, 0)])
def test_an_invalid_layout_is_rejected(layout: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"power of two|region size must be 0 or more, got -1"):
        RegionLayout(*layout)


class LostWakeUpError(Exception):
    """A wake-up was lost."""


def _echo(memory: Region, count: int, sleeps: bool, bells: tuple[int, int]) -> None:
    """Copy every number from one ring into the other."""
    reader = Reader(memory.doorbells.words, memory.doorbells.numbers)
    writer = Writer(memory.completions.words, memory.completions.numbers, lambda: os.eventfd_write(bells[1], 1))
    _exchange(reader, sleeps, bells[0], count, writer.put)


def _exchange(reader: Reader, sleeps: bool, bell: int, count: int, callback: Callable[[int], object]) -> None:
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    expected = 0
    while expected < count:
        numbers = reader.take(8)
        for number in numbers:
            assert number == expected
            expected += 1
            callback(number)
        if numbers:
            continue
        if not sleeps:
            os.sched_yield()
        elif reader.announce_sleep():
            if not poll.poll(TIMEOUT * 1000):
                raise LostWakeUpError(f"after {expected}")
            reader.end_sleep()
            os.eventfd_read(bell)


@pytest.mark.parametrize(("sleeps", "peer_sleeps", "window", "count"), [
    (True, True, 1, 30_000), (True, False, 1, 30_000), (True, True, 3, 60_000),
    pytest.param(False, False, 1, 60_000, marks=pytest.mark.alone),  # in parallel, every turn waits for a time slice
    pytest.param(False, False, 8, 200_000 if LONG else 60_000, marks=pytest.mark.alone),
])  # fmt: skip
def test_no_wake_up_is_ever_lost_between_two_processes(
    sleeps: bool, peer_sleeps: bool, window: int, count: int
) -> None:
    """With a window of 1, a number is put after the echo of the previous one: a lost wake-up would stop both processes."""
    memory = region()
    bells = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
    pid = fork()
    if not pid:
        status = 1
        try:
            _echo(memory, count, peer_sleeps, bells)
            status = 0
        finally:
            os._exit(status)
    handle = os.pidfd_open(pid)
    try:
        writer = Writer(memory.doorbells.words, memory.doorbells.numbers, lambda: os.eventfd_write(bells[0], 1))
        for number in range(window):
            writer.put(number)

        def put_next(number: int) -> None:
            if number + window < count:
                assert writer.put(number + window)

        reader = Reader(memory.completions.words, memory.completions.numbers)
        _exchange(reader, sleeps, bells[1], count, put_next)
        assert wait_for_end(handle, TIMEOUT)
        pid, status = 0, os.waitpid(pid, 0)[1]
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        if pid:  # the child still runs
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(handle)
        for bell in bells:
            os.close(bell)
