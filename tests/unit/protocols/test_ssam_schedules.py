"""Exhaustive schedules of SSAM's endpoints: every fate of the first cells of an exchange, followed by a perfect fibre.

A cell is passed, dropped, delivered twice, or held until behind the next one of its direction. Whatever happens, a request,
a bulk message and a request behind it, all in flight at once, are each handled once and answered once, and the bulk message
is whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest

from protocols.ssam.settings import Settings
from tests.unit.protocols.mutants import Mutant
from tests.unit.protocols.ssam_mutants import NATIVE
from tests.unit.protocols.ssam_pair import ADDRESSES
from tests.unit.protocols.test_ssam_endpoints import ASK, DATA, Ends

DEPTH = 6 if os.environ.get("TESTBED_LONG") else 4
"""Cells whose fate is chosen."""
FATES = "pdth"
BULK = bytes(range(100))
PLANS = {"as the paper": Settings(), "longer payload": Settings(long_payload=True, window=4, long_window=8)}


class Scope(NamedTuple):
    """Where chosen fates begin. is_open: the nodes know each other. passed: cells before them."""

    is_open: bool
    passed: int


SCOPES = {"introductions": Scope(False, 0), "requests": Scope(True, 0), "answers": Scope(True, 5)}


class Schedule:
    """The fates of cells, in the order of their arrival at the end of the fibre."""

    def __init__(self, ends: Ends, fates: str) -> None:
        self._nodes = ends.pair.nodes
        self._fates: Iterator[str] = iter(fates)
        self._held: dict[int, bytes] = {}
        ends.pair.lose = self.meets

    def meets(self, frame: bytes) -> bool:
        """Deliver the additional cells of a fate; return whether the cell itself is not delivered."""
        destination = ADDRESSES.index(frame[:6])
        fate = next(self._fates, "p")
        if fate == "h" and destination not in self._held:
            self._held[destination] = frame
            return True
        if fate == "t":
            self._receive(destination, frame)
        if fate != "d":
            self._receive(destination, frame)
        if destination in self._held:
            self._receive(destination, self._held.pop(destination))
        return True

    def _receive(self, destination: int, frame: bytes) -> None:
        node = self._nodes[destination]
        node.device.receive(node.now, frame)


def exchange(settings: Settings, fates: str, scope: Scope) -> None:
    """Run one schedule. Raises AssertionError."""
    ends = Ends(settings)
    if scope.is_open:
        ends.run(ends.first.request(ends.place, ASK, 1))
        ends.heard.clear()
    Schedule(ends, "p" * scope.passed + fates)

    async def send() -> None:
        await ends.first.request(ends.place, ASK, 12)
        await ends.first.request_bulk(ends.place, DATA, BULK, 40, 5)
        await ends.first.request(ends.place, ASK, 3)

    ends.run(send())
    assert sorted(map(str, ends.heard)) == sorted(map(str, [144, BULK, (BULK[-8:], 5), 9]))
    assert ends.second.segment is not None
    assert bytes(ends.second.segment[40:140]) == BULK
    assert not ends.returned
    for node in ends.pair.nodes:
        assert not node.library.pending_work()
        assert not node.device.pending_work()


def every_schedule(plan: str, scope: Scope) -> None:
    for fates_chosen in product(FATES, repeat=DEPTH):
        fates = "".join(fates_chosen)
        try:
            exchange(PLANS[plan], fates, scope)
        except AssertionError as error:
            raise AssertionError(f"schedule {fates} of {plan}") from error


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("plan", PLANS)
def test_requests_and_a_bulk_message_are_handled_once_and_answered_once_in_every_schedule(
    plan: str, scope: str
) -> None:
    every_schedule(plan, SCOPES[scope])


@pytest.mark.requires("interpreted")
@pytest.mark.parametrize("mutant", NATIVE, ids=str)
def test_schedules_find(mutant: Mutant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        with pytest.raises(AssertionError):
            every_schedule("as the paper", SCOPES["answers"])
