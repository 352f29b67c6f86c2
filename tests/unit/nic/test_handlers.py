"""A NIC's processor takes events in turn."""

from __future__ import annotations

from testbed.engine.loop import Loop, VirtualClock
from testbed.nic.priced import FETCHED, RECEIVED, RING, SENT, EventProcessor, FirmwareEvent


class Watched:
    """Handlers, and when each of their events has begun and ended."""

    def __init__(self) -> None:
        self.loop = Loop(VirtualClock())
        self.ended: list[tuple[str, int]] = []
        self.begins: list[int] = []
        self.handlers = EventProcessor("processor", self.loop, self.begins.append)

    def add(self, kind: int, name: str, cost: int) -> FirmwareEvent:
        event = FirmwareEvent(cost, lambda now: self.ended.append((name, now)))
        self.handlers.add(self.loop.now(), kind, event)
        return event


def test_no_kind_of_event_keeps_another_waiting_for_ever() -> None:
    watched = Watched()
    for number in range(10):
        watched.add(RECEIVED, f"frame {number}", 10)
    watched.add(FETCHED, "fetched", 10)
    watched.add(RING, "descriptor", 10)
    watched.add(SENT, "sent", 10)
    watched.loop.run()
    order = [name for name, _ in watched.ended]
    assert order[:5] == ["frame 0", "descriptor", "fetched", "sent", "frame 1"]
    assert order[5:] == [f"frame {number}" for number in range(2, 10)]
    assert watched.ended[-1][1] == 130
    assert watched.begins == list(range(0, 130, 10))


def test_time_is_counted_that_it_is_busy_and_that_events_wait() -> None:
    watched = Watched()
    events = [watched.add(RECEIVED, str(cost), cost) for cost in (10, 20, 30)]
    watched.loop.run()
    server = watched.handlers.server
    assert (server.busy, server.jobs, server.waited) == (60, 3, 10 + 30)
    assert [event.start_time for event in events] == [0, 10, 30]


def test_zero_cost_work_is_done_at_once_in_its_order() -> None:
    watched = Watched()
    watched.add(RING, "free", 0)
    assert watched.ended == [("free", 0)]
    watched.add(RING, "first", 10)
    watched.add(RING, "free, too", 0)
    assert watched.ended == [("free", 0)]
    watched.loop.run()
    assert watched.ended[1:] == [("first", 10), ("free, too", 10)]


def test_an_event_that_comes_of_another_waits_for_its_turn() -> None:
    watched = Watched()
    watched.handlers.add(0, RING, FirmwareEvent(10, lambda _: watched.add(RING, "of the first", 10)))
    watched.add(RECEIVED, "a frame", 10)
    watched.loop.run()
    assert watched.ended == [("a frame", 20), ("of the first", 30)]
