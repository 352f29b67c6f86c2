"""Wake-ups of a NIC for the deadline of its firmware."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocols.core.firmware import Agent
from testbed.engine.loop import Loop, VirtualClock
from testbed.nic.immediate import ImmediateNic

DEPARTURE = 1_000


class NicWithDeadline:
    """Port, firmware and host of a NIC: the departure of a frame sets a deadline that is already due."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.loop = Loop(self.clock)
        self.deadline: int | None = None
        self.timer_calls: list[int] = []
        self.nic = ImmediateNic(self.clock, self.loop, self, 1_500)
        self.nic.begin(0, Agent(self, self))

    def enter(self, now: int, frame: bytes) -> bool:
        del now, frame
        return True

    def when_sent(self, now: int, callback: Callable[[int], object]) -> None:
        self.loop.at(now + DEPARTURE, callback)

    def on_sent(self, now: int) -> None:
        del now
        self.deadline = 0

    def receive(self, now: int, frame: bytes) -> None:
        del now, frame

    on_doorbell = receive

    def on_timer(self, now: int) -> None:
        self.timer_calls.append(now)
        self.deadline = None

    def on_completion(self, index: int) -> None:
        del index

    def counter_values(self) -> Mapping[str, int]:
        return {}

    def pending_work(self) -> list[str]:
        return []


def test_a_deadline_at_the_departure_of_a_frame_is_handled_then() -> None:
    nic_with_deadline = NicWithDeadline()
    nic_with_deadline.nic.send(bytes(60))
    nic_with_deadline.nic.when_sent(nic_with_deadline.on_sent)
    nic_with_deadline.loop.run()
    assert nic_with_deadline.timer_calls == [DEPARTURE]
