"""AM-II's endpoint scheduling: 2^k attempts for each in turn, and nobody waits for longer than the others' attempts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocols.am2.turns import Turns


def taken(turns: Turns[str], count: int) -> str:
    return "".join(turns.take()[0] for _ in range(count))


def test_each_has_its_attempts_and_then_it_is_the_next_ones_turn() -> None:
    turns: Turns[str] = Turns(4)
    for name in "abc":
        for slot in range(10):
            turns.add(name, slot)
    assert taken(turns, 26) == "aaaabbbbccccaaaabbbbccccaa"
    assert taken(turns, 4) == "bbcc"
    assert not turns


def test_who_has_nothing_to_send_is_passed_over() -> None:
    turns: Turns[str] = Turns(2)
    turns.add("a", 0)
    for slot in range(5):
        turns.add("b", slot)
    turns.add("c", 0)
    assert taken(turns, 7) == "abbcbbb"


def test_slots_of_one_come_in_their_order_and_what_is_put_back_is_the_first() -> None:
    turns: Turns[str] = Turns(8)
    turns.add("a", 3)
    turns.add("b", 1)
    turns.add("a", 5)
    assert turns.take() == ("a", 3)
    turns.put_back("a", 3)
    assert [turns.take() for _ in range(3)] == [("a", 3), ("a", 5), ("b", 1)]


def test_a_message_of_many_packets_keeps_its_turn_no_longer_than_any_other() -> None:
    turns: Turns[str] = Turns(2)
    turns.add("a", 0)
    turns.add("b", 0)
    order = []
    for _ in range(6):
        name, slot = turns.take()
        order.append(name)
        turns.put_back(name, slot)
    assert order == list("aabbaa")


def test_who_is_dropped_has_no_turn() -> None:
    turns: Turns[str] = Turns(2)
    turns.add("a", 0)
    turns.add("b", 0)
    turns.drop("a")
    assert turns.take() == ("b", 0)
    assert not turns


@given(
    exponent=st.integers(0, 3),
    endpoints=st.integers(2, 7),
    events=st.lists(st.one_of(st.none(), st.integers(0, 6)), max_size=300),
)
def test_nobody_waits_for_more_than_all_others_attempts(
    exponent: int, endpoints: int, events: list[int | None]
) -> None:
    """Section "Endpoint scheduling": (endpoint frames - 1) x 2^k packets of others, at most, before one of its own."""
    turns: Turns[int] = Turns(1 << exponent)
    waits = [0] * endpoints
    for event in events:
        if event is not None:
            turns.add(event % endpoints, 0)
        elif turns:
            chosen, _ = turns.take()
            waits[chosen] = 0
            for other in turns.waiting:
                if other != chosen:
                    waits[other] += 1
                    assert waits[other] <= (endpoints - 1) << exponent
