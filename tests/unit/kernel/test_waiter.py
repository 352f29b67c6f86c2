"""Waiting for descriptors and a deadline: never early, and neither delays the other."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from testbed.kernel.waiter import SPIN, Waiter

MILLISECOND = 1_000_000


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


@pytest.fixture(params=[(SPIN, False), (0, False), (0, True)], ids=["spinning", "never spinning", "light"])
def waiter(request: pytest.FixtureRequest) -> Iterator[Waiter]:
    spin, is_light = request.param
    waiter = Waiter(spin, is_light=is_light)
    yield waiter
    waiter.close()


def wait_for_ready(waiter: Waiter, reader: int) -> int:
    """Wait for a ready descriptor, and return the deadline, whose alarm is still set.

    A process that is preempted for too long finds the deadline expired first: it retries with twice the margin.
    """
    margin = MILLISECOND
    deadline = waiter.now() + margin
    while (ready := list(waiter.wait(deadline))) != [reader]:
        assert not ready
        assert waiter.now() >= deadline
        assert margin < 60_000 * MILLISECOND, "a ready descriptor is never reported"
        margin *= 2
        deadline = waiter.now() + margin
    return deadline


@pytest.mark.parametrize("margin", [0, 1_000, 10_000, 30_000, 100_000, MILLISECOND])
def test_a_wait_never_returns_before_its_deadline(waiter: Waiter, margin: int) -> None:
    for _ in range(50):
        deadline = waiter.now() + margin
        assert not waiter.wait(deadline)
        assert waiter.now() >= deadline


def test_a_ready_descriptor_is_reported_long_before_the_deadline(waiter: Waiter, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    waiter.watch(reader)
    os.write(writer, b"x")
    deadline = waiter.now() + 60_000 * MILLISECOND
    assert list(waiter.wait(deadline)) == [reader]
    assert waiter.now() < deadline


@pytest.mark.parametrize("margin", [-MILLISECOND, 0, 1_000])
def test_expired_deadlines_do_not_delay_descriptors(waiter: Waiter, pipe: tuple[int, int], margin: int) -> None:
    reader, writer = pipe
    waiter.watch(reader)
    os.write(writer, b"x")
    assert list(waiter.wait(waiter.now() + margin)) == [reader]


def test_a_moved_deadline_moves_its_alarm(waiter: Waiter, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    waiter.watch(reader)
    os.write(writer, b"x")
    early_deadline = wait_for_ready(waiter, reader)
    os.read(reader, 1)
    late_deadline = early_deadline + 20 * MILLISECOND
    assert not waiter.wait(late_deadline)
    assert waiter.now() >= late_deadline


def test_without_a_deadline_an_earlier_alarm_does_not_expire(waiter: Waiter, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    waiter.watch(reader)
    os.write(writer, b"x")
    early_deadline = wait_for_ready(waiter, reader)
    while waiter.now() < early_deadline:
        pass
    assert list(waiter.wait(None)) == [reader]


def test_an_unwatched_descriptor_is_not_reported(waiter: Waiter, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    waiter.watch(reader)
    os.write(writer, b"x")
    waiter.unwatch(reader)
    assert not waiter.wait(waiter.now() + MILLISECOND)
