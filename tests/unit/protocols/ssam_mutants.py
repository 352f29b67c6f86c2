"""SSAM with one mistake each, which searches must find: random walks, and the swarm of requests."""

from __future__ import annotations

import pytest

from protocols.ssam import cells
from protocols.ssam.cells import Message
from protocols.ssam.connection import Connection
from protocols.ssam.host import Library, Reply
from protocols.ssam.sba100 import Sba100, answer_offset
from tests.unit.protocols.mutants import Mutant


def handled_again(patch: pytest.MonkeyPatch) -> None:
    requested = Library._handle_request

    def handle_duplicates(library: Library, connection: Connection, message: Message) -> None:
        if connection.distance_of(message.number) < 0:
            library._run(connection, message)
        requested(library, connection, message)

    patch.setattr(Library, "_handle_request", handle_duplicates)


def freed_too_early(patch: pytest.MonkeyPatch) -> None:
    answer = Library._answer

    def answer_and_free_the_previous(
        library: Library, connection: Connection, number: int, reply: Reply | None
    ) -> None:
        answer(library, connection, number, reply)
        previous = (number - 1) % cells.SEQUENCE_NUMBERS
        memory = library.process.memory(connection.number)
        cells.pack_into(memory, answer_offset(previous), cells.ACKNOWLEDGEMENT, connection.session, previous)

    patch.setattr(Library, "_answer", answer_and_free_the_previous)


def slot_lost(patch: pytest.MonkeyPatch) -> None:
    answered = Connection.record_answer

    def answered_or_shrunk(connection: Connection, low_number: int) -> bool:
        is_new = answered(connection, low_number)
        if not is_new:
            connection.window = max(0, connection.window - 1)
        return is_new

    patch.setattr(Connection, "record_answer", answered_or_shrunk)


def uncounted(patch: pytest.MonkeyPatch) -> None:
    arrive = Sba100._arrive

    def arrive_uncounted(device: Sba100, now: int, cell: bytes) -> None:
        before = device.counters.overruns
        arrive(device, now, cell)
        device.counters.overruns = before

    patch.setattr(Sba100, "_arrive", arrive_uncounted)


NATIVE = [
    Mutant("handled again", "a duplicate request runs its handler again", handled_again),
    Mutant("freed too early", "a held reply is freed by the acknowledgement of another", freed_too_early),
]
"""Mutants that the history of a program shows."""

WALKED = [
    *NATIVE,
    Mutant("slot lost", "a duplicate answer costs a slot of the window", slot_lost),
    Mutant("uncounted", "cells that overrun the input FIFO are not counted", uncounted),
]
