"""Check that a firmware's counters are those of its state tables."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from protocols.core.states import Row, StateTable, check_counters

DOOR = StateTable(
    "door",
    "shut",
    (Row("shut", "push", "open", "open", ("pushed",)), Row("open", "pull", "shut", "shut", ("pulled",))),
)


def test_counters_are_those_of_the_rows_and_the_stateless_ones() -> None:
    @dataclass(slots=True)
    class Counters:
        pushed: int = 0
        pulled: int = 0
        knocks: int = 0

    check_counters(Counters, [DOOR], {"knocks"})


@dataclass(slots=True)
class MissingCounter:
    pushed: int = 0


@dataclass(slots=True)
class ExtraCounter:
    pushed: int = 0
    pulled: int = 0
    slammed: int = 0


@pytest.mark.parametrize(
    ("counters", "stateless", "name_in_error"),
    [(MissingCounter, (), "pulled"), (ExtraCounter, (), "slammed"), (ExtraCounter, ("slammed", "pushed"), "pushed")],
)
def test_a_row_without_its_counter_and_a_counter_without_a_row_are_rejected(
    counters: type[MissingCounter | ExtraCounter], stateless: tuple[str, ...], name_in_error: str
) -> None:
    with pytest.raises(TypeError, match=rf"\['{name_in_error}'\]"):
        check_counters(counters, [DOOR], stateless)
