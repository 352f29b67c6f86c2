"""Reachability of machines: several unanswered requests in a row are a silence, and more mean unreachable."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.cluster.records import status
from testbed.cluster.records.state import State
from testbed.cluster.services import machine_watch
from testbed.cluster.services.machine_watch import (
    INTERVAL,
    MAX_UNANSWERED,
    MIN_SILENCE,
    REACHABLE,
    UNREACHABLE,
    MachineWatch,
    Reachability,
    unreachable,
)
from testbed.engine.loop import Loop
from testbed.kernel.processes import identity
from testbed.kernel.waiter import Waiter
from testbed.runtime import event_log
from testbed.spec.layout import End, Layout, Part, Tunnel
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

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


class AnsweringSocket:
    """Echo socket whose peer answers each request at once."""

    def __init__(self, local: str, remote: str) -> None:  # noqa: ARG002
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK)

    def fileno(self) -> int:
        return self._reader

    def send(self, number: int) -> None:
        os.write(self._writer, number.to_bytes(2))

    def receive(self) -> int | None:
        try:
            return int.from_bytes(os.read(self._reader, 2))
        except BlockingIOError:
            return None

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


def part(*machines: str) -> Layout:
    tunnels = tuple(Tunnel(End("n2", "eth0"), 1, "10.0.0.1", "10.0.0.2", machine=machine) for machine in machines)
    return replace(resolve(Description.star(2)), part=Part("here", 1450, tunnels))


def test_a_machine_that_answers_a_new_supervisor_is_reachable_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_watch, "EchoSocket", AnsweringSocket)
    monkeypatch.setattr(machine_watch.namespaces, "inside", lambda _: nullcontext())
    event_log.record(tmp_path, UNREACHABLE, machine="there", address="10.0.0.2", silent=7)
    (lost,) = event_log.read(tmp_path)
    waiter = Waiter()
    loop = Loop(waiter)
    watch = MachineWatch(loop, tmp_path, "")
    watch.watch(part("there"))
    loop.complete(loop.sleep(INTERVAL // 2))
    watch.watch(part())
    waiter.close()
    events = list(event_log.read(tmp_path))
    assert unreachable(events) == {}
    assert [event["event"] for event in events] == [UNREACHABLE, REACHABLE]
    assert events[1]["gap"][0] == lost["time"] - 7


def test_a_machine_without_a_tunnel_is_not_reported_as_missing(tmp_path: Path) -> None:
    event_log.record(tmp_path, UNREACHABLE, machine="former", address="10.0.0.3", silent=7)
    event_log.record(tmp_path, UNREACHABLE, machine="there", address="10.0.0.2", silent=7)
    state = State("c", "", "up", True, identity(), part("there"), {}, {}, 0)
    messages = [message for message in status.missing(state, tmp_path) if message.startswith("machine ")]
    assert len(messages) == 1
    assert messages[0].startswith("machine there (10.0.0.2) has not answered for ")
