"""A firmware's counters are those of its state tables."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from protocols.core.states import Row, StateTable, counts

DOOR = StateTable(
    "door",
    "shut",
    (Row("shut", "push", "open", "open", ("pushed",)), Row("open", "pull", "shut", "shut", ("pulled",))),
)


def test_a_counter_for_each_row_and_those_of_no_state_are_all() -> None:
    @counts([DOOR], {"knocks"})
    @dataclass(slots=True)
    class Counters:
        pushed: int = 0
        pulled: int = 0
        knocks: int = 0

    assert Counters().pushed == 0


@dataclass(slots=True)
class Fewer:
    pushed: int = 0


@dataclass(slots=True)
class More:
    pushed: int = 0
    pulled: int = 0
    slammed: int = 0


@pytest.mark.parametrize(
    ("counters", "stateless", "named"),
    [(Fewer, (), "pulled"), (More, (), "slammed"), (More, ("slammed", "pushed"), "pushed")],
)
def test_a_row_without_its_counter_and_a_counter_without_a_row_are_refused(
    counters: type[Fewer | More], stateless: tuple[str, ...], named: str
) -> None:
    with pytest.raises(TypeError, match=rf"\['{named}'\]"):
        counts([DOOR], stateless)(counters)
