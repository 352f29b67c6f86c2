"""Rings in shared memory: no entry is lost, no process sleeps for ever, and the other end may write anything."""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.kernel.filesystem import make_sealed
from testbed.kernel.processes import wait_for_end
from testbed.runtime.shared.region import Layout, Region
from testbed.runtime.shared.rings import ProtocolViolationError, Reader, Writer

LONG = bool(os.environ.get("TESTBED_LONG"))
TIMEOUT = 60.0  # s

LAYOUT = Layout(entries=8, descriptors=100, heap=5_000)
_HEAD, _ASLEEP = 16, 32  # where these words are


def region() -> Region:
    descriptor = make_sealed("test", LAYOUT.size)
    try:
        return Region(descriptor, LAYOUT)
    finally:
        os.close(descriptor)


def ends(shared: Region, wake: Callable[[], object] = lambda: None) -> tuple[Writer, Reader]:
    ring = shared.doorbells
    return Writer(ring.words, ring.numbers, wake), Reader(ring.words, ring.numbers)


@given(st.lists(st.integers(-5, 5)))
def test_what_is_put_is_taken_once_and_in_order(steps: list[int]) -> None:
    """A positive step puts that many entries; a negative one takes at most that many."""
    writer, reader = ends(region())
    model: deque[int] = deque()
    number = 0
    for step in steps:
        for _ in range(step):
            number += 1
            taken = writer.put(number)
            assert taken == (len(model) < LAYOUT.entries)
            if taken:
                model.append(number)
        if step < 0:
            assert reader.take(-step) == [model.popleft() for _ in range(min(-step, len(model)))]
    assert reader.take(100) == list(model)


def test_whoever_has_something_to_read_may_not_sleep() -> None:
    writer, reader = ends(region())
    writer.put(1)
    assert not reader.doze()
    assert reader.take(1) == [1]
    assert reader.doze()


def test_a_sleeper_is_woken_once_for_each_sleep() -> None:
    woken: list[int] = []
    writer, reader = ends(region(), lambda: woken.append(1))
    writer.put(1)
    assert woken == []
    reader.take(8)
    for sleep in range(1, 4):
        assert reader.doze()
        writer.put(1)
        writer.put(2)
        assert len(woken) == sleep
        reader.rise()
        assert reader.take(8) == [1, 2]


def test_a_put_between_the_two_looks_of_a_sleeper_is_seen() -> None:
    """The sleeper's word is stored before its second look: a writer that comes in between may find either."""
    shared = region()
    writer, reader = ends(shared)

    class Between:
        """The lock between the two."""

        def __enter__(self) -> None:
            writer.put(7)

        def __exit__(self, *_: object) -> None: ...

    reader._fence = Between()  # type: ignore[assignment]
    assert not reader.doze()
    assert shared.doorbells.words[_ASLEEP] == 0
    assert reader.take(8) == [7]


@pytest.mark.parametrize("claimed", [9, 2**64 - 1, 1 << 63])
def test_a_tail_that_cannot_be_is_misconduct(claimed: int) -> None:
    shared = region()
    _, reader = ends(shared)
    shared.doorbells.words[0] = claimed
    with pytest.raises(ProtocolViolationError):
        reader.take(8)


def test_a_tail_that_goes_back_is_misconduct() -> None:
    shared = region()
    writer, reader = ends(shared)
    writer.put(1)
    reader.take(1)
    shared.doorbells.words[0] = 0
    with pytest.raises(ProtocolViolationError):
        reader.take(8)


@pytest.mark.parametrize("claimed", [9, 2**64 - 1])
def test_a_head_that_cannot_be_is_misconduct(claimed: int) -> None:
    shared = region()
    writer, _ = ends(shared)
    while writer.put(1):
        pass
    shared.doorbells.words[_HEAD] = claimed
    with pytest.raises(ProtocolViolationError):
        writer.put(1)


def test_nobody_can_change_the_size_of_sealed_memory() -> None:
    descriptor = make_sealed("test", 8192)
    try:
        for size in (0, 4096, 16384):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
        assert os.fstat(descriptor).st_size == 8192
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("layout", [(3, 0, 0), (0, 0, 0), (8, -1, 0)])
def test_a_layout_that_cannot_be_is_refused(layout: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"power of two|region size must be 0 or more, got -1"):
        Layout(*layout)


class LostError(Exception):
    """A wake-up."""


def _answer(shared: Region, count: int, sleep: bool, bells: tuple[int, int]) -> None:
    """Copy every number from one ring into the other."""
    reader = Reader(shared.doorbells.words, shared.doorbells.numbers)
    writer = Writer(shared.completions.words, shared.completions.numbers, lambda: os.eventfd_write(bells[1], 1))
    _exchange(reader, sleep, bells[0], count, writer.put)


def _exchange(reader: Reader, sleep: bool, bell: int, count: int, then: Callable[[int], object]) -> None:
    waiting = select.poll()
    waiting.register(bell, select.POLLIN)
    expected = 0
    while expected < count:
        found = reader.take(8)
        for number in found:
            assert number == expected
            expected += 1
            then(number)
        if found:
            continue
        if not sleep:
            os.sched_yield()
        elif reader.doze():
            if not waiting.poll(TIMEOUT * 1000):
                raise LostError(f"after {expected}")
            reader.rise()
            os.eventfd_read(bell)


@pytest.mark.parametrize(("sleep", "other_sleeps", "window", "count"), [
    (True, True, 1, 30_000), (True, False, 1, 30_000), (True, True, 3, 60_000),
    pytest.param(False, False, 1, 60_000, marks=pytest.mark.alone),  # beside others, every turn waits for a slice of theirs
    pytest.param(False, False, 8, 200_000 if LONG else 60_000, marks=pytest.mark.alone),
])  # fmt: skip
def test_no_wake_up_is_ever_lost_between_two_processes(
    sleep: bool, other_sleeps: bool, window: int, count: int
) -> None:
    """With a window of one every number answers the one before: a single lost wake-up would stop both processes."""
    shared = region()
    bells = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
    pid = os.fork()
    if not pid:
        status = 1
        try:
            _answer(shared, count, other_sleeps, bells)
            status = 0
        finally:
            os._exit(status)
    handle = os.pidfd_open(pid)
    try:
        writer = Writer(shared.doorbells.words, shared.doorbells.numbers, lambda: os.eventfd_write(bells[0], 1))
        for number in range(window):
            writer.put(number)

        def another(number: int) -> None:
            if number + window < count:
                assert writer.put(number + window)

        reader = Reader(shared.completions.words, shared.completions.numbers)
        _exchange(reader, sleep, bells[1], count, another)
        assert wait_for_end(handle, TIMEOUT)
        pid, status = 0, os.waitpid(pid, 0)[1]
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        if pid:  # it would spin on
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(handle)
        for bell in bells:
            os.close(bell)
