"""Exhaustive schedules of SSAM's endpoints: every fate of the first cells of an exchange, followed by a perfect fibre.

A cell is passed, dropped, delivered twice, or held until after the next one of its direction. In every schedule a
request, a bulk message and a second request, all in flight at once, are each handled once and answered once, and the bulk
message is complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest

from protocols.ssam.settings import Settings
from tests.unit.protocols.mutants import Mutant
from tests.unit.protocols.ssam_endpoints import SQUARE, STORE, EndpointPair
from tests.unit.protocols.ssam_mutants import NATIVE
from tests.unit.protocols.ssam_pair import ADDRESSES

DEPTH = 6 if os.environ.get("TESTBED_LONG") else 4
"""Cells whose fate is chosen."""
FATES = "pdth"
"""Pass, drop, deliver twice, hold."""
BULK = bytes(range(100))
CONFIGURATIONS = {"as the paper": Settings(), "longer payload": Settings(long_payload=True, window=4, long_window=8)}


class Scope(NamedTuple):
    """Where the chosen fates begin. is_introduced: the nodes know each other. passed: number of cells before."""

    is_introduced: bool
    passed: int


SCOPES = {"introductions": Scope(False, 0), "requests": Scope(True, 0), "answers": Scope(True, 5)}


class Schedule:
    """Fates of cells, in the order of their arrival at the end of the fibre."""

    def __init__(self, ends: EndpointPair, fates: str) -> None:
        self._nodes = ends.pair.nodes
        self._fates: Iterator[str] = iter(fates)
        self._held: dict[int, bytes] = {}
        ends.pair.is_lost = self.apply_fate

    def apply_fate(self, frame: bytes) -> bool:
        """Deliver the additional cells of a fate; return True: the pair itself delivers none."""
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


def run_schedule(settings: Settings, fates: str, scope: Scope) -> None:
    """Run one schedule. Raises AssertionError for a violation."""
    ends = EndpointPair(settings)
    if scope.is_introduced:
        ends.run(ends.first.request(ends.index, SQUARE, 1))
        ends.received.clear()
    Schedule(ends, "p" * scope.passed + fates)

    async def send() -> None:
        await ends.first.request(ends.index, SQUARE, 12)
        await ends.first.request_bulk(ends.index, STORE, BULK, 40, 5)
        await ends.first.request(ends.index, SQUARE, 3)

    ends.run(send())
    assert sorted(map(str, ends.received)) == sorted(map(str, [144, BULK, (BULK[-8:], 5), 9]))
    assert ends.second.segment is not None
    assert bytes(ends.second.segment[40:140]) == BULK
    assert not ends.returned
    for node in ends.pair.nodes:
        assert not node.library.pending_work()
        assert not node.device.pending_work()


def run_every_schedule(configuration: str, scope: Scope) -> None:
    for letters in product(FATES, repeat=DEPTH):
        fates = "".join(letters)
        try:
            run_schedule(CONFIGURATIONS[configuration], fates, scope)
        except AssertionError as error:
            raise AssertionError(f"schedule {fates} of {configuration}") from error


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_requests_and_a_bulk_message_are_handled_once_and_answered_once_in_every_schedule(
    configuration: str, scope: str
) -> None:
    run_every_schedule(configuration, SCOPES[scope])


@pytest.mark.requires("interpreted")
@pytest.mark.parametrize("mutant", NATIVE, ids=str)
def test_schedules_find(mutant: Mutant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        with pytest.raises(AssertionError):
            run_every_schedule("as the paper", SCOPES["answers"])
