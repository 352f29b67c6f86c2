"""Scheduling of firmware events on a NIC's processor."""

from __future__ import annotations

from testbed.engine.loop import Loop, VirtualClock
from testbed.nic.priced import FETCHED, RECEIVED, RING, SENT, EventProcessor, FirmwareEvent


class RecordedHandlers:
    """Handlers of a processor, with the times at which their events begin and end."""

    def __init__(self) -> None:
        self.loop = Loop(VirtualClock())
        self.ends: list[tuple[str, int]] = []
        self.begins: list[int] = []
        self.handlers = EventProcessor("processor", self.loop, self.begins.append)

    def add(self, kind: int, name: str, cost: int) -> FirmwareEvent:
        event = FirmwareEvent(cost, lambda now: self.ends.append((name, now)))
        self.handlers.add(self.loop.now(), kind, event)
        return event


def test_kinds_of_events_are_served_round_robin() -> None:
    handlers = RecordedHandlers()
    for number in range(10):
        handlers.add(RECEIVED, f"frame {number}", 10)
    handlers.add(FETCHED, "fetched", 10)
    handlers.add(RING, "descriptor", 10)
    handlers.add(SENT, "sent", 10)
    handlers.loop.run()
    order = [name for name, _ in handlers.ends]
    assert order[:5] == ["frame 0", "descriptor", "fetched", "sent", "frame 1"]
    assert order[5:] == [f"frame {number}" for number in range(2, 10)]
    assert handlers.ends[-1][1] == 130
    assert handlers.begins == list(range(0, 130, 10))


def test_busy_time_and_waiting_time_are_counted() -> None:
    handlers = RecordedHandlers()
    events = [handlers.add(RECEIVED, str(cost), cost) for cost in (10, 20, 30)]
    handlers.loop.run()
    server = handlers.handlers.server
    assert (server.busy, server.jobs, server.waited) == (60, 3, 10 + 30)
    assert [event.start_time for event in events] == [0, 10, 30]


def test_zero_cost_work_on_an_idle_processor_is_done_at_once() -> None:
    handlers = RecordedHandlers()
    handlers.add(RING, "free", 0)
    assert handlers.ends == [("free", 0)]
    handlers.add(RING, "first", 10)
    handlers.add(RING, "free, too", 0)
    assert handlers.ends == [("free", 0)]
    handlers.loop.run()
    assert handlers.ends[1:] == [("first", 10), ("free, too", 10)]


def test_an_event_caused_by_another_waits_for_its_turn() -> None:
    handlers = RecordedHandlers()
    handlers.handlers.add(0, RING, FirmwareEvent(10, lambda _: handlers.add(RING, "of the first", 10)))
    handlers.add(RECEIVED, "a frame", 10)
    handlers.loop.run()
    assert handlers.ends == [("a frame", 20), ("of the first", 30)]
