"""Machine of an inline NIC's driver, for tests: clock, wire, firmware and sleep."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, cast

import pytest

from protocols.core.firmware import Agent
from testbed.runtime.nodes.inline_driver import Driver
from testbed.runtime.nodes.inline_nic import InlineNic
from testbed.runtime.nodes.patience import Patience
from testbed.runtime.nodes.veth_port import VethPort

if TYPE_CHECKING:
    from protocols.core.firmware import Firmware, Host
    from testbed.kernel.frame_socket import FrameSocket


class Machine:
    """Clock, wire, firmware and sleep of a driver.

    Reading the clock advances it by a microsecond; frames arrive at given times in ns. A sleep lasts until the next frame
    or for a time of `early_wake_ups`; after the last frame a watched descriptor ends it.
    """

    def __init__(self, frames: Iterable[int] = ()) -> None:
        self.time = 0
        self.frames = deque(frames)
        self.received = 0
        self.early_wake_ups: deque[int] = deque()
        """Nanoseconds after which the kernel wakes the driver without an event."""
        self.idle: list[int] = []
        """Time since the last frame or wake-up at the begin of each sleep, ns."""
        self.sent: list[str] = []
        self.deadline: int | None = None
        self.timer_calls: list[int] = []
        """Number of received frames at each call of the firmware's `on_timer`."""
        self.on_frame: Callable[[], object] = lambda: None
        self._since = 0
        self._end, self._peer_end = socket.socketpair()

    @contextmanager
    def driver(
        self, monkeypatch: pytest.MonkeyPatch, spin: int = 0, patience: Patience | None = None
    ) -> Iterator[tuple[Driver, InlineNic]]:
        """Yield a driver and its NIC. spin: fixed spin before a sleep, ns. patience: adaptive spin; default: none."""
        monkeypatch.setattr("testbed.runtime.nodes.inline_driver.time", self)
        wire, firmware = cast("FrameSocket", self), cast("Firmware", self)
        nic = InlineNic(VethPort(wire))
        nic.attach(Agent(firmware, cast("Host", self)))
        monkeypatch.setattr("testbed.runtime.nodes.inline_driver.Waiter", lambda *_, **__: MachineWaiter(self))
        driver = Driver(wire, nic, firmware, spin, patience or Patience(0))
        with closing(self._end), closing(self._peer_end), closing(driver):
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

    def sleep(self) -> list[int]:
        """Sleep until the next frame or wake-up; return the ready descriptors."""
        self.idle.append(self.time - self._since)
        if self.early_wake_ups:
            self.time += self.early_wake_ups.popleft()
        elif self.frames:
            self.time = self.frames[0]
        else:
            return [self._peer_end.fileno()]  # a watched descriptor is ready
        self._since = self.time
        return []


class MachineWaiter:
    """Stand-in for the kernel's waiter: waiting is a sleep of the machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def watch(self, descriptor: int) -> None:
        """Do nothing: the machine decides when a descriptor is ready."""

    def unwatch(self, descriptor: int) -> None:
        """Do nothing, as `watch`."""

    def wait(self, _deadline: int | None) -> list[int]:
        return self._machine.sleep()

    def close(self) -> None:
        """Do nothing: no descriptor is open."""
