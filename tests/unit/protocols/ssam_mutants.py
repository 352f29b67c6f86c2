"""SSAM with one mistake each, for searches that must find it: random walks, and the swarm of requests."""

from __future__ import annotations

import pytest

from protocols.ssam import cells
from protocols.ssam.cells import Message
from protocols.ssam.connection import Connection
from protocols.ssam.host import Library, Reply
from protocols.ssam.sba100 import Sba100, answer_slot
from tests.unit.protocols.mutants import Mutant


def handled_again(patch: pytest.MonkeyPatch) -> None:
    original = Library._requested

    def whatever_came_before(library: Library, connection: Connection, message: Message) -> None:
        if connection.place_of(message.number) < 0:
            library._run(connection, message)
        original(library, connection, message)

    patch.setattr(Library, "_requested", whatever_came_before)


def freed_too_early(patch: pytest.MonkeyPatch) -> None:
    original = Library._answer

    def and_free_the_one_before(library: Library, connection: Connection, number: int, reply: Reply | None) -> None:
        original(library, connection, number, reply)
        before = (number - 1) % cells.SEQUENCE_NUMBERS
        memory = library.process.memory(connection.number)
        cells.pack_into(memory, answer_slot(before), cells.ACKNOWLEDGEMENT, connection.session, before)

    patch.setattr(Library, "_answer", and_free_the_one_before)


def slot_lost(patch: pytest.MonkeyPatch) -> None:
    original = Connection.answered

    def but_once(connection: Connection, low_number: int) -> bool:
        is_new = original(connection, low_number)
        if not is_new:
            connection.window = max(0, connection.window - 1)
        return is_new

    patch.setattr(Connection, "answered", but_once)


def uncounted(patch: pytest.MonkeyPatch) -> None:
    arrive = Sba100._arrive

    def in_silence(device: Sba100, now: int, cell: bytes) -> None:
        before = device.counters.overruns
        arrive(device, now, cell)
        device.counters.overruns = before

    patch.setattr(Sba100, "_arrive", in_silence)


NATIVE = [
    Mutant("handled again", "a duplicate request runs its handler again", handled_again),
    Mutant("freed too early", "a held reply is freed by the acknowledgement of another", freed_too_early),
]
"""Mutants that a program's history shows."""

WALKED = [
    *NATIVE,
    Mutant("slot lost", "a duplicate answer costs a slot of the window", slot_lost),
    Mutant("uncounted", "cells that overrun the input FIFO are not counted", uncounted),
]
