"""Driver of an inline NIC: spinning, and timers under a flood of frames."""

from __future__ import annotations

import socket
from collections import deque

import pytest

from protocols.core.completion import Completion
from tests.unit.runtime.driver_machine import Machine

pytestmark = pytest.mark.requires("interpreted")

SPIN = 200_000
BURST = 64
"""Consecutive frames after which deadlines and other descriptors are checked."""


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
    machine.early_wake_ups += [10 * SPIN] * 3
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
    assert machine.timer_calls == [BURST]


def test_a_pause_between_frames_starts_a_new_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """Due timers also run in a pause between frames."""
    half_burst = BURST // 2
    machine = Machine([0] * half_burst + [SPIN] * 1_000)

    def set_deadline() -> None:
        if machine.received == half_burst + 1:
            machine.deadline = machine.time

    machine.on_frame = set_deadline
    with machine.driver(monkeypatch) as (driver, _):
        driver.wait(None)
    assert machine.timer_calls == [half_burst + BURST]


def test_other_descriptors_are_checked_under_a_flood_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([0] * 1_000)
    watched_socket, peer = socket.socketpair()
    with watched_socket, peer, machine.driver(monkeypatch) as (driver, _):
        driver.watch(watched_socket.fileno())
        peer.send(b"word")
        assert driver.wait(None) == [watched_socket.fileno()]
        assert machine.received == BURST
        assert driver.wait(None) == [watched_socket.fileno()]
        assert machine.received == 2 * BURST
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
    immediate, deferred = ("ack", "answer"), ("answer", "ack")
    assert exchanges == [immediate, deferred, deferred, immediate, deferred]
