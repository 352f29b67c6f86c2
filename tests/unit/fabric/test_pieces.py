"""GSO frames of several segments: where they may stay whole, and that they count as their segments."""

from __future__ import annotations

import pytest

from testbed.fates.headers import standard_fields
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.spec.layout import Impairment
from tests.unit.fates.wire_frames import LINK, MILLISECOND, direction, number_of, numbered, run_schedule, tcp

PIECE = tcp(data=bytes(4000))
BESIDE = tcp(data=bytes(100))


def counted(piece: bool, *, rules: bool) -> tuple[list[tuple[int, int]], dict[str, int], list[Record]]:
    """Three frames of a flow, offered as such or as a piece, then one; then a rule decides on the flow's next but one."""
    log: list[Record] = []
    known = RuleSet(standard_fields()) if rules else None
    wire = direction(Impairment(delay=MILLISECOND), rules=known, log=log.append)
    held = []
    if piece:
        wire.offer_gso(0, PIECE, 3)
    else:
        for _ in range(3):
            wire.offer(0, BESIDE)
    held.append((0, wire.held))
    wire.offer(5, BESIDE)
    while wire.deadline is not None:
        now = wire.deadline
        for _, frame in wire.poll(now):
            if frame is PIECE:
                wire.count_gso(3, 3 * len(BESIDE) - len(PIECE))
        held.append((now, wire.held))
    if known is not None:
        known.add(10, "drop nth(2)")
        for _ in range(3):
            wire.offer(2 * MILLISECOND, BESIDE)
        wire.poll(3 * MILLISECOND)
    return held, wire.counters.by_name(), log


@pytest.mark.parametrize("rules", [False, True])
def test_a_piece_counts_as_the_frames_that_it_is(rules: bool) -> None:
    assert counted(True, rules=rules) == counted(False, rules=rules)


def test_a_fate_that_comes_after_a_piece_is_that_of_the_frame_after_all_of_it() -> None:
    _, _, log = counted(True, rules=True)
    assert [record.n for record in log] == [6]


def test_a_piece_comes_out_as_it_is_after_the_delay_and_in_order() -> None:
    wire = direction(Impairment(delay=MILLISECOND))
    wire.offer(0, numbered(1))
    wire.offer_gso(10, PIECE, 3)
    wire.offer(20, numbered(2))
    first, piece, last = run_schedule(wire, [])
    assert piece == (MILLISECOND + 10, PIECE)
    assert [number_of(frame) for _, frame in (first, last)] == [1, 2]


@pytest.mark.parametrize("impairment", [Impairment(), Impairment(delay=MILLISECOND)], ids=["nothing", "delay"])
def test_where_all_frames_are_alike_pieces_may_stay(impairment: Impairment) -> None:
    assert direction(impairment).carries_gso
    assert direction(impairment, rules=RuleSet(standard_fields())).carries_gso


@pytest.mark.parametrize(
    "impairment",
    [
        {"loss": 0.01}, {"corrupt": 0.01}, {"duplicate": 0.01}, {"delay": 1, "reorder": 0.01},
        {"gemodel": (0.1, 0.1, 1.0, 0.0)}, {"loss_pattern": "1-2"}, {"rate": 10**9}, {"rate": 10**9, "overhead": 24},
        {"delay": 2, "jitter": 1, "distribution": "uniform"}, {"rate_trace": "trace"}, {"rules": ("drop udp",)},
    ],
    ids=lambda keys: " ".join(keys),
)  # fmt: skip
def test_where_frames_meet_fates_of_their_own_pieces_may_not_stay(impairment: dict[str, object]) -> None:
    wire = direction(Impairment(**impairment), files={"trace": "1\n2\n"})  # type: ignore[arg-type]
    assert not wire.carries_gso
    wire.change(0, Impairment(delay=MILLISECOND))
    assert wire.carries_gso
    wire.change(0, Impairment(**impairment), files={"trace": "1\n2\n"})  # type: ignore[arg-type]
    assert not wire.carries_gso


def test_a_rule_ends_it_until_it_is_lifted_and_one_for_another_link_does_not() -> None:
    rules = RuleSet(standard_fields())
    wire = direction(Impairment(delay=MILLISECOND), rules=rules)
    rules.add(0, 'drop link == "other"')
    assert wire.carries_gso
    rule = rules.add(0, f'drop link == "{LINK}" and nth(3)')
    assert not wire.carries_gso
    rule.lift()
    assert wire.carries_gso
