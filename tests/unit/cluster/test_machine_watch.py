"""Reachability of machines: several unanswered requests in a row are a silence, and more mean unreachable."""

from __future__ import annotations

from testbed.cluster.services.machine_watch import INTERVAL, MAX_UNANSWERED, MIN_SILENCE, Reachability, unreachable

SECOND = 1_000_000_000


def test_a_machine_that_replies_to_rare_requests_is_reachable() -> None:
    machine = Reachability(0)
    for hour in range(1, 100):
        number = machine.next_request()
        assert machine.on_reply(number, hour * 3600 * SECOND) is None
    assert machine.lost_at is None


def test_a_machine_is_unreachable_after_too_many_unanswered_requests_in_a_row() -> None:
    machine = Reachability(0)
    machine.on_reply(machine.next_request(), 7)
    for _ in range(MAX_UNANSWERED):
        machine.next_request()
        assert machine.lost_at is None
    machine.next_request()
    assert machine.lost_at == 7


def test_a_machine_that_falls_silent_is_noticed_within_two_seconds() -> None:
    # The first unanswered request may be sent just after the machine falls silent, or an interval later.
    assert (MAX_UNANSWERED + 1) * INTERVAL < 2 * SECOND


def test_single_unanswered_requests_do_not_accumulate() -> None:
    machine = Reachability(0)
    for _ in range(10 * MAX_UNANSWERED):
        machine.next_request()
        machine.on_reply(machine.next_request(), 0)
    assert machine.lost_at is None


def test_a_few_unanswered_requests_in_a_row_are_a_silence() -> None:
    machine = Reachability(0)
    machine.on_reply(machine.next_request(), 7)
    for _ in range(MIN_SILENCE - 1):
        machine.next_request()
    assert machine.on_reply(machine.next_request(), 8) is None
    for _ in range(MIN_SILENCE):
        machine.next_request()
    assert machine.on_reply(machine.next_request(), 9) == 8
    assert machine.lost_at is None


def test_late_replies_are_no_silence() -> None:
    machine = Reachability(0)
    numbers = [machine.next_request() for _ in range(MIN_SILENCE + 1)]
    assert [machine.on_reply(number, 5) for number in numbers] == [None] * len(numbers)


def test_a_machine_is_reachable_with_its_first_reply_and_can_be_lost_again() -> None:
    machine = Reachability(5)
    last_request = [machine.next_request() for _ in range(MAX_UNANSWERED + 1)][-1]
    assert machine.lost_at == 5
    assert machine.on_reply(last_request, 9) == 5
    assert machine.lost_at is None
    for _ in range(MAX_UNANSWERED + 1):
        machine.next_request()
    assert machine.lost_at == 9


def test_sequence_numbers_wrap_around() -> None:
    machine = Reachability(0)
    for number in range(1, (1 << 16) + 2 * MAX_UNANSWERED):
        machine.next_request()
        assert machine.on_reply(number % (1 << 16), number) is None
    assert machine.lost_at is None


def test_the_machines_that_are_unreachable_after_all_events() -> None:
    def event(kind: str, machine: str) -> dict[str, object]:
        return {"event": f"machine {kind}", "machine": machine}

    lost_again = event("unreachable", "b")
    events = [event("unreachable", "a"), event("unreachable", "b"), event("reachable", "a"), {"event": "heal"},
              event("reachable", "b"), lost_again]  # fmt: skip
    assert unreachable(events) == {"b": lost_again}
