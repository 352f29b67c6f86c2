"""Driver of an inline NIC: its spinning, and timers under a continuous flood of frames."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, cast

import pytest

from protocols.core.completion import Completion
from protocols.core.firmware import Agent
from testbed.runtime.nodes.inline_driver import Driver
from testbed.runtime.nodes.inline_nic import InlineNic
from testbed.runtime.nodes.patience import Patience
from testbed.runtime.nodes.veth_port import VethPort

pytestmark = pytest.mark.requires("interpreted")

if TYPE_CHECKING:
    from protocols.core.firmware import Firmware, Host
    from testbed.kernel.frame_socket import FrameSocket

SPIN = 200_000
IN_A_ROW = 64
"""Frames in a row after which deadlines and other descriptors are checked."""


class Machine:
    """Machine of a driver: clock, wire, firmware and sleep.

    Reading the clock advances it by a microsecond; frames arrive at given times in ns; a sleep passes at once, until
    the next frame or as `naps` says.
    """

    def __init__(self, frames: Iterable[int] = ()) -> None:
        self.time = 0
        self.frames = deque(frames)
        self.received = 0
        self.naps: deque[int] = deque()
        """Nanoseconds after which the kernel wakes the driver without an event."""
        self.idle: list[int] = []
        """Nanoseconds without a frame, for each time that the driver fell asleep."""
        self.sent: list[str] = []
        self.deadline: int | None = None
        self.timer_calls: list[int] = []
        """Number of received frames at each call of the firmware's `on_timer`."""
        self.on_frame: Callable[[], object] = lambda: None
        self._since = 0
        self._end, self._other = socket.socketpair()

    @contextmanager
    def driver(self, monkeypatch: pytest.MonkeyPatch, spin: int = 0) -> Iterator[tuple[Driver, InlineNic]]:
        """Return a driver that spins for `spin` ns and polls no further before sleeping."""
        monkeypatch.setattr("testbed.runtime.nodes.inline_driver.time", self)
        wire, firmware = cast("FrameSocket", self), cast("Firmware", self)
        nic = InlineNic(VethPort(wire))
        nic.attach(Agent(firmware, cast("Host", self)))
        driver = Driver(wire, nic, firmware, spin, Patience(0))
        monkeypatch.setattr(driver, "_sleep", self._sleep)
        with closing(self._end), closing(self._other), closing(driver):
            yield driver, nic

    def monotonic_ns(self) -> int:
        self.time += 1_000
        return self.time

    def next_frame(self) -> bytes | None:
        if not self.frames or self.frames[0] > self.time:
            return None
        self.frames.popleft()
        self._since = self.time
        return b"frame"

    def send(self, frame: bytes) -> None:
        self.sent.append(frame.decode())

    def fileno(self) -> int:
        return self._end.fileno()

    def receive(self, _now: int, _frame: bytes) -> None:
        self.received += 1
        self.on_frame()

    def on_timer(self, _now: int) -> None:
        self.deadline = None
        self.timer_calls.append(self.received)

    def on_doorbell(self, _now: int, _index: int) -> None:
        raise AssertionError("no doorbell is rung")

    def on_completion(self, _index: int) -> None:
        raise AssertionError("nothing was posted")

    def _sleep(self, _deadline: int | None) -> list[int]:
        self.idle.append(self.time - self._since)
        if self.naps:
            self.time += self.naps.popleft()
        elif self.frames:
            self.time = self.frames[0]
        else:
            return [self._other.fileno()]  # a watched descriptor is ready
        self._since = self.time
        return []


def test_a_driver_that_spins_sleeps_after_a_spin_without_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(range(0, 100 * SPIN // 2, SPIN // 2))
    with machine.driver(monkeypatch, SPIN) as (driver, _):
        driver.wait(None)
    assert machine.received == 100
    assert len(machine.idle) == 1
    assert SPIN <= machine.idle[0] < 1.1 * SPIN


def test_a_driver_that_does_not_spin_sleeps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(range(0, 100 * SPIN // 2, SPIN // 2))
    with machine.driver(monkeypatch) as (driver, _):
        driver.wait(None)
    assert len(machine.idle) == 100
    assert max(machine.idle) < SPIN // 10


def test_after_a_wakeup_without_an_event_the_driver_spins_again_before_it_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    machine.naps += [10 * SPIN] * 3
    with machine.driver(monkeypatch, SPIN) as (driver, _):
        driver.wait(None)
    assert len(machine.idle) == 4
    assert all(SPIN <= idle_time < 1.1 * SPIN for idle_time in machine.idle)


def test_the_firmwares_deadline_is_kept_under_a_flood_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([0] * 1_000)
    machine.deadline = 1_000
    with machine.driver(monkeypatch) as (driver, _):
        driver.wait(None)
    assert machine.received == 1_000
    assert machine.timer_calls == [IN_A_ROW]


def test_a_pause_between_frames_starts_a_new_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause between frames runs the due timers anyway."""
    half_row = IN_A_ROW // 2
    machine = Machine([0] * half_row + [SPIN] * 1_000)

    def set_deadline() -> None:
        if machine.received == half_row + 1:
            machine.deadline = machine.time

    machine.on_frame = set_deadline
    with machine.driver(monkeypatch) as (driver, _):
        driver.wait(None)
    assert machine.timer_calls == [half_row + IN_A_ROW]


def test_other_descriptors_are_checked_under_a_flood_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([0] * 1_000)
    watched_socket, peer = socket.socketpair()
    with watched_socket, peer, machine.driver(monkeypatch) as (driver, _):
        driver.watch(watched_socket.fileno())
        peer.send(b"word")
        assert driver.wait(None) == [watched_socket.fileno()]
        assert machine.received == IN_A_ROW
        assert driver.wait(None) == [watched_socket.fileno()]
        assert machine.received == 2 * IN_A_ROW
        driver.unwatch(watched_socket.fileno())
        driver.wait(None)
    assert machine.received == 1_000


def test_the_loops_deadline_is_kept_under_a_flood_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([0] * 1_000)
    with machine.driver(monkeypatch) as (driver, _):
        assert not driver.wait(100_000)
    assert machine.time == pytest.approx(100_000, abs=3_000)


def test_deferred_frames_leave_after_a_programs_reply_only_while_replies_are_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick_reply, slow_reply = 10_000, 150_000
    machine = Machine(range(1_000_000, 6_000_000, 1_000_000))
    arrived: deque[Completion[None]] = deque()

    async def program() -> None:
        for step in (quick_reply, quick_reply, slow_reply, quick_reply, quick_reply):
            arrived.append(Completion("a frame"))
            await arrived[0]
            machine.time += step
            machine.sent.append("answer")

    with machine.driver(monkeypatch) as (driver, nic):

        def acknowledge() -> None:
            nic.send_later(lambda: b"ack")
            arrived.popleft().complete(None)

        machine.on_frame = acknowledge
        driver.loop.complete(program())
    exchanges = list(zip(machine.sent[::2], machine.sent[1::2], strict=True))
    at_once, deferred = ("ack", "answer"), ("answer", "ack")
    assert exchanges == [at_once, deferred, deferred, at_once, deferred]
