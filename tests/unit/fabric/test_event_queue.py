"""Event queue: callbacks and events by time and then by the order in which they were scheduled."""

from testbed.fabric.event_queue import EventQueue


class Alarm:
    """An event that notes the times at which it is called."""

    def __init__(self) -> None:
        self.sequence: int = 0
        self.times: list[int] = []

    def call(self, now: int, /) -> None:
        self.times.append(now)


def test_events_of_one_time_are_called_in_the_order_in_which_they_were_scheduled() -> None:
    events, alarm, order = EventQueue(), Alarm(), list[str]()
    events.at(20, order.append, "last")
    events.at(10, order.append, "first")
    alarm.sequence = events.schedule(10, alarm)
    events.at(10, lambda _: order.append(f"after {alarm.times}"))
    assert (len(events), events.scheduled, events.next_time()) == (4, 4, 10)
    events.call_due(15)
    assert order == ["first", "after [10]"]
    events.call_due(20)
    assert order == ["first", "after [10]", "last"]
    assert (len(events), events.scheduled, events.next_time()) == (0, 4, None)


def test_a_late_call_passes_each_event_its_own_time() -> None:
    events, alarm, times = EventQueue(), Alarm(), list[int]()
    events.at(10, times.append)
    alarm.sequence = events.schedule(20, alarm)
    events.call_due(1_000)
    assert (times, alarm.times) == ([10], [20])


def test_an_event_that_has_been_moved_is_called_at_its_new_time_only() -> None:
    events, alarm = EventQueue(), Alarm()
    events.schedule(10, alarm)
    alarm.sequence = events.schedule(30, alarm)
    assert events.next_time() == 30
    alarm.sequence = events.schedule(20, alarm)
    events.call_due(100)
    assert alarm.times == [20]


def test_a_cancelled_event_is_not_called() -> None:
    events, alarm = EventQueue(), Alarm()
    alarm.sequence = events.schedule(10, alarm)
    alarm.sequence = 0
    assert events.next_time() is None
    assert not events


def test_a_callback_may_schedule_another_one_that_is_due() -> None:
    events, order = EventQueue(), list[str]()
    events.at(10, lambda now: events.at(now, order.append, "second"))
    events.at(10, order.append, "first")
    events.call_due(10)
    assert order == ["first", "second"]
