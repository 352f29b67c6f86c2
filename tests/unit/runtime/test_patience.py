"""Looking before sleeping: how often a process does that in vain, and that a driver does both."""

from __future__ import annotations

import math
import os
import socket
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.runtime.nodes.inline import InlineNic
from testbed.runtime.nodes.inline_driver import Driver
from testbed.runtime.nodes.patience import MAX, Patience
from testbed.runtime.nodes.veth_port import VethPort

if TYPE_CHECKING:
    from protocols.core.firmware import Firmware
    from testbed.kernel.frame_socket import FrameSocket

LOOK = Patience.LOOK


def looks(patience: Patience, waits: Sequence[bool]) -> list[bool]:
    """Tell for each wait whether it begins with a poll. waits: whether the frame comes soon enough for a poll to find
    it."""
    found = []
    for soon in waits:
        looked = patience.budget() > 0
        found.append(looked)
        if not (looked and soon):
            patience.spin_failed()
    return found


def test_while_frames_come_soon_every_wait_begins_with_a_look() -> None:
    assert all(looks(Patience(LOOK), [True] * 1_000))


def test_after_each_look_in_vain_twice_as_many_waits_begin_asleep() -> None:
    found = looks(Patience(LOOK), [False] * 100)
    assert [number for number, looked in enumerate(found) if looked] == [0, 2, 6, 14, 30, 62]


def test_one_frame_that_comes_while_it_is_looked_for_and_every_wait_begins_with_a_look_again() -> None:
    patience = Patience(LOOK)
    looks(patience, [False] * 1_000)
    found = looks(patience, [True] * 1_000)
    first = found.index(True)
    assert first <= MAX
    assert all(found[first:])


@given(st.lists(st.booleans(), max_size=400))
def test_looks_in_vain_are_few_however_frames_come(waits: list[bool]) -> None:
    found = looks(Patience(LOOK), waits)
    vain = sum(looked and not soon for looked, soon in zip(found, waits, strict=True))
    good = sum(looked and soon for looked, soon in zip(found, waits, strict=True))
    # Between two that are not in vain the n-th costs 2**n - 1 waits without one, up to MAX.
    longest = math.log2(MAX + 1) + len(waits) / (MAX + 1) + 1
    assert vain <= (good + 1) * longest
    if not good:
        assert vain <= longest


def test_who_shall_sleep_at_once_never_looks() -> None:
    assert not any(looks(Patience(0), [True, False] * 100))


def test_nobody_looks_where_processes_are_more_than_processors() -> None:
    processors = len(os.sched_getaffinity(0))
    assert Patience.among(processors).budget() == LOOK
    assert Patience.among(processors + 1).budget() == 0


class Machine:
    """A driver's clock, its wire, on which frames come at given times in nanoseconds, and its sleep, which passes at once
    until the next frame and for ever after the last. Looking at the clock takes a microsecond."""

    def __init__(self, frames: Iterable[int]) -> None:
        self.time = 0
        self.frames = deque(frames)
        self.quiet: list[int] = []
        """For how long nothing had come, in nanoseconds, each time that the driver fell asleep."""
        self.deadline = None
        self._last = 0
        self._end, self._other = socket.socketpair()

    def monotonic_ns(self) -> int:
        self.time += 1_000
        return self.time

    def next_frame(self) -> bytes | None:
        if not self.frames or self.frames[0] > self.time:
            return None
        self.frames.popleft()
        self._last = self.time
        return b"frame"

    def send(self, _frame: bytes) -> None:
        raise AssertionError("nothing is sent")

    def receive(self, _now: int, _frame: bytes) -> None:
        """The firmware's: it does nothing."""

    def fileno(self) -> int:
        return self._end.fileno()

    def sleep(self, _deadline: int | None) -> list[int]:
        self.quiet.append(self.time - self._last)
        if not self.frames:
            return [self._other.fileno()]  # something else is ready
        self.time = self.frames[0]
        return []

    def drive(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Drive a NIC until all frames have come."""
        monkeypatch.setattr("testbed.runtime.nodes.inline_driver.time", self)
        wire = cast("FrameSocket", self)
        driver = Driver(wire, InlineNic(VethPort(wire)), cast("Firmware", self), 0, Patience(LOOK))
        monkeypatch.setattr(driver, "_sleep", self.sleep)
        with closing(driver), closing(self._end), closing(self._other):
            driver.wait(None)


@pytest.mark.requires("interpreted")
def test_a_driver_whose_frames_come_soon_sleeps_only_behind_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(range(0, 100 * LOOK // 2, LOOK // 2))
    machine.drive(monkeypatch)
    assert len(machine.quiet) == 1
    assert machine.quiet[0] >= LOOK


@pytest.mark.requires("interpreted")
def test_a_driver_whose_frames_come_slowly_sleeps_at_once_most_often(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(range(0, 100 * 20 * LOOK, 20 * LOOK))
    machine.drive(monkeypatch)
    assert len(machine.quiet) == 100
    looked = [number for number, quiet in enumerate(machine.quiet) if quiet >= LOOK]
    assert looked == [0, 2, 6, 14, 30, 62]
    assert all(quiet < LOOK // 10 for number, quiet in enumerate(machine.quiet) if number not in looked)
