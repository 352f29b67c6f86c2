"""Adaptive spinning: the number of unsuccessful spins, and a driver that spins before it sleeps."""

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

from testbed.runtime.nodes.inline_driver import Driver
from testbed.runtime.nodes.inline_nic import InlineNic
from testbed.runtime.nodes.patience import MAX_SLEEPS, Patience
from testbed.runtime.nodes.veth_port import VethPort

if TYPE_CHECKING:
    from protocols.core.firmware import Firmware
    from testbed.kernel.frame_socket import FrameSocket

SPIN = Patience.SPIN


def spins(patience: Patience, waits: Sequence[bool]) -> list[bool]:
    """Return for each wait whether it starts with a spin. waits: whether the frame arrives soon enough for a spin to
    succeed."""
    spin_waits = []
    for is_soon in waits:
        starts_with_spin = patience.budget() > 0
        spin_waits.append(starts_with_spin)
        if not (starts_with_spin and is_soon):
            patience.spin_failed()
    return spin_waits


def test_while_frames_arrive_soon_every_wait_starts_with_a_spin() -> None:
    assert all(spins(Patience(SPIN), [True] * 1_000))


def test_after_each_unsuccessful_spin_twice_as_many_waits_have_no_spin() -> None:
    spin_waits = spins(Patience(SPIN), [False] * 100)
    assert [number for number, has_spin in enumerate(spin_waits) if has_spin] == [0, 2, 6, 14, 30, 62]


def test_after_one_successful_spin_every_wait_starts_with_a_spin_again() -> None:
    patience = Patience(SPIN)
    spins(patience, [False] * 1_000)
    spin_waits = spins(patience, [True] * 1_000)
    first = spin_waits.index(True)
    assert first <= MAX_SLEEPS
    assert all(spin_waits[first:])


@given(st.lists(st.booleans(), max_size=400))
def test_unsuccessful_spins_are_rare_however_frames_arrive(waits: list[bool]) -> None:
    spin_waits = spins(Patience(SPIN), waits)
    failed = sum(has_spin and not is_soon for has_spin, is_soon in zip(spin_waits, waits, strict=True))
    successful = sum(has_spin and is_soon for has_spin, is_soon in zip(spin_waits, waits, strict=True))
    # Between two successful spins, the n-th failed one causes 2**n - 1 waits without a spin, up to MAX_SLEEPS.
    longest = math.log2(MAX_SLEEPS + 1) + len(waits) / (MAX_SLEEPS + 1) + 1
    assert failed <= (successful + 1) * longest
    if not successful:
        assert failed <= longest


def test_without_a_budget_there_are_no_spins() -> None:
    assert not any(spins(Patience(0), [True, False] * 100))


def test_with_more_processes_than_processors_there_are_no_spins() -> None:
    processors = len(os.sched_getaffinity(0))
    assert Patience.for_processes(processors).budget() == SPIN
    assert Patience.for_processes(processors + 1).budget() == 0


class Machine:
    """Machine of a driver: clock, wire, firmware and sleep.

    Reading the clock takes a microsecond; frames arrive at given times in nanoseconds; a sleep lasts until the next frame,
    and after the last frame until another descriptor is ready.
    """

    def __init__(self, frames: Iterable[int]) -> None:
        self.time = 0
        self.frames = deque(frames)
        self.quiet: list[int] = []
        """Nanoseconds since the last frame, for each time that the driver fell asleep."""
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
        """Do nothing, as the firmware."""

    def fileno(self) -> int:
        return self._end.fileno()

    def sleep(self, _deadline: int | None) -> list[int]:
        self.quiet.append(self.time - self._last)
        if not self.frames:
            return [self._other.fileno()]  # a watched descriptor is ready
        self.time = self.frames[0]
        return []

    def drive(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Drive a NIC until all frames have arrived."""
        monkeypatch.setattr("testbed.runtime.nodes.inline_driver.time", self)
        wire = cast("FrameSocket", self)
        driver = Driver(wire, InlineNic(VethPort(wire)), cast("Firmware", self), 0, Patience(SPIN))
        monkeypatch.setattr(driver, "_sleep", self.sleep)
        with closing(driver), closing(self._end), closing(self._other):
            driver.wait(None)


@pytest.mark.requires("interpreted")
def test_a_driver_whose_frames_arrive_soon_sleeps_only_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(range(0, 100 * SPIN // 2, SPIN // 2))
    machine.drive(monkeypatch)
    assert len(machine.quiet) == 1
    assert machine.quiet[0] >= SPIN


@pytest.mark.requires("interpreted")
def test_a_driver_whose_frames_arrive_slowly_mostly_sleeps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(range(0, 100 * 20 * SPIN, 20 * SPIN))
    machine.drive(monkeypatch)
    assert len(machine.quiet) == 100
    spin_waits = [number for number, quiet_time in enumerate(machine.quiet) if quiet_time >= SPIN]
    assert spin_waits == [0, 2, 6, 14, 30, 62]
    assert all(quiet_time < SPIN // 10 for number, quiet_time in enumerate(machine.quiet) if number not in spin_waits)
