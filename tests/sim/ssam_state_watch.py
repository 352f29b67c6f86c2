"""Watches SSAM's state machines: slots of windows, requests at their receivers, and connections."""

from __future__ import annotations

import pytest

from protocols.ssam import cells
from protocols.ssam.cells import Message
from protocols.ssam.connection import Connection
from protocols.ssam.host import Library
from protocols.ssam.settings import MAX_WINDOW
from protocols.ssam.states import CONNECTION, REQUEST, SLOT
from tests.sim.state_watch import Watch


def watch_slots(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Count what happens to the slots of windows."""
    take_number, overdue, begin = Connection.take_number, Connection.find_overdue, Connection._reset
    hurry, answered = Library._resend_lost, Library._handle_answer

    def state_of(connection: Connection, number: int) -> str:
        is_sent = connection.base <= number < connection.next and not connection._answered[number % MAX_WINDOW]
        return "sent" if is_sent else "free"

    def watched_take_number(connection: Connection) -> int:
        before = state_of(connection, connection.next)
        number = take_number(connection)
        watch.record(SLOT, before, "request", state_of(connection, number))
        return number

    def watched_overdue(connection: Connection) -> int | None:
        number = overdue(connection)
        if number is not None and connection.is_open:
            watch.record(SLOT, state_of(connection, number), "time-out", "sent")
        return number

    def watched_begin(connection: Connection) -> None:
        lost = connection.outstanding
        begin(connection)
        for number in lost:
            watch.record(SLOT, "sent", "peer lost", state_of(connection, number))

    def watched_hurry(library: Library, connection: Connection, number: int | None) -> None:
        if number is not None:
            before = state_of(connection, number)
            watch.record(SLOT, before, "missing, or a later answer", before)
        hurry(library, connection, number)

    def watched_answered(library: Library, connection: Connection, message: Message) -> None:
        number = connection.base + (message.number - connection.base) % cells.SEQUENCE_NUMBERS
        before = state_of(connection, number)
        answered(library, connection, message)
        if message.kind == cells.REPLY:
            event = "reply" if before == "sent" else "answer"
        elif message.handler == cells.MISSING:
            return
        else:
            event = "acknowledgement" if before == "sent" else "answer"
        watch.record(SLOT, before, event, state_of(connection, number))

    patch.setattr(Connection, "take_number", watched_take_number)
    patch.setattr(Connection, "find_overdue", watched_overdue)
    patch.setattr(Connection, "_reset", watched_begin)
    patch.setattr(Library, "_resend_lost", watched_hurry)
    patch.setattr(Library, "_handle_answer", watched_answered)


def watch_requests(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Count what happens to requests at their receivers."""
    requested, next_turn = Library._handle_request, Connection.next_turn
    arriving: list[Message] = []

    def state_of(connection: Connection, message: Message) -> str:
        if connection.distance_of(message.number) < 0:
            return "answered"
        return "kept" if message.number in connection.kept else "awaited"

    def watched_requested(library: Library, connection: Connection, message: Message) -> None:
        before, distance = state_of(connection, message), connection.distance_of(message.number)
        arriving.append(message)
        requested(library, connection, message)
        arriving.remove(message)
        event = "again"
        if before == "awaited":
            event = "ahead of another" if distance else "in order"
            if library._has_ended:
                event = "after the program's end"
        watch.record(REQUEST, before, event, state_of(connection, message))

    def watched_next_turn(connection: Connection) -> Message | None:
        message = next_turn(connection)
        if message is not None and message not in arriving:
            watch.record(REQUEST, "kept", "its turn", state_of(connection, message))
        return message

    patch.setattr(Library, "_handle_request", watched_requested)
    patch.setattr(Connection, "next_turn", watched_next_turn)


def watch_connections(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Count what happens to connections to other nodes."""
    connection_of, current, tick = Library._connection_of, Library._current_connection, Library._on_alarm

    def state_of(connection: Connection | None) -> str:
        if connection is None:
            return "closed"
        return "open" if connection.is_open else "opening"

    def watched_connection_of(library: Library, number: int, node: int | None = None) -> Connection:
        connection = connection_of(library, number, node)
        if node not in (None, library.node):
            watch.record(CONNECTION, "closed", "request", state_of(connection))
        return connection

    def watched_current(library: Library, number: int, message: Message) -> Connection | None:
        before = library._connections.get(number)
        state, theirs = state_of(before), before.theirs if before is not None else None
        current_connection = current(library, number, message)
        connection = library._connections[number]
        if connection.node != library.node and current_connection is None:
            event = "another session's cell"
            if message.kind == cells.INTRODUCTION:
                is_later = state == "open" and connection.theirs != theirs
                event = "later incarnation" if is_later else "introduction"
            watch.record(CONNECTION, state, event, state_of(connection))
        return current_connection

    def watched_tick(library: Library, connection: Connection) -> int:
        before, ours, is_waiting = state_of(connection), connection.ours, bool(connection.outstanding)
        quiet = tick(library, connection)
        if connection.ours != ours:
            watch.record(CONNECTION, before, "given up", state_of(connection))
        elif before == "opening" and is_waiting:
            watch.record(CONNECTION, before, "time-out", state_of(connection))
        return quiet

    patch.setattr(Library, "_connection_of", watched_connection_of)
    patch.setattr(Library, "_current_connection", watched_current)
    patch.setattr(Library, "_on_alarm", watched_tick)


WATCHING = (watch_slots, watch_requests, watch_connections)
